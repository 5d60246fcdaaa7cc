"""Maps of gyrograd, Captum and zennit side by side, in one run: seconds, ratio, and how far the values are apart.

`make bench-attributions` writes results/attribution_cost.md. All get the same net, the same images, the same class
and the same settings; the draws of SmoothGrad and the coalitions of LIME and SHAP are ours, handed to Captum where
values are compared, so that the values must agree. Captum is timed as its users call it and, where it has a
setting for that, with its work batched as ours is. Ours makes its random numbers inside its time.
Repeats are in turns, so that a busy machine slows all; processor seconds are printed beside those on the wall.
"""

from __future__ import annotations

import argparse
import copy
import importlib.metadata
import itertools
import platform
import statistics
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import captum.attr as captum
import torch
import torch.nn.functional as F
from captum._utils.models.linear_model import SkLearnRidge
from timing import net_seconds, seconds
from torch import Tensor, nn
from zennit.canonizers import AttributeCanonizer, CompositeCanonizer, SequentialMergeBatchNorm
from zennit.composites import GuidedBackprop, LayerMapComposite
from zennit.layer import Sum
from zennit.rules import Norm, Pass, ZPlus
from zennit.types import Activation, AvgPool, BatchNorm, Linear

import gyrograd as gg
from gyrograd.attributions.segments import segment, uniform_table
from gyrograd.attributions.shap import weighted_coalitions
from gyrograd.models.resnet import BasicBlock
from gyrograd.records import write_text
from gyrograd.smoothing import Gaussian

Way = Callable[[], Tensor]
CPU = torch.device("cpu")
STEPS, DRAWS, SIGMA, SEED = 50, 50, 0.1, 0
COALITIONS, GRID, WIDTH = 100, 4, 0.25
ROWS = 64
"""Images in one pass of ours on a CPU; Captum gets the same where it has a setting for it."""
MANY = 64
"""Images of a second round of the methods of one pass, where what a call costs by itself counts for less."""
LAST = "gyrograd, channels-last net"
HEAVY = 1e6
"""The weight by which Captum's SHAP holds its two ends; it must be finite."""


@dataclass(frozen=True)
class Contest:
    """One method: ways to compute it by name, ours first; those of `values` only lend their values, untimed."""

    name: str
    wanted: dict[str, float]
    ways: dict[str, Way]
    values: dict[str, Way] = field(default_factory=dict)


@dataclass(frozen=True)
class Subject:
    """What is explained."""

    name: str
    model: nn.Module
    x: Tensor
    target: Tensor


def ours(subject: Subject, name: str, **settings: Any) -> Way:
    explain = gg.attribution(name, **settings)
    return lambda: explain(subject.model, subject.x, subject.target)


def in_channels_last(subject: Subject) -> Subject:
    """The same net with its weights' channels last, which makes its activations so, whoever runs it."""
    return replace(subject, model=twin_of(subject).to(memory_format=torch.channels_last))


def twin_of(subject: Subject) -> nn.Module:
    """A copy that nothing else uses."""
    return copy.deepcopy(subject.model)


# --- path and noise -----------------------------------------------------------------------------------------------


def integrated_gradients(subject: Subject) -> Contest:
    theirs = captum.IntegratedGradients(subject.model)

    def way(**more: Any) -> Way:
        return lambda: theirs.attribute(
            subject.x, target=subject.target, n_steps=STEPS, method="riemann_middle", **more
        )

    ways = {
        "gyrograd": ours(subject, "integrated_gradients", steps=STEPS, rule="midpoint"),
        "Captum": way(),
        f"Captum, {ROWS} rows": way(internal_batch_size=ROWS),
        LAST: ours(in_channels_last(subject), "integrated_gradients", steps=STEPS, rule="midpoint"),
    }
    return Contest(f"IG, {STEPS} steps", {"Captum": 2}, ways)


