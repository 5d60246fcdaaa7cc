"""Long work in parts: as many examples at once as the budget allows, half of that when memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.numerics.checks import check_inputs
from gyrograd.numerics.modes import evaluating
from gyrograd.progress import track
from gyrograd.types import Model

MAX_BATCH = 512
"""Images in one pass of the model, unless the setting `max_batch` says otherwise."""

Explain = Callable[[Tensor, Tensor], Tensor]


def rows_per_example(model: Model) -> int:
    """How many images one example costs inside the model (a smoothed model: its draws)."""
    return int(getattr(model, "rows_per_example", 1))


def explain_in_parts(
    explain: Explain,
    model: Model,
    x: Tensor,
    target: Tensor,
    *,
    rows: int,
    max_batch: int,
    create_graph: bool,
) -> Tensor:
    """Maps of all examples, `max_batch` rows at a time, with the model in eval mode.

    Values are checked only where no graph is asked for: a loop that differentiates maps has checked its input,
    and a check waits for the device.
    """
    if max_batch < 1:
        raise UserError(f"max_batch is the number of images in one pass and at least 1, not {max_batch}.")
    if not create_graph:
        check_inputs(x)
    if target.shape != x.shape[:1]:
        raise UserError(
            f"The target has shape {tuple(target.shape)} for {len(x)} examples; give one class index for each."
        )
    with evaluating(model):
        parts = list(_parts(explain, x, target, size=min(len(x), max(1, max_batch // rows))))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _parts(explain: Explain, x: Tensor, target: Tensor, size: int) -> Iterator[Tensor]:
    start, bar = 0, iter(track(range(len(x)), len(x), "explaining"))
    while start < len(x):
        stop = min(start + size, len(x))
        try:
            part = explain(x[start:stop], target[start:stop])
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size //= 2
            continue
        yield part
        for _ in range(start, stop):
            next(bar)
        start = stop
