"""Bounds of the papers' theorems, and measured values on the audited images.

Constants are maxima over the sample points of a smoothed map, so lower estimates: a bound built on them holds for those
points. The theorems are about expectations; a mean over draws can exceed their bounds.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gyrograd.attributions.gradient import score
from gyrograd.attributions.smooth import QuantityHead, smoothgrad
from gyrograd.measurement import Column
from gyrograd.metrics.passes import logits_in_parts
from gyrograd.numerics import random
from gyrograd.numerics.autograd import input_gradient
from gyrograd.numerics.modes import eval_mode
from gyrograd.reporting.schema import Bound
from gyrograd.smoothing import Gaussian, smoothed
from gyrograd.theory import bounds, estimates, top_loss_curvature
from gyrograd.types import Images, Labels, Model

RADIUS = 0.05
"""Radius of the l2 ball of neighbours: about a change of 0.25/255 in every value of a 3 x 32 x 32 image."""
NEIGHBOURS = 3
MOST_CLASSES = 50
"""The curvature of the loss takes one backward pass per class; it is left out if there are more classes."""


def constants(
    model: Model, x: Images, target: Labels, seed: Tensor, sigma: float, draws: int, max_batch: int
) -> dict[str, Tensor]:
    """Per example: largest slope and logit over SmoothGrad's sample points, and three measured changes near x."""
    with eval_mode(model):
        near = estimates.points_near(x, RADIUS, NEIGHBOURS, seed=seed)
        looked = x + sigma * random.normal(seed, (draws, *x.shape[1:]), stream=2, dtype=x.dtype).transpose(
            0, 1
        )
        logit = score(model, target, "logit", check=True)
        loss = score(model, target, "loss", check=True)
        calm = smoothgrad(sigma=sigma, draws=draws, max_batch=max_batch)
        with torch.no_grad():
            logits = [logits_in_parts(model, p, max_batch) for p in looked]
            largest = torch.stack([_at(found, target).abs() for found in logits]).amax(0)
            head = QuantityHead(model, "probability")
            blurred = smoothed(head, Gaussian(sigma), draws, max_batch=max_batch).eval()
            smoothed_slope = estimates.steepest(lambda p: _at(blurred(p), target), x, near).ratio
        few = logits[0].shape[1] <= MOST_CLASSES
        curvature = top_loss_curvature(model, x) if few else x.new_full((len(x),), torch.nan)
        return {
            "slope": estimates.largest_slope(logit, looked),
            "largest": largest,
            "smoothgrad_slope": estimates.steepest(lambda p: calm(model, p, target), x, near).ratio,
            "smoothed_slope": smoothed_slope,
            "curvature": curvature,
            "gradient_change": estimates.largest_change(lambda p: input_gradient(loss, p), x, near),
        }


def _at(values: Tensor, target: Labels) -> Tensor:
    return values.gather(1, target[:, None])[:, 0]


def bound_row(label: str, reference: str, note: str, bound: list[float], found: list[float]) -> Bound:
    """The card's row of a theorem: the example closest to its bound; holds if all examples do."""
    pairs = list(zip(found, bound, strict=True))
    ratios = [f / b if b > 0 else float(f > 0) * 1e9 for f, b in pairs]
    nearest = max(range(len(ratios)), key=ratios.__getitem__)
    held = sum(f <= b for f, b in pairs)
    return {
        "label": label,
        "reference": reference,
        "bound": bound[nearest],
        "measured": found[nearest],
        "holds": held == len(ratios),
        "note": f"holds on {held} of {len(ratios)} images, the nearest to its bound is shown; {note}",
    }


def promises(found: Mapping[str, Column], sigma: float) -> list[Bound]:
    """The rows of all theorems whose constants are known; `found` has the columns of `constants`."""
    columns = {name: [float(v) for v in column.values() if v is not None] for name, column in found.items()}
    estimated = "constants are the largest found, so estimates from below"
    slope, smooth = columns["smoothgrad_slope"], columns["smoothed_slope"]
    theorems = [
        (
            f"slope of the SmoothGrad map, sigma {sigma:g}, from the model's slope",
            "tan2023 Theorem C.7",
            estimated,
            [bounds.smoothgrad_bound_from_lipschitz(one, sigma) for one in columns["slope"]],
            slope,
        ),
        (
            f"slope of the SmoothGrad map, sigma {sigma:g}, from the largest logit",
            "wang2020 Theorem 2, sharp constant",
            estimated,
            [float(bounds.smoothgrad_bound_from_largest(one, sigma)) for one in columns["largest"]],
            slope,
        ),
        (
            f"slope of the smoothed probability, sigma {sigma:g}",
            "tan2023 Theorem 4.3",
            "no constant is estimated; the mean over draws stands for the expectation",
            [bounds.smoothed_lipschitz(Gaussian(sigma), 1, spread=1.0)] * len(smooth),
            smooth,
        ),
        (
            f"change of the loss gradient within l2 radius {RADIUS:g}",
            "wang2020 Theorem 3 with Proposition 3",
            "the bound holds to first order; kinks of the net inside the ball can break it",
            [float(bounds.gradient_change_bound(RADIUS, one)) for one in columns["curvature"]],
            columns["gradient_change"],
        ),
    ]
    known = [theorem for theorem in theorems if theorem[3] and len(theorem[3]) == len(theorem[4])]
    return [bound_row(*theorem) for theorem in known]
