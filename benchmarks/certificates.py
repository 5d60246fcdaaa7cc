"""Certified shares and cosines of the zoo's nets: `python benchmarks/certificates.py --images 12 --draws 500`.

One row per net and method: the share of pixels whose place in or out of the top half is certified, and the certified
cosine (0 where nothing is certain). Means over images with bootstrap intervals, seconds per image and certificate, and
draws per second beside a plain loop (one draw at a time, as the formula reads).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gyrograd as gg
from gyrograd.numerics.statistics import Stat, bootstrap_interval
from gyrograd.records import write_text

NETS = ("cifar10/lenet-ce", "cifar10/lenet-l2-cosine", "cifar10/lenet-steady")
METHODS = ("gradient", "lrp")
PIXEL_RADII, COSINE_RADII = (0.05, 0.10), (0.0, 0.02, 0.05)
LOOP_DRAWS = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", default=list(NETS))
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--images", type=int, default=12, help="the first of the test images")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--held-out", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    options = parser.parse_args()
    data = gg.dataset(options.data, split="test").rows(torch.arange(options.images)).to(options.device)
    x, target = data.pixels(), data.labels
    draws = {"draws": options.draws, "held_out": options.held_out}
    heads = [f"pixels, R = {r:g}" for r in PIXEL_RADII] + [f"cosine, R = {r:g}" for r in COSINE_RADII]
    heads += ["s per image, pixels", "s per image, cosine", "draws per s", "plain loop"]
    print("| net, method | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|", sep="\n")
    rows = []
    for net in options.nets:
        model = gg.load(net).to(options.device).eval()
        for method in options.methods:
            explain = gg.attribution(method)
            at = (model, explain, x, target)
            gg.metric("certified_pixels", draws=100, held_out=1).certificate(*at)  # the first call is slower
            pixels, pixel_seconds = timed(gg.metric("certified_pixels", **draws).certificate, *at)
            angle, angle_seconds = timed(gg.metric("certified_cosine", **draws).certificate, *at)
            cells = [pixels.share(r) for r in PIXEL_RADII]
            cells += [angle.cosine(r).clamp_min(0) for r in COSINE_RADII]
            row: dict[str, Any] = {
                "net": net,
                "method": method,
                "values": dict(zip(heads, map(stat, cells), strict=False)),
                "seconds_per_image": {
                    "pixels": pixel_seconds / len(x),
                    "cosine": angle_seconds / len(x),
                },
                "draws_per_second": len(x) * (options.draws + options.held_out) / pixel_seconds,
                "plain_loop_draws_per_second": LOOP_DRAWS / timed(plain_loop, *at)[1],
            }
            rows.append(row)
            shown = [f"{v['value']:.3f} [{v['low']:.3f}, {v['high']:.3f}]" for v in row["values"].values()]
            shown += [f"{seconds:.3f}" for seconds in row["seconds_per_image"].values()]
            shown += [f"{row['draws_per_second']:,.0f}", f"{row['plain_loop_draws_per_second']:,.0f}"]
            print(f"| {net}, {method} | " + " | ".join(shown) + " |", flush=True)
    if options.json:
        settings = {"images": options.images, **draws, "device": options.device, "torch": torch.__version__}
        write_text(options.json, json.dumps({"settings": settings, "rows": rows}, indent=1) + "\n")


def timed(work: Callable[..., Any], *given: Any) -> tuple[Any, float]:
    """What the work returns, and seconds until the device has done it."""
    started = time.monotonic()
    found = work(*given)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return found, time.monotonic() - started


def plain_loop(model: gg.types.Model, explain: Any, x: Tensor, target: Tensor) -> Tensor:
    """Counts of the top half over draws of one image, one at a time."""
    counts = torch.zeros_like(x[:1, 0])
    for _ in range(LOOP_DRAWS):
        map = explain(model, x[:1] + 0.15 * torch.randn_like(x[:1]), target[:1])[0].abs().sum(0)
        counts += map >= map.median()
    return counts


def stat(values: Tensor) -> Stat:
    return bootstrap_interval(values.tolist()).plain()


if __name__ == "__main__":
    main()
