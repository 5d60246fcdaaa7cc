"""Renamed: `gyrograd.theory.estimates`."""

from gyrograd.renames import keep_old_module

keep_old_module(__name__, "gyrograd.theory.estimates")
