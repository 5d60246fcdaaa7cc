"""Descriptions of nets trained by the recipes of `training`, and of measurements of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from torch import Tensor

from gyrograd.data import data_root
from gyrograd.experiments.nets import BATCHNORM, Net, PretrainedNet, WeightedTerm
from gyrograd.experiments.scales import CHANGES
from gyrograd.metrics import Accuracy
from gyrograd.models import zoo
from gyrograd.numerics.random import Keys
from gyrograd.registry import Settings, lookup
from gyrograd.training.settings import recipe, recipe_tree
from gyrograd.types import Inputs, Labels, Model

NET_SIZES = ("data", "side", "train", "epochs", "batch_size")
OF_NO_NET = ("model", "model_settings", "start", "data", "data_settings", "test", "terms", "milestones")
"""Settings of a recipe that `Net` holds in other fields, or that the scale determines."""
OF_THE_DATA = ("normalize",)
"""Settings of a recipe's model that depend on its images: a scale with other images has its own, or none."""

Columns: TypeAlias = dict[str, Tensor]
Measurement = Callable[[Model, Inputs, Labels, Keys], Columns]


@dataclass(frozen=True)
class Part:
    """One measurement of a net: a function that computes columns for given examples.

    `settings` is everything that determines the values besides net, data and seed. `columns` takes the model, the
    images, their labels, and a key for each image (which depends only on the run's seed and the image). `split`
    chooses the images: the run's test images ("test"), or the first 10,000 training images ("train").
    """

    setting: str
    row: str
    seed: int
    what: str
    net: Net | PretrainedNet
    settings: Mapping[str, Any]
    columns: Measurement
    split: Literal["test", "train"] = "test"


@dataclass(frozen=True)
class TrainedNet:
    """A net of a run with its setting, row and seed; `part` makes a measurement of it.

    `way` is the training variant. The name of a row is the way and, if there are several, the explainer: "ssr ig".
    """

    setting: str
    way: str
    seed: int
    net: Net | PretrainedNet
    sizes: Mapping[str, Any]

    def part(
        self,
        row: str,
        what: str,
        settings: Mapping[str, Any],
        columns: Measurement,
        split: Literal["test", "train"] = "test",
    ) -> Part:
        """One measurement of this net."""
        return Part(self.setting, row, self.seed, what, self.net, settings, columns, split)


Maker: TypeAlias = Callable[[TrainedNet], Sequence[Part]]
"""What is measured of a net."""


def accuracy_of(column: str, *, what: str = "accuracy", split: Literal["test", "train"] = "test") -> Maker:
    """Accuracy: 100 for each image that the net classifies correctly, else 0."""

    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:  # noqa: ARG001
        return {column: 100 * Accuracy()(model, None, x, y)}

    return lambda trained_net: [trained_net.part(trained_net.way, what, {}, columns, split)]


def net_of(
    recipe_name: str,
    sizes: Mapping[str, Any],
    label: str,
    seed: int,
    changes: Mapping[str, Any] | None = None,
    teacher: Net | None = None,
) -> Net:
    """The net of a recipe of `training`, at the scale of these sizes.

    The recipe determines the training and the activation; the sizes determine model, images and number of epochs
    (milestones become shares of it); `--train` changes settings for all nets, `changes` for one row of a recipe.
    """
    settings = recipe(recipe_name, **(changes or {}))
    written = {*recipe_tree(recipe_name), *(changes or {}), "epochs"} - set(OF_NO_NET)
    how = {key: getattr(settings, key) for key in sorted(written)}
    if settings.schedule == "multi_step":
        del how["schedule"]
        how["milestones"] = tuple(epoch / settings.epochs for epoch in settings.milestones)
    asked = dict(sizes.get(CHANGES, {}))
    batchnorm = asked.pop(BATCHNORM, None)
    built = {key: value for key, value in settings.model_settings.items() if key not in OF_THE_DATA}
    return Net(
        label,
        {**built, **without_weights(sizes["model"])},
        {key: sizes[key] for key in NET_SIZES if key in sizes},
        {**how, **asked},
        {name: _term(name, dict(own), batchnorm) for name, own in settings.terms.items()},
        seed,
        teacher,
    )


def given_or(net: Net, sizes: Mapping[str, Any], way: str) -> Net | PretrainedNet:
    """A pretrained net if the model of these sizes names weights for this way (`weights = { natural = FILE }`).

    FILE is relative to the data folder; `zoo:NAME` is a model that comes with gyrograd.
    """
    file = sizes["model"].get("weights", {}).get(way)
    if file is None:
        return net
    in_zoo = file.startswith("zoo:")
    path = zoo.HOME / file.removeprefix("zoo:") / zoo.WEIGHTS if in_zoo else data_root() / file
    return PretrainedNet(f"{net.label} (given)", path, without_weights(sizes["model"]))


def without_weights(model: Mapping[str, Any]) -> Settings:
    """A model's name and settings alone."""
    return {key: value for key, value in model.items() if key != "weights"}


def _term(name: str, own: Settings, batchnorm: str | None) -> WeightedTerm:
    """A recipe's term in the form of `Net`: with a separate weight, unless the regularizer has its own (iga, atex)."""
    takes = inspect.signature(lookup("regularizer", name).factory).parameters
    if batchnorm is not None and BATCHNORM in takes:
        own[BATCHNORM] = batchnorm
    return {"weight": 1.0 if "weight" in takes else own.pop("weight", 1.0), "settings": own}
