"""What a CUDA graph saves of a training step: every objective that can be one, step by step and recorded.

    python benchmarks/recorded_steps.py

Milliseconds of a step, batch 128 of 32 px, tf32, channels last; the median of `--repeats` runs of `--steps` steps each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch

import gyrograd as gg
from gyrograd.training import TrainSettings
from gyrograd.training.capture import CapturedStep
from gyrograd.training.loop import Step, optimizer_of
from gyrograd.training.objective import Objective, Term
from gyrograd.training.processes import process_group

SOFT: dict[str, Any] = {"activation": "softplus", "beta": 3}
PGD = {"eps": 8 / 255, "steps": 7, "step_size": 2 / 255}
ROWS: dict[str, tuple[str, dict[str, Any], dict[str, dict[str, Any]], dict[str, Any]]] = {
    "LeNet, ATEX": ("lenet", SOFT, {"atex": {"weight": 3, "eps": 2}}, {}),
    "LeNet, IGA": ("lenet", SOFT | {"beta": 50}, {"iga": {"weight": 1.0, "eps": 1 / 255}}, {}),
    "LeNet, Hessian": ("lenet", SOFT, {"hessian": {}}, {}),
    "LeNet, adversarial, 7 steps": ("lenet", {}, {"adversarial": PGD}, {}),
    "ResNet-20, adversarial l2, 7 steps": ("resnet20", {}, {"adversarial": {"norm": "l2", "eps": 0.25}}, {}),
    "ResNet18, adversarial, 7 steps": ("resnet18", {}, {"adversarial": PGD}, {}),
    "VGG16, adversarial, 7 steps": ("vgg16", {}, {"adversarial": PGD}, {}),
    "Swin, adversarial, 7 steps": ("swin", {}, {"adversarial": PGD}, {}),
    "ResNet18, Hessian on 1/4": ("resnet18", SOFT, {"hessian": {}}, {"regularized_fraction": 0.25}),
}
"""Net, its settings, the terms, and how they look at the batch."""


def net(name: str, settings: dict[str, Any]) -> torch.nn.Module:
    made: torch.nn.Module = gg.model(name, normalize="cifar10", seed=0, num_classes=10, **settings)
    return made.cuda().to(memory_format=torch.channels_last)


def steps_of(row: str, batch: int) -> tuple[Step, tuple[torch.Tensor, ...]]:
    name, of_net, terms, shape = ROWS[row]
    settings = TrainSettings(clip=0.5, fast=True, precision="tf32", device="cuda", batch_size=batch)
    teacher = {"teacher": net(name, of_net).eval()}
    made = {
        term: Term(gg.regularizer(term, **own, **(teacher if term == "atex" else {})))
        for term, own in terms.items()
    }
    model = net(name, of_net).train()
    objective = Objective(made, fast=True, **shape)
    step = Step(model, optimizer_of(model, settings), objective, process_group(settings), settings.clip)
    x = torch.rand(batch, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)
    return step, (x, torch.arange(batch, device="cuda") % 10, torch.arange(batch, device="cuda"))


def milliseconds(step: Any, batch: tuple[torch.Tensor, ...], options: argparse.Namespace) -> float:
    step(*batch)
    times: list[float] = []
    for _ in range(options.repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(options.steps):
            step(*batch)
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - started) / options.steps)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("a CUDA graph needs a CUDA device, and there is none here.")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for row in options.rows:
        step, batch = steps_of(row, options.batch)
        captured = CapturedStep(step)
        plain, recorded = (milliseconds(way, batch, options) for way in (step, captured))
        why = f"  not recorded: {captured.refusals[0]}" if captured.refusals else ""
        print(
            f"{row:38} {plain:8.1f} ms step by step {recorded:8.1f} ms recorded {plain / recorded:5.1f} x{why}"
        )


if __name__ == "__main__":
    main()
