"""Models of other libraries by name: `torchvision:resnet18`, `timm:resnet18`, `hf:vit` (extras: timm, transformers)."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from gyrograd.errors import UserError, check_name
from gyrograd.models import hugging_face
from gyrograd.registry import Settings

# Models with auxiliary heads return tuples in train mode; with these settings they return only logits.
_SINGLE_OUTPUT = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}


_READS_FILES = {
    "weights", "weights_backbone", "checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay",
    "pretrained_backbone", "cache_dir", "pretrained_strict", "state_dict", "progress",
}  # fmt: skip
"""Settings of the libraries that download or unpickle weights. They are refused, because a checkpoint from anyone may
contain settings, and none of them may lead to a file."""


@dataclass(frozen=True)
class LibraryModel:
    """A foreign model, and the channel statistics its pretrained weights expect (None without weights)."""

    model: nn.Module
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None


def from_source(
    source: str, name: str, *, num_classes: int | None, pretrained: bool, **settings: Any
) -> LibraryModel:
    """A model of `source` ("torchvision", "timm", "hf"); with pretrained weights their class count is kept."""
    check_name("model source", source, _MAKERS)
    refused = sorted(_READS_FILES & settings.keys())
    if refused:
        raise UserError(
            f"'{refused[0]}' would make {source}:{name} read other files, which a model's settings may not do; "
            "give the weights with weights=PATH, or pretrained=True."
        )
    if pretrained and num_classes is not None:
        raise UserError(
            f"The pretrained weights of {source}:{name} have their own classes; "
            "leave num_classes out, or pretrained."
        )
    return _MAKERS[source](name, 10 if num_classes is None else num_classes, pretrained, settings)


def _from_torchvision(name: str, num_classes: int, pretrained: bool, settings: Settings) -> LibraryModel:
    library = importlib.import_module("torchvision.models")
    _check_known("torchvision", name, library.list_models(module=library))
    settings = {**_SINGLE_OUTPUT.get(name, {}), **settings}
    if not pretrained:
        model = _build(
            "torchvision", name, lambda: library.get_model(name, num_classes=num_classes, **settings)
        )
        return LibraryModel(model, None)
    weights = library.get_model_weights(name).DEFAULT
    settings.pop("init_weights", None)
    model = _build("torchvision", name, lambda: library.get_model(name, weights=weights, **settings))
    preset = weights.transforms()
    return LibraryModel(model, (tuple(preset.mean), tuple(preset.std)))


def _from_timm(name: str, num_classes: int, pretrained: bool, settings: Settings) -> LibraryModel:
    try:
        library: Any = importlib.import_module("timm")
    except ModuleNotFoundError:
        raise UserError("Models of timm need timm: pip install 'gyrograd[timm]'.") from None
    _check_known("timm", name, [*library.list_models(), *library.list_pretrained()])
    if "in_channels" in settings:
        settings = {**settings, "in_chans": settings["in_channels"]}
        del settings["in_channels"]
    classes = {} if pretrained else {"num_classes": num_classes}
    model = _build(
        "timm", name, lambda: library.create_model(name, pretrained=pretrained, **classes, **settings)
    )
    if not pretrained:
        return LibraryModel(model, None)
    trained: Any = model.pretrained_cfg
    return LibraryModel(model, (tuple(trained["mean"]), tuple(trained["std"])))


def _from_hugging_face(name: str, num_classes: int, pretrained: bool, settings: Settings) -> LibraryModel:
    if pretrained:
        raise UserError(f"'hf:{name}' is a kind of net; for trained weights name a folder, or hf:OWNER/NAME.")
    return LibraryModel(hugging_face.build_untrained(name, {**settings, "num_classes": num_classes}), None)


_MAKERS: dict[str, Callable[[str, int, bool, Settings], LibraryModel]] = {
    "torchvision": _from_torchvision,
    "timm": _from_timm,
    "hf": _from_hugging_face,
}


def _check_known(source: str, name: str, known: Iterable[str]) -> None:
    names = set(known)
    if name in names:
        return
    near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.6)
    hint = (
        f"did you mean {' or '.join(repr(n) for n in near)}?"
        if near
        else f"{source} has {len(names)} models."
    )
    raise UserError(f"There is no model '{source}:{name}': {hint}")


def _build(source: str, name: str, maker: Callable[[], nn.Module]) -> nn.Module:
    """The model; an unknown setting or a failed download is an error of one sentence."""
    try:
        return maker()
    except (TypeError, ValueError) as wrong:
        raise UserError(
            f"{source}:{name} does not take these settings ({wrong}); see its documentation."
        ) from wrong
    except (OSError, RuntimeError) as wrong:
        raise UserError(
            f"The weights of {source}:{name} could not be fetched ({wrong}); "
            "give a file with weights=PATH or leave pretrained out."
        ) from wrong
