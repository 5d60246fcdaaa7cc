"""The pictures of docs/concepts, drawn with the LeNets of the zoo: `python examples/concept_pictures.py [FOLDER]`.

A minute on one core. Without a folder they are written where the pages show them from.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib.figure import Figure

import gyrograd as gg
from gyrograd.reporting.figures import picture_grid
from gyrograd.reporting.sheet import Sheet

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
METHODS = ("gradient", "integrated_gradients", "guided_backprop", "lrp", "grad_cam", "occlusion", "lime")
SIGMAS = (0.03, 0.1, 0.3)
ATTACKS = ("random", "top_k", "targeted_map", "mass_center")
RADII = (1, 2, 4, 8, 16)


def main(folder: Path, images: int = 3, steps: int = 20) -> list[Path]:
    """Draw all pictures; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    plain, steady = gg.load("cifar10/lenet-ce"), gg.load("cifar10/lenet-steady")
    x = gg.dataset("shapes", split="test", n=images).pixels()
    return [
        methods(steady, x).save(folder / "methods.png"),
        smoothing(plain, x).save(folder / "smoothing.png"),
        attacks(plain, x, steps).save(folder / "attacks.png"),
        insertion(steady, x).save(folder / "insertion.png"),
        steady_radius({"plain": plain, "steady": steady}, x, steps, folder / "steady_radius.png"),
    ]


def methods(model, x):
    """Seven explanations of the same decisions."""
    target = gg.predict(model, x)
    maps = {
        gg.available("attribution")[name].label: gg.attribution(name)(model, x, target) for name in METHODS
    }
    return gg.show(x, maps)


def smoothing(model, x):
    """The gradient, and the gradient of the model smoothed more and more."""
    target = gg.predict(model, x)
    maps = {"gradient": gg.attribution("gradient")(model, x, target)}
    for sigma in SIGMAS:
        maps[f"SmoothGrad, sigma {sigma}"] = gg.attribution("smoothgrad", sigma=sigma)(model, x, target)
    return gg.show(x, maps)


def attacks(model, x, steps):
    """One map, and what noise and three attacks of the same size make of it."""
    lrp, target = gg.attribution("lrp"), gg.predict(model, x)
    maps = {"LRP": lrp(model, x, target)}
    for name in ATTACKS:
        settings = {} if name == "random" else {"steps": steps}
        maps[f"after {name}"] = gg.attack(name, eps=8 / 255, **settings)(model, lrp, x, target).map
    return gg.show(x, maps)


def insertion(model, x):
    """The image with more and more of its pixels put in, the highest in the map first."""
    strength = gg.attribution("lrp")(model, x, gg.predict(model, x)).abs().sum(1)
    columns = {}
    for share in (0.05, 0.2, 0.4, 0.7):
        cut = strength.flatten(1).quantile(1 - share, dim=1)[:, None, None]
        columns[f"{share:.0%} put in"] = x * (strength >= cut)[:, None]
    pictures = {
        title: list(several.movedim(1, 3).numpy()) for title, several in {"image": x, **columns}.items()
    }
    return Sheet(picture_grid(pictures, [""] * len(x)))


def steady_radius(nets, x, steps, path: Path) -> Path:
    """Share of the top tenth that stays, over the size of the attack; the radius is where half is left."""
    figure = Figure(figsize=(6, 3.2), dpi=110, layout="constrained")
    axes = figure.subplots()
    for name, net in nets.items():
        attack = gg.attack("auto", eps=[eps / 255 for eps in RADII], steps=steps)
        hits = attack.every_radius(net, gg.attribution("lrp"), x, gg.predict(net, x))
        kept = [1.0] + [float(hit.value.mean()) for hit in hits]
        axes.plot([0, *RADII], kept, marker="o", label=f"{name} net")
        beyond = next((i for i, share in enumerate(kept) if share < 0.5), None)
        if beyond is not None:
            (low, high), (before, after) = [0, *RADII][beyond - 1 : beyond + 1], kept[beyond - 1 : beyond + 1]
            radius = low + (high - low) * (before - 0.5) / (before - after)
            axes.annotate(f"{radius:.1f}/255", (radius, 0.5), (radius + 0.4, 0.56))
    axes.axhline(0.5, color="grey", linewidth=0.8)
    axes.set_xlabel("eps of the attack, in 255ths")
    axes.set_ylabel("top tenth that stays")
    axes.set_ylim(0, 1.02)
    axes.legend()
    figure.savefig(path)
    return path


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)
