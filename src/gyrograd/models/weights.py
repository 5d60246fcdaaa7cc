"""Read tensors from safetensors, or from a .pt file that holds only tensors. Code is never unpickled."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from gyrograd.errors import UserError
from gyrograd.models.checksums import check_tensors
from gyrograd.models.renaming import rename_tensors

PREFIXES = ("module.", "model.", "_orig_mod.", "net.")
"""Prefixes that DataParallel, Lightning and torch.compile add to each name."""
CONTAINERS = ("state_dict", "model_state_dict", "model", "net", "weights")
"""Keys under which training scripts store the state dict."""

LONGEST_HEADER = 100_000_000
"""Most bytes of a header; safetensors itself refuses longer ones."""


class OtherClassCountError(UserError):
    """The weights fit except for the last layer: they belong to a model with another number of classes."""

    def __init__(self, path: Path | str, key: str, classes: int, own: int) -> None:
        super().__init__(
            f"{path} has {classes} classes ('{key}') and the model {own}; build the model with num_classes={classes}."
        )
        self.key, self.classes, self.own = key, classes, own


def load_state(model: nn.Module, path: Path | str) -> None:
    """Load a state dict into the model, or into the core of a wrapped one.

    Prefixes such as "module." are dropped, and an EfficientNet gets timm's names (`renaming`). A missing or unknown
    name, or a different shape, is an error, and the model is not changed.
    """
    tensors = read_tensors(Path(path))
    bare = _without_prefixes(tensors)

    def known(named: Mapping[str, Tensor]) -> int:
        return len(_best_fit(model, named).state_dict().keys() & named.keys())

    fitting = max((tensors, bare, rename_tensors(bare, model.state_dict())), key=known)
    fit(_best_fit(model, fitting), fitting, path)


def fit(model: nn.Module, tensors: Mapping[str, Tensor], path: Path | str) -> None:
    """Copy the tensors into the model; names and shapes must agree."""
    own = model.state_dict()
    # Old files lack BatchNorm's counter of batches, which torch then leaves alone.
    missing = [key for key in own if key not in tensors and not key.endswith("num_batches_tracked")]
    extra = [key for key in tensors if key not in own]
    if missing or extra:
        raise UserError(_names_differ(path, missing, extra))
    check_kinds(tensors, own, path)
    last = list(own)[-2:]  # weight and bias of the classifying layer
    for key, tensor in sorted(tensors.items(), key=lambda item: item[0] in last):
        if tensor.shape == own[key].shape:
            continue
        if key in last and tensor.shape[1:] == own[key].shape[1:]:
            raise OtherClassCountError(path, key, len(tensor), len(own[key]))
        raise UserError(
            f"{path}: '{key}' is {tuple(tensor.shape)} and the model's is {tuple(own[key].shape)}; "
            "build the model with the settings these weights were trained with."
        )
    model.load_state_dict(dict(tensors), strict=True)


def check_kinds(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], path: Path | str) -> None:
    """Refuse tensors that the model's type cannot hold: complex, integer, sparse or quantized ones."""
    for key, tensor in tensors.items():
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_nested:
            raise UserError(
                f"{path}: '{key}' is a sparse, quantized or empty tensor; save the weights as plain tensors."
            )
        if key in own and _kind(tensor) != _kind(own[key]):
            raise UserError(
                f"{path}: '{key}' holds {_kind(tensor)} and the model's are {_kind(own[key])}; "
                "save the weights of the model that was trained."
            )


def _kind(tensor: Tensor) -> str:
    if tensor.is_complex():
        return "complex numbers"
    if tensor.dtype is torch.bool:
        return "true or false"
    return "real numbers" if tensor.is_floating_point() else "whole numbers"


def _names_differ(path: Path | str, missing: list[str], extra: list[str]) -> str:
    if not missing:
        return f"{path} has {_names_in_words(extra)} that the model lacks; build the model these weights belong to."
    near = difflib.get_close_matches(missing[0], extra, n=1)
    hint = f"the nearest there is '{near[0]}'" if near else "nothing there is near it"
    return (
        f"{path} lacks {_names_in_words(missing)} of the model ({hint}); "
        "build the model these weights belong to, or rename them."
    )


def _names_in_words(keys: list[str]) -> str:
    return f"'{keys[0]}'" + (f" and {len(keys) - 1} more" if len(keys) > 1 else "")


def _best_fit(model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The model, or the innermost core of its wrappers, whichever has more of the names in the file."""
    best, inner = model, getattr(model, "core", None)
    while isinstance(inner, nn.Module):
        if len(inner.state_dict().keys() & tensors.keys()) > len(best.state_dict().keys() & tensors.keys()):
            best = inner
        inner = getattr(inner, "core", None)
    return best


def _without_prefixes(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors without a prefix that all names share."""
    for prefix in PREFIXES:
        if tensors and all(key.startswith(prefix) for key in tensors):
            return _without_prefixes({key.removeprefix(prefix): tensor for key, tensor in tensors.items()})
    return dict(tensors)


def is_pickled(path: Path) -> bool:
    """True if the file begins like a pickle or a zip, and not like safetensors."""
    # safetensors begins with the length of its header in eight bytes, which may look like either, and then a brace.
    with path.open("rb") as file:
        start = file.read(9)
    if start[8:] == b"{" and int.from_bytes(start[:8], "little") <= LONGEST_HEADER:
        return False
    return start[:2] == b"PK" or start[:1] == b"\x80"


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name: safetensors, or a .pt that holds a state dict; a checksum is verified."""
    if not path.is_file():
        raise UserError(f"There is no file of weights at {path}; check the path.")
    if is_pickled(path):
        return _state_dict(_unpickle(path), path)
    try:
        with safe_open(path, framework="pt") as file:
            words = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, ValueError, RuntimeError, OSError) as wrong:
        raise UserError(
            f"{path} is neither safetensors nor a .pt of tensors ({wrong}); save the weights as safetensors."
        ) from wrong
    check_tensors(path, words, tensors)
    return tensors


def _unpickle(path: Path) -> Any:
    """The content that torch reads without running code; all errors of a damaged or unsafe file are UserErrors."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as wrong:
        raise UserError(
            f"{path} is damaged or holds more than tensors, and gyrograd runs no code from files; "
            "save the state dict alone, as safetensors."
        ) from wrong


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    for key in CONTAINERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{path} holds no state dict; save model.state_dict() there.")
    return {str(key): value for key, value in content.items()}
