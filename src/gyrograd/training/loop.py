"""The training loop: the steps of an epoch, and one step. Files, signals and logs are in `runs`.

Top to bottom: `Loop.epoch` takes the steps, `Step` is one (objective, backward, clip, update), then what they need: the
checks before the first step, optimizer, learning rate, average of the weights, progress of a run, batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NotRequired, TypedDict, TypeVar

import torch
from torch import Tensor, nn

from gyrograd.data.dataset import Dataset, augment, cut_out, order, zoom_in
from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.numerics.checks import run_model
from gyrograd.numerics.modes import eval_mode
from gyrograd.numerics.random import Keys
from gyrograd.numerics.second_order import single
from gyrograd.regularizers import Hessian
from gyrograd.regularizers.passes import auxiliary_pass
from gyrograd.training.objective import Objective
from gyrograd.training.processes import Group
from gyrograd.training.settings import TrainSettings
from gyrograd.types import Inputs, Labels, Model

T = TypeVar("T")

PREFETCH_BATCHES = 16
"""Batches a GPU prepares at once."""
ONE_CYCLE_RISE, ONE_CYCLE_START, ONE_CYCLE_END = 0.3, 1 / 25, 1 / 25e4
"""Share of the run in which the rate rises, and where it starts and ends as parts of lr: torch's own choice."""


