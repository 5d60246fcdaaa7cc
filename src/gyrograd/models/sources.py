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

# They return tuples in train mode; without auxiliary heads they return only logits.
_AUXILIARY_HEADS = {"googlenet", "inception_v3"}
_READS_FILES = {
    "weights", "weights_backbone", "checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay",
    "pretrained_backbone", "cache_dir", "pretrained_strict", "state_dict", "progress",
}  # fmt: skip
"""Settings of the libraries that download or unpickle weights. They are refused, because a checkpoint from anyone may
contain settings, and none of them may lead to a file."""


@dataclass(frozen=True)
class LibraryModel:
    """A foreign model, its class count, and the channel statistics of its pretrained weights (None without them)."""

    model: nn.Module
    classes: int
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None


def from_source(
    source: str, name: str, *, num_classes: int | None, pretrained: bool, **settings: Any
) -> LibraryModel:
    """A model of `source` ("torchvision", "timm", "hf"); without `num_classes` it has the library's own number."""
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
    given = {} if num_classes is None else {"num_classes": num_classes}
    return _MAKERS[source](name, pretrained, {**settings, **given})


def _from_torchvision(name: str, pretrained: bool, settings: Settings) -> LibraryModel:
    library = importlib.import_module("torchvision.models")
    _check_known("torchvision", name, library.list_models(module=library))
    if name in _AUXILIARY_HEADS:
        settings = {"aux_logits": False, "init_weights": True, **settings}
    weights = library.get_model_weights(name).DEFAULT if pretrained else None
    if pretrained:
        settings.pop("init_weights", None)
    model = _build("torchvision", name, lambda: library.get_model(name, weights=weights, **settings))
    # as many as the last layer has outputs
    heads = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    classes = int(heads[-1].weight.shape[0])
    if weights is None:
        return LibraryModel(model, classes)
    preset = weights.transforms()
    return LibraryModel(model, classes, (tuple(preset.mean), tuple(preset.std)))


def _from_timm(name: str, pretrained: bool, settings: Settings) -> LibraryModel:
    try:
        library: Any = importlib.import_module("timm")
    except ModuleNotFoundError:
        raise UserError("Models of timm need timm: pip install 'gyrograd[timm]'.") from None
    _check_known("timm", name, [*library.list_models(), *library.list_pretrained()])
    if "in_channels" in settings:
        settings["in_chans"] = settings.pop("in_channels")
    model: Any = _build("timm", name, lambda: library.create_model(name, pretrained=pretrained, **settings))
    if not pretrained:
        return LibraryModel(model, model.num_classes)
    trained = model.pretrained_cfg
    return LibraryModel(model, model.num_classes, (tuple(trained["mean"]), tuple(trained["std"])))


def _from_hugging_face(name: str, pretrained: bool, settings: Settings) -> LibraryModel:
    if pretrained:
        raise UserError(f"'hf:{name}' is a kind of net; for trained weights name a folder, or hf:OWNER/NAME.")
    model: Any = hugging_face.build_untrained(name, settings)
    return LibraryModel(model, model.core.config.num_labels)


_MAKERS: dict[str, Callable[[str, bool, Settings], LibraryModel]] = {
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
            f"{source}:{name} does not take these settings ({wrong}); leave out the one named here."
        ) from wrong
    except (OSError, RuntimeError) as wrong:
        raise UserError(
            f"The weights of {source}:{name} could not be fetched ({wrong}); "
            "give a file with weights=PATH or leave pretrained out."
        ) from wrong
