"""The learning rate as a function of where the run is: nothing to save, nothing to restore."""

from __future__ import annotations

import math

from gyrograd.training.settings import TrainSettings

ONE_CYCLE_RISE, ONE_CYCLE_START, ONE_CYCLE_END = 0.3, 1 / 25, 1 / 25e4
"""Share of the run in which the rate rises, and where it starts and ends as parts of lr: torch's own choice."""


def learning_rate(settings: TrainSettings, epoch: int, batch: int, batches: int) -> float:
    """The rate of step `batch` of `batches` in this epoch, warm-up included."""
    s, place = settings, epoch + batch / batches
    at = place if s.schedule_every == "step" else float(epoch)
    warm = min(1.0, (place + 1 / batches) / s.warmup) if s.warmup else 1.0
    return s.lr * warm * _factor(s, at, epoch * batches + batch, s.epochs * batches)


def _factor(settings: TrainSettings, at: float, step: int, steps: int) -> float:
    if settings.schedule == "cosine":
        return (1 + math.cos(math.pi * at / settings.epochs)) / 2
    if settings.schedule == "multi_step":
        return float(settings.gamma ** sum(at >= milestone for milestone in settings.milestones))
    if settings.schedule == "one_cycle":
        return _one_cycle(step, steps)
    return 1.0


def _one_cycle(step: int, steps: int) -> float:
    top = ONE_CYCLE_RISE * steps - 1
    if step < top:
        return _half_cosine(ONE_CYCLE_START, 1.0, step / top)
    return _half_cosine(1.0, ONE_CYCLE_END, (step - top) / (steps - 1 - top))


def _half_cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2
