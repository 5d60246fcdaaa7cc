"""Occlusion, RISE, LIME and SHAP under `auto`: followed by their own derivative, and by transfer from the gradient.

    OMP_NUM_THREADS=1 python benchmarks/forward_only.py       # half an hour of one core

Until these four had a derivative an attack could only search through the gradient map, which says little about them.
The gradient and LRP stand beside them. Prints the table of results/attacks/forward_only.md.
"""

from __future__ import annotations

import argparse
import time

import torch

import gyrograd as gg
from gyrograd.audit.table import steady_radius
from gyrograd.parsing import make_from_text
from gyrograd.registry import lookup
from gyrograd.types import Attribution, Images, Labels, Model

RADII = (2, 4, 8)
METHODS = {
    "gradient": "gradient",
    "LRP": "lrp",
    "occlusion, 226 passes": "occlusion",
    "RISE, 500": "rise",
    "LIME, superpixels, 100": "lime",
    "SHAP, superpixels, 100": "shap",
    "LIME, 8 x 8 cells, 200": "lime(segments=grid,draws=200)",
    "SHAP, 8 x 8 cells, 200": "shap(segments=grid,draws=200)",
}


def cells_of(
    model: Model, explain: Attribution, x: Images, y: Labels, steps: int, through: str | None
) -> list[str]:
    """Steady radius, shares kept and processor seconds of one search, as texts."""
    began = time.process_time()
    attack = gg.attack("auto", eps=tuple(r / 255 for r in RADII), steps=steps, transfer_from=through)
    shares = torch.stack([hit.value for hit in attack.every_radius(model, explain, x, y)])
    took = time.process_time() - began
    of_images = [dict(enumerate(row.tolist())) for row in shares]
    radius = steady_radius(of_images, [r / 255 for r in RADII])
    at_least = "at least " if radius["value"] == max(RADII) else ""
    steady = f"{at_least}{radius['value']:.1f} [{radius['low']:.1f}, {radius['high']:.1f}]"
    return [steady, ", ".join(f"{share:.3f}" for share in shares.mean(1)), f"{took:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", default="cifar10/lenet-ce,cifar10/lenet-steady")
    parser.add_argument("--images", type=int, default=12)
    parser.add_argument("--steps", type=int, default=12)
    asked = parser.parse_args()
    data = gg.dataset("cifar10", split="test", n=asked.images)
    x, y = data.pixels(), data.labels
    titles = ("net", "map", "steady radius", "kept at 2, 4, 8/255", "s", "by transfer", "kept", "s")
    print("| " + " | ".join(titles) + " |", "|" + "---|" * len(titles), sep="\n")
    for net in asked.nets.split(","):
        model = gg.load(net)
        for name, text in METHODS.items():
            explain = make_from_text("attribution", text)
            own = cells_of(model, explain, x, y, asked.steps, None)
            forward_only = lookup("attribution", text.partition("(")[0]).forward_only
            by_transfer = (
                cells_of(model, explain, x, y, asked.steps, "gradient") if forward_only else [""] * 3
            )
            print("| " + " | ".join([net, name, *own, *by_transfer]) + " |", flush=True)


if __name__ == "__main__":
    main()
