"""Measurements in pieces that survive an interruption: cells, cut into shards, one file each."""

from gyrograd.evaluation.cells import Cell, fingerprint, streams
from gyrograd.evaluation.runs import evaluated, finished, forget

__all__ = ["Cell", "evaluated", "fingerprint", "finished", "forget", "streams"]
