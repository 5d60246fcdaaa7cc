"""Moved: `gyrograd.harden`. By name, because hardening is built on the audit, which is built on training."""

from gyrograd.renames import keep_old_names

keep_old_names(__name__, Hardened="gyrograd.hardening.Hardened", harden="gyrograd.hardening.harden")
