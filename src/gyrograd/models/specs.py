"""The spec of a model in JSON: enough to build it again before its weights are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gyrograd.errors import UserError
from gyrograd.records import JsonObject


@dataclass(frozen=True)
class ModelSpec:
    """A backbone's name and settings, and its wrappers, innermost first.

    `wraps` holds (wrapper, settings) pairs such as ("normalized", {"mean": [...], "std": [...]}).
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    wraps: tuple[tuple[str, Mapping[str, Any]], ...] = ()

    def __post_init__(self) -> None:
        """Convert settings to plain JSON values, so that a spec equals its own round trip."""
        object.__setattr__(self, "settings", _plain(self.settings, self.name))
        wraps = tuple((wrapper, _plain(settings, wrapper)) for wrapper, settings in self.wraps)
        object.__setattr__(self, "wraps", wraps)

    def wrapped(self, wrapper: str, **settings: Any) -> ModelSpec:
        """The spec of this model with one more wrapper outside."""
        return ModelSpec(self.name, self.settings, (*self.wraps, (wrapper, settings)))

    def to_json(self) -> str:
        """The spec as one line of JSON."""
        wraps = [[wrapper, settings] for wrapper, settings in self.wraps]
        return json.dumps({"name": self.name, "settings": self.settings, "wraps": wraps}, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> ModelSpec:
        """Read what `to_json` wrote; anything else is an error."""
        try:
            document = json.loads(text)
            wraps = tuple((str(wrapper), dict(settings)) for wrapper, settings in document["wraps"])
            return ModelSpec(str(document["name"]), dict(document["settings"]), wraps)
        except (ValueError, KeyError, TypeError, RecursionError) as wrong:
            raise UserError(
                f"This is not the description of a model ({wrong}); give what ModelSpec.to_json wrote."
            ) from None


def spec_of(model: nn.Module) -> ModelSpec | None:
    """The spec of a model, or None for a module that gyrograd did not build."""
    spec = model.__dict__.get("spec")
    return spec if isinstance(spec, ModelSpec) else None


def attach_spec(model: nn.Module, spec: ModelSpec | None) -> None:
    """Set `model.spec`, which deepcopy copies and the state dict does not contain."""
    model.__dict__["spec"] = spec


def _plain(settings: Mapping[str, Any], owner: str) -> JsonObject:
    try:
        plain: JsonObject = json.loads(json.dumps(dict(settings), allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise UserError(
            f"The settings of '{owner}' are {dict(settings)}; give only numbers, strings, lists and None."
        ) from None
    return plain
