"""Names of a model's classes: from a file, the model's own configuration, or the data it was trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gyrograd.errors import UserError
from gyrograd.models.specs import spec_of
from gyrograd.types import Model

IMAGENET = 1000
WORDNET_ID = r"n[0-9]{8}"
"""Name of a folder of ImageNet."""


def class_names(model: Model, count: int, of_data: Sequence[str] | None = None) -> tuple[str, ...] | None:
    """The names of a model's `count` classes, or None if they are not known.

    What the model itself carries comes first: its `class_names`, a Hugging Face configuration's `id2label`, ImageNet's
    for 1,000 classes of torchvision or timm. Then the classes of the data, if there are as many.

    >>> import gyrograd as gg
    >>> class_names(gg.load("cifar10/lenet-ce"), 10)[:3]
    ('airplane', 'automobile', 'bird')
    """
    own = own_class_names(model, count)
    if own is None and of_data is not None and len(of_data) == count:
        return tuple(of_data)
    return own


def own_class_names(model: Model, count: int) -> tuple[str, ...] | None:
    """The names that the model itself carries, if there are as many as it has classes."""
    for module in model.modules():
        config = vars(module).get("config")
        labels = config.get("id2label") if isinstance(config, Mapping) else getattr(config, "id2label", None)
        for names in (vars(module).get("class_names"), labels):
            found = _in_order(names)
            # A configuration that was never filled in says LABEL_0, LABEL_1, ...
            if found is not None and len(found) == count and not all(n.startswith("LABEL_") for n in found):
                return found
        spec = spec_of(module)
        if spec is not None and count == IMAGENET and spec.name.partition(":")[0] in ("torchvision", "timm"):
            return imagenet_names()
    return None


def imagenet_names() -> tuple[str, ...]:
    """ImageNet's 1,000 classes, as torchvision's weights name them; nothing is fetched."""
    from torchvision.models import ResNet18_Weights

    return tuple(ResNet18_Weights.DEFAULT.meta["categories"])


def label_notes(model: Model, count: int, source: str, of_data: Sequence[str]) -> tuple[str, ...]:
    """A sentence if the labels of this data seem to number other classes than the model's `count`, else nothing."""
    own = own_class_names(model, count)
    if own is not None and len(of_data) == count and all(re.fullmatch(WORDNET_ID, name) for name in of_data):
        return ()  # ImageNet's folders, whose order is that of its classes
    if own is not None and not set(own) & set(of_data):
        return (
            f"The classes of {source} ({of_data[0]}, ...) are not those of the model ({own[0]}, ...), so its labels "
            "may be wrong; leave them out with --unlabelled.",
        )
    for number, name in enumerate(of_data if own is not None else ()):
        if own is not None and name in own and own[number : number + 1] != (name,):
            return (
                f"Class {number} of {source} is {name}, which is class {own.index(name)} of the model, so its labels "
                "may be wrong; leave them out with --unlabelled.",
            )
    if len(of_data) != count:
        return (f"{source} has {len(of_data)} classes and the model {count}, so its labels may be wrong.",)
    return ()


def read_class_names(path: Path | str, count: int) -> tuple[str, ...]:
    """The names in a file: one per line, or JSON (a list, an object of numbers to names, or one with `id2label`)."""
    if str(path) == "imagenet":
        names: tuple[str, ...] | None = imagenet_names()
    else:
        names = _read_names(Path(path).expanduser())
    if names is None:
        raise UserError(
            f"{path} holds no class names; write one per line, or JSON: a list, or numbers to names."
        )
    if len(names) != count:
        raise UserError(
            f"{path} names {len(names)} classes and the model has {count}; give one name for each."
        )
    return names


def _read_names(path: Path) -> tuple[str, ...] | None:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as wrong:
        reason = getattr(wrong, "strerror", None) or "it is not UTF-8 text"
        raise UserError(
            f"The class names in {path} cannot be read ({reason}); give a text file, one name per line."
        ) from None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return tuple(line.strip() for line in text.splitlines() if line.strip()) or None
    return _in_order(document.get("id2label", document) if isinstance(document, dict) else document)


def _in_order(names: Any) -> tuple[str, ...] | None:
    """The names by their numbers from 0 on; None if this is something else."""
    if isinstance(names, list | tuple):
        return tuple(map(str, names)) or None
    if not isinstance(names, Mapping):
        return None
    by_number = {int(key): str(name) for key, name in names.items() if str(key).isdecimal()}
    if not by_number or len(by_number) < len(names) or sorted(by_number) != list(range(len(by_number))):
        return None
    return tuple(by_number[number] for number in range(len(by_number)))
