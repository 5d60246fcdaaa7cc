"""Which training makes explanations hold under attack, and what it costs in accuracy: one row per objective tried.

    python benchmarks/frontier.py explore --net lenet --epochs 40 --workers 8 --out out/explore
    python benchmarks/frontier.py explore --net resnet18 --epochs 30 --points ce,adv2,adv3/beta6/cut8 --out out/explore
    python benchmarks/frontier.py final --net lenet --epochs 200 --seeds 0,1,2 --points ce,adv1+h3e-3 --out out/final
    python benchmarks/frontier.py report --explore out/explore --final out/final      # writes results/frontier

A point is an objective of `POINTS` and, after slashes, variations of the recipe (`VARIATIONS`): adv3/beta6/cut8.
`explore` trains on 45,000 images of CIFAR-10 and judges on the other 5,000 of the training set; `final` trains on all
50,000 and judges on the 10,000 test images. Points are chosen on the first and reported on the second. Each point is a
process of its own and a JSON file; what is there already is not run again, and a killed training resumes.

Points are chosen by a rule that was fixed before they were trained: of those that lose no more than some accuracy
against a reference (`RULES`), the one whose gradient map keeps most at 4/255. `report` says which that is.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gyrograd.attacks import Auto, TargetedMap
from gyrograd.attributions import Gradient
from gyrograd.attributions.guided_backprop import GuidedBackprop
from gyrograd.attributions.lrp import LRP
from gyrograd.attributions.path import IntegratedGradients
from gyrograd.audit.table import steady_radius
from gyrograd.data import Dataset
from gyrograd.data.cifar10 import cifar10
from gyrograd.metrics import RandomPerturbationSimilarity, insertion
from gyrograd.models import build, load, save
from gyrograd.numerics import random
from gyrograd.numerics.modes import eval_mode
from gyrograd.regularizers import Adversarial, Hessian, L2Cosine, Ssr
from gyrograd.training import TrainSettings, fit, predictions
from gyrograd.training.building import held_out
from gyrograd.training.objective import Objective, Term

RADII = (1, 2, 3, 4, 6, 8, 10, 12)


@dataclass(frozen=True)
class SignedStep:
    """Cross-entropy after one signed step, with the variations tried beside `Adversarial(steps=1)`.

    radius: "fixed", "random" (uniform in [0, 2 eps], per image) or "growing" (`scale` goes from 0 to 1 over the run).
    spare: images that the net gets wrong as they are stay as they are.
    """

    replaces_cross_entropy = True
    eps: float
    radius: str = "fixed"
    spare: bool = False
    smoothing: float = 0.0
    scale: Tensor | None = field(default=None, compare=False)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, *, seed: Any = None) -> Tensor:
        with eval_mode(model):
            leaf = x.detach().requires_grad_()
            logits = model(leaf)
            (slope,) = torch.autograd.grad(F.cross_entropy(logits, y, reduction="sum"), leaf)
        length = x.new_full((len(x),), self.eps)
        if self.radius == "random":
            length = 2 * self.eps * random.uniform(seed, (1,), stream=7, dtype=x.dtype)[:, 0]
        if self.scale is not None:
            length = length * self.scale
        if self.spare:
            length = length * (logits.argmax(1) == y)
        moved = (x + length.view(-1, 1, 1, 1) * slope.sign()).clamp(0, 1)
        return F.cross_entropy(model(moved), y, reduction="none", label_smoothing=self.smoothing)


class SmoothPool(nn.Module):
    """A 2 x 2 pool between mean and maximum: the mean weighted by the softmax of the values themselves."""

    def __init__(self, sharpness: float = 1.0) -> None:
        super().__init__()
        self.sharpness = sharpness

    def forward(self, z: Tensor) -> Tensor:
        b, c, h, w = z.shape
        parts = z.view(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 2, 4, 3, 5).flatten(4)
        return (parts * (self.sharpness * parts).softmax(-1)).sum(-1)


def adversarial(radius: float, steps: int = 1, **more: Any) -> Term:
    return Term(Adversarial(eps=radius / 255, steps=steps, selection="last", step_size=None, **more))


class InHalfPrecision(nn.Module):
    """A teacher that computes in bfloat16: soft labels need no more digits, and a GPU takes half the time."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        # In a tuple, so that moving this module to float32 leaves the teacher as it is.
        self.core = (core.to(memory_format=torch.channels_last, dtype=torch.bfloat16),)

    def forward(self, x: Tensor) -> Tensor:
        core = self.core[0].to(x.device)
        logits: Tensor = core(x.to(dtype=torch.bfloat16, memory_format=torch.channels_last))
        return logits.float()


