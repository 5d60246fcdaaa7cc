"""Kernel SHAP: the Shapley values of an image's segments, by a constrained fit on coalitions."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gyrograd.attributions.baselines import Baseline, baseline_of
from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.attributions.segments import (
    Coalitions,
    Segments,
    check_common,
    distinct,
    every_coalition,
    segment_counts,
    segment_map,
    uniform_table,
    worths,
)
from gyrograd.attributions.settings import ComparedBySettings
from gyrograd.errors import check_name
from gyrograd.registry import register
from gyrograd.types import Inputs, Model, Targets


@register(
    "attribution",
    "shap",
    paper="tan2023",
    equation="Section 3.2 (SHAP), Theorem C.11",
    differentiable=True,
    forward_only=True,
    order=90,
    label="SHAP",
    passes="draws",
    about="The fair share of each part of the image in the score, over images with parts left out.",
)
@dataclass(frozen=True, eq=False)
class Shap(ComparedBySettings):
    """Shapley values of the segments (tan2023, Section 3.2) by Kernel SHAP (Lundberg and Lee 2017).

    Each pixel of the map, in every channel, has the value of its segment. The values (one per segment, not per pixel)
    sum to f(x) - f(baseline) exactly. All images use the same coalitions for a seed, so a map depends on its image
    alone. Its derivative holds the segments fixed.

    `sampling="paired"` first takes the smallest and largest coalitions, each once, then random ones from the rest of
    the Shapley kernel, each followed by its complement. With 2^s - 2 draws or more it takes all of them and the values
    are exact.
    `sampling="enumerate"` takes all 2^s coalitions of at most 12 segments: exact Shapley values. A coalition drawn
    twice runs once and counts twice. The whole and the empty image always run, too.
    With fewer distinct coalitions than segments many fits are equally good. The result is the one nearest to an equal
    split of f(x) - f(baseline), which understates differences: give more draws than segments for more than a rough map.
    An image of one segment would have a constant map; it is refused unless `allow_single` is set.
    kernel_size, max_dist and ratio belong to quickshift (tan2023 B.3), `grid` to segments="grid".
    Deviation: tan2023 B.3 names 100 samples and no segments; the segments of its LIME are the default here.

    >>> import torch, gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> maps = gg.attribution("shap", segments="grid", grid=4, draws=50)(model, x, target=3)
    >>> values = maps[:, 0, ::8, ::8]      # one per segment of 8 x 8 pixels
    >>> change = (model(x) - model(torch.zeros_like(x)))[:, 3]
    >>> torch.allclose(values.sum((1, 2)), change, atol=1e-3)
    True
    """

    draws: int = 100
    segments: str | Tensor = "quickshift"
    grid: int = 8
    kernel_size: float = 1.0
    max_dist: float = 200.0
    ratio: float = 0.1
    baseline: Baseline = "zero"
    quantity: str = "logit"
    sampling: str = "paired"
    allow_single: bool = False
    seed: int = 0
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_common(self)
        check_name("sampling", self.sampling, ("enumerate", "paired"))

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        return segment_map(self, model, x, target, create_graph)

    def coefficients(
        self, model: Model, x: Inputs, target: Tensor, segments: Segments, create_graph: bool = False
    ) -> Float[Tensor, "b s"]:
        """One value per segment, in float64, with zeros after an image's own segments."""
        sizes = segment_counts(segments, "SHAP", single=self.allow_single)
        plans = {s: self._plan(s, x.device) for s in set(sizes)}
        rows = [plans[s].rows for s in sizes]
        fill = baseline_of(x, self.baseline)
        values = worths(model, x, fill, segments, rows, target, self.quantity, self.max_batch, create_graph)
        shares = [plans[s].values(worth) for s, worth in zip(sizes, values, strict=True)]
        return pad_sequence(shares, batch_first=True)

    def _plan(self, s: int, device: torch.device) -> Plan:
        """The coalitions and the fit, the same for all images of s segments."""
        draws = len(every_coalition(s, device)) - 2 if self.sampling == "enumerate" else self.draws
        return plan_of(*weighted_coalitions(s, draws, self.seed, device))


@dataclass(frozen=True)
class Plan:
    """Coalitions to try, the empty and the whole one first, and the map from their worths to values."""

    rows: Tensor
    fit: Tensor

    def values(self, worth: Float[Tensor, " m"]) -> Float[Tensor, " s"]:
        """The equal split of the whole gain plus the fit of the remainder, which sums to zero."""
        gain = worth - worth[0]
        share = self.rows.double().mean(1)
        equal = gain[1] / self.rows.shape[1]
        return equal + self.fit @ (gain - gain[1] * share)[2:]


