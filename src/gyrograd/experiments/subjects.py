"""Nets out of the recipes of `training`, and measurements of them, as values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from torch import Tensor

from gyrograd.data import data_root
from gyrograd.experiments.nets import BATCHNORM, Given, Net
from gyrograd.experiments.scales import CHANGES
from gyrograd.metrics import Accuracy
from gyrograd.numerics.random import Keys
from gyrograd.registry import lookup
from gyrograd.training.settings import recipe, recipe_tree
from gyrograd.types import Inputs, Labels, Model

NET_SIZES = ("data", "side", "train", "epochs", "batch_size")
OF_NO_NET = ("model", "model_settings", "start", "data", "data_settings", "test", "terms", "milestones")
"""Settings of a recipe that a `Net` holds elsewhere, or that its scale decides."""
OF_THE_DATA = ("normalize",)
"""Settings of a recipe's model that belong to its images: a scale with other images brings its own, or none."""

Columns: TypeAlias = dict[str, Tensor]
Measurement = Callable[[Model, Inputs, Labels, Keys], Columns]


@dataclass(frozen=True)
class Part:
    """One measurement of a net: its columns for the examples asked for.

    `settings` is all that decides the values besides net, data and seed. `columns` takes the model, the images,
    their labels, and a key for each image (a function of the run's seed and the image alone). `split` says which
    images: those the run measures ("test"), or the first 10,000 that the net was trained on ("train").
    """

    setting: str
    row: str
    seed: int
    what: str
    net: Net | Given
    settings: Mapping[str, Any]
    columns: Measurement
    split: Literal["test", "train"] = "test"


@dataclass(frozen=True)
class Subject:
    """A net of a run by what it is called there; `part` makes a measurement of it.

    `way` says how it was trained. Rows carry the way and, where there are several, what is explained by: "ssr ig".
    """

    setting: str
    way: str
    seed: int
    net: Net | Given
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


Maker: TypeAlias = Callable[[Subject], Sequence[Part]]
"""What is measured of a net."""


def accuracy_of(column: str, *, what: str = "accuracy", split: Literal["test", "train"] = "test") -> Maker:
    """100 where the net is right about an image."""

    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:  # noqa: ARG001
        return {column: 100 * Accuracy()(model, None, x, y)}

    return lambda subject: [subject.part(subject.way, what, {}, columns, split)]


def net_of(
    recipe_name: str,
    sizes: Mapping[str, Any],
    label: str,
    seed: int,
    changes: Mapping[str, Any] | None = None,
    teacher: Net | None = None,
) -> Net:
    """The net that a recipe of `training` trains, at the scale of these sizes.

    The recipe decides how it is trained and its activation; the sizes which model, which images and how many epochs
    (milestones become shares of them); `--train` what the user changed. `changes` tells rows of one recipe apart.
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


def given_or(net: Net, sizes: Mapping[str, Any], way: str) -> Net | Given:
    """The net of a file where the setting's model names one for this way (`weights = { natural = FILE }`)."""
    file = sizes["model"].get("weights", {}).get(way)
    if file is None:
        return net
    return Given(f"{net.label} (given)", data_root() / file, without_weights(sizes["model"]))


def without_weights(model: Mapping[str, Any]) -> dict[str, Any]:
    """A model's name and settings alone."""
    return {key: value for key, value in model.items() if key != "weights"}


def _term(name: str, own: dict[str, Any], batchnorm: str | None) -> dict[str, Any]:
    """A recipe's term as a `Net` has it: the weight apart, unless it is the regulariser's own (iga, atex)."""
    takes = inspect.signature(lookup("regularizer", name).factory).parameters
    if batchnorm is not None and BATCHNORM in takes:
        own[BATCHNORM] = batchnorm
    return {"weight": 1.0 if "weight" in takes else own.pop("weight", 1.0), "settings": own}