def taught(radius: float, temperature: float = 2) -> Callable[[str], Term]:
    """The signed step with a teacher's answers in place of labels; the teacher is read when it is needed."""
    return lambda teacher: adversarial(
        radius, teacher=InHalfPrecision(load(teacher)), temperature=temperature
    )


def signed(by: float, **how: Any) -> Term:
    return Term(SignedStep(by / 255, **how))


def curved(weight: float) -> dict[str, Term]:
    return {"hessian": Term(Hessian(), weight)}


ADV = "adversarial"
HESSIAN = curved(1e-3)
POINTS: dict[str, dict[str, Any]] = {
    "ce": {},
    "l2-cosine": {
        "terms": {"l2_cosine": Term(L2Cosine(l2=0.1, cosine=1.0))},
        "regularized_fraction": 0.1875,
        "regularize_every": 3,
    },
    "adv0.5+h": {"terms": {ADV: adversarial(0.5), **HESSIAN}},
    "adv0.75+h": {"terms": {ADV: adversarial(0.75), **HESSIAN}},
    "adv0.25": {"terms": {ADV: adversarial(0.25)}},
    "adv0.5": {"terms": {ADV: adversarial(0.5)}},
    "adv1": {"terms": {ADV: adversarial(1)}},
    "adv1+h": {"terms": {ADV: adversarial(1), **HESSIAN}},
    "adv1x2+h": {"terms": {ADV: adversarial(1, 2), **HESSIAN}},
    "adv1.25+h": {"terms": {ADV: adversarial(1.25), **HESSIAN}},
    "adv1.5+h": {"terms": {ADV: adversarial(1.5), **HESSIAN}},
    "adv1.5": {"terms": {ADV: adversarial(1.5)}},
    "adv2": {"terms": {ADV: adversarial(2)}},
    "adv2.5": {"terms": {ADV: adversarial(2.5)}},
    "adv3": {"terms": {ADV: adversarial(3)}},
    "adv4": {"terms": {ADV: adversarial(4)}},
    "adv2+h": {"terms": {ADV: adversarial(2), **HESSIAN}},
    "adv1+h3e-3": {"terms": {ADV: adversarial(1), **curved(3e-3)}},
    "adv1+h1e-2": {"terms": {ADV: adversarial(1), **curved(1e-2)}},
    "adv0.75+h1e-2": {"terms": {ADV: adversarial(0.75), **curved(1e-2)}},
    "hessian": {"terms": HESSIAN},
    "ssr": {"terms": {"ssr": Term(Ssr(), 0.3)}, "cross_entropy": 0.7},
    "adv8": {"terms": {ADV: Term(Adversarial(eps=8 / 255, steps=7, step_size=2 / 255))}},
    "taught0": {"terms": {ADV: taught(1e-6)}},
    "taught1": {"terms": {ADV: taught(1)}},
    "taught1.5": {"terms": {ADV: taught(1.5)}},
    "taught1.5T1": {"terms": {ADV: taught(1.5, 1)}},
    "taught1.5T4": {"terms": {ADV: taught(1.5, 4)}},
    "taught2": {"terms": {ADV: taught(2)}},
    "taught3": {"terms": {ADV: taught(3)}},
    "taught4": {"terms": {ADV: taught(4)}},
    "taught1.5+h": {"terms": {ADV: taught(1.5), **HESSIAN}},
    "taught1.25+h3e-3": {"terms": {ADV: taught(1.25), **curved(3e-3)}},
    "taught1.5+h3e-3": {"terms": {ADV: taught(1.5), **curved(3e-3)}},
    "taught1.75+h3e-3": {"terms": {ADV: taught(1.75), **curved(3e-3)}},
    "spare1+h": {"terms": {ADV: signed(1, spare=True), **HESSIAN}},
    "spare1.5+h": {"terms": {ADV: signed(1.5, spare=True), **HESSIAN}},
    "spare2+h": {"terms": {ADV: signed(2, spare=True), **HESSIAN}},
    "random1+h": {"terms": {ADV: signed(1, radius="random"), **HESSIAN}},
    "random1.5+h": {"terms": {ADV: signed(1.5, radius="random"), **HESSIAN}},
    "growing1.5+h": {"terms": {ADV: signed(1.5, radius="growing"), **HESSIAN}},
    "smoothed1+h": {"terms": {ADV: signed(1, smoothing=0.05), **HESSIAN}},
    "adv1+align": {"terms": {ADV: adversarial(1), "l2_cosine": Term(L2Cosine(l2=0.1, cosine=1.0))}},
    "pool-ce": {"pool": 1.0},
    "pool1+h": {"terms": {ADV: adversarial(1), **HESSIAN}, "pool": 1.0},
}
VARIATIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    "lr": lambda rate: {"settings": {"lr": float(rate)}},
    "wd": lambda decay: {"settings": {"weight_decay": float(decay)}},
    "cut": lambda side: {"settings": {"cutout": int(side)}},
    "beta": lambda beta: {"beta": float(beta)},
    "share": lambda part: {"regularized_fraction": 1 / int(part), "regularize_every": int(part)},
}
"""What may follow an objective after a slash, with its number: share8 is the penalty on 1/8 of every 8th batch."""


