"""Try to break certificates inside their radius, and count what breaks.

    python benchmarks/certificates_attacked.py --device cuda --seconds 240 --out out/attacked

A certificate claims of an image: at every distance up to r, the mean over draws of a number in [0, 1] is at least so
much. The numbers are "this pixel is where it was guessed", one per certified pixel, and "half of one plus the cosine to
the direction". Each pair (image, r) is attacked at several points of length r: along the steepest way down of the
smoothed numbers, estimated from draws alone (Stein's identity), and along two ways that follow the derivative of the
maps over several steps, where they have one: of all numbers, and of the weakest. A few draws at each point find the
most doubtful number, more draws the pairs to suspect, and the most suspicious of a shard are judged by many fresh
draws, which alone count: a claim is refuted where their mean is too low to be chance (Chernoff's bound, p below
`level`).

With much noise (sigma 0.15) the smoothed maps of real nets move far less than the theorem allows: claims that are four
times too bold are still true there, and no attack can refute what is true. With little noise (sigma 0.02) a map is
nearly linear in the image, certificates are nearly tight, and a wrong sigma shows: attack both.

A certificate may be wrong on a share alpha of the images. The verdict is the number of images with a refuted claim
against that. `--plant sigma` and `--plant correction` certify with a fault, which must be found.

One JSON file per shard; what is there is not run again. `--seconds` stops in time, the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attributions.batching import rows_at_once
from gyrograd.metrics import CertifiedCosine, CertifiedPixels
from gyrograd.metrics.noise import GaussianNoise, neighbours
from gyrograd.metrics.passes import explain_variants, parts
from gyrograd.metrics.reductions import reduce_map
from gyrograd.numerics import random
from gyrograd.numerics.maps import normalize, top_k_mask
from gyrograd.records import read_json, write_text

NETS = (
    "cifar10/lenet-ce:gradient:10000",
    "cifar10/lenet-steady:gradient:10000",
    "cifar10/lenet-ce:lrp:2000",
    "cifar10/lenet-steady:lrp:2000",
    "cifar10/resnet18-ce:gradient:600",
    "cifar10/resnet18-steady:gradient:600",
    "cifar10/resnet18-ce:lrp:100",
    "cifar10/resnet18-steady:lrp:100",
)


WRONG = 4
"""How far sigma is off in a planted fault."""


@dataclass(frozen=True)
class Effort:
    """How certificates are made and how they are attacked; `radii` is how many distances of each image."""

    sigma: float = 0.15
    alpha: float = 0.001
    draws: int = 200
    held_out: int = 20
    top: float = 0.5
    radii: int = 64
    slope_draws: int = 32
    steps: int = 4
    step_draws: int = 8
    screen: int = 2
    select: int = 100
    suspects: int = 16
    confirm: int = 2000
    level: float = 1e-5
    seed: int = 0
    max_batch: int = 512


@dataclass(frozen=True, eq=False)
class Claims:
    """What a certificate says of b images: at distance r the mean of each of q numbers is at least `floor(r)`.

    quantile: of the bound at the image itself, `b q`; 0 where nothing is claimed. values: maps `b n c h w` of these
    images to the numbers `b n q`. slope: the same numbers with a derivative.
    """

    sigma: float
    quantile: Tensor
    values: Callable[[Tensor, slice | Tensor], Tensor]
    slope: Callable[[Tensor, slice | Tensor], Tensor]

    def floor(self, r: Tensor) -> Tensor:
        return torch.special.ndtr(self.quantile - (r / self.sigma)[:, None])

    def stands(self, r: Tensor) -> Tensor:
        """Where something is claimed at this distance; rounding at the very end is forgiven."""
        return (self.quantile > 0) & (self.quantile * self.sigma >= r[:, None] * (1 - 1e-9))


Attacked = tuple[nn.Module, Any, Tensor, Tensor]
"""Model, method, images and classes."""


def pixel_claims(at: Attacked, effort: Effort, plant: str | None = None, seed: Any = 0) -> Claims:
    """Every certified pixel stays where it was guessed."""
    pixels = at[2][0, 0].numel()
    metric = CertifiedPixels(
        sigma=effort.sigma, alpha=effort.alpha, draws=effort.draws, held_out=effort.held_out, top=effort.top,
        max_batch=effort.max_batch,
    )  # fmt: skip
    if plant == "correction":  # the metric divides by the number of pixels: this undoes it
        metric = replace(metric, alpha=min(effort.alpha * pixels, 0.999))
    found = metric.certificate(*at, seed=seed)
    guess = found.in_top.flatten(1)
    k = max(1, round(effort.top * pixels))

    def values(maps: Tensor, rows: slice | Tensor) -> Tensor:
        tops = top_k_mask(reduce_map(maps.flatten(0, 1), metric.reduce), k).flatten(1)
        return (tops.unflatten(0, maps.shape[:2]) == guess[rows][:, None]).to(maps.dtype)

    def slope(maps: Tensor, rows: slice | Tensor) -> Tensor:
        size = reduce_map(maps.flatten(0, 1), metric.reduce).flatten(1).unflatten(0, maps.shape[:2])
        threshold = size.topk(k, dim=2).values[..., -1:]
        away = (size.clamp_min(1e-12) / threshold.clamp_min(1e-12)).log()
        # A pixel that has changed sides is not pushed further.
        return torch.where(guess[rows][:, None], away, -away).clamp_min(-0.5)

    wrong = WRONG if plant == "sigma" else 1
    return Claims(wrong * effort.sigma, found.radius.flatten(1) / effort.sigma, values, slope)


def direction_claims(at: Attacked, effort: Effort, plant: str | None = None, seed: Any = 0) -> Claims:
    """The maps of the draws stay near the direction, on average."""
    metric = CertifiedCosine(
        sigma=effort.sigma, alpha=effort.alpha, draws=effort.draws, held_out=effort.held_out,
        max_batch=effort.max_batch,
    )  # fmt: skip
    found = metric.certificate(*at, seed=seed)

    def values(maps: Tensor, rows: slice | Tensor) -> Tensor:
        unit = normalize(maps.flatten(0, 1), "l2").unflatten(0, maps.shape[:2])
        return (1 + (unit * found.direction[rows][:, None]).flatten(2).sum(2, keepdim=True)) / 2

    wrong = WRONG if plant == "sigma" else 1
    quantile = torch.special.ndtri(found.low).clamp(0, 5)[:, None]
    return Claims(wrong * effort.sigma, quantile, values, values)


CERTIFICATES = {"pixels": pixel_claims, "direction": direction_claims}


def attacked(at: Attacked, claims: Claims, effort: Effort, keys: Tensor) -> dict[str, Any]:
    """Pairs and points attacked, pairs judged, and every refuted claim, of these images.

    Distances rise evenly from 0 to the furthest that anything is claimed of the image.
    """
    x = at[2]
    furthest = claims.quantile.amax(1) * claims.sigma
    ways, aimed_at = unit_ways(at, claims, effort, random.subkeys(keys, 1))
    # One noise for all points: it only chooses what is judged, and drawing it anew would cost as much as a pass.
    still = torch.zeros_like(x)
    noise = neighbours(GaussianNoise(effort.sigma), still, random.subkeys(keys, 10), slice(0, effort.screen))
    points: list[Point] = []
    pairs = 0
    for step in range(effort.radii):
        r = furthest * step / max(1, effort.radii - 1)
        stands, floor = claims.stands(r), claims.floor(r)
        pairs += int(stands.any(1).sum())
        for way in ways if step else ways[:1]:  # at distance 0 all ways are one
            moved = x + way * r.to(x.dtype).view(-1, 1, 1, 1)
            means = _screened(at, claims, effort, moved, noise)
            missing = torch.where(stands, floor - means, 0).sum(1) / stands.sum(1)
            points.append(Point(r, way, torch.where(stands.any(1), missing, -torch.inf)))
    judged = _judged(at, claims, effort, points, ways[-1], aimed_at, random.subkeys(keys, 2))
    return {
        "images": int((claims.quantile > 0).any(1).sum()),
        "pairs": pairs,
        "points": sum(int((point.missing > -torch.inf).sum()) for point in points),
        "judged": len(judged),
        "least_slack": min((one["mean"] - one["floor"] for one in judged), default=None),
        "refuted": [one for one in judged if one["p"] < effort.level],
    }


@dataclass(frozen=True, eq=False)
class Point:
    """All images moved by r along a way; `missing` is how far the claims of each are off on average, by a few draws."""

    r: Tensor
    way: Tensor
    missing: Tensor


def unit_ways(at: Attacked, claims: Claims, effort: Effort, keys: Tensor) -> tuple[list[Tensor], Tensor]:
    """Directions of length one that lower what is claimed, and the number of each image that the last is aimed at."""
    x = at[2]
    furthest = (claims.quantile.amax(1) * claims.sigma).to(x.dtype).view(-1, 1, 1, 1)

    def down(slope: Tensor, number: int) -> Tensor:
        # A map without a derivative (a ReLU net's gradient) gets a random way instead.
        chance = random.normal(random.subkeys(keys, 3 + number), tuple(x.shape[1:]), dtype=x.dtype)
        still = slope.flatten(1).norm(dim=1).view(-1, 1, 1, 1) == 0
        return -normalize(torch.where(still, chance, slope), "l2")

    steepest, weakest = _steepest(at, claims, effort, keys)
    ways = [down(steepest, 0)]
    counted = (claims.quantile > 0).to(x.dtype)
    for number, weights in enumerate(
        (counted, torch.zeros_like(counted).scatter(1, weakest[:, None], 1.0)), 1
    ):
        way = torch.zeros_like(x)
        for step in range(effort.steps):
            # Half-way out: at the very end hardly anything is claimed.
            moved = x + furthest / 2 * way
            slope = _derivative(at, claims, effort, moved, weights, random.subkeys(keys, 100 * number + step))
            way = normalize(way + down(slope, number), "l2")
        ways.append(way)
    return ways, weakest


def _steepest(at: Attacked, claims: Claims, effort: Effort, keys: Tensor) -> tuple[Tensor, Tensor]:
    """The slope of all smoothed numbers that are claimed, and the number of each image that is least sure.

    The derivative of E f(x + z) is E f(x + z) z / sigma^2, whether f has one or not.
    """
    x = at[2]
    slopes, least = torch.zeros_like(x), torch.zeros(len(x), dtype=torch.int64, device=x.device)
    # All draws of an image are looked at together, of a few passes' worth of images.
    images = max(1, 4 * rows_at_once(effort.max_batch, x) // effort.slope_draws)
    for first in range(0, len(x), images):
        examples = slice(first, min(first + images, len(x)))
        near, values = [], []
        for part, around, maps in _drawn(at, effort, x, keys, effort.slope_draws, examples):
            near.append(around)
            values.append(claims.values(maps, part))
        away, found = torch.cat(near, 1) - x[examples, None], torch.cat(values, 1)
        centred = found - found.mean(1, keepdim=True)
        counted = claims.quantile[examples] > 0
        # Of what is claimed half-way out, that with the fewest draws on its side.
        far = claims.quantile[examples] >= claims.quantile[examples].amax(1, keepdim=True) / 2
        least[examples] = torch.where(counted & far, found.mean(1), torch.inf).argmin(1)
        every = torch.where(counted[:, None], centred, 0).sum(2)
        slopes[examples] = torch.einsum("bn,bn...->b...", every.to(x.dtype), away)
    return slopes, least


def _derivative(
    at: Attacked, claims: Claims, effort: Effort, x: Tensor, weights: Tensor, keys: Tensor
) -> Tensor:
    """The derivative of the weighted numbers to the moved images x, over a few draws; zero where maps have none."""
    model, explain, _, target = at
    found = torch.zeros_like(x)
    few = max(1, rows_at_once(effort.max_batch, x) // 16)  # second derivatives hold far more memory
    for examples, these in parts(len(x), effort.step_draws, few):
        near = neighbours(GaussianNoise(effort.sigma), x[examples], keys[examples], these)
        near = near.detach().requires_grad_()
        classes = target[examples].repeat_interleave(near.shape[1])
        maps = explain(model, near.flatten(0, 1), classes, create_graph=True)
        if not maps.requires_grad:
            return found
        lowered = (claims.slope(maps.view_as(near), examples) * weights[examples, None]).sum()
        (slope,) = torch.autograd.grad(lowered, near, allow_unused=True)
        if slope is None:
            return found
        found[examples] += slope.sum(1)
    return found


def _drawn(
    at: Attacked, effort: Effort, moved: Tensor, keys: Tensor, draws: int, rows: slice | Tensor
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Draws around moved images and their maps, in parts: which of the images, draws, maps."""
    model, explain, _, target = at
    images, classes, streams = moved[rows], target[rows], keys[rows]
    first = rows.start if isinstance(rows, slice) else 0
    for here, these in parts(len(images), draws, rows_at_once(effort.max_batch, moved)):
        near = neighbours(GaussianNoise(effort.sigma), images[here], streams[here], these)
        maps = explain_variants(explain, model, near, classes[here])
        yield slice(first + here.start, first + here.stop), near, maps


