"""Local gradient alignment: gradients at x and near x should agree in length (l2) and direction (cosine)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gyrograd.errors import UserError, check_counts
from gyrograd.numerics import random
from gyrograd.numerics.autograd import input_gradient
from gyrograd.numerics.checks import check_not_compiled
from gyrograd.numerics.quantities import check_quantity
from gyrograd.numerics.similarity import cosine_distance, l2_distance
from gyrograd.registry import register
from gyrograd.regularizers.inner import check_radius
from gyrograd.regularizers.passes import (
    auxiliary_pass,
    check_batch,
    check_choices,
    fresh_keys,
    input_scale,
    score_of,
)
from gyrograd.types import Inputs, Labels, Model, PerExample, Seed


@register("regularizer", "l2_cosine", paper="joo2023", equation="Eq. 5", aliases=("alignment",))
@dataclass(frozen=True)
class L2Cosine:
    """`l2` times the squared distance of the gradients at x and near x plus `cosine` times their cosine distance.

    One delta per example and call, uniform in [-eps, eps]^d and not clipped; `draws` averages over more. The gradient
    at x is a constant (`detach_clean`), as in the paper's training details. The paper prints the distance without the
    square (`squared=False`); its code squares it, and its weights are tuned for that.

    >>> import gyrograd as gg
    >>> data = gg.dataset("shapes", n=4)
    >>> model, x, y = gg.model("lenet", num_classes=10, seed=0), data.pixels(), data.labels
    >>> align = gg.regularizer("l2_cosine", l2=0.1, cosine=1.0, eps=4 / 255)
    >>> loss = align(model, x, y).mean()      # add it to the cross-entropy
    >>> loss.backward()
    """

    l2: float = 0.1
    cosine: float = 1.0
    eps: float = 4 / 255
    draws: int = 1
    squared: bool = True
    detach_clean: bool = True
    quantity: str = "logit"
    space: str = "normalized"
    batchnorm: str = "batch"

    def __post_init__(self) -> None:
        check_quantity(self.quantity)
        check_choices(self)
        # Written so that NaN and infinity fail, too.
        if not (min(self.l2, self.cosine) >= 0 and 0 < self.l2 + self.cosine < float("inf")):
            raise UserError(
                f"l2 is {self.l2} and cosine {self.cosine}; give finite weights of 0 or more, not both 0."
            )
        if not 0 < self.eps < float("inf"):
            raise UserError(f"eps is {self.eps}; give a finite radius above 0, such as 4 / 255.")
        check_counts(draws=self.draws)

    def __call__(self, model: Model, x: Inputs, y: Labels, *, seed: Seed | None = None) -> PerExample:
        terms = self.terms(model, x, y, seed=seed)
        return sum(terms.values(), start=x.new_zeros(len(x)))

    def terms(
        self, model: Model, x: Inputs, y: Labels, *, seed: Seed | None = None, clean: Inputs | None = None
    ) -> dict[str, PerExample]:
        """The weighted terms by name, without those of weight 0. `clean`: the pixel gradient at x, if known."""
        check_not_compiled(model)
        check_batch(model, x)
        if clean is not None and clean.shape != x.shape:
            raise UserError(
                f"clean has shape {tuple(clean.shape)} and x {tuple(x.shape)}; give the gradient at x."
            )
        constant = clean is not None and not clean.requires_grad and torch.is_grad_enabled()
        if constant and not self.detach_clean:
            raise UserError(
                "detach_clean=False needs a clean gradient with a graph; make it with create_graph=True."
            )
        keys, value = fresh_keys(seed, x), score_of(model, x, y, self.quantity)
        scale = input_scale(model, x, self.space)
        with auxiliary_pass(model, self.batchnorm):
            # As a constant it needs no graph: the pass at x is then of first order, only those near x are of second.
            here = input_gradient(value, x, create_graph=not self.detach_clean) if clean is None else clean
            near = [
                input_gradient(value, self.moved(x, keys, draw), create_graph=True)
                for draw in range(self.draws)
            ]
        here = here.detach() if self.detach_clean else here
        first, *others = [self.between(scale * here, scale * there) for there in near]
        return {
            name: sum((part[name] for part in others), start=term) / self.draws
            for name, term in first.items()
        }

    def between(self, here: Inputs, there: Inputs) -> dict[str, PerExample]:
        """The weighted terms for two gradients in the chosen space, without those of weight 0."""
        terms: dict[str, Tensor] = {}
        if self.l2:
            gap = (there - here).flatten(1)
            terms["l2"] = self.l2 * (gap.square().sum(1) if self.squared else l2_distance(there, here))
        if self.cosine:
            terms["cosine"] = self.cosine * cosine_distance(there, here)
        return terms

    def moved(self, x: Inputs, keys: Tensor, draw: int = 0) -> Inputs:
        """x plus noise, uniform in [-eps, eps] and not clipped."""
        if x.dim() == 4:  # tables and series have ranges of their own
            check_radius(self.eps)
        # One stream per draw: a larger number of draws includes those of a smaller one.
        noise = random.uniform(keys, tuple(x.shape[1:]), stream=draw, dtype=x.dtype)
        return (x + self.eps * (2 * noise - 1)).detach()


@register("regularizer", "l2", paper="joo2023", equation="Gamma^l2, before Eq. 1")
def l2(
    eps: float = 4 / 255,
    draws: int = 1,
    squared: bool = True,
    detach_clean: bool = True,
    quantity: str = "logit",
    space: str = "normalized",
    batchnorm: str = "batch",
) -> L2Cosine:
    """The (squared) l2 distance of the gradients at x and near x; not invariant to the gradient's scale (Lemma 3).

    >>> import gyrograd as gg
    >>> data = gg.dataset("shapes", n=4)
    >>> model, x, y = gg.model("lenet", num_classes=10, seed=0), data.pixels(), data.labels
    >>> penalty = gg.regularizer("l2", eps=4 / 255)(model, x, y)
    >>> bool((penalty >= 0).all())
    True
    """
    return L2Cosine(1.0, 0.0, eps, draws, squared, detach_clean, quantity, space, batchnorm)


@register("regularizer", "cosine", aliases=("crc",), paper="joo2023", equation="Definition 4, Eq. 4")
def cosine(
    eps: float = 4 / 255,
    draws: int = 1,
    detach_clean: bool = True,
    quantity: str = "logit",
    space: str = "normalized",
    batchnorm: str = "batch",
) -> L2Cosine:
    """The cosine distance of the gradients at x and near x, (1 - cos) / 2; invariant to their scale (Proposition 5).

    >>> import gyrograd as gg
    >>> data = gg.dataset("shapes", n=4)
    >>> model, x, y = gg.model("lenet", num_classes=10, seed=0), data.pixels(), data.labels
    >>> penalty = gg.regularizer("cosine", eps=4 / 255)(model, x, y)
    >>> bool((0 <= penalty).all() and (penalty <= 1).all())
    True
    """
    return L2Cosine(0.0, 1.0, eps, draws, True, detach_clean, quantity, space, batchnorm)