def point_of(name: str) -> dict[str, Any]:
    """The objective of a point and what its variations change."""
    objective, *variations = name.split("/")
    own: dict[str, Any] = {**POINTS[objective], "settings": {}}
    for variation in variations:
        word, number = re.fullmatch(r"([a-z]+)(.+)", variation).groups()
        change = VARIATIONS[word](number)
        own = {**own, **change, "settings": {**own["settings"], **change.get("settings", {})}}
    return own


NETS: dict[str, dict[str, Any]] = {
    "lenet": {
        "model": "lenet",
        "optimizer": "adam",
        "lr": 1e-3,
        "weight_decay": 4e-5,
        "schedule": "cosine",
        "ema": 0.999,
    },
    "resnet18": {
        "model": "resnet18",
        "optimizer": "sgd",
        "lr": 0.1,
        "weight_decay": 5e-4,
        "schedule": "one_cycle",
        "clip": None,
        "ema": 0.999,
    },
}
NETS["resnet20"] = NETS["resnet18"] | {"model": "resnet20"}


def settings_for(arguments: argparse.Namespace, own: dict[str, Any]) -> TrainSettings:
    device = arguments.device
    return TrainSettings(
        **{
            "model_settings": {
                "activation": "softplus",
                "beta": own.get("beta", 3),
                "normalize": "cifar10",
            },
            "epochs": arguments.epochs,
            "seed": int(arguments.seeds),
            "device": device,
            "batch_size": 128,
            "clip": 0.5,
            "crop": 4,
            "flip": True,
            "fast": device == "cuda",
            "precision": arguments.precision or ("tf32" if device == "cuda" else "fp32"),
            "checkpoint_seconds": 60,
            **NETS[arguments.net],
            **own["settings"],
        }
    )


def trained(arguments: argparse.Namespace, data: Dataset, out: Path) -> tuple[nn.Module, float]:
    """The net of a point, and the seconds of its epochs, those before an interruption too."""
    point, epochs, seed, device = arguments.points, arguments.epochs, int(arguments.seeds), arguments.device
    own = point_of(point)
    settings = settings_for(arguments, own)
    model = build(settings.model, **settings.model_settings, num_classes=10, seed=seed)
    if "pool" in own:
        for name, module in list(model.named_modules()):
            if isinstance(module, nn.MaxPool2d):
                parent = model.get_submodule(name.rpartition(".")[0])
                setattr(parent, name.rpartition(".")[2], SmoothPool(own["pool"]))
    terms = {
        name: term(arguments.teacher) if callable(term) else term
        for name, term in own.get("terms", {}).items()
    }
    scale = None
    if (
        terms
        and isinstance(terms.get(ADV), Term)
        and getattr(terms[ADV].regularizer, "radius", "") == "growing"
    ):
        scale = torch.zeros((), device=device)
        terms[ADV] = replace(terms[ADV], regularizer=replace(terms[ADV].regularizer, scale=scale))
    objective = Objective(
        terms,
        own.get("cross_entropy"),
        0.0,
        own.get("regularized_fraction", 0.25),
        own.get("regularize_every", 4),
    )

    def grow(entry: dict[str, Any], _: nn.Module) -> None:
        if scale is not None:
            scale.fill_(min(1.0, 2 * entry["epoch"] / epochs))
        if entry["epoch"] % 20 == 0:
            print(f"{point} {entry['epoch']} {entry['losses']} {entry['seconds']}", flush=True)

    done = fit(model, data, settings, objective=objective, out=out, on_epoch=grow)
    return model.eval(), sum(entry["seconds"] for entry in done.history)


