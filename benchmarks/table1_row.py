"""A row of joo2023's Table 1 for trained checkpoints: four attributions, RPS at three eps, Insertion, Adv-Insertion.

    python benchmarks/table1_row.py lenet-ce.safetensors lenet-l2-cosine.safetensors --device cuda --images 10000

Seconds for each part are printed; the values of every image go into a record beside the means.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

import gyrograd as gg
from gyrograd import records
from gyrograd.experiments.engine import laid_out
from gyrograd.experiments.joo2023.measures import ATTRIBUTIONS, RPS_EPS, attacked, game_columns, similarities
from gyrograd.numerics import random
from gyrograd.numerics.statistics import bootstrap_interval
from gyrograd.training import predictions


def row(
    model: torch.nn.Module, x: Tensor, y: Tensor, options: argparse.Namespace
) -> tuple[dict[str, list[float]], dict[str, float]]:
    values: dict[str, list[Tensor]] = {}
    seconds: dict[str, float] = {}
    keys = random.keys(0, len(x), x.device)

    def noted(name: str, started: float) -> None:
        if x.is_cuda:
            torch.cuda.synchronize()
        seconds[name] = seconds.get(name, 0) + time.perf_counter() - started

    for name in options.attributions:
        for some in torch.arange(len(x), device=x.device).split(options.at_once):
            these, labels, own = x[some], y[some], keys[some]
            found: dict[str, Tensor] = {}
            started = time.perf_counter()
            for eps in RPS_EPS:
                alike = similarities(
                    model, ATTRIBUTIONS[name], these, labels, eps=eps / 255, draws=10, seed=own
                )
                found |= {f"{name} rps {kind} {eps}": column for kind, column in alike.items()}
            noted(f"{name} rps", started)
            started = time.perf_counter()
            found |= game_columns(
                f"{name} ins", model, ATTRIBUTIONS[name](model, these, labels).detach(), these, labels
            )
            noted(f"{name} insertion", started)
            started = time.perf_counter()
            hit = attacked(model, name, these, labels, eps=4, steps=100, seed=own)
            found |= game_columns(f"{name} a-ins", model, hit.map, these, labels)
            found[f"{name} label kept"] = 100 * hit.prediction_kept.float()
            noted(f"{name} attack", started)
            for key, column in found.items():
                if "@" not in key:
                    values.setdefault(key, []).append(column.detach().float().cpu())
        print(
            f"  {name}: " + ", ".join(f"{k} {v:.1f} s" for k, v in seconds.items() if k.startswith(name)),
            flush=True,
        )
    return {key: torch.cat(parts).double().tolist() for key, parts in values.items()}, seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=2000)
    parser.add_argument("--attributions", nargs="+", default=list(ATTRIBUTIONS), choices=list(ATTRIBUTIONS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("out/table1_row"))
    options = parser.parse_args()
    torch.set_flush_denormal(True)
    test = gg.dataset("cifar10", split="test", root=options.data).to(options.device)
    chosen = test.chosen(options.images, 0) if options.images < len(test) else torch.arange(len(test))
    some = test.rows(chosen)
    for path in options.checkpoints:
        model = laid_out(gg.load(path).to(options.device), options.device)
        started = time.perf_counter()
        right = float((predictions(model, test) == test.labels).double().mean())
        print(
            f"{path.stem}: accuracy {100 * right:.2f} on {len(test)} images; the rest on {len(some)}",
            flush=True,
        )
        values, seconds = row(model, some.pixels(), some.labels, options)
        total = time.perf_counter() - started
        for key, column in values.items():
            if "cosine 16" in key or key.endswith(("ins", "kept")):
                mean = bootstrap_interval(column)
                print(f"  {key}: {mean.value:.3f} [{mean.low:.3f}, {mean.high:.3f}]")
        print(f"  {total:.1f} s in all", flush=True)
        settings = {"checkpoint": path.name, "images": options.images, "device": options.device}
        facts = {"accuracy": right, "seconds": total, "parts": seconds, "torch": torch.__version__}
        records.write(
            options.out / f"{path.stem}.json",
            records.Record("table1_row", settings, chosen.tolist(), values, facts),
        )


if __name__ == "__main__":
    main()
