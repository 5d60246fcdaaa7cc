"""Ours and Quantus side by side, in one run: seconds, ratio, and how far the values are apart.

Both get the same model, the same images, the same perturbed inputs (handed to Quantus through its perturb_func)
and the same number of draws. Quantus is timed twice: with its own `quantus.explain` (Captum's gradient),
as its users call it, and with our attribution as explain_func, which leaves only its loop to compare. The time
to make the perturbations is part of our time and not of Quantus'.
Two nets: LeNet-5, the one Quantus ships, where the libraries' own work is most of the time; and joo2023's LeNet
(32-32-64-64 channels), where the passes through the net are, which both have to make.
Repeats are interleaved, so that a busy machine slows both; processor seconds are printed beside those on the wall.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import quantus
import torch
from quantus.helpers.model.models import LeNetAdaptivePooling
from torch import Tensor

import gyrograd as gg
from gyrograd.metrics import as_quantus_explain
from gyrograd.metrics.noise import GaussianNoise, Noise, UniformNoise
from gyrograd.numerics import random

EPS, SIGMA, SEED = 0.02, 0.03, 0
STEP = 64
"""Elements taken out at each step of pixel flipping: 48 steps on 3 x 32 x 32."""


@dataclass(frozen=True)
class Contest:
    """One metric: ways to compute it by name, ours first, each giving one number or curve an example."""

    name: str
    ways: dict[str, Callable[[], Any]]
    wanted: float


def replay(noise: Noise, x: Tensor, draws: int) -> Callable[..., np.ndarray]:
    """A perturb_func that hands out our draws one after the other, made beforehand, again and again."""
    keys = random.keys(SEED, len(x))
    made = [noise(x, keys, draw).flatten(1).numpy() for draw in range(draws)]
    turns = itertools.cycle(made)

    def perturb(arr: np.ndarray, **_: Any) -> np.ndarray:  # noqa: ARG001 - Quantus names it
        return next(turns)

    return perturb


def quantus_call(metric: Any, model: Any, x: Tensor, target: Tensor, **more: Any) -> Callable[[], Any]:
    images, labels = x.numpy(), target.numpy()
    return lambda: metric(model=model, x_batch=images, y_batch=labels, device="cpu", **more)


def explainers(attribution: Any) -> dict[str, dict[str, Any]]:
    """Quantus' own explain function, and ours in its clothes."""
    own = {"method": "Gradient", "xai_lib": "captum", "reduce_axes": ()}
    return {
        "quantus": {"explain_func": quantus.explain, "explain_func_kwargs": own},
        "quantus, our map": {"explain_func": as_quantus_explain(attribution)},
    }


def contests(model: Any, x: Tensor, target: Tensor, draws: int) -> list[Contest]:
    attribution = gg.attribution("gradient")
    quiet = {"disable_warnings": True, "normalise": False, "abs": False}

    def robust(kind: Any, noise: Noise, ours: Any, **settings: Any) -> dict[str, Callable[[], Any]]:
        ways = {"gyrograd": lambda: ours(model, attribution, x, target, seed=SEED).numpy()}
        for name, explain in explainers(attribution).items():
            metric = kind(nr_samples=draws, perturb_func=replay(noise, x, draws), **settings, **quiet)
            ways[name] = quantus_call(metric, model, x, target, **explain)
        return ways

    size = x[0].numel()
    ratios = tuple(i * STEP / size for i in range(1, size // STEP + 1))
    ours = gg.metric("deletion", ratios=ratios, substrate="zero", reduce="none")
    flipping = quantus.PixelFlipping(features_in_step=STEP, perturb_baseline=0.0, **quiet)
    flips: dict[str, Callable[[], Any]] = {
        "gyrograd": lambda: ours.curve(model, attribution, x, target).numpy()
    }
    for name, explain in explainers(attribution).items():
        flips[name] = quantus_call(flipping, model, x, target, softmax=True, **explain)
    return [
        Contest(
            "max sensitivity",
            robust(
                quantus.MaxSensitivity,
                UniformNoise(EPS),
                gg.metric("max_sensitivity", eps=EPS, draws=draws),
            ),
            10,
        ),
        Contest(
            "local Lipschitz",
            robust(
                quantus.LocalLipschitzEstimate,
                GaussianNoise(SIGMA),
                gg.metric("local_lipschitz", sigma=SIGMA, draws=draws),
            ),
            10,
        ),
        Contest("deletion / pixel flipping", flips, 5),
    ]


def seconds(way: Callable[[], Any]) -> tuple[tuple[float, float], np.ndarray]:
    """Wall and processor seconds, and the values."""
    wall, cpu = time.perf_counter(), time.process_time()
    value = np.asarray(way(), dtype=np.float64)
    return (time.perf_counter() - wall, time.process_time() - cpu), value


def run(net: str, contest: Contest, repeats: int) -> None:
    """Print one row for each way: median, spread, ratios to ours, largest difference over the largest value.

    A first, untimed call of each pays for lazy set-up.
    """
    for way in contest.ways.values():
        way()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in contest.ways}
    values: dict[str, np.ndarray] = {}
    for _ in range(repeats):
        for name, way in contest.ways.items():
            spent, values[name] = seconds(way)
            times[name].append(spent)
    ours = values["gyrograd"]
    medians = {
        name: [statistics.median(kind) for kind in zip(*spent, strict=True)] for name, spent in times.items()
    }
    for name, spent in times.items():
        walls = [wall for wall, _ in spent]
        ratios = [mine / best for mine, best in zip(medians[name], medians["gyrograd"], strict=True)]
        apart = np.abs(values[name] - ours).max() / np.abs(ours).max()
        wanted = f"{contest.wanted:g}x" if name == "quantus" else ""
        print(
            f"{net:9s}{contest.name:27s}{name:18s}{medians[name][0]:9.3f}{min(walls):9.3f}{max(walls):9.3f}"
            f"{medians[name][1]:9.3f}{ratios[0]:8.1f}x{ratios[1]:8.1f}x{wanted:>8s}{apart:12.1e}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # Quantus warns at every call
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    nets = {
        "LeNet-5": LeNetAdaptivePooling((3, 32, 32)).eval(),
        "LeNet": gg.model("lenet", num_classes=10).eval(),
    }
    x, target = torch.rand(options.images, 3, 32, 32), torch.randint(10, (options.images,))
    print(
        f"{options.images} images 3 x 32 x 32, {options.draws} draws, {options.threads} threads, "
        f"{options.repeats} repeats, torch {torch.__version__}, quantus {quantus.__version__}"
    )
    print(
        f"{'net':9s}{'metric':27s}{'library':18s}{'wall s':>9s}{'min':>9s}{'max':>9s}{'cpu s':>9s}"
        f"{'wall':>9s}{'cpu':>9s}{'wanted':>8s}{'difference':>12s}"
    )
    for name, model in nets.items():
        for contest in contests(model, x, target, options.draws):
            run(name, contest, options.repeats)


if __name__ == "__main__":
    main()
