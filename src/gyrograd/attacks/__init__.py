"""Attacks on explanations: changes no eye can see that move the map and leave the prediction alone.

Files: loop (the one search), objectives (what is minimised), twin (derivatives of piecewise linear nets), settings
(what attacks are declared with), named (the attacks), auto (the one to judge by), self_checks (when not to
trust it), squares (a search without derivatives), runs (from settings to result), result.
"""

from gyrograd.attacks.auto import Auto
from gyrograd.attacks.named import (
    Manipulate,
    MassCenter,
    Noise,
    Pgd,
    TargetedMap,
    TopK,
    UntargetedMap,
    transfer,
)
from gyrograd.attacks.result import AttackResult
from gyrograd.attacks.settings import MapSearch

__all__ = [
    "AttackResult",
    "Auto",
    "Manipulate",
    "MapSearch",
    "MassCenter",
    "Noise",
    "Pgd",
    "TargetedMap",
    "TopK",
    "UntargetedMap",
    "transfer",
]