def smoothgrad(subject: Subject) -> Contest:
    tunnel = captum.NoiseTunnel(captum.Saliency(subject.model))

    def way(**more: Any) -> Way:
        return lambda: tunnel.attribute(
            subject.x, nt_samples=DRAWS, stdevs=SIGMA, target=subject.target, abs=False, **more
        )

    def with_our_draws() -> Tensor:
        noise = Gaussian(SIGMA).sample((DRAWS, *subject.x.shape[1:]), SEED)
        rows = noise.repeat(len(subject.x), 1, 1, 1)
        with mock.patch("torch.normal", return_value=rows):
            return way()()

    ways = {
        "gyrograd": ours(subject, "smoothgrad", sigma=SIGMA, draws=DRAWS, seed=SEED),
        "Captum": way(),
        f"Captum, {ROWS} rows": way(nt_samples_batch_size=max(1, ROWS // len(subject.x))),
        LAST: ours(in_channels_last(subject), "smoothgrad", sigma=SIGMA, draws=DRAWS, seed=SEED),
    }
    return Contest(f"SmoothGrad, {DRAWS} draws", {"Captum": 2}, ways, {"Captum": with_our_draws})


# --- coalitions ---------------------------------------------------------------------------------------------------


def lime(subject: Subject) -> Contest:
    mask = segment(subject.x, "grid", grid=GRID)
    rows = (uniform_table(SEED, COALITIONS, GRID**2, CPU) < 0.5).double()

    def similarity(*given: Any, **_: Any) -> Tensor:
        return torch.exp(-((1 - given[2].double().mean().sqrt()) ** 2) / WIDTH**2)

    def way(at_once: int) -> Way:
        turns = itertools.cycle(rows)
        theirs = captum.Lime(
            subject.model,
            interpretable_model=SkLearnRidge(alpha=1.0, fit_intercept=False),
            similarity_func=similarity,
            perturb_func=lambda *_, **__: next(turns)[None],
        )
        return lambda: theirs.attribute(
            subject.x,
            target=subject.target,
            feature_mask=mask[:, None],
            n_samples=COALITIONS,
            perturbations_per_eval=at_once,
        )

    settings = {
        "draws": COALITIONS,
        "segments": "grid",
        "grid": GRID,
        "width": WIDTH,
        "ridge": 1.0,
        "seed": SEED,
    }
    ways = {
        "gyrograd": ours(subject, "lime", **settings),
        "Captum": way(1),
        f"Captum, {COALITIONS} rows": way(COALITIONS),
        LAST: ours(in_channels_last(subject), "lime", **settings),
    }
    return Contest(f"LIME, {COALITIONS} coalitions", {"Captum": 5}, ways)


def shap(subject: Subject) -> Contest:
    mask = segment(subject.x, "grid", grid=GRID)
    settings = {"feature_mask": mask[:, None], "target": subject.target}
    rows, weights = weighted_coalitions(GRID**2, COALITIONS, SEED, CPU)

    def own(at_once: int) -> Way:
        """Captum's own coalitions, as many passes as ours has with the two ends."""
        theirs = captum.KernelShap(subject.model)
        return lambda: theirs.attribute(
            subject.x, n_samples=len(rows) + 2, perturbations_per_eval=at_once, **settings
        )

    same = {"draws": COALITIONS, "segments": "grid", "grid": GRID, "seed": SEED}
    ways = {
        "gyrograd": ours(subject, "shap", **same),
        "Captum": own(1),
        f"Captum, {COALITIONS} rows": own(COALITIONS),
        LAST: ours(in_channels_last(subject), "shap", **same),
    }
    theirs = same_coalitions(subject.model, rows.double(), weights)
    handed = {"Captum": lambda: theirs.attribute(subject.x, n_samples=len(rows) + 2, **settings)}
    return Contest(f"SHAP, {COALITIONS} coalitions", {"Captum": 5}, ways, handed)


def same_coalitions(model: nn.Module, rows: Tensor, weights: Tensor) -> captum.KernelShap:
    """Captum's Kernel SHAP on our coalitions with our weights."""
    ends = torch.tensor([[1.0], [0.0]]).double().expand(2, rows.shape[1])
    weight_of = {tuple(row): weight for row, weight in zip(rows.tolist(), weights, strict=True)}

    def coalitions(*_: Any, **__: Any) -> Iterator[Tensor]:
        yield from torch.cat([ends, rows])[:, None]

    theirs = captum.KernelShap(model)
    theirs.perturb_func = coalitions
    theirs.similarity_func = lambda *given, **_: weight_of.get(
        tuple(given[2][0].tolist()), torch.tensor(HEAVY)
    )
    return theirs


# --- changed backward passes --------------------------------------------------------------------------------------


class BlockCanonizer(AttributeCanonizer):
    """Gives our residual blocks the sum module that zennit hangs its rule on, as it does for torchvision's."""

    def __init__(self) -> None:
        super().__init__(self._sum_of)

    @staticmethod
    def _sum_of(_: str, module: nn.Module) -> dict[str, Any] | None:
        if not isinstance(module, BasicBlock):
            return None
        return {"forward": BlockCanonizer.forward.__get__(module), "canonizer_sum": Sum()}

    @staticmethod
    def forward(block: Any, x: Tensor) -> Tensor:
        residual = block.bn2(block.conv2(block.act1(block.bn1(block.conv1(x)))))
        summed = block.canonizer_sum(torch.stack([block.shortcut(x), residual], dim=-1))
        result: Tensor = block.act2(summed)
        return result


def lrp_composite() -> LayerMapComposite:
    """z+ with bias, BatchNorm merged, sums and average pools by signed shares."""
    layers = [(Sum, Norm()), (Activation, Pass()), (AvgPool, Norm()), (BatchNorm, Pass()), (Linear, ZPlus())]
    merging = CompositeCanonizer((SequentialMergeBatchNorm(), BlockCanonizer()))
    return LayerMapComposite(layers, canonizers=[merging])


def backward_from(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    inside = x.clone().requires_grad_()
    logits = model(inside)
    (map,) = torch.autograd.grad(logits, inside, F.one_hot(target, logits.shape[1]).to(logits))
    return map


def zennit_ways(subject: Subject, composite: Callable[[], Any], stack: ExitStack) -> dict[str, Way]:
    """Hooks set at each call, and hooks set once on a copy of the net that nothing else uses."""

    def each_time() -> Tensor:
        with composite().context(subject.model) as hooked:
            return backward_from(hooked, subject.x, subject.target)

    kept = stack.enter_context(composite().context(twin_of(subject)))
    return {"zennit": each_time, "zennit, hooks kept": lambda: backward_from(kept, subject.x, subject.target)}


def lrp(subject: Subject, stack: ExitStack) -> Contest:
    same = {"first": "same", "bias": "keep", "residual": "signed", "pool": "signed"}
    ways = {"gyrograd": ours(subject, "lrp", **same)}
    return Contest("LRP z+", {"zennit": 1}, ways | zennit_ways(subject, lrp_composite, stack))


def guided_backprop(subject: Subject, stack: ExitStack) -> Contest:
    theirs = captum.GuidedBackprop(subject.model)
    ways: dict[str, Way] = {
        "gyrograd": ours(subject, "guided_backprop"),
        "Captum": lambda: theirs.attribute(subject.x, target=subject.target),
    }
    ways |= zennit_ways(subject, GuidedBackprop, stack)
    return Contest("guided backprop", {"zennit": 1, "Captum": 1}, ways)


# --- measuring ----------------------------------------------------------------------------------------------------


def apart(one: Tensor, reference: Tensor) -> str:
    """The largest difference over the largest value."""
    difference = (one.detach().double() - reference.double()).abs().max() / reference.abs().max()
    return f"{float(difference):.0e}"


def rows_of(subject: Subject, contest: Contest, repeats: int) -> list[list[str]]:
    """A row for each way: median, range, ratios of medians to ours, distance of the values.

    The first, untimed call of each pays for lazy set-up and gives the values.
    """
    values = {name: way() for name, way in contest.ways.items()}
    differences = {name: apart(map, values["gyrograd"]) for name, map in values.items()}
    for name, way in contest.values.items():
        differences |= {other: "own draws" for other in differences if other.startswith("Captum")}
        differences[name] = f"{apart(way(), values['gyrograd'])} (our draws)"
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in contest.ways}
    for _ in range(repeats):
        for name, way in contest.ways.items():
            spent[name].append(seconds(way))
    medians = {name: [statistics.median(kind) for kind in zip(*s, strict=True)] for name, s in spent.items()}
    best = medians["gyrograd"]
    rows = []
    for name, (wall, cpu) in medians.items():
        walls = [w for w, _ in spent[name]]
        wanted = f">= {contest.wanted[name]:g}" if name in contest.wanted else ""
        rows.append(
            [subject.name, contest.name, name, f"{wall:.3f} ({min(walls):.3f} - {max(walls):.3f})", f"{cpu:.3f}",
             f"{wall / best[0]:.2f}", f"{cpu / best[1]:.2f}", wanted, differences[name]]
        )  # fmt: skip
        print("  ".join(rows[-1]), flush=True)
    return rows


def subject_of(name: str, images: int) -> Subject:
    """A net with its initial weights; BatchNorm statistics that are not the initial ones, from random images."""
    torch.manual_seed(0)
    model = gg.model(name, num_classes=10, seed=0)
    with torch.no_grad():
        model.train()(torch.rand(64, 3, 32, 32))
    return Subject(name, model.eval(), torch.rand(images, 3, 32, 32), torch.randint(10, (images,)))


HEADER = [
    "net",
    "method",
    "library",
    "wall s (range)",
    "cpu s",
    "wall / ours",
    "cpu / ours",
    "wanted",
    "values apart",
]


def report(rows: list[list[str]], shares: list[str], options: argparse.Namespace) -> str:
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}" for name in ("torch", "captum", "zennit")
    )
    table = "\n".join("| " + " | ".join(row) + " |" for row in [HEADER, ["---"] * len(HEADER), *rows])
    return (
        f"# What a map costs, next to Captum and zennit\n\n"
        f"Command: `make bench-attributions` (`--images {options.images} --repeats {options.repeats} "
        f"--threads {options.threads}`). "
        f"{versions}; Python {platform.python_version()}, {platform.machine()} CPU, {options.threads} thread. "
        f"{options.images} images 3 x 32 x 32, nets with ReLU and initial weights, medians of {options.repeats} "
        "repeats in turns, smallest and largest beside them.\n\n"
        "The machine has two cores and other work ran on them: seconds say little, ratios within a method more, and "
        "those of processor seconds most. Values apart: largest difference over the largest value of ours. "
        "\"Own draws\": each library draws for itself, so values cannot be compared draw by draw; the row with "
        "\"our draws\" compares one untimed run of Captum on the same draws. Ours shares SmoothGrad's draws between "
        "images; Captum draws anew for each. In float32 a ReLU at its kink may fall to either side, which moves "
        "integrated gradients. zennit's canonizer leaves BatchNorm its eps after merging it, which moves LRP.\n\n"
        f"{table}\n\n"
        "## What stands in the way\n\n"
        "Part of our processor time spent in the net's own passes (forward, and autograd's backward): "
        f"{'; '.join(shares)}. These methods ask for as many passes from either library, so what is left to win over a "
        "Captum whose work is batched is the rest, and over Captum as its users call it what batching saves. "
        "gyrograd lays the pixels of each pass out with their channels last (attributions/layout.py), which torch's "
        "convolutions and max-pools on a CPU prefer, and which moves the rounding: hence the distance to Captum where "
        f"a ReLU or a max-pool falls to its other side. \"{LAST}\" is the same call on a net after "
        "`net.to(memory_format=torch.channels_last)`, the weights too; it shows that nothing is left to win there.\n"
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--nets", nargs="+", default=["lenet", "resnet20"])
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1] / "results" / "attribution_cost.md"
    )
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # Captum and zennit warn at every call
    torch.set_num_threads(options.threads)
    rows, shares = [], []
    for name in options.nets:
        subject = subject_of(name, options.images)
        with ExitStack() as stack:
            contests = [integrated_gradients(subject), smoothgrad(subject), lime(subject), shap(subject)]
            for contest in contests:
                net, whole = net_seconds(subject.model, contest.ways["gyrograd"])
                shares.append(f"{name} {contest.name} {net / whole:.0%}")
            contests += [guided_backprop(subject, stack), lrp(subject, stack)]
            many = subject_of(name, MANY)
            for contest in contests:
                rows += rows_of(subject, contest, options.repeats)
            for contest in (guided_backprop(many, stack), lrp(many, stack)):
                named = replace(contest, name=f"{contest.name}, {MANY} images")
                rows += rows_of(many, named, options.repeats)
    write_text(options.out, report(rows, shares, options))


if __name__ == "__main__":
    main()
