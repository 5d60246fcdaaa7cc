"""The audit: one call that tells whether a model's explanations can be trusted.

Files: presets (how much), methods (of what), measurements (the cells), theorems, table (records to numbers),
steady (how far a map holds), plane (what to recommend), sanity_checks (flags), verdict, summary, pictures,
card, engine (all of it in order); features (the audit of tables, series and volumes, a card of its own).
"""

import sys
from types import ModuleType
from typing import Any

from gyrograd.audit.card import Card
from gyrograd.audit.engine import audit
from gyrograd.audit.features import FeatureCard
from gyrograd.audit.presets import PRESETS, Preset

__all__ = ["PRESETS", "Card", "FeatureCard", "Preset", "audit"]


class _CallableModule(ModuleType):
    """`gyrograd.audit` is this folder as soon as it is imported; called, it is the function all the same."""

    def __call__(self, *args: Any, **kwargs: Any) -> Card | FeatureCard:
        return audit(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
