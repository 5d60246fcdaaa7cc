"""Attacks on explanations: invisible changes of an image that move the map and keep the prediction.

Files: settings (the base classes of attacks), named (the attacks of the papers), auto (the attack to judge by),
self_checks (its reasons for doubt), objectives (functions to minimise), loop (the gradient search), squares (a search
without derivatives), twin (smooth copies of piecewise linear nets), runs (from settings to result), result.
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
