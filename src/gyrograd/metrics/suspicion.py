"""Renamed: `gyrograd.metrics.sanity_checks`."""

from gyrograd.renames import keep_old_module

keep_old_module(__name__, "gyrograd.metrics.sanity_checks")
