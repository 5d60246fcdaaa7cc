"""Moved: `gyrograd.harden`. The old place keeps working for one release."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    # By name, since hardening is built on the audit, which is built on training.
    if name in ("Hardened", "harden"):
        return getattr(importlib.import_module("gyrograd.hardening"), name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
