"""Two networks under the same attack, drawn side by side: `python examples/steady_picture.py [OUT.png]`.

The plain and the steady LeNet of the zoo look at the first three made images; the attack is aimed at the brightest
tenth of their LRP maps. Half a minute on one core.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

import gyrograd as gg
from gyrograd.metrics import TopKIntersection

EPS = 4 / 255
TOP = 102
"""A tenth of the pixels."""
NETS = {"plain": "cifar10/lenet-ce", "steady": "cifar10/lenet-steady"}


def main(path: Path, images: int = 3, steps: int = 40) -> dict[str, list[float]]:
    """Draw the picture; the share of the top that stays, per net and image."""
    x = gg.dataset("shapes", split="test", n=images).pixels()
    attack = gg.attack("top_k", eps=EPS, k=TOP, steps=steps, judged_by="overlap")
    columns, kept, found = {"image": x}, {}, {}
    for name, zoo in NETS.items():
        net = gg.load(zoo)
        hit = attack(net, gg.attribution("lrp"), x, gg.predict(net, x))
        kept[len(columns) + 2] = TopKIntersection(k=TOP)(hit.map_clean, hit.map)
        found[name] = kept[len(columns) + 2].tolist()
        columns |= {
            f"attacked, {name} net": hit.x,
            f"{name} net: map": hit.map_clean,
            f"{name}: after": hit.map,
        }

    figure, axes = plt.subplots(len(x), len(columns), figsize=(11, 5.2), layout="constrained", squeeze=False)
    for column, (title, pictures) in enumerate(columns.items()):
        axes[0, column].set_title(title, fontsize=10)
        for cell, picture in zip(axes[:, column], pictures, strict=True):
            cell.set_xticks([])
            cell.set_yticks([])
            if "attacked" in title or title == "image":
                cell.imshow(picture.movedim(0, -1).numpy())
            else:
                heat = picture.abs().sum(0).numpy()
                cell.imshow(heat, cmap="inferno", vmin=0, vmax=float(np.quantile(heat, 0.995)))
        for cell, share in zip(axes[:, column], kept.get(column, ()), strict=False):
            cell.set_xlabel(f"{share:.0%} of the top stays", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/steady.png"))
