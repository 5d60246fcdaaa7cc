"""Long work in parts: as many examples at once as the budget allows, half of that when memory runs out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeVar

import torch
from torch import Tensor

from gyrograd.errors import UserError
from gyrograd.numerics.checks import check_inputs, check_rows, class_indices, try_model
from gyrograd.numerics.modes import eval_mode
from gyrograd.progress import track
from gyrograd.types import Model, Targets

T = TypeVar("T")

MAX_BATCH = 512
"""Images in one pass of the model, unless the setting `max_batch` says otherwise. On CUDA this default means images of
32 px on a device of 16 GB: a larger device takes more of them, larger images are fewer."""

DEVICE_BYTES, IMAGE_PIXELS, FEWEST_ROWS = 16 * 2**30, 32 * 32, 16

CPU_ROWS = 64
"""The most on a CPU, for images of 32 px; larger images are fewer, smaller ones more. With 512 the activations of a
small net leave the cache and it takes twice as long."""

Explain = Callable[..., Tensor]
"""Some examples, their targets and whatever else comes one for each example, to their maps."""


def rows_per_example(model: Model) -> int:
    """How many images one example costs inside the model (a smoothed model: its draws)."""
    return int(getattr(model, "rows_per_example", 1))


def rows_at_once(max_batch: int, x: Tensor) -> int:
    """The budget of rows on the device of x."""
    if max_batch < 1:
        raise UserError(f"max_batch is the number of images in one pass and at least 1, not {max_batch}.")
    if x.device.type == "cpu":
        pixels = max(1, math.prod(x.shape[2:]))
        return min(max_batch, max(FEWEST_ROWS, CPU_ROWS * IMAGE_PIXELS // pixels))
    return max_batch if max_batch != MAX_BATCH or not x.is_cuda else _rows_for(x, _device_bytes(x.device))


def _rows_for(x: Tensor, device_bytes: int) -> int:
    """`MAX_BATCH` for this device and this image; at least a few, since a pass of one row costs as much."""
    pixels = max(1, math.prod(x.shape[2:]))
    return max(FEWEST_ROWS, MAX_BATCH * device_bytes * IMAGE_PIXELS // (DEVICE_BYTES * pixels))


@cache
def _device_bytes(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).total_memory)


def is_out_of_memory(wrong: RuntimeError) -> bool:
    """True if a device, or the host's allocator, ran out."""
    words = ("not enough memory", "can't allocate memory")
    return isinstance(wrong, torch.OutOfMemoryError) or any(word in str(wrong) for word in words)


def explain_in_parts(
    explain: Explain,
    model: Model,
    x: Tensor,
    target: Targets,
    *,
    rows: int,
    max_batch: int,
    create_graph: bool,
    others: tuple[Tensor, ...] = (),
) -> Tensor:
    """Maps of all examples, `max_batch` rows at a time, with the model in eval mode; `others` are cut like x.

    Values are checked only where no graph is asked for: a loop that differentiates maps has checked its input,
    and a check waits for the device. A model that was not seen before is tried on a few examples.
    """
    if create_graph:
        check_rows(x)
    else:
        check_inputs(x)
    budget = rows_at_once(max_batch, x)
    columns = (x, class_indices(target, x), *others)  # first: it knows one image without a batch axis
    try_model(model, x)

    def part(rows: slice) -> Tensor:
        return explain(*(column[rows] for column in columns))

    bar = iter(track(range(len(x)), len(x), "explaining"))
    with eval_mode(model), graph_if(create_graph):
        maps = [_counted(bar, map) for map in in_parts(part, len(x), max(1, budget // rows))]
        return (maps[0] if len(maps) == 1 else torch.cat(maps)).contiguous()


def copies_at_once(max_batch: int, x: Tensor, model: Model, rows: int = 1) -> int:
    """How many copies of all of x one pass takes, at least one; each example of a copy is `rows` rows of the model."""
    return max(1, rows_at_once(max_batch, x) // (rows * len(x) * rows_per_example(model)))


def refuse_graph(create_graph: bool, why: str) -> None:
    """For methods without a derivative: `why` begins the sentence."""
    if create_graph:
        raise UserError(
            f"{why}, so create_graph=True cannot be met; attack it by transfer: perturb x with a gradient method and "
            "explain the result."
        )


def graph_if(wanted: bool) -> torch.set_grad_enabled:
    """For the block, a graph if one is wanted, also inside a caller's no_grad(); else as the caller has it."""
    return torch.set_grad_enabled(wanted or torch.is_grad_enabled())


def _counted(bar: Iterator[int], part: Tensor) -> Tensor:
    for _ in part:
        next(bar)
    return part


def in_parts(run: Callable[[slice], T], b: int, size: int) -> Iterator[T]:
    """`run` of all b rows, `size` at a time; half of that from where memory runs out."""
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
            # Outside the handler, so that the failed part's tensors are gone before the next try.
            torch.cuda.empty_cache()
            size //= 2
            continue
        yield part
        start += size
