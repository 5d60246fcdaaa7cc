"""IGA: the gradient of the label should look like the image, and that of the runner-up should not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from gyrograd.errors import UserError, check_name
from gyrograd.models import Normalized
from gyrograd.numerics.autograd import input_gradient, logit_jacobian
from gyrograd.numerics.checks import check_not_compiled, check_target
from gyrograd.numerics.maps import top_k_mask
from gyrograd.numerics.modes import eval_mode
from gyrograd.numerics.quantities import quantity_of
from gyrograd.numerics.similarity import cosine_distance
from gyrograd.registry import register
from gyrograd.regularizers.inner import ascend, check_inner, check_weight, random_start
from gyrograd.regularizers.passes import (
    auxiliary_pass,
    check_batch,
    check_choices,
    fresh_keys,
    input_scale,
    may_look_at,
    score_of,
)
from gyrograd.types import Images, Inputs, Labels, Logits, Model, PerExample, Seed

Protocol = Literal["paper", "reference"]
SEARCHED_FRACTION = 1000 / 3072
"""Share of the elements that the reference attack uses: 1,000 of CIFAR-10's 3,072."""


class View(NamedTuple):
    """An image in the chosen space, and the gradients of its label's logit and of the largest other one."""

    image: Tensor
    label: Tensor
    other: Tensor


@register(
    "regularizer",
    "iga",
    paper="joo2023",
    equation="Appendix A, baseline 'IGA' (after Singh et al. 2020)",
    capturable=True,
    replaces_cross_entropy=True,
)
@dataclass(frozen=True)
class Iga:
    """Cross-entropy plus weight times a soft-margin triplet, both at images where the triplet is largest.

    The triplet is log(1 + exp(d(label) - d(other))), with d = 1 - cos of the image and the gradient of a logit
    (`other`: the largest of the other classes). It replaces the clean loss. step_size defaults to 5/8 eps. Only the
    pass of the cross-entropy updates running statistics (`batchnorm="train"`).

    protocol="paper" is joo2023's formula, its comma read as a minus. "reference" is Singh et al.'s code: the search
    changes the third of the elements with the largest gradient, and the triplet is averaged over x and the found image,
    each with the farther label gradient and the nearer other gradient of the two. Their net uses ReLU for the loss and
    Softplus(50) for the gradients; here it is the same net.

    >>> import gyrograd as gg
    >>> data = gg.dataset("shapes", n=4)
    >>> model, x, y = gg.model("lenet", num_classes=10, seed=0), data.pixels(), data.labels
    >>> loss = gg.regularizer("iga", eps=2 / 255, steps=1)(model, x, y).mean()      # the whole loss
    >>> loss.backward()
    """

    eps: float = 8 / 255
    steps: int = 3
    step_size: float | None = None
    weight: float = 0.5
    protocol: str = "paper"
    space: str = "normalized"
    batchnorm: str = "train"

    def __post_init__(self) -> None:
        check_name("protocol", self.protocol, get_args(Protocol))
        check_choices(self)
        check_inner(self.eps, self.steps, self.step_size)
        check_weight(self.weight)

    def __call__(self, model: Model, x: Images, y: Labels, *, seed: Seed | None = None) -> PerExample:
        terms = self.terms(model, x, y, seed=seed)
        return terms["cross_entropy"] + terms["triplet"]

    def terms(self, model: Model, x: Images, y: Labels, *, seed: Seed | None = None) -> dict[str, PerExample]:
        """The loss at the found images, and the weighted triplet."""
        check_not_compiled(model)
        check_batch(model, x)
        found = self.images(model, x, y, seed=seed)
        with auxiliary_pass(model, self.batchnorm):
            loss = score_of(model, x, y, "loss")(found)
        # The pass of the loss has updated the running statistics; these passes must not update them again.
        with auxiliary_pass(model, "batch" if self.batchnorm == "train" else self.batchnorm):
            views = [self._view(model, found, y)]
            if self.protocol == "reference":
                views.append(self._view(model, x.detach(), y))
        return {"cross_entropy": loss, "triplet": self.weight * mined_triplet(views)}

    def images(self, model: Model, x: Images, y: Labels, *, seed: Seed | None = None) -> Images:
        """The images at which both terms are computed: in the ball around x and in [0, 1]."""
        keys = fresh_keys(seed, x)
        step_size = 5 / 8 * self.eps if self.step_size is None else self.step_size
        with eval_mode(model):
            mask = self._searched(model, x.detach(), y, keys) if self.protocol == "reference" else None

            def value(moved: Tensor) -> Tensor:
                return mined_triplet([self._view(model, moved, y, mask)])

            return ascend(value, x, eps=self.eps, steps=self.steps, step_size=step_size, keys=keys)

    def _searched(self, model: Model, x: Tensor, y: Tensor, keys: Tensor) -> Tensor:
        """The elements of the reference search: those with the largest label gradient at its start."""
        start = random_start(x, self.eps, keys)
        # At the start of the search, which has the same keys, not at x.
        gradient = input_gradient(score_of(model, x, y, "logit"), start)
        gradient = input_scale(model, x, self.space) * gradient
        return top_k_mask(gradient.abs(), max(1, round(SEARCHED_FRACTION * x[0].numel())))

    def _view(self, model: Model, x: Tensor, y: Tensor, mask: Tensor | None = None) -> View:
        """Image and gradients in the chosen input space, zero outside the mask."""
        scale = input_scale(model, x, self.space)
        label, other = (scale * slope for slope in logit_slopes(model, x, y))
        parts = (as_seen(model, x, self.space), label, other)
        return View(*(part if mask is None else part * mask for part in parts))


def logit_slopes(model: Model, x: Inputs, y: Labels) -> tuple[Inputs, Inputs]:
    """Gradients of the label's logit and of the largest other one, to be differentiated again."""

    def pair(x: Tensor) -> Tensor:
        logits = model(x)
        if may_look_at(x):
            check_target(y, *logits.shape)
        return torch.stack((quantity_of(logits, y, "logit"), largest_other(logits, y)), 1)

    label, other = logit_jacobian(pair, x, create_graph=True).unbind(1)
    return label, other


def mined_triplet(views: list[View]) -> PerExample:
    """Mean over the images of log(1 + exp(d+ - d-)): d+ to the farthest label gradient, d- to the nearest other."""
    pairs = [(seen.image, slope) for seen in views for view in views for slope in (view.label, view.other)]
    images, slopes = (torch.cat(maps) for maps in zip(*pairs, strict=True))
    # All at once: on a GPU a small net is limited by the number of kernels, not by their work.
    # `cosine_distance` is (1 - cos) / 2.
    apart = 2 * cosine_distance(images, slopes).view(len(views), len(views), 2, -1)
    return F.softplus(apart[:, :, 0].amax(1) - apart[:, :, 1].amin(1)).mean(0)


def largest_other(logits: Logits, y: Labels) -> PerExample:
    """The largest logit of the classes that are not the label."""
    if logits.shape[1] < 2:
        raise UserError("A model of one logit has no other class; give it one logit for each of two classes.")
    # Not by one_hot, which reads y on the host: a CUDA graph could not hold the step.
    return logits.scatter(1, y.long()[:, None], -torch.inf).amax(1)


def as_seen(model: Model, x: Images, space: str) -> Images:
    """The image after the model's own normalisation; unchanged for "pixel" or a model without one."""
    for module in model.modules():
        if space == "normalized" and isinstance(module, Normalized):
            return (x - module.mean.to(x).view(-1, 1, 1)) / module.std.to(x).view(-1, 1, 1)
    return x
