"""A model from the user's own Python file, `path/to/file.py:factory`. This runs the file."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from gyrograd.errors import UserError, did_you_mean, in_words


def model_from_file(path: Path, name: str, classes: int | None = None) -> nn.Module:
    """The model that `name` of this file is, or returns when called; `classes` is passed on as `num_classes`."""
    if not path.is_file():
        raise UserError(f"There is no file {path}; give the Python file that makes the model.")
    module = _import_file(path)
    if not hasattr(module, name):
        own = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise UserError(f"{path} has no '{name}': {did_you_mean(name, own)}")
    found = getattr(module, name)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise UserError(
            f"'{name}' of {path} is a {type(found).__name__}; name a function that returns the model."
        )
    if classes is not None and not _takes_num_classes(found):
        raise UserError(f"{path}:{name} takes no num_classes; leave --classes out.")
    settings = {} if classes is None else {"num_classes": classes}
    try:
        with _beside(path):
            model = found(**settings)
    except Exception as wrong:
        raise UserError(
            f"{path}:{name} failed ({in_words(wrong)}); give a function that can be called without arguments"
            f"{' except num_classes' if settings else ''} and returns the model."
        ) from wrong
    if not isinstance(model, nn.Module):
        raise UserError(f"{path}:{name} returned a {type(model).__name__}; it must return a torch.nn.Module.")
    return model


def _import_file(path: Path) -> ModuleType:
    """The file as a module, registered in sys.modules while it runs, where dataclasses look themselves up."""
    spec = importlib.util.spec_from_file_location(f"gyrograd_user_file_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file; give FILE.py:FACTORY.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        with _beside(path):
            spec.loader.exec_module(module)
    except Exception as wrong:
        raise UserError(f"{path} could not be run ({in_words(wrong)}); fix it and try again.") from wrong
    return module


def _takes_num_classes(factory: Any) -> bool:
    try:
        return "num_classes" in inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some callables of C have no signature
        return False


@contextmanager
def _beside(path: Path) -> Iterator[None]:
    """Allow imports of files next to this one for the block, as for a script."""
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
