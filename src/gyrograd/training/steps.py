"""One optimizer step, in tensors only: no number is read back, so a CUDA graph can hold all of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gyrograd.training.objective import Objective
from gyrograd.training.processes import Group
from gyrograd.training.settings import TrainSettings
from gyrograd.types import Inputs, Labels, Model


@dataclass(frozen=True, eq=False)
class Step:
    """`step(x, y, keys)`: forward, objective, backward, the processes' sum, clipping and the update.

    The loss and its parts come back as tensors on the device. `whole`: rows of the batch over all processes;
    `number`: which step of the run it is.
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
        losses = self.group.joined(self.model, losses)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        return losses


def optimizer_of(model: Model, settings: TrainSettings) -> torch.optim.Optimizer:
    """The optimizer the settings name, over every weight that learns; one kernel a step where it can be captured."""
    weights = [p for p in model.parameters() if p.requires_grad]
    lr, decay = settings.lr, settings.weight_decay
    fused = settings.fast and all(p.is_cuda for p in weights)
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            weights,
            lr=lr,
            momentum=settings.momentum,
            nesterov=settings.nesterov,
            weight_decay=decay,
            fused=fused or None,
        )
    kind = torch.optim.Adam if settings.optimizer == "adam" else torch.optim.AdamW
    return kind(weights, lr=lr, weight_decay=decay, capturable=fused, fused=fused or None)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The rate of the next step; a rate that is a tensor (inside a CUDA graph) is overwritten in place."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class Average:
    """An exponential average of the weights; buffers are those of the model.

    It begins quickly, with decay (1 + n) / (10 + n) at step n, so that the first weights are soon forgotten.
    """

    def __init__(self, model: Model, decay: float | int) -> None:
        self.decay = decay
        self.values = {key: value.detach().clone() for key, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: Model, step: int) -> None:
        """Move towards the weights after this step."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        now = model.state_dict()
        learnt = [name for name, _ in model.named_parameters()]
        kept = sorted(now.keys() - set(learnt))
        # One kernel each instead of one per tensor: a small net's step is shorter than their launches.
        torch._foreach_lerp_([self.values[k] for k in learnt], [now[k] for k in learnt], share)
        if kept:
            torch._foreach_copy_([self.values[k] for k in kept], [now[k] for k in kept])

    def give_to(self, model: Model) -> None:
        """The model takes the averaged weights."""
        model.load_state_dict(self.values)

    @contextmanager
    def worn_by(self, model: Model) -> Iterator[None]:
        """The model has the averaged weights for the block, and its own again afterwards."""
        own = {key: value.detach().clone() for key, value in model.state_dict().items()}
        self.give_to(model)
        try:
            yield
        finally:
            model.load_state_dict(own)
