"""Every registered backbone: parameters, one forward pass and one double-backward pass: `make backbones`.

The double backward is what attacks and regularisers pay: the gradient of a logit to the images, kept with its
graph, its squared length differentiated to every weight. Batch 8, Softplus for ReLU, medians of runs.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.records import write_text

BATCH, REPEATS = 8, 5


def main() -> None:
    torch.set_flush_denormal(True)
    header = ["backbone", "parameters", "forward ms (range)", "double backward ms (range)", "weights reached"]
    rows = [row(name) for name in gg.available("model")]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in [header, ["---"] * len(header), *rows])
    where = f"torch {torch.__version__}, {torch.get_num_threads()} CPU threads, batch {BATCH}, median of {REPEATS}."
    text = f"# Backbones\n\nCommand: `make backbones`. {where}\n\n{table}\n"
    print(text)
    write_text(Path(__file__).parents[1] / "results" / "backbones.md", text)


def row(name: str) -> list[str]:
    # Swin has GELU, not ReLU: nothing to swap.
    smooth = {} if name == "swin" else {"activation": "softplus", "beta": 3}
    model = gg.model(name, seed=0, **smooth).eval()
    x = torch.rand(BATCH, 2) if name == "mlp" else torch.rand(BATCH, 3, 32, 32)
    target = torch.zeros(BATCH, dtype=torch.long)
    reached = sum(gradient is not None for gradient in double_backward(model, x, target))
    total = sum(1 for _ in model.parameters())
    with torch.no_grad():
        forward = timed(lambda: model(x))
    twice = timed(lambda: double_backward(model, x, target))
    parameters = f"{sum(p.numel() for p in model.parameters()):,}"
    return [name, parameters, forward, twice, f"{reached} of {total}"]


def double_backward(model: nn.Module, x: Tensor, target: Tensor) -> tuple[Tensor | None, ...]:
    maps = gg.attribution("gradient")(model, x, target, create_graph=True)
    return torch.autograd.grad(maps.square().sum(), list(model.parameters()), allow_unused=True)


def timed(call: Callable[[], object]) -> str:
    seconds = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        call()
        seconds.append((time.perf_counter() - started) * 1000)
    measured = seconds[1:]  # the first one warms up
    return f"{statistics.median(measured):.1f} ({min(measured):.1f} to {max(measured):.1f})"


if __name__ == "__main__":
    main()
