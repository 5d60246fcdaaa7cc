"""Ours and Quantus side by side, in one run: seconds, ratio, and how far the values are apart.

`make bench-metrics` writes results/metrics_cost.md. Two kinds of rows:
- "same perturbations": the same model, images and perturbed inputs, handed to Quantus ready-made through its
  perturb_func, so that the values must agree; Quantus once with its own `quantus.explain` (Captum's gradient) and
  once with our attribution as explain_func. Making the perturbations is part of our time and not of Quantus'.
- "as called": what a user sees. Quantus as it ships: its perturb_func, its noise, its normalisation, its explain
  function with Saliency; ours with our noise of the same size and the same number of draws: 50 and, on the small
  net, Quantus' 200.
Two nets: LeNet-5, the one Quantus ships, where the libraries' own work is much of the time; and joo2023's LeNet
(32-32-64-64 channels), where the passes through the net are, which both have to make.
Repeats are in turns, so that a busy machine slows both; processor seconds are printed beside those on the wall.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import platform
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import quantus
import torch
from quantus.helpers.model.models import LeNetAdaptivePooling
from timing import net_seconds, seconds
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.metrics import as_quantus_explain
from gyrograd.metrics.noise import GaussianNoise, Noise, UniformNoise
from gyrograd.numerics import random
from gyrograd.records import write_text

Way = Callable[[], Any]
EPS, SIGMA, SEED = 0.02, 0.03, 0
SHIPPED_EPS, SHIPPED_SIGMA, SHIPPED_DRAWS = 0.2, 0.1, 200
"""The sizes and the number of Quantus' perturbations where none is given."""
STEP = 64
"""Elements taken out at each step of pixel flipping: 48 steps on 3 x 32 x 32."""
WANTED = {"max sensitivity": 10, "local Lipschitz": 10, "deletion / pixel flipping": 5}


@dataclass(frozen=True)
class Subject:
    """What is measured."""

    name: str
    model: nn.Module
    x: Tensor
    target: Tensor


@dataclass(frozen=True)
class Contest:
    """One metric: ways to compute it by name, ours first, each giving one number or curve an example."""

    metric: str
    setting: str
    ways: dict[str, Way]
    comparable: bool


def replay(noise: Noise, x: Tensor, draws: int) -> Callable[..., np.ndarray]:
    """A perturb_func that hands out our draws one after the other, made beforehand, again and again."""
    keys = random.keys(SEED, len(x))
    made = [noise(x, keys, draw).flatten(1).numpy() for draw in range(draws)]
    turns = itertools.cycle(made)

    def perturb(arr: np.ndarray, **_: Any) -> np.ndarray:  # noqa: ARG001 - Quantus names it
        return next(turns)

    return perturb


def quantus_way(metric: Any, subject: Subject, **more: Any) -> Way:
    images, labels = subject.x.numpy(), subject.target.numpy()
    return lambda: metric(model=subject.model, x_batch=images, y_batch=labels, device="cpu", **more)


def our_way(subject: Subject, name: str, **settings: Any) -> Way:
    metric, gradient = gg.metric(name, **settings), gg.attribution("gradient")
    return lambda: metric(subject.model, gradient, subject.x, subject.target, seed=SEED).numpy()


