"""The training objective: cross-entropy and weighted regularisers, each reported by name."""

from __future__ import annotations

import inspect
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from gyrograd.errors import UserError, did_you_mean, plain_values
from gyrograd.numerics import random
from gyrograd.numerics.cpu_layers import CpuLayers
from gyrograd.registry import Settings, fact, lookup, make
from gyrograd.regularizers import L2Cosine
from gyrograd.regularizers.joint import check_joint, joint_loss, knows
from gyrograd.regularizers.passes import fresh_keys
from gyrograd.renames import old_fields
from gyrograd.training.processes import Share
from gyrograd.training.settings import OLD_FIELDS, TrainSettings
from gyrograd.types import Inputs, Labels, Model, PerExample, Regularizer, Seed


@dataclass(frozen=True)
class Term:
    """A regulariser and the weight of its mean."""

    regularizer: Regularizer
    weight: float | int = 1.0
    replaces: bool = field(init=False, repr=False, compare=False)
    """True if it takes the place of cross-entropy."""
    takes_clean: bool = field(init=False, repr=False, compare=False)
    """True if it would compute the same gradient as the clean training pass."""

    def __post_init__(self) -> None:
        r = self.regularizer
        object.__setattr__(self, "replaces", bool(fact("regularizer", r, "replaces_cross_entropy")))
        same = (
            isinstance(r, L2Cosine) and r.quantity == "logit" and r.detach_clean and r.batchnorm != "frozen"
        )
        object.__setattr__(self, "takes_clean", same)
        if not 0 <= self.weight < math.inf:
            raise UserError(f"The weight of a term is {self.weight}; give a finite number of 0 or more.")


def runs_fast(terms: Iterable[Term]) -> bool:
    """True if a step with these terms reads no value on the host, so that a CUDA graph can hold it.

    An alignment shares its passes with cross-entropy (`regularizers.joint`) and must be the only term.
    """
    every = [term.regularizer for term in terms]
    joint = [type(one) for one in every] == [L2Cosine]
    return joint or all(fact("regularizer", one, "capturable") for one in every)


def equal_when_fast(objective: Objective, model: Model) -> bool:
    """True if the fast path of this objective trains the same weights, to rounding.

    An alignment by first-order passes differs with batch normalisation in training: it uses the statistics of the
    whole clean batch in every pass.
    """
    kinds = [term.regularizer for term in objective.terms.values()]
    if not runs_fast(objective.terms.values()):
        return False
    normed = any(isinstance(module, _BatchNorm) for module in model.modules())
    joint = bool(objective.clean_weight) and not normed
    return all(joint and knows(kind) for kind in kinds if isinstance(kind, L2Cosine))


