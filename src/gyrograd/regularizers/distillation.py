"""ATEX: near the direction of the explanation the student should give the teacher's output."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from gyrograd.attributions.batching import MAX_BATCH, rows_at_once
from gyrograd.errors import UserError, check_counts, check_name
from gyrograd.numerics import random
from gyrograd.numerics.autograd import input_gradient
from gyrograd.numerics.balls import L2, Linf
from gyrograd.numerics.checks import class_indices
from gyrograd.numerics.modes import eval_mode
from gyrograd.numerics.quantities import with_full_precision
from gyrograd.registry import register
from gyrograd.regularizers.inner import check_weight
from gyrograd.regularizers.passes import (
    auxiliary_pass,
    check_batch,
    check_choices,
    fresh_keys,
    input_scale,
    score_of,
)
from gyrograd.regularizers.teachers import Teacher, check_classes, teacher_from
from gyrograd.types import Inputs, Labels, Model, PerExample, Seed

Protocol = Literal["paper", "reference"]
DECIDED: dict[str, dict[str, float | int]] = {
    "paper": {"eps": 2.0, "along": 1, "across": 1, "weight": 3.0, "temperature": 1.0},
    "reference": {"eps": 0.32, "along": 2, "across": 8, "weight": 1.0, "temperature": 4.0},
}
"""Defaults of open settings by protocol. joo2023 selects eps 2 and weight 3 and states no counts."""
_SMOOTHING, _ALONG, _ACROSS = 1, 2, 3
"""Streams of the three kinds of draws."""


class Samples(NamedTuple):
    """Points along the explanation (along, b, ...), and points beside each of them (along, across, b, ...)."""

    on: Tensor
    beside: Tensor


@register(
    "regularizer",
    "atex",
    paper="joo2023",
    equation="Appendix A, baseline 'ATEX' (after Tang et al. 2022)",
    capturable=True,
    second_order=False,
    replaces_cross_entropy=True,
)
@dataclass(frozen=True)
class Atex:
    """Divergence of the student at points beside x + t h from the teacher at x + t h, with h a SmoothGrad map.

    It replaces the clean loss and uses no label loss. `teacher`: a model, or the path of a checkpoint; the student
    should start from the same weights. eps and sigma are in units of `space`; joo2023 names none. SmoothGrad explains
    the label's logit with `draws` draws, in evaluation mode.

    protocol="paper" is joo2023's formula: KL(student || teacher) at x plus weight times the sum over points; h is the
    teacher's; steps along h and across it have l2 length up to eps. "reference" is Tang et al.'s code: no term at x; h
    is the student's; steps of -eps and 0 in h's largest entry; uniform noise within eps without its component along h
    per channel; KL(teacher || student) with the teacher at temperature 4; means over classes and points. Its clamp of
    images to [0, 255] and its optimizer step after each point are left out.

    >>> import gyrograd as gg
    >>> data = gg.dataset("shapes", n=4)
    >>> model, x, y = gg.model("lenet", num_classes=10, seed=0), data.pixels(), data.labels
    >>> teacher = gg.model("lenet", num_classes=10, seed=1).eval()
    >>> gg.regularizer("atex", teacher=teacher, draws=2)(model, x, y).shape
    torch.Size([4])
    """

    teacher: str | Path | Model | Teacher | None = None
    protocol: str = "paper"
    eps: float | None = None
    along: int | None = None
    across: int | None = None
    weight: float | None = None
    temperature: float | None = None
    sigma: float = 0.08
    draws: int = 10
    space: str = "normalized"
    batchnorm: str = "train"

    def __post_init__(self) -> None:
        check_name("protocol", self.protocol, get_args(Protocol))
        check_choices(self)
        for name, value in DECIDED[self.protocol].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        object.__setattr__(self, "teacher", teacher_from(self.teacher))
        self._check_numbers()

    def __call__(self, model: Model, x: Inputs, y: Labels, *, seed: Seed | None = None) -> PerExample:
        return sum(self.terms(model, x, y, seed=seed).values(), start=x.new_zeros(len(x)))

    def with_teacher(self, model: Model) -> Atex:
        """The same settings with a frozen copy of this model as the teacher."""
        return replace(self, teacher=model)

    def terms(self, model: Model, x: Inputs, y: Labels, *, seed: Seed | None = None) -> dict[str, PerExample]:
        """The divergence at x (only for "paper") and the weighted one at the points beside."""
        check_batch(model, x)
        teacher, samples = self._teacher, self.samples(model, x, y, seed=seed)
        terms: dict[str, PerExample] = {}
        with auxiliary_pass(model, self.batchnorm):
            if self.protocol == "paper":
                terms["clean"] = self._divergence(model(x.detach()), teacher.logits(x))
            pairs = zip(samples.on, samples.beside, strict=True)
            parts = [
                self._divergence(model(point), answer)
                # The teacher answers once per point of the line, not once per point beside it.
                for answer, points in ((teacher.logits(on), points) for on, points in pairs)
                for point in points
            ]
        total = torch.stack(parts).sum(0)
        terms["beside"] = self._number("weight") * (total if self.protocol == "paper" else total / len(parts))
        return terms

    def samples(self, model: Model, x: Inputs, y: Labels, *, seed: Seed | None = None) -> Samples:
        """The points at which teacher and student are evaluated, in pixels; constants to the weights."""
        keys, x, y = fresh_keys(seed, x), x.detach(), class_indices(y, x)
        scale = input_scale(model, x, self.space)
        asked = self._teacher.to(x) if self.protocol == "paper" else model
        direction = self._explanation(asked, x, y, scale, random.subkeys(keys, _SMOOTHING))
        on = x + scale * self._steps_along(direction, random.subkeys(keys, _ALONG))
        beside = on[:, None] + scale * self._steps_across(direction, random.subkeys(keys, _ACROSS))
        return Samples(on, beside)

    def _explanation(self, net: Model, x: Tensor, y: Tensor, scale: Tensor | float, keys: Tensor) -> Tensor:
        """SmoothGrad of the label's logit, in units of the space."""
        total, at_once = torch.zeros_like(x), max(1, rows_at_once(MAX_BATCH, x) // len(x))
        with eval_mode(net):
            for first in range(0, self.draws, at_once):
                streams = range(first, min(first + at_once, self.draws))
                # One stream per draw: the draws do not depend on how many fit a pass.
                noise = torch.stack(
                    [random.normal(keys, tuple(x.shape[1:]), stream=n, dtype=x.dtype) for n in streams]
                )
                label = score_of(net, x, y.repeat(len(streams)), "logit")
                slopes = input_gradient(label, (x + scale * self.sigma * noise).flatten(0, 1))
                total = total + slopes.view_as(noise).sum(0)
        return scale * total / self.draws

    def _steps_along(self, direction: Tensor, keys: Tensor) -> Tensor:
        """Steps (along, b, ...) of random length up to eps, or evenly from -eps in the largest entry towards 0."""
        eps, n = self._number("eps"), int(self._number("along"))
        if self.protocol == "paper":
            lengths = eps * (2 * random.uniform(keys, (n,), dtype=direction.dtype) - 1)
            # Only the norm of the ball is used, for which its radius does not matter.
            return _column(lengths.T, direction) * _over(direction, L2(0).norm(direction))
        shares = torch.arange(n, dtype=direction.dtype, device=direction.device) / (n / 2) - 1
        return _column(eps * shares[:, None], direction) * _over(direction, Linf(0).norm(direction))

    def _steps_across(self, direction: Tensor, keys: Tensor) -> Tensor:
        """Steps (along, across, b, ...) perpendicular to the direction, overall or (reference) per channel."""
        eps, counts = self._number("eps"), (int(self._number("along")), int(self._number("across")))
        shape = (*counts, *direction.shape[1:])
        if self.protocol == "reference":
            # Draws are per example, (b, along, across, ...); movedim puts the batch behind both counts.
            noise = eps * (2 * random.uniform(keys, shape, dtype=direction.dtype) - 1)
            return _without(noise.movedim(0, 2), direction, first=min(2, direction.dim() - 1))
        sideways = _without(
            random.normal(keys, shape, dtype=direction.dtype).movedim(0, 2), direction, first=1
        )
        # A stream of their own: lengths must be independent of the directions.
        lengths = eps * (2 * random.uniform(keys, counts, stream=1, dtype=direction.dtype) - 1).movedim(0, 2)
        units = sideways.flatten(0, 1).flatten(0, 1)
        units = _over(units, L2(0).norm(units)).view_as(sideways)
        return _column(lengths, direction) * units

    def _divergence(self, student: Tensor, teacher: Tensor) -> PerExample:
        check_classes(student, teacher)
        student, teacher = with_full_precision(student), with_full_precision(teacher)
        mine, its = student.log_softmax(1), (teacher / self._number("temperature")).log_softmax(1)
        if self.protocol == "paper":
            return (mine.exp() * (mine - its)).sum(1)
        return (its.exp() * (its - mine)).mean(1)

    @property
    def _teacher(self) -> Teacher:
        if not isinstance(self.teacher, Teacher):
            raise UserError(
                "atex has no teacher; give it the path of a trained checkpoint, "
                "regularizer('atex', teacher='ce.safetensors'), or a model: .with_teacher(model)."
            )
        return self.teacher

    def _number(self, name: str) -> float:
        """A setting, or the default of the protocol."""
        return float(getattr(self, name))

    def _check_numbers(self) -> None:
        check_weight(self._number("weight"))
        for name in ("eps", "sigma", "temperature"):
            if not 0 < self._number(name) < float("inf"):
                raise UserError(f"{name} is {getattr(self, name)}; give a finite number above 0.")
        check_counts(**{name: int(self._number(name)) for name in ("along", "across", "draws")})


def _column(lengths: Tensor, like: Tensor) -> Tensor:
    """Lengths (..., b) with an axis for each feature axis of a batch (b, ...)."""
    return lengths.reshape(*lengths.shape, *(1 for _ in like.shape[1:]))


def _over(direction: Tensor, size: Tensor) -> Tensor:
    """Each example divided by its size; a zero one stays zero."""
    return direction / _column(torch.where(size > 0, size, 1), direction)


def _without(noise: Tensor, direction: Tensor, *, first: int) -> Tensor:
    """noise (..., b, ...) without its component along the direction (b, ...), over the feature axes."""
    axes = tuple(range(first - direction.dim(), 0))
    length = direction.square().sum(axes, keepdim=True)
    along = (noise * direction).sum(axes, keepdim=True) / torch.where(length > 0, length, 1)
    return noise - along * direction
