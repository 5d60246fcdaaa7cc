"""LIME: the straight-line model that best fits a network on coalitions of an image's segments."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gyrograd.attributions.baselines import Baseline, baseline_of
from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.attributions.segments import (
    Segments,
    check_common,
    distinct,
    every_coalition,
    over_groups,
    segment_counts,
    segment_map,
    uniform_table,
    worths,
)
from gyrograd.attributions.settings import ComparedBySettings
from gyrograd.errors import UserError, check_name
from gyrograd.registry import register
from gyrograd.types import Inputs, Model, Targets


@register(
    "attribution",
    "lime",
    paper="tan2023",
    equation="Section 3.2 (LIME), Lemma C.8",
    differentiable=True,
    forward_only=True,
    order=80,
    label="LIME",
    passes="draws",
    about="A simple model of which parts of the image matter, fitted to images with parts left out.",
)
@dataclass(frozen=True, eq=False)
class Lime(ComparedBySettings):
    """Weighted ridge fit of the model's value on random coalitions of segments (tan2023, Section 3.2).

    Each pixel of the map, in every channel, has the coefficient of its segment. All images use the same coalitions for
    a seed, so a map depends on its image alone. Its derivative holds the segments fixed.

    The fit minimises  sum_z kernel(z) (f(z) - intercept - w z)^2 + ridge |w|^2  in float64. The sum is what
    regression libraries mean by alpha; `reduction="mean"` takes the mean over z, as Lemma C.8 does.
    `intercept=False` is the paper's model; True adds a constant without penalty.
    The kernel is exp(-distance^2 / width^2), or 1 for "uniform". The distance "cosine" is 1 - cos(z, ones) of
    the coalitions, independent of the image's size; "l2" is the paper's |x - z| in pixels, which needs a width of
    about the norm of x. A width at which all perturbed images have weight zero is refused.
    `sampling="bernoulli"` keeps each segment with chance 1/2; "enumerate" tries all coalitions (12 segments
    at most). `draws` counts coalitions; one drawn twice runs once and counts twice.
    An image of one segment would have a constant map; it is refused unless `allow_single` is set.
    kernel_size, max_dist and ratio belong to quickshift (tan2023 B.3), `grid` to segments="grid".
    Deviation: tan2023 leaves kernel width, class and quantity open; the defaults here are the package's own.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> lime = gg.attribution("lime", segments="grid", grid=4, draws=50)
    >>> maps = lime(model, x, target=3)
    >>> maps[0, 0].unique().numel()      # 16 segments, one coefficient each
    16
    """

    draws: int = 100
    segments: str | Tensor = "quickshift"
    grid: int = 8
    kernel_size: float = 1.0
    max_dist: float = 200.0
    ratio: float = 0.1
    kernel: str = "exponential"
    distance: str = "cosine"
    width: float = 0.25
    ridge: float = 1.0
    reduction: str = "sum"
    intercept: bool = False
    baseline: Baseline = "zero"
    quantity: str = "logit"
    sampling: str = "bernoulli"
    allow_single: bool = False
    seed: int = 0
    max_batch: int = MAX_BATCH

    def __post_init__(self) -> None:
        check_common(self)
        check_name("kernel", self.kernel, ("exponential", "uniform"))
        check_name("distance", self.distance, ("cosine", "l2"))
        check_name("reduction", self.reduction, ("mean", "sum"))
        check_name("sampling", self.sampling, ("bernoulli", "enumerate"))
        if not (self.width > 0 and self.ridge >= 0):
            raise UserError(
                f"width={self.width} and ridge={self.ridge}; give a width above 0 and a ridge of 0 or more."
            )

    def __call__(self, model: Model, x: Inputs, target: Targets, *, create_graph: bool = False) -> Inputs:
        return segment_map(self, model, x, target, create_graph)

    def coefficients(
        self, model: Model, x: Inputs, target: Tensor, segments: Segments, create_graph: bool = False
    ) -> Float[Tensor, "b s"]:
        """One coefficient per segment, in float64, with zeros after an image's own segments."""
        sizes = segment_counts(segments, "LIME", single=self.allow_single)
        # Images with the same number of segments share their coalitions, so that a map does not depend on its batch.
        drawn = {s: self._coalitions(s, x.device) for s in set(sizes)}
        fill = baseline_of(x, self.baseline)
        rows = [drawn[s][0] for s in sizes]
        values = worths(model, x, fill, segments, rows, target, self.quantity, self.max_batch, create_graph)
        # Removing a segment adds its energy, the squared norm of its change, to the squared distance.
        energies = over_groups((x - fill).double().square(), segments)
        fits = []
        for s, value, energy in zip(sizes, values, energies, strict=True):
            coalitions, times = drawn[s]
            weights = times * self._kernel(coalitions, energy[:s])
            # `ridge_fit` minimises the sum over n draws, beside which the penalty of their mean counts n times.
            penalty = self.ridge * (times.sum().item() if self.reduction == "mean" else 1.0)
            fits.append(ridge_fit(coalitions.double(), value, weights, penalty, self.intercept))
        return pad_sequence(fits, batch_first=True)

    def _coalitions(self, s: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The distinct coalitions and how often each counts."""
        if self.sampling == "enumerate":
            rows = every_coalition(s, device)
            return rows, torch.ones(len(rows), dtype=torch.float64, device=device)
        return distinct(uniform_table(self.seed, self.draws, s, device) < 0.5)

    def _kernel(self, coalitions: Tensor, energy: Tensor) -> Tensor:
        if self.kernel == "uniform":
            return torch.ones(len(coalitions), dtype=torch.float64, device=energy.device)
        if self.distance == "l2":
            squared = (~coalitions).double() @ energy
        else:
            # The cosine of z and all ones is sqrt(|z| / s); the empty coalition is at distance 1.
            squared = (1 - coalitions.double().mean(1).sqrt()) ** 2
        weights = torch.exp(-squared / self.width**2)
        # With one segment there is only the empty image to compare with, which is far away under any width.
        if coalitions.shape[1] > 1 and weights[~coalitions.all(1)].sum() < 1e-6:
            raise UserError(
                f"LIME's kernel of width {self.width} gives no perturbed image any weight; "
                f"give a width of about {squared.mean().sqrt().item():.3g}."
            )
        return weights


def ridge_fit(
    z: Float[Tensor, "n s"],
    value: Float[Tensor, " n"],
    weights: Float[Tensor, " n"],
    ridge: float,
    intercept: bool,
) -> Float[Tensor, " s"]:
    """argmin_w  sum_i weights_i (value_i - intercept - w z_i)^2 + ridge |w|^2, the intercept without penalty.

    Without ridge and with fewer rows than segments many w fit; the result is the shortest.
    """
    if intercept:
        share = weights / weights.sum()
        # Centred by the weights, which is what an intercept without penalty does.
        z, value = z - share @ z, value - share @ value
    root = weights.sqrt()
    a, y = root[:, None] * z, root * value
    if ridge == 0:
        fit: Tensor = torch.linalg.pinv(a) @ y
        return fit
    n, s = a.shape
    # Primal and dual form of the same solution: solve the smaller system.
    if n < s:
        fit = a.T @ torch.linalg.solve(a @ a.T + ridge * torch.eye(n, dtype=a.dtype, device=a.device), y)
    else:
        fit = torch.linalg.solve(a.T @ a + ridge * torch.eye(s, dtype=a.dtype, device=a.device), a.T @ y)
    return fit
