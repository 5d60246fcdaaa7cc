"""The model and images of a command: opened, checked and matched."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gyrograd.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from gyrograd.data import Dataset
    from gyrograd.types import Model

TRIAL_IMAGES = 8
"""Images for a trial run of the model before any work."""
AT_ONCE = 16
"""Images per part of `explain` and `attack`; pictures are written after each, so an interruption loses at most one."""
FROM_A_SET = 16
"""Default number of images of a registered set, which may hold thousands; files are all used."""
WHY_NOT_FINITE = "look for a root or logarithm of 0 in the model"
"""Advice for maps with NaN if the model's logits are finite."""


@dataclass(frozen=True)
class Opening:
    """Options for opening model and images, shared by verbs; a verb's docstring may override a text.

    `model`, `data` and `target` are the verbs' own, with the same text in all of them.

    Args:
        model: a checkpoint, a zoo or registry name, torchvision:NAME or timm:NAME (with :pretrained for trained
            weights), hf:OWNER/NAME or a folder of Hugging Face transformers, FILE.py:FACTORY (this runs the file), or
            a TorchScript or torch.export file.
        data: a registered set such as shapes, a folder with or without a sub-folder for each class, an image, or
            a pattern in quotes such as 'photos/*.png'; also tar files (WebDataset), Parquet files and folders that
            Hugging Face datasets saved.
        target: the class explained: predicted, label, or its number.
        images: number of images at most; default: all files, or 16 of a registered set.
        size: side of the images in pixels; default: that of the model, if known.
        split: split of the data; default: test, if there is one.
        unlabelled: ignore sub-folders as labels.
        weights: state dict of the model: safetensors, or a .pt file with only tensors.
        classes: number of classes of a model built by name; default: that of its weights, else of the labelled data,
            else the architecture's own.
        class_names: names of the classes: a file with one per line, or JSON (a list, or id2label); or imagenet.
            Known for the zoo, torchvision, timm and Hugging Face models.
        normalize: cifar10, imagenet or efficientnet_lite, the statistics of a model that does not normalise by
            itself.
        device: auto, cpu, cuda or cuda:INDEX.
        seed: for the choice of images.
    """

    images: int | None = None
    size: int | None = None
    split: str | None = None
    unlabelled: bool = False
    weights: Path | None = None
    classes: int | None = None
    class_names: str | None = None
    normalize: str | None = None
    device: str = "auto"
    seed: int = 0


USUAL = Opening()
"""Nothing said."""


@dataclass(frozen=True, eq=False)
class CommandInputs:
    """A model and its images. `names` and `index` identify the images; `notes` are remarks for the reader."""

    model: Model
    data: Dataset
    names: tuple[str, ...]
    index: tuple[int, ...]
    classes: int
    notes: tuple[str, ...]
    class_names: tuple[str, ...] | None = None

    @property
    def labelled(self) -> bool:
        """True if the data has labels."""
        from gyrograd.data.opening import is_labelled

        return is_labelled(self.data)

    def class_name(self, index: int) -> str:
        """The name of a class, or its number if names are not known."""
        return f"class {index}" if self.class_names is None else self.class_names[index]

    def pixels(self, first: int, last: int) -> Tensor:
        """Some of the images on the model's device."""
        import torch

        return self.data.pixels(torch.arange(first, min(last, len(self.data))))

    def part(self, target: str, first: int, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Some of the images, their logits, and the classes to explain: predictions, labels, or one class for all."""
        import torch

        from gyrograd.models import logits_of

        x = self.pixels(first, first + count)
        with torch.no_grad():
            logits = logits_of(self.model, x)
        if target == "predicted":
            return x, logits, logits.argmax(1)
        if target == "label":
            return x, logits, self.data.labels[first : first + len(x)]
        return x, logits, logits.argmax(1).new_full((len(x),), int(target))


def open_inputs(
    model: str,
    data: str | list[str],
    opening: Opening,
    *,
    target: str = "predicted",
    from_a_set: int = FROM_A_SET,
) -> CommandInputs:
    """Open model and images, try the model on a few images, and check that labels, classes and target match."""
    import torch

    from gyrograd.data.opening import (
        Choice,
        check_labels_fit,
        is_labelled,
        is_registered,
        open_data_with_names,
    )
    from gyrograd.metrics.sanity_checks import model_flags
    from gyrograd.models.class_names import class_names, label_notes, read_class_names
    from gyrograd.models.opening import (
        check_model,
        image_size,
        match_classes,
        notes,
        open_model,
        resolve_device,
    )

    data = data[0] if isinstance(data, list) and len(data) == 1 else data
    place = resolve_device(opening.device)
    net = open_model(
        model, weights=opening.weights, classes=opening.classes, normalize=opening.normalize, device=place
    )
    of_a_set = isinstance(data, str) and is_registered(data)
    choice = Choice(
        images=from_a_set if opening.images is None and of_a_set else opening.images,
        size=opening.size if opening.size is not None or of_a_set else image_size(net),
        split=opening.split,
        seed=opening.seed,
        labelled=False if opening.unlabelled else None,
    )
    found = open_data_with_names(data, choice)
    if opening.classes is None and is_labelled(found.data):
        net = match_classes(net, len(found.data.classes))
    shown = found.data.to(place)
    few = shown.pixels(torch.arange(min(TRIAL_IMAGES, len(shown))))
    net = check_model(net, few)
    with torch.no_grad():
        k = net(few[:1]).shape[1]
    check_labels_fit(shown, k)
    flags = model_flags(net, few)
    if opening.class_names is None:
        names = class_names(net, k, shown.classes if is_labelled(shown) else None)
    else:
        names = read_class_names(opening.class_names, k)
    remarks = (*notes(net), *(flag.note for flag in flags))
    here = CommandInputs(net, shown, found.names, found.index, k, remarks, names)
    _check_target(here, target)
    doubts = label_notes(net, k, shown.name, shown.classes) if here.labelled else ()
    return replace(here, notes=(*here.notes, *doubts))


def _check_target(here: CommandInputs, target: str) -> None:
    """Refuse a target other than predicted, label (if there are labels) or the number of a class."""
    if target == "label" and not here.labelled:
        raise UserError("The images have no labels; explain the predicted class: --target predicted.")
    if target in {"predicted", "label"}:
        return
    if not target.isdecimal() or int(target) >= here.classes:
        raise UserError(
            f"There is no target '{target}'; give predicted, label, or a class from 0 to {here.classes - 1}."
        )


def check_folder(out: Path) -> None:
    """Refuse a folder that cannot be written before anything is computed for it."""
    import os

    nearest = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise UserError(f"{nearest} is a file where a folder is needed; give another folder with --out.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise UserError(f"{nearest} cannot be written; give another folder with --out.")


def check_file(out: Path) -> None:
    """Refuse a file that cannot be written before anything is computed for it."""
    if out.is_dir():
        raise UserError(
            f"{out} is a folder where a file is written; give a file with --out, such as {out / 'page.html'}."
        )
    check_folder(out.parent)