def _screened(at: Attacked, claims: Claims, effort: Effort, moved: Tensor, noise: Tensor) -> Tensor:
    """The mean of every number over the given noise around moved images, `b q`."""
    model, explain, x, target = at
    rows = max(1, rows_at_once(effort.max_batch, x) // effort.screen)
    found = []
    for first in range(0, len(x), rows):
        part = slice(first, min(first + rows, len(x)))
        maps = explain_variants(explain, model, moved[part, None] + noise[part], target[part])
        found.append(claims.values(maps, part).double().mean(1))
    return torch.cat(found)


def _means(at: Attacked, claims: Claims, effort: Effort, moved: Tensor, keys: Tensor, draws: int) -> Tensor:
    """The mean of every number over fresh draws around moved images, `b q`."""
    found = torch.zeros_like(claims.quantile)
    for examples, _, maps in _drawn(at, effort, moved, keys, draws, slice(0, len(moved))):
        found[examples] += claims.values(maps, examples).double().sum(1)
    return found / draws


def _judged(
    at: Attacked,
    claims: Claims,
    effort: Effort,
    points: list[Point],
    aimed: Tensor,
    aimed_at: Tensor,
    keys: Tensor,
) -> list[dict[str, Any]]:
    """Two suspects per image; of the most doubtful ones many fresh draws, and whether their mean can be chance.

    One suspect is the weakest number of the pair that is worst on average, the other the number that `aimed` was made
    against, nearly as far out as it is claimed.
    """
    model, explain, x, target = at
    everyone = torch.arange(len(x), device=x.device)
    worst = torch.stack([point.missing for point in points]).max(0)
    r = torch.stack([point.r for point in points])[worst.indices, everyone]
    way = torch.stack([point.way for point in points])[worst.indices, everyone]
    near_the_end = 0.95 * claims.quantile[everyone, aimed_at] * claims.sigma
    found = []
    for number, (length, along) in enumerate(((r, way), (near_the_end, aimed))):
        moved = x + along * length.to(x.dtype).view(-1, 1, 1, 1)
        means = _means(at, claims, effort, moved, random.subkeys(keys, number), effort.select)
        floor = claims.floor(length)
        doubt = (floor - means) / (floor * (1 - floor)).clamp_min(1e-9).sqrt()
        doubt = torch.where(claims.stands(length), doubt, -torch.inf)
        weakest = doubt.argmax(1) if number == 0 else aimed_at
        found.append((moved, length, weakest, doubt[everyone, weakest]))
    moved, r, weakest, doubt = (torch.cat(part) for part in zip(*found, strict=True))
    order = doubt.sort(descending=True)
    chosen = order.indices[order.values > -torch.inf][: effort.suspects]
    if not len(chosen):
        return []
    moved, radii, number, rows = moved[chosen], r[chosen], weakest[chosen], chosen % len(x)
    streams = random.subkeys(random.subkeys(keys, 2).repeat(2), 3)[chosen] + chosen // len(x)
    total = torch.zeros(len(rows), dtype=torch.float64, device=x.device)
    for here, these in parts(len(rows), effort.confirm, rows_at_once(effort.max_batch, x)):
        near = neighbours(GaussianNoise(effort.sigma), moved[here], streams[here], these)
        values = claims.values(explain_variants(explain, model, near, target[rows[here]]), rows[here])
        total[here] += (
            values.gather(2, number[here].view(-1, 1, 1).expand(-1, values.shape[1], 1)).double().sum((1, 2))
        )
    means = total / effort.confirm
    floors = torch.special.ndtr(claims.quantile[rows, number] - radii / claims.sigma)
    return [
        {
            "image": int(rows[i]),
            "radius": float(radii[i]),
            "number": int(number[i]),
            "mean": float(means[i]),
            "floor": float(floors[i]),
            "p": chance_of(float(means[i]), float(floors[i]), effort.confirm),
        }
        for i in range(len(rows))
    ]


def chance_of(mean: float, floor: float, draws: int) -> float:
    """Chernoff's bound of the chance that draws in [0, 1] whose true mean is `floor` or more average to `mean`."""
    if mean >= floor:
        return 1.0
    p, q = (torch.tensor(v, dtype=torch.float64).clamp(1e-12, 1 - 1e-12) for v in (mean, floor))
    divergence = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    return float((-draws * divergence).exp())


def verdict(rows: list[dict[str, Any]], alpha: float) -> dict[str, Any]:
    """All shards together: refuted images against the share alpha that certificates may be wrong on."""
    from scipy.stats import binom

    images = sum(row["images"] for row in rows)
    wrong = len({(row["what"], row["first"] + one["image"]) for row in rows for one in row["refuted"]})
    return {
        "images": images,
        "pairs": sum(row["pairs"] for row in rows),
        "points": sum(row["points"] for row in rows),
        "judged": sum(row["judged"] for row in rows),
        "refuted_pairs": sum(len(row["refuted"]) for row in rows),
        "refuted_images": wrong,
        "allowed_on_average": alpha * images,
        "chance_of_as_many": float(binom.sf(wrong - 1, images, alpha)) if images else 1.0,
        "holds": bool(not wrong or binom.sf(wrong - 1, images, alpha) > 0.01),
        "seconds": round(sum(row["seconds"] for row in rows), 1),
    }


def run(options: argparse.Namespace, effort: Effort) -> dict[str, Any]:
    """Every shard that is not there yet, those of all nets in turn, until the time is up."""
    stop, rows = time.monotonic() + options.seconds, []
    settings = asdict(effort) | {"plant": options.plant, "data": options.data}
    data = gg.dataset(options.data, split="test")
    opened: dict[str, nn.Module] = {}
    for net, method, kind, first, last in shards(options.nets, options.shard, len(data)):
        what = f"{net} {method} {kind}"
        path = options.out / "shards" / f"{what.replace('/', '-').replace(' ', '_')}_{first:05d}.json"
        if path.exists() and (kept := read_json(path))["settings"] == settings and kept["last"] == last:
            rows.append(kept)
            continue
        if time.monotonic() > stop:
            continue
        started = time.monotonic()
        if net not in opened:
            opened[net] = gg.load(net).to(options.device).eval()
        part = data.rows(torch.arange(first, last)).to(options.device)
        at = (opened[net], gg.attribution(method), part.pixels(), part.labels)
        keys = random.keys(effort.seed, last, options.device)[first:]
        claims = CERTIFICATES[kind](at, effort, options.plant, random.subkeys(keys, 7))
        found = attacked(at, claims, effort, random.subkeys(keys, 8))
        row = {
            "what": what, "first": first, "last": last, "settings": settings, **found,
            "seconds": round(time.monotonic() - started, 3),
        }  # fmt: skip
        write_text(path, json.dumps(row, indent=1) + "\n")
        rows.append(row)
        print(
            f"{what} {first}-{last}: {row['pairs']} pairs, {len(row['refuted'])} refuted, {row['seconds']:.1f} s",
            flush=True,
        )
    names = list(dict.fromkeys(row["what"] for row in rows))
    summary = {
        "total": verdict(rows, effort.alpha),
        "parts": {
            name: verdict([row for row in rows if row["what"] == name], effort.alpha) for name in names
        },
        "refuted": [
            {"what": row["what"], "first": row["first"], **one} for row in rows for one in row["refuted"]
        ],
        "settings": settings | {"nets": options.nets, "device": options.device, "torch": torch.__version__},
    }
    write_text(options.out / "attacked.json", json.dumps(summary, indent=1) + "\n")
    return summary


def shards(nets: list[str], size: int, most: int) -> Iterator[tuple[str, str, str, int, int]]:
    """Net, method, certificate, first and last image; each net's next shard in turn, so that all get some."""
    queues = []
    for word in nets:
        net, method, count = word.split(":")
        images = min(int(count), most)
        step = max(1, min(size, images // 4) if "resnet" in net or method != "gradient" else size)
        queues.append([(net, method, a, min(a + step, images)) for a in range(0, images, step)])
    while any(queues):
        for queue in queues:
            if queue:
                net, method, first, last = queue.pop(0)
                for kind in CERTIFICATES:
                    yield net, method, kind, first, last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", nargs="+", default=list(NETS), help="NET:METHOD:IMAGES")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--shard", type=int, default=1000, help="images in one file")
    parser.add_argument("--seconds", type=float, default=1e9, help="no shard is begun after this time")
    parser.add_argument("--plant", choices=("sigma", "correction"))
    parser.add_argument("--out", type=Path, default=Path("out/attacked"))
    usual = asdict(Effort())
    for name, value in usual.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    options = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    summary = run(options, Effort(**{name: getattr(options, name) for name in usual}))
    print(json.dumps(summary["total"], indent=1))


if __name__ == "__main__":
    main()
