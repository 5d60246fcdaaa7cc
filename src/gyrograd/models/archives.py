"""What a file of a model is, found from its bytes: nothing is unpickled to find out, and no suffix is believed."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from gyrograd.errors import UserError
from gyrograd.models.weights import is_pickled
from gyrograd.types import Inputs

Content = Literal["checkpoint", "safetensors", "torchscript", "export", "pickle", "other"]

_EXPORT_MARKS = ("archive_format", "serialized_exported_program.json")


def content_of(path: Path) -> Content:
    """What the file holds: a gyrograd checkpoint, other safetensors, a program of torch, a pickle, or none of them."""
    if not is_pickled(path):
        return _tensors_only(path)
    with path.open("rb") as file:
        if file.read(2) != b"PK":
            return "pickle"
    names = [name.partition("/")[2] or name for name in member_names(path)]
    if any(name.endswith(mark) for name in names for mark in _EXPORT_MARKS):
        return "export"
    # A scripted module is code and constants beside its data; a state dict is data.pkl alone.
    if "constants.pkl" in names and any(name.startswith("code/") for name in names):
        return "torchscript"
    return "pickle" if "data.pkl" in names else "other"


def member_names(path: Path) -> list[str]:
    """Names of the files in a zip, after checking that each is whole."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
            names = archive.namelist()
    except (zipfile.BadZipFile, EOFError, NotImplementedError, OSError, RuntimeError) as wrong:
        raise UserError(
            f"{path} is a damaged zip ({wrong}); copy it again or save the model again."
        ) from None
    if broken is not None:
        raise UserError(
            f"{path} is a damaged zip ({broken} is broken); copy it again or save the model again."
        )
    return names


class Scripted(nn.Module):
    """A TorchScript module inside a plain one, for scripted modules take no hooks from Python."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, x: Inputs) -> Any:
        """What the script returns."""
        return self.core(x)


def scripted(path: Path, device: torch.device) -> nn.Module:
    """A TorchScript file. torch reads it with its own interpreter, which knows no Python."""
    try:
        with warnings.catch_warnings():
            # torch.jit is deprecated, which versions of torch say in two ways; files of it are about
            for kind in (FutureWarning, DeprecationWarning):
                warnings.simplefilter("ignore", kind)
            module = Scripted(torch.jit.load(str(path), map_location=device))
    except (RuntimeError, ValueError) as wrong:
        raise UserError(
            f"{path} is damaged or is no TorchScript this torch can read ({_first_line(wrong)}); "
            "save it again with torch.jit.save."
        ) from None
    return module


def _tensors_only(path: Path) -> Content:
    try:
        with safe_open(path, framework="pt") as file:
            return "checkpoint" if "gyrograd" in (file.metadata() or {}) else "safetensors"
    except (SafetensorError, ValueError, RuntimeError):
        return "other"


def _first_line(wrong: Exception) -> str:
    return next((line.strip() for line in str(wrong).splitlines() if line.strip()), type(wrong).__name__)