METHODS = {
    "gradient": Gradient(),
    "lrp": LRP.variant("paper"),
    "lrp reference": LRP.variant("reference"),
    "lrp conserving": LRP.variant("conserving"),
    "lrp gamma": LRP.variant("gamma"),
    "guided_backprop": GuidedBackprop(),
    "integrated_gradients": IntegratedGradients(steps=20),
}


def measured(model: nn.Module, data: Dataset, sizes: dict[str, int], methods: list[str]) -> dict[str, Any]:
    """Accuracy on all images; RPS, Insertion, Adv-Insertion and the share kept under `auto` on some of them.

    Means with their standard errors over images.
    """
    found: dict[str, Any] = {}

    def note(name: str, values: Tensor) -> None:
        values = values.double()
        values = values[values.isfinite()]
        error = float(values.std() / math.sqrt(len(values))) if len(values) > 1 else math.nan
        found[name] = {"mean": float(values.mean()), "error": error, "n": len(values)}

    note("accuracy", 100 * (predictions(model, data) == data.labels).double())
    gradient = Gradient()
    some = data.subset(sizes["rps"], 0)
    x, y = some.pixels(), some.labels
    rps = RandomPerturbationSimilarity(eps=16 / 255, draws=10)
    note(
        "rps",
        torch.cat([rps(model, gradient, a, b) for a, b in zip(x.split(500), y.split(500), strict=True)]),
    )
    game = insertion()
    ins = [
        game.curve_of_map(model, gradient(model, a, b), a, b).mean(1)
        for a, b in zip(x.split(500), y.split(500), strict=True)
    ]
    note("insertion", 100 * torch.cat(ins))
    if sizes["attack"]:
        some = data.subset(sizes["attack"], 0)
        aam = TargetedMap(eps=4 / 255, steps=100, protocol="reference")
        attacked = []
        for a, b in zip(some.pixels().split(1000), some.labels.split(1000), strict=True):
            hit = aam(model, gradient, a, b)
            attacked.append(game.curve_of_map(model, hit.map, a, b).mean(1))
        note("adv_insertion", 100 * torch.cat(attacked))
    some = data.subset(sizes["matched"], 0)
    radii = RADII if sizes["radii"] else (2, 4, 8)
    auto = Auto(eps=tuple(radius / 255 for radius in radii), steps=sizes["steps"])
    for name in methods:
        shares = []
        hits = auto.every_radius(model, METHODS[name], some.pixels(), some.labels)
        for radius, hit in zip(radii, hits, strict=True):
            note(f"{name} kept {radius}", hit.value)
            shares.append({n: part for n, part in enumerate(hit.value.tolist()) if math.isfinite(part)})
        held = steady_radius(shares, [radius / 255 for radius in radii])
        found[f"{name} steady radius"] = held and held["value"]
    return found


def one(arguments: argparse.Namespace) -> None:
    """Train and measure one point."""
    device, name = (
        arguments.device,
        f"{arguments.net}-{arguments.points.replace('/', '_')}-s{arguments.seeds}",
    )
    folder = Path(arguments.out) / name
    folder.mkdir(parents=True, exist_ok=True)
    train, test = cifar10("train"), cifar10("test")
    if arguments.stage == "explore":
        split = held_out(train, share=0.1, seed=0)
        train, test = split.train, split.test
    if arguments.images:
        train = train.subset(arguments.images)
    seed = int(arguments.seeds)
    model, train_seconds = trained(arguments, train, folder)
    facts = {"data": "cifar10", "seed": seed, "epochs": arguments.epochs, "stage": arguments.stage}
    save(folder / "model.safetensors", model, facts=facts)
    sizes = {name: getattr(arguments, name) for name in ("rps", "attack", "matched", "radii", "steps")}
    started = time.monotonic()
    numbers = measured(model, test.to(device), sizes, arguments.methods.split(","))
    document = {
        "net": arguments.net,
        "point": arguments.points,
        "seed": seed,
        "epochs": arguments.epochs,
        "stage": arguments.stage,
        "attack": attack_of(arguments),
        "train_seconds": train_seconds,
        "measure_seconds": time.monotonic() - started,
        "torch": torch.__version__,
        "numbers": numbers,
    }
    (Path(arguments.out) / f"{name}.json").write_text(json.dumps(document, indent=1))
    short = "  ".join(
        f"{k} {v['mean']:.3f}" if isinstance(v, dict) else f"{k} {v:.2f}" for k, v in numbers.items()
    )
    print(
        f"DONE {name} {document['train_seconds']:.0f}+{document['measure_seconds']:.0f} s  {short}",
        flush=True,
    )


