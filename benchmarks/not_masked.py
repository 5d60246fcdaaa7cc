"""Do a net's maps hold, or does the attack only fail to find its way? `python benchmarks/not_masked.py --help`.

A net can look steady because its slopes mislead the search (masked gradients). If so, one of these finds more than
`auto` does: ten times its steps, every named attack, copies of the net with softer and sharper activations, points
found on an undefended net, a search without any derivative, noise. Prints, for each, the mean share of the top tenth
that stays with the prediction unchanged, and the lowest of all for each image: a steady net's numbers hold.

    python benchmarks/not_masked.py cifar10/lenet-steady --from cifar10/lenet-ce --data test.pt --device cuda
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from auto_attack import NAMED, TOP
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attacks.loop import Box
from gyrograd.attacks.squares import try_squares
from gyrograd.numerics import random
from gyrograd.numerics.balls import ball
from gyrograd.numerics.maps import reduce
from gyrograd.numerics.similarity import top_k_overlap
from gyrograd.parsing import make_from_text

BETAS = (0.3, 3.0, 10.0)
"""Of the copies whose activations bend more softly or more sharply, as multiples of the net's own."""


class Judge:
    """The share of the clean map's top tenth that stays; all of it where the prediction changed."""

    def __init__(self, model: nn.Module, explain: Any, x: Tensor, target: Tensor) -> None:
        self.model, self.explain, self.x, self.target = model, explain, x, target
        self.clean = reduce(explain(model, x, target))
        with torch.no_grad():
            self.predicted = model(x).argmax(1)

    def share(self, z: Tensor) -> Tensor:
        map = reduce(self.explain(self.model, z, self.target))
        return top_k_overlap(self.clean, map, round(TOP * map[0].numel())).double()

    def holds(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            return self.model(z).argmax(1) == self.predicted

    def __call__(self, z: Tensor) -> Tensor:
        return torch.where(self.holds(z), self.share(z), 1.0)


def points(
    model: nn.Module, other: nn.Module, explain: Any, judge: Judge, eps: float, options: argparse.Namespace
) -> Iterator[tuple[str, Tensor]]:
    """Attacked images by the name of what found them."""
    x, y = judge.x, judge.target
    yield "auto", gg.attack("auto", eps=eps, steps=options.steps)(model, explain, x, y, seed=0).x
    longer = gg.attack("auto", eps=eps, steps=10 * options.steps)
    yield "auto, ten times the steps", longer(model, explain, x, y, seed=0).x
    for name, (attack, settings) in NAMED.items():
        k = {"k": round(TOP * x[0, 0].numel())} if attack == "top_k" else {}
        named = gg.attack(attack, eps=eps, steps=options.named_steps, restarts=3, **settings, **k)
        yield name, named(model, explain, x, y, seed=0).x
    for factor in BETAS:
        twin = gg.attack("auto", eps=eps, steps=options.steps)(bent(model, factor), explain, x, y, seed=0)
        yield f"found on a copy, beta x {factor:g}", twin.x
    yield "found on the other net", longer(other, explain, x, y, seed=0).x
    yield "squares, no derivative", squares(judge, eps, options.looks)
    noisy = [x + eps * sign for sign in random.signs(random.keys(0, 20), tuple(x.shape[1:]), stream=3).to(x)]
    yield "noise, 20 draws", torch.stack(noisy).clamp(0, 1)


def squares(judge: Judge, eps: float, looks: int) -> Tensor:
    """A random search that asks for values alone."""

    def ask(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, kept = judge.share(z), judge.holds(z)
        return value, torch.where(kept, value, math.inf), kept

    keys = random.keys(0, len(judge.x)).to(judge.x.device)
    start = torch.zeros_like(judge.x)
    delta, _ = try_squares(judge.x, start, ball("linf", eps), Box(), ask, keys, looks)
    return judge.x + delta


def bent(model: nn.Module, factor: float) -> nn.Module:
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, nn.Softplus):
            module.beta *= factor
    return twin


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a checkpoint or a name of the zoo")
    parser.add_argument(
        "--from", dest="other", required=True, help="the undefended net that points are found on"
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="torch file with x (uint8, n x 3 x h x w) and y"
    )
    parser.add_argument("--methods", nargs="+", default=["gradient", "lrp"])
    parser.add_argument("--eps", type=float, nargs="+", default=[4, 8], help="radii, of 255")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20, help="of auto; ten times as many beside it")
    parser.add_argument("--named-steps", type=int, default=300)
    parser.add_argument("--looks", type=int, default=2000, help="of the search without derivatives")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("out/not_masked.json"))
    options = parser.parse_args()
    data = torch.load(options.data, weights_only=True)
    x = data["x"][: options.images].to(options.device).float() / 255
    y = data["y"][: options.images].long().to(options.device)
    model, other = (gg.load(name).to(options.device).eval() for name in (options.model, options.other))
    rows: list[dict[str, Any]] = []
    for method in options.methods:
        explain = make_from_text("attribution", method)
        judge = Judge(model, explain, x, y)
        for eps in options.eps:
            lowest, started = torch.ones(len(x), dtype=torch.float64, device=x.device), time.monotonic()
            for name, found in points(model, other, explain, judge, eps / 255, options):
                tried = found if found.dim() == 5 else found[None]
                kept = torch.stack([judge(z) for z in tried]).amin(0)
                lowest = torch.minimum(lowest, kept)
                rows.append(
                    {"method": method, "eps": eps, "by": name, "kept": float(kept.mean()), "n": len(x)}
                )
                seconds = time.monotonic() - started
                print(f"{method} {eps:g}/255 {name}: {rows[-1]['kept']:.3f} ({seconds:.0f} s)", flush=True)
            rows.append(
                {
                    "method": method,
                    "eps": eps,
                    "by": "lowest of all",
                    "kept": float(lowest.mean()),
                    "n": len(x),
                }
            )
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps({"model": options.model, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
