"""Hardening: fine-tune an existing classifier until its explanations hold under attack.

Entry point: `harden(model, data, out=...)`. Files: pipeline (audit, fine-tune, audit again; resumable), search (which
strength of the objective to try next), scores (how steady each explanation is, from an audit), card (the report).
"""

from gyrograd.hardening.pipeline import Hardened, harden

__all__ = ["Hardened", "harden"]