def every(arguments: argparse.Namespace) -> None:
    """All points and seeds, some at a time, each in a process of its own."""
    points = list(POINTS) if arguments.points == "all" else arguments.points.split(",")
    jobs = [(p, s) for s in arguments.seeds.split(",") for p in points]
    left = [(point, seed) for point, seed in jobs if not is_measured(arguments, point, seed)]

    def run(job: tuple[str, str]) -> None:
        point, seed = job
        name = f"{arguments.net}-{point.replace('/', '_')}-s{seed}"
        words = [sys.executable, __file__, *sys.argv[1:], "--points", point, "--seeds", seed, "--alone"]
        log = Path(arguments.out) / f"{name}.log"
        with log.open("a") as file:
            code = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT, env=os.environ).returncode
        lines = log.read_text().splitlines()
        print(lines[-1] if lines else "", "" if code == 0 else f"FAILED {name} {code}", flush=True)

    Path(arguments.out).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(arguments.workers) as pool:
        list(pool.map(run, left))


def is_measured(arguments: argparse.Namespace, point: str, seed: str) -> bool:
    """True if the folder holds this point; one that was trained or attacked in another way is an error."""
    path = Path(arguments.out) / f"{arguments.net}-{point.replace('/', '_')}-s{seed}.json"
    if not path.exists():
        return False
    there = json.loads(path.read_text())
    asked = {"epochs": arguments.epochs, "stage": arguments.stage, "attack": attack_of(arguments)}
    for key, value in asked.items():
        if there[key] != value:
            sys.exit(f"{path} has {key} {there[key]}, not {value}; give another --out.")
    return True


def attack_of(arguments: argparse.Namespace) -> str:
    """The attack that judges, in words."""
    return f"auto, {arguments.steps} steps"


RULES = {"lenet": ("ce", 0.5), "resnet18": ("adv2", 0.25)}
"""Reference and accuracy, in points, that a chosen net may lose against it. adv2 was ResNet18's steady net before."""
RUN = ("net", "point", "seed", "epochs", "stage")
"""What tells one record from another."""
COLUMNS = {
    "accuracy": "accuracy, %",
    "rps": "RPS",
    "insertion": "Insertion",
    "adv_insertion": "Adv-Insertion",
    "gradient kept 4": "gradient kept, 4/255",
    "gradient kept 8": "8/255",
    "lrp kept 4": "LRP kept, 4/255",
    "lrp kept 8": "8/255",
}


def report(arguments: argparse.Namespace) -> None:
    """Add the JSON files of both stages to the records in `--out`; print their tables and draw their plane."""
    home = Path(arguments.out)
    home.mkdir(parents=True, exist_ok=True)
    texts = []
    for stage, folder in (("explore", arguments.explore), ("final", arguments.final)):
        kept = home / f"{stage}.json"
        known = json.loads(kept.read_text()) if kept.exists() else []
        new = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
        # A point that was measured again replaces its older record.
        points = list({tuple(p[key] for key in RUN): p for p in [*known, *new]}.values())
        kept.write_text(json.dumps(points, indent=1) + "\n")
        texts.append(f"## {stage}\n\n{table(points)}")
        if stage == "explore":
            plane(points, home / "plane.png")
            texts += [f"The rule chooses {point} for {kind}." for kind, point in choices(points).items()]
    print("\n\n".join(texts))