@old_fields(**OLD_FIELDS)
@dataclass(frozen=True)
class Objective:
    """The loss and its parts: `objective(model, x, y, seed=keys)`.

    Every part is a weighted mean over the batch, so the parts add up to the loss. The first rows of a batch
    (`regularized_fraction` of it) are regularised; a term that replaces cross-entropy uses all rows. Only one step in
    `regularize_every` is regularised, with that many times the weight. With several processes x holds this process's
    `share` of `whole` rows, and the means are sums divided by the size of the whole batch. `fast`: see
    `regularizers.joint`.
    """

    terms: Mapping[str, Term] = field(default_factory=dict)
    cross_entropy: float | int | None = None
    label_smoothing: float | int = 0.0
    regularized_fraction: float | int = 1.0
    regularize_every: int = 1
    fast: bool = False

    def __post_init__(self) -> None:
        if not self.fast:
            return
        alignment = self.alignment
        if not runs_fast(self.terms.values()) or (alignment is not None and not self.clean_weight):
            raise UserError(
                "fast takes l2, cosine or l2_cosine as the only term beside cross-entropy, or any of gyrograd's other "
                f"terms; this objective has {', '.join(self.terms)}, so leave fast out."
            )
        if alignment is not None:
            check_joint(alignment)

    def __call__(
        self,
        model: Model,
        x: Inputs,
        y: Labels,
        *,
        seed: Seed | None = None,
        share: Share = Share(),  # noqa: B008 - frozen
        whole: int | None = None,
        number: int = 0,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        whole = len(x) if whole is None else whole
        keys = None if seed is None else random.keys(seed, len(x), x.device)
        due = self.due(number)
        if self.fast and due and (alignment := self.alignment) is not None:
            return self._joint(alignment, model, x, y, keys, share)
        parts: dict[str, Tensor] = {}
        clean = None
        if self.clean_weight:
            ce, clean = self._cross_entropy(model, x, y)
            parts["cross_entropy"] = self.clean_weight * ce.sum() / whole
        for name, term in self.terms.items():
            if not (due or term.replaces):
                continue
            weight = term.weight if term.replaces else term.weight * self.regularize_every
            rows = self._regularised(term, whole)
            some = slice(share.count(rows))
            # Keys by name: a term draws the same numbers with any other terms beside it.
            own = None if keys is None else random.subkeys(keys[some], zlib.crc32(name.encode()))
            if (of_parts := getattr(term.regularizer, "terms", None)) is None:
                found = {name: term.regularizer(model, x[some], y[some], seed=own)}
            else:
                shared = {"clean": clean} if clean is not None and term.takes_clean else {}
                inner = of_parts(model, x[some], y[some], seed=own, **shared)
                found = {name if len(inner) == 1 else f"{name}.{key}": part for key, part in inner.items()}
            for key, values in found.items():
                parts[key] = weight * values.sum() / rows
        total = sum(parts.values(), start=x.new_zeros(()))
        return total, {"loss": total.detach(), **{name: value.detach() for name, value in parts.items()}}

    def due(self, number: int) -> bool:
        """True if this step is regularised."""
        return number % self.regularize_every == 0

    def _joint(
        self, align: L2Cosine, model: Model, x: Inputs, y: Labels, keys: Tensor | None, share: Share
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Cross-entropy and alignment in two first-order passes; the scalar has the right gradient, not the value."""
        if share.of > 1:
            raise UserError("fast trains in a single process; leave it out, or start one process.")
        ((name, term),) = self.terms.items()
        some = slice(self._regularised(term, len(x)))
        own = random.subkeys(fresh_keys(keys, x)[some], zlib.crc32(name.encode()))
        weight = term.weight * self.regularize_every
        align = replace(align, l2=weight * align.l2, cosine=weight * align.cosine)
        scalar, values = joint_loss(model, x, y, align, align.moved(x[some], own), self._clean_loss)
        names = {key: f"{name}.{key}" if len(values) > 2 else name for key in values}
        parts = {"cross_entropy": values.pop("cross_entropy")} | {names[k]: v for k, v in values.items()}
        return scalar, {"loss": torch.stack(list(parts.values())).sum(), **parts}

    def _clean_loss(self, logits: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(logits, y, label_smoothing=self.label_smoothing)
        return self.clean_weight * loss

    @property
    def alignment(self) -> L2Cosine | None:
        """The alignment among the terms, which shares its passes with cross-entropy if `fast`."""
        every = (term.regularizer for term in self.terms.values())
        return next((one for one in every if isinstance(one, L2Cosine)), None)

    @property
    def clean_weight(self) -> float | int:
        """Weight of the clean cross-entropy: as given, else 1, or 0 if a term replaces it."""
        if self.cross_entropy is not None:
            return self.cross_entropy
        return 0.0 if any(term.replaces for term in self.terms.values()) else 1.0

    @property
    def second_order(self) -> bool:
        """True if a term differentiates a gradient, for which half precision is too coarse."""
        return any(fact("regularizer", term.regularizer, "second_order") for term in self.terms.values())

    def fewest_rows(self, whole: int) -> int:
        """Rows used by the term with the smallest share of the batch."""
        return min((self._regularised(term, whole) for term in self.terms.values()), default=whole)

    def _regularised(self, term: Term, whole: int) -> int:
        return whole if term.replaces else max(1, round(self.regularized_fraction * whole))

    def _cross_entropy(self, model: Model, x: Inputs, y: Labels) -> tuple[PerExample, Inputs | None]:
        """The loss per example and, if a term uses it for the whole batch, the gradient of the label's logit.

        Taken from this forward pass, as in joo2023's code, it saves the alignment terms one of their own.
        """
        shared = (
            self.regularized_fraction == 1
            and self.regularize_every == 1
            and any(term.takes_clean for term in self.terms.values())
        )
        x = x.detach().requires_grad_() if shared else x
        with CpuLayers():
            logits = model(x)
        losses = F.cross_entropy(logits, y, label_smoothing=self.label_smoothing, reduction="none")
        if not shared:
            return losses, None
        (clean,) = torch.autograd.grad(logits.gather(1, y[:, None]).sum(), x, retain_graph=True)
        return losses, clean


def objective_of(settings: TrainSettings) -> Objective:
    """The objective of these settings; for an unknown name or setting the error suggests the nearest one."""
    terms = {name: _term(name, dict(entry)) for name, entry in settings.terms.items()}
    shared = {f.name: getattr(settings, f.name) for f in fields(Objective) if f.name != "terms"}
    return Objective(terms, **shared)


def _term(name: str, entry: Settings) -> Term:
    """`weight` is the term's, or the regulariser's own if it has one (iga, atex: the papers' lambda)."""
    known = lookup("regularizer", name)
    parameters = inspect.signature(known.factory).parameters
    for key in entry:
        if key not in parameters and key != "weight":
            raise UserError(
                f"terms.{name} has no setting '{key}': {did_you_mean(key, {*parameters, 'weight'})}"
            )
    own = "weight" in parameters
    weight = entry.get("weight", 1.0) if own else entry.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise UserError(f"terms.{name}.weight is {weight!r}; give a finite number of 0 or more.")
    settings = {key: _as_float(value, parameters[key].annotation) for key, value in entry.items()}
    with plain_values(f"terms.{name}"):
        return Term(make("regularizer", known.name, **settings), 1.0 if own else float(weight))


def _as_float(value: Any, annotation: Any) -> Any:
    """An integer, as YAML writes 1.0, converted if a float is declared."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and "float" in str(annotation) and "int" not in str(annotation) else value
