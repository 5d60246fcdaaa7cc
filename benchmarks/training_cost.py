"""What alignment and steady training cost: time and memory of a step over those of cross-entropy, in one run.

    python benchmarks/training_cost.py --device cuda --out results/training_cost.json
    python benchmarks/training_cost.py --device cpu --nets lenet --batch 32

Each way is set up alone, which gives its memory: what torch allocated at most during a step, less what was there before
the net was built (CUDA only). Then a step of cross-entropy is set up beside it and the two are timed in turns,
`--repeats` times: the ratio is of these medians, and both are freed before the next way.
"""

from __future__ import annotations

import argparse
import gc
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import gyrograd as gg
from gyrograd import records
from gyrograd.training import TrainSettings, steady_settings
from gyrograd.training.capture import CapturedStep
from gyrograd.training.loop import Step, optimizer_of
from gyrograd.training.objective import objective_of
from gyrograd.training.processes import process_group

STEADY = steady_settings()["terms"]
ALIGN = {"l2_cosine": {"l2": 0.1, "cosine": 1.0}}
WAYS: dict[str, dict[str, Any]] = {
    "cross-entropy": {},
    "l2 + cosine, double backward": {"terms": ALIGN, "fast": False},
    "l2 + cosine, first-order passes": {"terms": ALIGN},
    "... on 1/4 of a batch": {"terms": ALIGN, "regularized_fraction": 0.25},
    "... on 3/16 of a batch, every 3rd step": {
        "terms": ALIGN,
        "regularized_fraction": 0.1875,
        "regularize_every": 3,
    },
    "... on 1/4 of a batch, every 4th step": {
        "terms": ALIGN,
        "regularized_fraction": 0.25,
        "regularize_every": 4,
    },
    "steady: one signed step": {"terms": {"adversarial": STEADY["adversarial"]}},
    **{
        f"... and curvature on 1/{part} of every {every}th batch": {
            "terms": STEADY,
            "regularized_fraction": 1 / part,
            "regularize_every": every,
        }
        for part, every in ((4, 4), (8, 4), (4, 8), (8, 8))
    },
}
NETS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "lenet": ("lenet", 32, {"normalize": "cifar10"}),
    "resnet18": ("resnet18", 32, {"normalize": "cifar10"}),
    "resnet18 at 128 px": ("torchvision:resnet18", 128, {"normalize": "imagenet"}),
}
"""Name, side of the image, settings. At 128 px the net is ImageNet's: a 7 x 7 stem with stride 2 and a max-pool."""


@dataclass(eq=False)
class Way:
    """One objective on one net, ready to step."""

    name: str
    step: Callable[..., Any]
    batch: tuple[Any, ...]
    period: int
    memory: float
    times: list[float]

    def run(self, steps: int) -> None:
        for number in range(steps):
            self.step(*self.batch, None, number)

    def timed(self, steps: int) -> None:
        wait(self.batch[0].device)
        started = time.perf_counter()
        self.run(steps)
        wait(self.batch[0].device)
        self.times.append(1000 * (time.perf_counter() - started) / steps)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def allocated(device: torch.device, *, most: bool = False) -> float:
    if device.type != "cuda":
        return 0.0
    return (torch.cuda.max_memory_allocated() if most else torch.cuda.memory_allocated()) / 2**20


def way(name: str, changes: dict[str, Any], net: str, options: argparse.Namespace) -> Way:
    device = torch.device(options.device)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = allocated(device)
    settings = TrainSettings(
        **{"clip": 0.5, "fast": True, "precision": options.precision, "device": options.device} | changes
    )
    name_of_net, side, of_net = NETS[net]
    model = gg.model(name_of_net, activation="softplus", beta=3, seed=0, num_classes=10, **of_net)
    model = model.to(device).train()
    x, y = (
        torch.rand(options.batch, 3, side, side, device=device),
        torch.arange(options.batch, device=device) % 10,
    )
    graph = device.type == "cuda"
    if graph:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        settings = TrainSettings(**{**vars(settings), "fast": True}) if not settings.terms else settings
    objective = objective_of(settings)
    fused = TrainSettings(**{**vars(settings), "fast": True, "terms": {}})
    plain = Step(model, optimizer_of(model, fused), objective, process_group(settings), settings.clip)
    made = Way(
        name,
        CapturedStep(plain) if graph else plain,
        (x, y, torch.arange(options.batch, device=device)),
        settings.regularize_every,
        0,
        [],
    )
    made.run(2 * settings.regularize_every)
    made.memory = allocated(device, most=True) - before
    return made


def rows(net: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row a way. Nothing of a way is left when the next is built."""
    for name in options.ways:
        changes = WAYS[name]
        way(name, changes, net, options)  # cuDNN tries its algorithms here, some of them with much memory
        one = way(name, changes, net, options)
        beside = way("cross-entropy", {}, net, options)
        for _ in range(options.repeats):
            beside.timed(options.steps)
            one.timed(options.steps)
        yield {
            "net": net,
            "objective": name,
            "ms": statistics.median(one.times),
            "ms_low": min(one.times),
            "ms_high": max(one.times),
            "time_ratio": statistics.median(one.times) / statistics.median(beside.times),
            "memory_mb": one.memory,
            "memory_ratio": one.memory / beside.memory if beside.memory else None,
        }
        del one, beside


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", default="tf32", choices=["tf32", "fp32"])
    parser.add_argument("--nets", nargs="+", default=list(NETS), choices=list(NETS))
    parser.add_argument(
        "--ways", nargs="+", default=list(WAYS), choices=list(WAYS), help="rows; all if left out"
    )
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    torch.set_flush_denormal(True)
    torch.backends.cudnn.benchmark = True
    tf32 = options.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    device = (
        torch.cuda.get_device_name()
        if options.device.startswith("cuda")
        else f"{torch.get_num_threads()} CPU threads"
    )
    table: list[dict[str, Any]] = []
    for net in options.nets:
        for row in rows(net, options):
            table.append(row)
            memory = f"{row['memory_mb']:6.0f} MB ({row['memory_ratio']:.2f})" if row["memory_ratio"] else ""
            print(
                f"{net:20} {row['objective']:42} {row['ms']:8.2f} ms [{row['ms_low']:.2f}, {row['ms_high']:.2f}]  "
                f"{row['time_ratio']:5.2f} x  {memory}",
                flush=True,
            )
    if options.out:
        facts = {
            "device": device,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "table": table,
        }
        settings = {key: value for key, value in vars(options).items() if key != "out"}
        records.write(options.out, records.Record("training_cost", settings, facts=facts))


if __name__ == "__main__":
    main()