def our_flips(subject: Subject) -> Way:
    size = subject.x[0].numel()
    ratios = tuple(i * STEP / size for i in range(1, size // STEP + 1))
    metric, gradient = (
        gg.metric("deletion", ratios=ratios, substrate="zero", reduce="none"),
        gg.attribution("gradient"),
    )
    return lambda: metric.curve(subject.model, gradient, subject.x, subject.target).numpy()


def same_perturbations(subject: Subject, draws: int) -> list[Contest]:
    """The rows whose values must agree."""
    quiet = {"disable_warnings": True, "normalise": False, "abs": False}
    own = {"method": "Gradient", "xai_lib": "captum", "reduce_axes": ()}
    explainers: dict[str, dict[str, Any]] = {
        "Quantus": {"explain_func": quantus.explain, "explain_func_kwargs": own},
        "Quantus, our map": {"explain_func": as_quantus_explain(gg.attribution("gradient"))},
    }

    def robust(metric: str, kind: Any, noise: Noise, ours: Way) -> Contest:
        ways = {"gyrograd": ours}
        for name, explain in explainers.items():
            made = kind(nr_samples=draws, perturb_func=replay(noise, subject.x, draws), **quiet)
            ways[name] = quantus_way(made, subject, **explain)
        return Contest(metric, f"same perturbations, {draws}", ways, True)

    flipping = quantus.PixelFlipping(features_in_step=STEP, perturb_baseline=0.0, **quiet)
    flips = {"gyrograd": our_flips(subject)}
    for name, explain in explainers.items():
        flips[name] = quantus_way(flipping, subject, softmax=True, **explain)
    sensitivity = our_way(subject, "max_sensitivity", eps=EPS, draws=draws)
    lipschitz = our_way(subject, "local_lipschitz", sigma=SIGMA, draws=draws)
    return [
        robust("max sensitivity", quantus.MaxSensitivity, UniformNoise(EPS), sensitivity),
        robust("local Lipschitz", quantus.LocalLipschitzEstimate, GaussianNoise(SIGMA), lipschitz),
        Contest("deletion / pixel flipping", "same pixels", flips, True),
    ]


def as_called(subject: Subject, draws: int) -> list[Contest]:
    """The rows a user sees: each library draws for itself."""
    explain = {"explain_func": quantus.explain, "explain_func_kwargs": {"method": "Saliency"}}
    shipped = {"max_sensitivity": quantus.MaxSensitivity, "local_lipschitz": quantus.LocalLipschitzEstimate}
    settings: dict[str, dict[str, Any]] = {
        "max_sensitivity": {"eps": SHIPPED_EPS, "reduce": "abs"},
        "local_lipschitz": {"sigma": SHIPPED_SIGMA, "reduce": "abs", "normalize": "max"},
    }
    titles = {"max_sensitivity": "max sensitivity", "local_lipschitz": "local Lipschitz"}
    return [
        Contest(
            titles[name],
            f"as called, {draws} draws",
            {
                "gyrograd": our_way(subject, name, draws=draws, **settings[name]),
                "Quantus": quantus_way(kind(nr_samples=draws), subject, **explain),
            },
            False,
        )
        for name, kind in shipped.items()
    ]


# --- measuring ----------------------------------------------------------------------------------------------------


def apart(value: Any, ours: Any) -> str:
    """The largest difference over the largest value."""
    one, reference = (np.asarray(v, dtype=np.float64) for v in (value, ours))
    return f"{np.abs(one - reference).max() / np.abs(reference).max():.0e}"


def rows_of(subject: Subject, contest: Contest, repeats: int) -> list[list[str]]:
    """A row for each way: median, range, ratios of medians to ours, distance of the values, where the time goes.

    A first, untimed call of each pays for lazy set-up and gives the values.
    """
    values = {name: way() for name, way in contest.ways.items()}
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in contest.ways}
    for _ in range(repeats):
        for name, way in contest.ways.items():
            spent[name].append(seconds(way))
    medians = {name: [statistics.median(kind) for kind in zip(*s, strict=True)] for name, s in spent.items()}
    best, rows = medians["gyrograd"], []
    for name, (wall, cpu) in medians.items():
        walls = [w for w, _ in spent[name]]
        net, whole = net_seconds(subject.model, contest.ways[name])
        wanted = f">= {WANTED[contest.metric]}" if name == "Quantus" else ""
        far = apart(values[name], values["gyrograd"]) if contest.comparable else "own draws"
        rows.append(
            [subject.name, contest.metric, contest.setting, name, f"{wall:.3f} ({min(walls):.3f} - {max(walls):.3f})",
             f"{cpu:.3f}", f"{wall / best[0]:.1f}", f"{cpu / best[1]:.1f}", wanted, far,
             f"{net:.2f} + {whole - net:.2f}"]
        )  # fmt: skip
        print("  ".join(rows[-1]), flush=True)
    return rows


HEADER = [
    "net",
    "metric",
    "setting",
    "library",
    "wall s (range)",
    "cpu s",
    "wall / ours",
    "cpu / ours",
    "wanted",
    "values apart",
    "cpu s in the net + outside",
]

NOTES = """## What stands in the way

Quantus 0.6 already sends each draw of all images through the net as one batch, and so it makes as many passes as ours:
one forward and one backward for each image and draw, one forward for each image and share of pixels. The last column
shows what that leaves. If gyrograd spent nothing at all outside the net, the ratio would be Quantus' time over the
first number of ours. The wanted 10 and 5 would need a net that is faster for us than for Quantus by that factor. A
single earlier run had shown 13 for max sensitivity; it is not repeated here. With two OpenMP threads on busy cores one
and the same call of Quantus took from 0.8 to 14 s, which is why this table has one thread.

Where Quantus spends its time outside the net (cProfile, LeNet-5): checking its own maps, which it turns into Python
lists (`assert_attributions`: 60 % of all its time with maps of three channels, 30 % with one), comparing each
perturbed image with its original (`isclose`, 6 to 10 %), moving the model to its device at each call, and noise.

Where ours goes outside the net: random numbers (more than half: they belong to example and draw, so that batch size and
number of processes change nothing), the check that every input is finite, lengths of differences, copies between
layouts. Inside the net: the convolutions' backward (a third to a half), their forward, max-pooling.

What made ours faster:
- Philox in blocks that stay in the cache: 9 to 11 ns a uniform number on this machine (before: 15 to 24), 12 to 14 a
  normal one (before: 25 to 33), and 0.09 ms instead of 0.35 for a handful. The bits are the same.
- Channels last (attributions/layout.py): LeNet-5 forward and back takes 0.55 of the time, LeNet 0.75, ResNet-20 0.85.
- Lengths of differences in one pass over memory where no square can leave the floating range, and the clean map seen
  once, not once a draw: a tenth of the time.
- 64 rows of 32 px in one pass (before: 128), in proportion fewer of larger images. LeNet 0.85 of the time; LeNet-5 and
  ResNet-20 within a tenth either way.

Tried and left out: threads of our own for the random numbers (no gain on two busy cores), exclusive-or of half words in
place of shift and mask (not faster), 16 or 32 rows (slower on LeNet-5 and ResNet-20), weights without requires_grad (no
gain: autograd computes no gradient that is not asked for).
"""


def report(rows: list[list[str]], options: argparse.Namespace) -> str:
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("torch", "quantus", "captum")
    )
    table = "\n".join("| " + " | ".join(row) + " |" for row in [HEADER, ["---"] * len(HEADER), *rows])
    return (
        "# What a metric costs, next to Quantus\n\n"
        f"Command: `make bench-metrics` (`--images {options.images} --draws {options.draws} --repeats "
        f"{options.repeats} --threads {options.threads}`). {versions}; Python {platform.python_version()}, "
        f"{platform.machine()} CPU, {options.threads} threads. {options.images} images 3 x 32 x 32 in one batch, "
        f"initial weights, medians of {options.repeats} repeats in turns, smallest and largest beside them. Other work "
        "ran on the machine: processor seconds are the honest column.\n\n"
        "\"Same perturbations\" hands Quantus our perturbed inputs ready-made: the values must agree, and Quantus does "
        "not pay for noise. \"As called\" is Quantus as it ships, with its own noise, normalisation and "
        "`quantus.explain` with Saliency, and ours with our noise of the same size. The last column is one more run of "
        "each with the time in the net taken apart: the model's forward and autograd's backward passes, and the rest."
        f"\n\n{table}\n\n{NOTES}"
    )  # fmt: skip


def subjects(images: int) -> list[Subject]:
    torch.manual_seed(0)
    nets = {
        "LeNet-5": LeNetAdaptivePooling((3, 32, 32)).eval(),
        "LeNet": gg.model("lenet", num_classes=10, seed=0).eval(),
    }
    x, target = torch.rand(images, 3, 32, 32), torch.randint(10, (images,))
    return [Subject(name, model, x, target) for name, model in nets.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--draws", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "results" / "metrics_cost.md")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # Quantus warns at every call
    torch.set_num_threads(options.threads)
    rows = []
    for subject in subjects(options.images):
        contests = same_perturbations(subject, options.draws)
        contests += as_called(subject, options.draws)
        if subject.name == "LeNet-5":
            # Four times as long for the same ratio: once will do.
            contests += as_called(subject, SHIPPED_DRAWS)
        for contest in contests:
            rows += rows_of(subject, contest, options.repeats)
    write_text(options.out, report(rows, options))


if __name__ == "__main__":
    main()
