"""Work in parts: as many examples at once as memory allows, and half as many each time it runs out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from gyrograd.attributions.baselines import Baseline, baseline_of
from gyrograd.errors import UserError
from gyrograd.numerics.checks import check_inputs, check_rows, class_indices, try_model
from gyrograd.numerics.modes import eval_mode
from gyrograd.progress import track
from gyrograd.types import Model, Targets

T = TypeVar("T")

MAX_BATCH = 512
"""Default of the setting `max_batch`, images per pass of the model. On CUDA it stands for images of 32 px on a device
of 16 GB: a larger device takes more, and fewer fit if they are larger."""

DEVICE_BYTES, IMAGE_PIXELS, FEWEST_ROWS = 16 * 2**30, 32 * 32, 16

CPU_ROWS = 64
"""Most images of 32 px per pass on a CPU; fewer if they are larger. With 512 the activations of a small net do not fit
the cache and a pass takes twice as long."""

Explain = Callable[..., Tensor]
"""Maps some examples, their targets and, if a baseline is given, their baselines to attribution maps."""


def rows_per_example(model: Model) -> int:
    """Images per example inside the model; for a smoothed model its draws."""
    return int(getattr(model, "rows_per_example", 1))


def rows_at_once(max_batch: int, x: Tensor) -> int:
    """The budget of rows on the device of x."""
    if max_batch < 1:
        raise UserError(f"max_batch is {max_batch}; give the number of images in one pass, at least 1.")
    if x.device.type == "cpu":
        pixels = max(1, math.prod(x.shape[2:]))
        return min(max_batch, max(FEWEST_ROWS, CPU_ROWS * IMAGE_PIXELS // pixels))
    return max_batch if max_batch != MAX_BATCH or not x.is_cuda else _rows_for(x, _device_bytes(x.device))


def rows_with_graph(max_batch: int, x: Tensor) -> int:
    """The budget of rows whose activations a graph keeps. On a CPU more than one pass should have: activations that do
    not fit the cache cost less than to compute them again."""
    if x.device.type != "cpu":
        return rows_at_once(max_batch, x)
    return max(min(max_batch, FEWEST_ROWS), max_batch * IMAGE_PIXELS // max(1, math.prod(x.shape[2:])))


def _rows_for(x: Tensor, device_bytes: int) -> int:
    """`MAX_BATCH` scaled to this device and image size; at least a few, since a pass of one row takes as long."""
    pixels = max(1, math.prod(x.shape[2:]))
    return max(FEWEST_ROWS, MAX_BATCH * device_bytes * IMAGE_PIXELS // (DEVICE_BYTES * pixels))


@cache
def _device_bytes(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory)


def is_out_of_memory(wrong: RuntimeError) -> bool:
    """True if the device or the host ran out of memory."""
    words = ("not enough memory", "can't allocate memory")
    return isinstance(wrong, torch.OutOfMemoryError) or any(word in str(wrong) for word in words)


def explain_in_parts(
    explain: Explain,
    model: Model,
    x: Tensor,
    target: Targets,
    max_batch: int,
    create_graph: bool,
    *,
    passes: int = 1,
    baseline: Baseline | None = None,
) -> Tensor:
    """Maps of all examples, made by `explain` from as many at once as fit, with the model in eval mode.

    A model that was not seen before is first tried on a few examples. Values are checked only without `create_graph`:
    a check waits for the device, and a loop that differentiates maps has checked its input before.

    Args:
        explain: called with some examples and their targets; with their baselines, too, if `baseline` is given.
        model: the model.
        x: the examples; without `create_graph` they are detached.
        target: the class to explain per example.
        max_batch: the budget of rows, images in one pass of the model.
        create_graph: keep the graph, so that the maps can be differentiated.
        passes: rows of the model that an example takes; a smoothed model multiplies them by its draws.
        baseline: the setting of that name, for methods that start from a baseline per example.
    """
    if create_graph:
        check_rows(x)
    else:
        check_inputs(x)
        x = x.detach()
    at_once = max(1, rows_at_once(max_batch, x) // (passes * rows_per_example(model)))
    columns = [
        x,
        class_indices(target, x),
    ]  # before the model runs, because it recognises a missing batch axis
    try_model(model, x)
    bar = iter(track(range(len(x)), len(x), "explaining"))
    maps = []
    with eval_mode(model), graph_if(create_graph):
        if baseline is not None:
            columns.append(baseline_of(x, baseline))
        for map in in_parts(lambda rows: explain(*(column[rows] for column in columns)), len(x), at_once):
            maps.append(map)
            for _ in map:
                next(bar)
        # Maps made in the channels-last layout would surprise callers who use view().
        return (maps[0] if len(maps) == 1 else torch.cat(maps)).contiguous()


def copies_at_once(max_batch: int, x: Tensor, model: Model, rows: int = 1, *, graph: bool = False) -> int:
    """Copies of x that fit one pass, at least one; each example takes `rows` rows of the model."""
    budget = rows_with_graph(max_batch, x) if graph else rows_at_once(max_batch, x)
    return max(1, budget // (rows * len(x) * rows_per_example(model)))


def graph_if(wanted: bool) -> torch.set_grad_enabled:
    """Turn grad mode on for the block if a graph is wanted, even inside a caller's no_grad(); else leave it."""
    return torch.set_grad_enabled(wanted or torch.is_grad_enabled())


def in_parts(run: Callable[[slice], T], b: int, size: int) -> Iterator[T]:
    """`run` on all b rows, `size` at a time, and half as many each time memory runs out."""
    start = 0
    while start < b:
        size = min(size, b - start)
        try:
            part = run(slice(start, start + size))
        except RuntimeError as wrong:
            if size == 1 or not is_out_of_memory(wrong):
                raise
            part = None
        if part is None:
            # Outside the except block, whose traceback would keep the tensors of the failed part alive.
            torch.cuda.empty_cache()
            size //= 2
            continue
        yield part
        start += size
