"""Faithfulness of AttnLRP beside other maps of a trained vision transformer: Insertion and Deletion, image by image.

    PYTHONPATH=src python benchmarks/vit.py --weights vit.safetensors --images 200 --out results/vit.md

FILE is a gyrograd checkpoint (`gyrograd.load`) of a net with attention. Every method ranks the pixels of the same test
images for their label. A map is read in two ways: by its size (joo2023), and by its sign, what speaks for the class
first. Insertion is the mean probability of the class as pixels are put in, the highest ranked first (higher is better);
deletion, as they are taken out (lower is better). Differences are paired: AttnLRP less the other on the same image,
with a 95 % bootstrap interval over images.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from pathlib import Path

import torch
from torch import Tensor

import gyrograd as gg
from gyrograd.numerics.statistics import bootstrap_interval, paired_difference
from gyrograd.numerics.wording import interval_text, signed_number

OURS = "AttnLRP"
METHODS = {
    OURS: ("lrp", {"variant": "attnlrp"}),
    "LRP as chosen (auto)": ("lrp", {"variant": "auto"}),
    "CP-LRP": ("lrp", {"variant": "cplrp"}),
    "Gradient": ("gradient", {}),
    "Input x Gradient": ("input_x_gradient", {}),
    "Integrated Gradients": ("integrated_gradients", {"steps": 20}),
    "SmoothGrad": ("smoothgrad", {"draws": 20}),
    "Attention rollout": ("attention_rollout", {}),
    "Gradient x attention": ("gradient_x_attention", {}),
}
READINGS = {"by size": "abs_sum", "by sign": "sum"}
GAMES = {"insertion": 1, "deletion": -1}
"""Each game, and the sign of a difference that is in favour of AttnLRP."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--weights", type=Path, help="a gyrograd checkpoint; random weights if left out")
    parser.add_argument("--data", default="cifar10", help="a registered set: cifar10, shapes")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--batch", type=int, default=50, help="images at once")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write the page here too")
    args = parser.parse_args()
    model = (gg.load(args.weights) if args.weights else untrained()).to(args.device).eval()
    data = gg.dataset(args.data, split="test")
    x, y = data.pixels()[: args.images], torch.as_tensor(data.labels)[: args.images]
    started = time.monotonic()
    values = measured(model, x.to(args.device), y.to(args.device), args.batch)
    page = report(values, model, x, y, args, time.monotonic() - started)
    print(page)
    if args.out:
        args.out.write_text(page)


def untrained() -> torch.nn.Module:
    settings = {"img_size": 32, "patch_size": 4, "num_classes": 10, "normalize": "cifar10", "seed": 0}
    return gg.model("timm:vit_tiny_patch16_224", **settings)


def measured(
    model: torch.nn.Module, x: Tensor, y: Tensor, batch: int
) -> dict[tuple[str, str, str], list[float]]:
    """The value of each image by method, reading and game."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for label, (name, settings) in METHODS.items():
        explain = gg.attribution(name, **settings)
        for images, target in zip(x.split(batch), y.split(batch), strict=True):
            map = explain(model, images, target).detach()
            for reading, reduce in READINGS.items():
                for game in GAMES:
                    curve = gg.metric(game, reduce=reduce).curve_of_map(model, map, images, target)
                    values.setdefault((label, reading, game), []).extend(curve.mean(1).tolist())
        print(f"{label}: done", file=sys.stderr, flush=True)
    return values


def report(
    values: dict[tuple[str, str, str], list[float]],
    model: torch.nn.Module,
    x: Tensor,
    y: Tensor,
    args: argparse.Namespace,
    seconds: float,
) -> str:
    with torch.no_grad():
        parts = x.split(args.batch)
        right = torch.cat([model(part.to(args.device)).argmax(1).cpu() for part in parts]) == y
    trained = f"`{args.weights.name}`" if args.weights else "RANDOM WEIGHTS: these numbers mean nothing"
    lines = [
        "# Faithfulness on a vision transformer",
        f"Model: {trained}. The first {len(x)} test images of {args.data}, each explained for its label; accuracy on "
        f"them {float(right.float().mean()):.3f}. Insertion: mean probability of the class as pixels are put in, the "
        "highest ranked first (higher is better); deletion: as they are taken out (lower is better). By size: the "
        "largest values of the map first; by sign: what speaks for the class first. Brackets: 95 % bootstrap intervals "
        "over images. "
        f"`python benchmarks/vit.py --weights FILE --images {len(x)}`, {seconds:.0f} s, torch {torch.__version__}, "
        f"{platform.machine()}.",
    ]
    for reading in READINGS:
        lines += ["", f"## Pixels ranked {reading}", "", *_table(values, reading)]
    lines += ["", *(_sentence(values, game) for game in GAMES), ""]
    return "\n".join(lines)


def _table(values: dict[tuple[str, str, str], list[float]], reading: str) -> list[str]:
    header = ["map", "insertion", "AttnLRP less this", "deletion", "AttnLRP less this"]
    rows = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    for label in METHODS:
        cells = [label]
        for game in GAMES:
            own, other = values[OURS, reading, game], values[label, reading, game]
            cells.append(interval_text(bootstrap_interval(other)))
            same = label == OURS
            cells.append("" if same else interval_text(paired_difference(own, other), signed_number))
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _sentence(values: dict[tuple[str, str, str], list[float]], game: str) -> str:
    """Against each method's better reading, what AttnLRP's better reading reaches."""

    def best(label: str) -> list[float]:
        found = [values[label, reading, game] for reading in READINGS]
        return max(found, key=lambda column: GAMES[game] * sum(column))

    below, above = [], []
    for label in METHODS:
        if label in {OURS, "LRP as chosen (auto)"}:
            continue
        gap = paired_difference(best(OURS), best(label))
        if gap.excludes_zero:
            (above if GAMES[game] * gap.value > 0 else below).append(label)
    return (
        f"{game.capitalize()}, each map by its better reading: AttnLRP is better than {', '.join(above) or 'none'}; "
        f"worse than {', '.join(below) or 'none'}; the others differ by less than their intervals."
    )


if __name__ == "__main__":
    main()
