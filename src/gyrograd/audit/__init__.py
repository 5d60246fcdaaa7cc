"""The audit: one call that tells whether a model's explanations can be trusted.

Files, in the order an audit visits them: engine (all of it in order), presets (how much), methods (of what), plans
(what `measurement.measure` is asked for; theorems, certificates and precision add to it), growing (the page
meanwhile), table (measured columns to the card's numbers; steady: how far a map holds), sanity_checks (flags), plane
(what to recommend), verdict, pictures, identity (what a rerun needs), card, summary. features is the same for tables,
series and volumes, submission for `gyrograd submit` and `verify`.
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
