"""The models and the data set of a page."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from gyrograd.data import Dataset
from gyrograd.data.folder import read_image
from gyrograd.data.opening import (
    Choice,
    NamedData,
    check_labels_fit,
    is_labelled,
    is_registered,
    open_data_with_names,
)
from gyrograd.errors import UserError, did_you_mean
from gyrograd.models import logits_of
from gyrograd.models.class_names import class_names as known_class_names
from gyrograd.models.class_names import read_class_names
from gyrograd.models.opening import check_model, image_size, match_classes, notes, open_model
from gyrograd.types import Images, Model

TRIAL_IMAGES = 8
"""Number of images on which every model is tried before the page opens."""
FROM_FILES = 200
"""Default number of images read from a folder; registered data sets are in memory as a whole."""
DRAWINGS = "shapes"
"""Embedded images, for models without a data set."""
MODEL_FILES = {".safetensors", ".pt", ".pth", ".pt2", ".ts"}
"""Endings of files that hold a model."""


@dataclass(frozen=True, eq=False)
class Net:
    """A model with its name, the names of its classes, and notes for the reader."""

    name: str
    model: Model
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def check_class(self, number: int) -> None:
        """Raise if the model does not have this class."""
        if not 0 <= number < len(self.classes):
            raise UserError(
                f"{self.name} has no class {number}; choose one from 0 to {len(self.classes) - 1}, or explain what "
                "the model predicts."
            )


@dataclass(frozen=True, eq=False)
class Stage:
    """Models and the images they explain. `seed` is that of every attack; `notes` are about the images."""

    nets: tuple[Net, ...]
    data: Dataset
    names: tuple[str, ...]
    seed: int = 0
    notes: tuple[str, ...] = ()

    def net(self, name: str) -> Net:
        """The model of this name."""
        known = {net.name: net for net in self.nets}
        if name not in known:
            raise UserError(f"There is no model '{name}' on this page: {did_you_mean(name, known)}")
        return known[name]

    def image(self, index: int) -> Images:
        """An image of the data set, as a batch of one."""
        if not 0 <= index < len(self.data):
            raise UserError(
                f"{self.data.name} has no image {index} here; choose one from 0 to {len(self.data) - 1}."
            )
        return self.data.pixels(torch.tensor([index]))

    def image_of_file(self, path: Path | str) -> Images:
        """Read a picture file and fit it to the size of the data set's images; a batch of one."""
        high, wide = self.data.images.shape[2:]
        try:
            with warnings.catch_warnings():
                # Pillow warns above 90 megapixels and refuses twice that; the refusal is enough.
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                levels = read_image(Path(path), (high, wide))
        except UserError as wrong:
            # The reader's own message names the page's copy of the file, which means nothing to the user.
            raise UserError(
                f"{Path(path).name} cannot be read as an image; give a PNG or JPEG file."
            ) from wrong
        return levels[None].to(self.data.labels.device, torch.float32) / 255

    def label(self, index: int) -> str | None:
        """The name of an image's label; None if the data are not labelled."""
        return self.data.classes[int(self.data.labels[index])] if is_labelled(self.data) else None


def open_stage(
    models: Sequence[str],
    data: str | None,
    *,
    weights: Path | None = None,
    classes: int | None = None,
    class_names: str | None = None,
    normalize: str | None = None,
    images: int | None = None,
    size: int | None = None,
    split: str | None = None,
    unlabelled: bool = False,
    device: str = "cpu",
    seed: int = 0,
) -> Stage:
    """Open the models and the images as `gyrograd audit` does; without data, embedded drawings are used."""
    _check_models(models, weights)
    nets = {
        name: open_model(text, weights=weights, classes=classes, normalize=normalize, device=device)
        for name, text in zip(short_names(models), models, strict=True)
    }
    side = size or image_size(next(iter(nets.values())))
    if data is None:
        drawings = open_data_with_names(DRAWINGS, Choice(size=side, labelled=False))
        return make_stage(
            nets, drawings, device=device, seed=seed, notes=(OF_OTHERS,), class_names=class_names
        )
    of_a_set = is_registered(data)
    choice = Choice(
        images=images if images is not None or of_a_set else FROM_FILES,
        size=size if of_a_set else side,
        split=split,
        seed=seed,
        labelled=False if unlabelled else None,
    )
    found = open_data_with_names(data, choice)
    if classes is None and is_labelled(found.data):
        nets = {text: match_classes(net, len(found.data.classes)) for text, net in nets.items()}
    return make_stage(nets, found, device=device, seed=seed, class_names=class_names)


def short_names(models: Sequence[str]) -> list[str]:
    """Files without folder and ending, as long as all names differ; other models as they were written.

    >>> short_names(["out/plain.safetensors", "out/steady.safetensors", "timm:resnet18"])
    ['plain', 'steady', 'timm:resnet18']
    """
    # A checkpoint has an ending; the zoo's cifar10/lenet-ce and timm:NAME have none, and nets.py:make is two things.
    short = [Path(text).stem if Path(text).suffix in MODEL_FILES else text for text in models]
    return short if len(set(short)) == len(short) else list(models)


OF_OTHERS = (
    "No images were named (--data), so embedded drawings stand in, which the model was not trained on: drag in an "
    "image of your own."
)


def make_stage(
    models: Mapping[str, Model],
    found: NamedData,
    *,
    device: str = "cpu",
    seed: int = 0,
    notes: Sequence[str] = (),
    class_names: str | None = None,
) -> Stage:
    """A stage of open models and images; `notes` are about the images.

    `class_names`: a file with the names of the models' classes, or "imagenet"; by default they are looked up.
    """
    data = found.data.to(device)
    x = data.pixels(torch.arange(min(TRIAL_IMAGES, len(data))))
    nets = tuple(_net(name, model, data, x, class_names) for name, model in models.items())
    return Stage(nets, data, found.names, seed, tuple(notes))


def _net(name: str, model: Model, data: Dataset, x: Images, names: str | None) -> Net:
    model = check_model(model, x)
    with torch.no_grad():
        k = logits_of(model, x[:1]).shape[1]
    check_labels_fit(data, k)
    named = is_labelled(data) and len(data.classes) == k
    of_data = data.classes if named else None
    known = read_class_names(names, k) if names else known_class_names(model, k, of_data)
    classes = known or tuple(f"class {number}" for number in range(k))
    about = [*notes(model)]
    if is_labelled(data) and not named:
        about.append(
            f"{data.name} has {len(data.classes)} classes and the model {k}: its labels may not be the model's."
        )
    return Net(name, model, classes, tuple(about))


def _check_models(models: Sequence[str], weights: Path | None) -> None:
    twice = [name for name in models if list(models).count(name) > 1]
    if not models:
        raise UserError("No model is named; give one, such as cifar10/lenet-ce.")
    if twice:
        raise UserError(f"{twice[0]} is named twice; name each model once.")
    if weights is not None and len(models) > 1:
        raise UserError(
            f"--weights fits one model and {len(models)} are named; name one, or checkpoints, which hold their weights."
        )