def choices(points: list[dict[str, Any]]) -> dict[str, str]:
    """The explored point that the rule of its net chooses, by kind."""
    means: dict[str, dict[str, tuple[float, float]]] = {}
    for p in points:
        accuracy, kept = (p["numbers"][name]["mean"] for name in ("accuracy", "gradient kept 4"))
        means.setdefault(kind_of(p), {})[p["point"]] = accuracy, kept
    chosen = {}
    for kind, found in means.items():
        reference, loss = RULES.get(kind.partition(",")[0], ("", 0.0))
        if reference in found:
            fair = [point for point in found if found[point][0] >= found[reference][0] - loss]
            chosen[kind] = max(fair, key=lambda point: found[point][1])
    return chosen


def kind_of(point: dict[str, Any]) -> str:
    """Net, length and attack: only points that share them are compared."""
    return f"{point['net']}, {point['epochs']} epochs, {point.get('attack', 'top_k, 40 steps')}"


def table(points: list[dict[str, Any]]) -> str:
    """Markdown: a row per kind and point, means over seeds."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for p in sorted(points, key=lambda p: (kind_of(p), p["point"] != "ce", p["point"])):
        rows.setdefault((kind_of(p), p["point"]), []).append(p)
    names = [name for name in COLUMNS if any(name in p["numbers"] for p in points)]
    lines = ["| net, objective | seeds | " + " | ".join(COLUMNS[name] for name in names) + " |"]
    lines.append("|" + "---|" * (len(names) + 2))
    for (kind, point), these in rows.items():
        cells = []
        for name in names:
            values = [p["numbers"][name]["mean"] for p in these if name in p["numbers"]]
            mean = sum(values) / len(values) if values else math.nan
            cells.append("-" if not values else f"{mean:.3f}" if mean < 1 else f"{mean:.1f}")
        lines.append(f"| {kind}: {point} | {len(these)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def plane(points: list[dict[str, Any]], path: Path) -> None:
    """Accuracy against the share of the gradient map's top tenth that stays at 4/255: a panel per net and attack."""
    from matplotlib import pyplot as plt

    panels: dict[str, list[dict[str, Any]]] = {}
    for p in points:
        panels.setdefault(kind_of(p), []).append(p)
    figure, every_axes = plt.subplots(
        1, len(panels), figsize=(8 * len(panels), 8), layout="constrained", squeeze=False
    )
    for axes, (title, some) in zip(every_axes[0], panels.items(), strict=True):
        for i, p in enumerate(sorted(some, key=lambda p: p["numbers"]["gradient kept 4"]["mean"])):
            accuracy, kept = (p["numbers"][name] for name in ("accuracy", "gradient kept 4"))
            at = accuracy["mean"], kept["mean"]
            axes.errorbar(
                *at, yerr=kept["error"], xerr=accuracy["error"], fmt="o", color="tab:blue", alpha=0.6
            )
            axes.annotate(
                p["point"], at, textcoords="offset points", xytext=(5, 5 if i % 2 else -11), fontsize=9
            )
        axes.set_title(title)
        axes.set_xlabel("accuracy on 5,000 held-out images, % (bars: standard errors)")
        axes.set_ylabel("top tenth of the gradient map kept at 4/255")
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=("explore", "final", "report"))
    parser.add_argument("--net", default="lenet", choices=tuple(NETS))
    parser.add_argument("--points", default="all", help="names of POINTS, separated by commas")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", help="of the training; default: tf32 on a GPU, fp32 on a CPU")
    parser.add_argument("--rps", type=int, default=1000)
    parser.add_argument("--attack", type=int, default=500)
    parser.add_argument("--matched", type=int, default=256)
    parser.add_argument("--radii", action="store_true", help="also the steady radius, on eight radii")
    parser.add_argument("--steps", type=int, default=20, help="of the attack, per radius")
    parser.add_argument("--methods", default="gradient")
    parser.add_argument("--teacher", default="cifar10/resnet18-steady", help="of the points called taught")
    parser.add_argument("--images", type=int, help="train on some images only, to try the script")
    parser.add_argument("--out", default="results/frontier")
    parser.add_argument("--explore", default="out/explore", help="folder of the first stage, for report")
    parser.add_argument("--final", default="out/final", help="folder of the second stage, for report")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage == "report":
        report(arguments)
    else:
        one(arguments) if arguments.alone else every(arguments)


if __name__ == "__main__":
    main()
