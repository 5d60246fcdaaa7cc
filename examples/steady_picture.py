"""Two networks under the same attack, drawn side by side: `python examples/steady_picture.py [OUT.png]`.

Trains a plain and a steady LeNet on the embedded shapes (minutes on two cores; kept in out/; a second call only draws),
attacks the gradient map of the first three test images that both get right, and shows the maps before and after.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from torch import Tensor

import gyrograd as gg
from gyrograd.attacks import AttackResult
from gyrograd.metrics import TopKIntersection
from gyrograd.training import recipe, train

EPS = 8 / 255
TOP = 102
"""A tenth of the pixels."""


def main(path: Path) -> None:
    data = gg.dataset("shapes", split="test", n=40)
    nets = {
        name: train(recipe(f"shapes-{name}"), Path("out") / f"shapes-{name}").model
        for name in ("ce", "steady")
    }
    right = torch.stack([gg.predicted(net, data.pixels()) == data.labels for net in nets.values()]).all(0)
    some = data.rows(right.nonzero()[:3, 0])
    x, y = some.pixels(), some.labels
    attack = gg.attack("top_k", eps=EPS, k=TOP, steps=100, judged_by="overlap")
    hits = {name: attack(net, gg.attribution("gradient"), x, y) for name, net in nets.items()}
    kept = {name: TopKIntersection(k=TOP)(hit.map_clean, hit.map) for name, hit in hits.items()}
    draw(x, hits, kept, path)
    for name, values in kept.items():
        print(
            f"{name}: {', '.join(f'{value:.0%}' for value in values.tolist())} of the brightest tenth stays"
        )


def draw(x: Tensor, hits: dict[str, AttackResult], kept: dict[str, Tensor], path: Path) -> None:
    """A row per image: image, attacked image, then map before and after for each net."""
    figure, axes = plt.subplots(len(x), 6, figsize=(10, 5.2), layout="constrained")
    plain, steady = hits.values()
    columns = {
        "image": x,
        "attacked": plain.x,
        "plain net: map": plain.map_clean,
        "after the attack": plain.map,
        "steady net: map": steady.map_clean,
        "after the attack ": steady.map,
    }
    for column, (title, pictures) in enumerate(columns.items()):
        for row, picture in enumerate(pictures):
            cell = axes[row, column]
            if column < 2:
                cell.imshow(picture.movedim(0, -1))
            else:
                heat = picture.abs().sum(0)
                cell.imshow(heat, cmap="inferno", vmin=0, vmax=float(heat.quantile(0.995)))
            cell.set_xticks([]), cell.set_yticks([])
            if column in (3, 5):
                cell.set_xlabel(
                    f"{float(list(kept.values())[column // 4][row]):.0%} of the top stays", fontsize=10
                )
        axes[0, column].set_title(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/steady.png"))
