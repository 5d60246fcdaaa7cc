"""Insertion and deletion on three substrates, of maps and of an order that knows nothing of the model.

    python benchmarks/substrates.py [cifar10/lenet-ce ...] [--images 400]

writes results/substrates.md. The order that knows nothing of the model ranks the pixels by their distance from the
substrate: putting such a pixel in changes the image most. A map explains a model if it beats that order, not only a
random one.
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path

import torch
from torch import Tensor

import gyrograd as gg
from gyrograd.records import write_text

OUT = Path(__file__).parents[1] / "results" / "substrates.md"
SUBSTRATES = {
    "model_zero": "mean colour of the data",
    "mean": "mean colour of the image",
    "blur": "blurred image",
}
MAPS = {
    "gradient": gg.attribution("gradient"),
    "input x gradient": gg.attribution("input_x_gradient"),
    "integrated gradients": gg.attribution("integrated_gradients", steps=20),
    "guided backprop": gg.attribution("guided_backprop"),
    "LRP, z-box first": gg.attribution("lrp", variant="paper"),
    "LRP, z+ first": gg.attribution("lrp", variant="paper", first="same"),
}


def measured(net: str, images: int) -> list[str]:
    """The rows of a net: means and standard errors over images, each value for the predicted class."""
    model, x = gg.load(net), gg.dataset("cifar10").subset(images, seed=0).pixels()
    target = gg.predict(model, x)
    maps = {name: explain(model, x, target) for name, explain in MAPS.items()}
    games = [gg.metric(game, substrate=name) for name in SUBSTRATES for game in ("insertion", "deletion")]
    rows = [
        (name, [game.curve_of_map(model, map, x, target).mean(1) for game in games])
        for name, map in maps.items()
    ]
    rows.append(("*distance from the substrate*", [game.without_model(model, x, target) for game in games]))
    rows.append(("*random order*", [game.chance(model, x, target) for game in games]))
    return [f"| {name} | " + " | ".join(map(with_error, columns)) + " |" for name, columns in rows]


def with_error(values: Tensor) -> str:
    return f"{values.mean():.3f} ± {values.std() / len(values) ** 0.5:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nets", nargs="*", default=["cifar10/lenet-ce", "cifar10/lenet-steady"])
    parser.add_argument("--images", type=int, default=400)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    head = [f"{text}: {game}" for text in SUBSTRATES.values() for game in ("insertion ↑", "deletion ↓")]
    parts = [
        "# What insertion and deletion reward\n"
        f"`python benchmarks/substrates.py {' '.join(options.nets)} --images {options.images}`,\n"
        f"torch {torch.__version__}, {platform.machine()} CPU. CIFAR-10 test images\n"
        f"(`subset({options.images}, seed=0)`), predicted class, mean and standard error over the images."
    ]
    for net in options.nets:
        table = [f"| | {' | '.join(head)} |", "|" + "---|" * (len(head) + 1), *measured(net, options.images)]
        parts.append("\n".join([f"## {net}", *table]))
    write_text(options.out, "\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
