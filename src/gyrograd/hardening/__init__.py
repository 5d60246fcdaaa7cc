"""Hardening: a classifier that exists already is trained on until its explanations hold under attack.

`harden(model, data, out=...)` does all of it. Files: search (which strength to try next), judging (the same audit
before and after), card (what was gained at what price, in words), runs (all of it in order, resumed without loss).
"""

from gyrograd.hardening.runs import Hardened, harden

__all__ = ["Hardened", "harden"]