def plan_of(coalitions: Tensor, weights: Tensor) -> Plan:
    """Weighted least squares under the constraint that the values sum to the whole gain.

    Values that sum to it are the equal split plus a vector of sum zero; the pseudo-inverse on that hyperplane
    gives the shortest of the best such vectors, and holds the constraint for any number of coalitions.
    """
    s = coalitions.shape[1]
    ends = torch.tensor([[False], [True]], device=coalitions.device).expand(2, s)
    z, root = coalitions.double(), weights.double().sqrt()
    centred = z - z.mean(1, keepdim=True)
    # pinv, because centred rows always have a direction without data, (1, ..., 1).
    return Plan(torch.cat([ends, coalitions]), torch.linalg.pinv(root[:, None] * centred) * root)


def weighted_coalitions(
    s: int, draws: int, seed: int, device: torch.device
) -> tuple[Coalitions, Float[Tensor, " n"]]:
    """At most `draws` coalitions and their weights: the outer sizes whole, the rest of the kernel sampled."""
    if s == 1:  # the empty and the whole image suffice
        return torch.zeros(0, 1, dtype=torch.bool, device=device), torch.zeros(
            0, dtype=torch.float64, device=device
        )
    smallest, left = sizes_taken_whole(s, draws)
    rows = [_of_size(s, size, device) for size in range(1, s) if min(size, s - size) < smallest]
    # The coalitions of one size share its mass evenly.
    shares = [kernel_mass(s, int(part[0].sum())) / len(part) for part in rows]
    weights = [
        part.new_full((len(part),), share, dtype=torch.float64)
        for part, share in zip(rows, shares, strict=True)
    ]
    if 2 * smallest <= s:
        sampled, times = distinct(paired_coalitions(s, left, seed, device, smallest))
        rows.append(sampled)
        weights.append(times * _mass_between(s, smallest) / left)
    return torch.cat(rows), torch.cat(weights)


def kernel_mass(s: int, k: int) -> float:
    """The Shapley kernel (s - 1) / (binom(s, k) k (s - k)) summed over the coalitions of size k."""
    return (s - 1) / (k * (s - k))


def _mass_between(s: int, smallest: int) -> float:
    return sum(kernel_mass(s, k) for k in range(smallest, s - smallest + 1))


def sizes_taken_whole(s: int, draws: int) -> tuple[int, int]:
    """The smallest size (and s minus it, the largest) that is sampled, and the draws left for that.

    Sizes are taken whole from the outside in, while the draws left would meet each coalition of a size at
    least once on average; all of them when draws reach 2^s - 2, which makes the values exact.
    """
    size, left = 1, draws
    while 2 * size <= s:
        both = {size, s - size}
        members = sum(math.comb(s, k) for k in both)
        share = sum(kernel_mass(s, k) for k in both) / _mass_between(s, size)
        # Rounding must not turn a share of one into slightly less.
        if left * share < members - 1e-6:
            break
        size, left = size + 1, left - members
    return size, left


def _of_size(s: int, size: int, device: torch.device) -> Coalitions:
    members = torch.tensor(list(itertools.combinations(range(s), size)), device=device)
    return torch.zeros(len(members), s, dtype=torch.bool, device=device).scatter(1, members, True)


def paired_coalitions(s: int, draws: int, seed: int, device: torch.device, smallest: int = 1) -> Coalitions:
    """Coalitions of smallest..s - smallest segments: a size with chance ~ 1 / (k (s - k)), then its members.

    Row 2i + 1 is the complement of row 2i, which has the same chance: only what differs between the two then
    enters the fit, and the rest adds no noise. An odd number of draws leaves the last one alone.
    """
    table = uniform_table(seed, (draws + 1) // 2, s + 1, device)
    k = torch.arange(smallest, s - smallest + 1, dtype=torch.float64, device=device)
    chance = (1 / (k * (s - k))).cumsum(0)
    # The last edge is left out, so that rounding cannot give a size above the largest.
    size = smallest + torch.bucketize(table[:, 0].contiguous(), chance[:-1] / chance[-1], right=True)
    # The rank of each number in its row: the `size` smallest are a random subset of that size.
    place = table[:, 1:].argsort(dim=1, stable=True).argsort(dim=1)
    chosen = place < size[:, None]
    return torch.stack([chosen, ~chosen], 1).flatten(0, 1)[:draws]
