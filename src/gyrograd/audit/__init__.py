"""The audit: measures whether a model's explanations can be trusted.

Files, in the order in which an audit uses them: engine (the whole audit), presets (how much to measure), methods (the
explanations), plans (what `measurement.measure` runs; theorems, map_checks, certificates and precision add to it),
growing (the page of an unfinished audit), table (from measured columns to the card's numbers, the steady radius among
them), sanity_checks (flags), plane (the recommendation), verdict, pictures, identity (what a rerun needs), card.
features: the audit of tables, series and volumes. submission: `gyrograd submit` and `verify`.
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
    """Makes `gyrograd.audit(...)` work although importing this package replaces the function by the module."""

    def __call__(self, *args: Any, **kwargs: Any) -> Card | FeatureCard:
        return audit(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
