"""Certified shares and cosines of the zoo's nets: `python benchmarks/certificates.py --data cifar10 --images 12`.

One row per net and method: the share of pixels whose place in or out of the top half is certified, and the certified
cosine (0 where nothing is certain). Means over images with bootstrap intervals.
"""

from __future__ import annotations

import argparse
import time

import torch

import gyrograd as gg
from gyrograd.numerics.statistics import bootstrap_interval

NETS = ("cifar10/lenet-ce", "cifar10/lenet-l2-cosine", "cifar10/lenet-steady")
METHODS = ("gradient", "lrp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--images", type=int, default=12, help="the first of the test images")
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--held-out", type=int, default=50)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    data = gg.dataset(options.data, split="test").rows(torch.arange(options.images)).to(options.device)
    x, target = data.pixels(), data.labels
    draws = {"draws": options.draws, "held_out": options.held_out}
    print(
        "| net, method | pixels, R = .05 | R = .10 | cosine, R = .02 | R = .05 | seconds |",
        "|---|---|---|---|---|---|",
        sep="\n",
    )
    for net in NETS:
        model = gg.load(net).to(options.device).eval()
        for method in METHODS:
            explain, started = gg.attribution(method), time.monotonic()
            pixels = gg.metric("certified_pixels", **draws).certificate(model, explain, x, target)
            angle = gg.metric("certified_cosine", **draws).certificate(model, explain, x, target)
            cells = [pixels.share(0.05), pixels.share(0.10), angle.cosine(0.02), angle.cosine(0.05)]
            found = [bootstrap_interval(cell.clamp_min(0).tolist()) for cell in cells]
            shown = " | ".join(f"{i.value:.3f} [{i.low:.3f}, {i.high:.3f}]" for i in found)
            print(f"| {net}, {method} | {shown} | {time.monotonic() - started:.0f} |", flush=True)


if __name__ == "__main__":
    main()