@dataclass(frozen=True, eq=False)
class Loop:
    """Runs the steps of an epoch. `step` is a `Step`, or one captured in a CUDA graph (`capture`)."""

    group: Group
    model: Model
    data: Dataset
    settings: TrainSettings
    optimizer: torch.optim.Optimizer
    step: Callable[..., dict[str, Tensor]]
    average: Average | None

    @property
    def steps(self) -> int:
        """Steps of one epoch; the last may have fewer images."""
        return -(-len(self.data) // self.settings.batch_size)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[tuple[int, dict[str, Tensor], int]]:
        """Take the steps of an epoch from batch `first` on; yields the step's number, losses and number of images.

        Everything a step depends on (order, augmentation, draws, rate) is a function of (settings, epoch, batch), so a
        run can start at any step, and a resumed one computes the same bits.
        """
        self.model.train()
        for batch, (x, y, keys, count) in enumerate(self._batches(epoch, first), first):
            number = epoch * self.steps + batch
            rate = learning_rate(self.settings, epoch, batch, self.steps)
            for group in self.optimizer.param_groups:
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)  # part of a CUDA graph
                else:
                    group["lr"] = rate
            # torch's generators (dropout) are seeded at every step, so a resumed run needs no state of theirs
            process = self.group.share.index
            torch.manual_seed(((self.settings.seed * 0x9E3779B1 + number) * 4096 + process) % (1 << 63))
            losses = self.step(x, y, keys, count, number)
            if self.average is not None:
                self.average.update(self.model, number)
            yield number, losses, count

    def _batches(self, epoch: int, first: int) -> Iterator[tuple[Inputs, Labels, Keys, int]]:
        """Images, labels and keys of this process's rows, and the number of rows over all processes."""
        # A GPU prepares several batches at once: for one, launching the kernels takes longer than the work.
        s, device, share = self.settings, self.group.device, self.group.share
        own_rows = slice(share.index, None, share.of)
        left = order(len(self.data), s.seed, epoch, device).split(s.batch_size)[first:]
        # A key for each image; computed here, because `prepare` may run on another stream.
        every_key = random.keys(s.seed, len(self.data), device)
        at_once = PREFETCH_BATCHES if device.type == "cuda" else 1

        def prepare(some: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
            rows = torch.cat([batch[own_rows] for batch in some])
            # One key per (example, epoch): draws depend on neither batch size nor number of processes.
            keys = random.subkeys(every_key[rows], epoch)
            x = self.data.pixels(rows)
            if s.zoom < 1:
                x = zoom_in(x, keys, s.zoom)
            if s.crop or s.flip:
                x = augment(x, keys, pad=s.crop, flip=s.flip)
            if s.cutout:
                x = cut_out(x, keys, s.cutout)
            return x, self.data.labels[rows].long(), keys

        groups = [left[start : start + at_once] for start in range(0, len(left), at_once)]
        ahead = device.type == "cuda" and len(groups) > 0
        prepared = _one_ahead(prepare, groups, device) if ahead else map(prepare, groups)
        for some, columns in zip(groups, prepared, strict=True):
            sizes = [len(batch[own_rows]) for batch in some]
            for batch, *parts in zip(some, *(column.split(sizes) for column in columns), strict=True):
                yield parts[0], parts[1], parts[2], len(batch)


@dataclass(frozen=True, eq=False)
class Step:
    """One step: objective, backward, all-reduce, clipping and update; returns the loss and its parts.

    They are tensors on the device: no number is read back, so that a CUDA graph can hold the step (`capture`). `whole`
    is the size of the batch over all processes, `number` that of the step in the run.
    """

    model: Model
    optimizer: torch.optim.Optimizer
    objective: Objective
    group: Group
    clip: float | int | None = None

    def __call__(
        self, x: Inputs, y: Labels, keys: Labels, whole: int | None = None, number: int = 0
    ) -> dict[str, Tensor]:
        self.optimizer.zero_grad(set_to_none=True)
        with self.group.autocast():
            total, losses = self.objective(
                self.model, x, y, seed=keys, share=self.group.share, whole=whole, number=number
            )
        total.backward()
        if self.group.share.of > 1:
            losses = self.group.all_reduce_gradients(self.model, losses)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return losses


def check_fit(
    model: Model,
    data: Dataset,
    test: Dataset | None,
    settings: TrainSettings,
    objective: Objective,
    group: Group,
) -> None:
    """Refuse settings that cannot train: wrong classes, bf16 with second derivatives, too many processes."""
    _check_loss(objective)
    asked = [key for key in ("crop", "flip", "cutout") if getattr(settings, key)]
    asked += ["zoom"] * (settings.zoom < 1)
    if asked and data.images.dim() != 4:
        raise UserError(f"{data.name} is not made of images, so {asked[0]} cannot be used; leave it out.")
    if settings.crop >= min(data.images.shape[2:], default=1 << 30):
        raise UserError(f"crop is {settings.crop}, as large as the images of {data.name}; give fewer pixels.")
    if settings.cutout > max(data.images.shape[2:], default=1 << 30):
        raise UserError(
            f"cutout is {settings.cutout}, larger than the images of {data.name}; give a smaller square."
        )
    if not any(weight.requires_grad for weight in model.parameters()):
        raise UserError(
            "The model has no weights that learn; unfreeze some (requires_grad_) before training."
        )
    if len(data.classes) < 2:
        raise UserError(f"{data.name} has one class, {data.classes[0]!r}; training needs at least two.")
    if test is not None and test.classes != data.classes:
        raise UserError(
            f"{data.name} and {test.name} have different classes ({len(data.classes)} and {len(test.classes)}); "
            "give test images of the same ones."
        )
    tensors_of(model)
    with torch.no_grad(), eval_mode(model):
        logits = run_model(model, data.pixels(torch.arange(1)).to(next(model.parameters()).device))
    if logits.dim() != 2 or logits.shape[1] != len(data.classes):
        raise UserError(
            f"The model gives outputs of shape {tuple(logits.shape)} and {data.name} has {len(data.classes)} "
            f"classes; give the model num_classes={len(data.classes)}."
        )
    if settings.precision == "bf16" and objective.second_order and not settings.allow_bf16:
        raise UserError(
            "bf16 keeps eight bits and this objective differentiates a gradient, whose noise then drowns the signal; "
            "give precision tf32, or allow_bf16 true if you have compared the results."
        )
    if settings.precision == "tf32" and group.device.type != "cuda":
        raise UserError(f"precision tf32 needs a CUDA device; on {group.device.type} give fp32.")
    smallest = len(data) % settings.batch_size or settings.batch_size
    _check_normalised(model, data, objective, smallest, group.share.of)
    if group.share.of > 1 and objective.fewest_rows(smallest) < group.share.of:
        raise UserError(
            f"A batch of {smallest} images leaves some of the {group.share.of} processes without one to train or "
            "regularise; give another batch_size, a larger regularized_fraction, or fewer processes."
        )


def _check_loss(objective: Objective) -> None:
    """Refuse steps without a loss, and label smoothing that nothing uses."""
    every_step = objective.clean_weight or any(t.replaces and t.weight for t in objective.terms.values())
    some_steps = any(term.weight for term in objective.terms.values())
    if not every_step and (objective.regularize_every > 1 or not some_steps):
        raise UserError(
            "Some steps have no loss: cross_entropy is 0 and no term with a weight above 0 is in every step; give "
            "cross_entropy or a term a weight, or regularize_every 1."
        )
    if objective.label_smoothing and not objective.clean_weight:
        raise UserError(
            f"label_smoothing {objective.label_smoothing:g} is for the clean cross-entropy, which this objective does "
            "not have; leave it out, or give cross_entropy a weight."
        )


def _check_normalised(
    model: Model, data: Dataset, objective: Objective, smallest: int, processes: int
) -> None:
    """Refuse a last batch that leaves a single value to a batch normalisation, which torch refuses in its step."""
    # A curvature penalty writes its normalisation out, and takes one row. Fast passes are of the whole batch.
    terms = {
        name: term
        for name, term in objective.terms.items()
        if not objective.fast and not isinstance(term.regularizer, Hessian)
    }
    rows = replace(objective, terms=terms, fast=False).fewest_rows(smallest) // processes
    if rows > 1:
        return
    flags = [(module, module.training) for module in model.modules()]
    device = next(model.parameters()).device
    try:
        with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            model.train()
            with auxiliary_pass(model, "batch"):
                model(data.pixels(torch.arange(1)).to(device))
    except ValueError as wrong:
        if "more than 1 value per channel" not in str(wrong):
            raise
        raise UserError(
            f"The last batch has {smallest} of the {len(data)} images, of which BatchNorm would normalise one alone; "
            "give another batch_size."
        ) from None
    finally:
        for module, training in flags:
            module.training = training


def optimizer_of(model: Model, settings: TrainSettings) -> torch.optim.Optimizer:
    """The optimizer of the settings over all trainable weights; fused on CUDA if a graph is to hold it."""
    weights = [p for p in model.parameters() if p.requires_grad]
    fused = settings.fast and all(p.is_cuda for p in weights)
    shared: dict[str, Any] = {
        "lr": settings.lr,
        "weight_decay": settings.weight_decay,
        "fused": fused or None,
    }
    if settings.optimizer == "sgd":
        momentum, nesterov = settings.momentum, settings.nesterov
        return torch.optim.SGD(weights, momentum=momentum, nesterov=nesterov, **shared)
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(weights, capturable=fused, **shared)


def learning_rate(settings: TrainSettings, epoch: int, batch: int, batches: int) -> float:
    """The rate of step `batch` of `batches` in this epoch, warm-up included.

    A pure function of the position, so a checkpoint needs no scheduler state.
    """
    s, place = settings, epoch + batch / batches
    at = place if s.schedule_every == "step" else float(epoch)
    warm = min(1.0, (place + 1 / batches) / s.warmup) if s.warmup else 1.0
    factor = 1.0
    if s.schedule == "cosine":
        factor = (1 + math.cos(math.pi * at / s.epochs)) / 2
    elif s.schedule == "multi_step":
        factor = float(s.gamma ** sum(at >= milestone for milestone in s.milestones))
    elif s.schedule == "one_cycle":
        factor = _one_cycle(epoch * batches + batch, s.epochs * batches)
    return s.lr * warm * factor


def _one_cycle(step: int, steps: int) -> float:
    top = ONE_CYCLE_RISE * steps - 1
    if step < top:
        start, end, share = ONE_CYCLE_START, 1.0, step / top
    else:
        start, end, share = 1.0, ONE_CYCLE_END, (step - top) / (steps - 1 - top)
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def tensors_of(model: Model) -> dict[str, Tensor]:
    """The model's state, which must be of tensors to be averaged, written and read without running code."""
    state = model.state_dict()
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise UserError(
                f"The state of the model holds '{key}', a {type(value).__name__}; let get_extra_state return a tensor."
            )
    return dict(state)


class Average:
    """An exponential moving average of the weights, with the buffers of the model.

    The decay is at most (1 + n) / (10 + n) at step n, so that the initial weights are soon forgotten. Weights in half
    precision are averaged in single: a step of 1 - decay would be lost in their rounding.
    """

    def __init__(self, model: Model, decay: float | int) -> None:
        self.decay = decay
        self.values = {key: single(value.detach().clone()) for key, value in tensors_of(model).items()}

    @torch.no_grad()
    def update(self, model: Model, step: int) -> None:
        """Move towards the weights after this step."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        now = model.state_dict()
        # With every name of a weight that two layers share: `give_to` loads them all, and the last one wins.
        every = model.named_parameters(remove_duplicate=False)
        learnt = [name for name, weight in every if weight.is_floating_point() or weight.is_complex()]
        kept = sorted(now.keys() - set(learnt))
        # One kernel each instead of one per tensor: their launches would take longer than a small net's step.
        torch._foreach_lerp_([self.values[k] for k in learnt], [single(now[k]) for k in learnt], share)
        if kept:
            torch._foreach_copy_([self.values[k] for k in kept], [now[k] for k in kept])

    def give_to(self, model: Model) -> None:
        """Load the averaged weights into the model."""
        model.load_state_dict(self.values)

    @contextmanager
    def swapped_into(self, model: Model) -> Iterator[None]:
        """Give the model the averaged weights for the block, and its own afterwards."""
        own = {key: value.detach().clone() for key, value in model.state_dict().items()}
        self.give_to(model)
        try:
            yield
        finally:
            model.load_state_dict(own)


class EpochEntry(TypedDict):
    """An epoch in the log. `step`: steps taken so far, `lr`: that of the last one."""

    epoch: int
    step: int
    lr: float
    losses: dict[str, float]
    seconds: float
    accuracy: NotRequired[float]


class BestEpoch(TypedDict):
    """Number and accuracy of the best epoch."""

    epoch: int
    accuracy: float


@dataclass
class TrainingProgress:
    """The next step of a run, the sums of the current epoch, and the history of earlier ones."""

    epoch: int = 0
    batch: int = 0
    names: list[str] = field(default_factory=list)
    sums: Tensor | None = None
    """Losses times examples of this epoch, one entry per name."""
    seen: int = 0
    history: list[EpochEntry] = field(default_factory=list)
    best: BestEpoch | None = None
    """The best epoch, if accuracy is measured."""
    best_weights: Average | None = None
    """Weights of the best epoch, until they are in a file of their own."""
    seconds: float = 0.0
    """Time spent on this epoch so far, over all the runs that an interruption split it into."""
    ended: bool = False
    """True if `on_epoch` ended the run before its last epoch."""

    def add(self, losses: dict[str, Tensor], n: int) -> None:
        """Add a step and its losses, without reading from the device."""
        # A step without the penalty has no term for it; that counts as zero.
        self.names = [*self.names, *(name for name in losses if name not in self.names)]
        zero = next(iter(losses.values())).new_zeros(())
        values = torch.stack([losses.get(name, zero) for name in self.names]).to(torch.float64) * n
        if self.sums is not None:
            values[: len(self.sums)] += self.sums
        self.sums = values
        self.seen += n
        self.batch += 1

    def means(self) -> dict[str, float]:
        """The mean losses of this epoch so far."""
        numbers = [] if self.sums is None else (self.sums / self.seen).tolist()
        return dict(zip(self.names, numbers, strict=True))


def _one_ahead(
    make: Callable[[T], tuple[Tensor, ...]], parts: Sequence[T], device: torch.device
) -> Iterator[tuple[Tensor, ...]]:
    """`make` of each part on a GPU, which prepares the next on another stream while this one is used."""
    here, aside = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    aside.wait_stream(here)

    def start(part: T) -> tuple[tuple[Tensor, ...], torch.cuda.Event]:
        with torch.cuda.stream(aside):
            return make(part), aside.record_event()

    next_one = start(parts[0])
    for following in (*parts[1:], None):
        columns, ready = next_one
        if following is not None:
            next_one = start(following)
        here.wait_event(ready)
        for column in columns:
            column.record_stream(here)  # keeps its memory until this stream is done with it
        yield columns
