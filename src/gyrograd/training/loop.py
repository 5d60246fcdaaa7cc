"""One loop: batches in, an objective, an optimizer step. Any model, any data set, any objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gyrograd.data import Dataset, augment, batches
from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.numerics.modes import evaluating
from gyrograd.progress import track
from gyrograd.types import Images, Labels, Model

Objective = Callable[[Model, Tensor, Tensor], Tensor]
"""(model, x, y) to the scalar that is minimised."""


@dataclass(frozen=True)
class Recipe:
    """How to train. The defaults are joo2023's for LeNet on CIFAR-10, but for the number of epochs."""

    epochs: int = 10
    batch_size: int = 128
    lr: float = 1e-3
    weight_decay: float = 4e-5
    clip: float = 0.5
    """Largest global norm of the gradient; joo2023's code clips at 0.5 in every run."""
    crop: int = 4
    """Pixels the random crop may move; 0 switches crop and flip off."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise UserError(f"Training needs at least one epoch and one image a batch, not {self}.")


def cross_entropy(model: Model, x: Images, y: Labels) -> Tensor:
    """The mean cross-entropy of the clean images."""
    return F.cross_entropy(model(x), y)


def train(model: Model, data: Dataset, recipe: Recipe, objective: Objective = cross_entropy) -> list[float]:
    """Train the model in place; the mean loss of each epoch comes back. Same seed, same weights on a CPU.

    Objectives that draw from torch's generator find it seeded; the caller's is left as it was.
    """
    with torch.random.fork_rng():
        torch.manual_seed(recipe.seed)
        return _train(model, data, recipe, objective)


def _train(model: Model, data: Dataset, recipe: Recipe, objective: Objective) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.lr, weight_decay=recipe.weight_decay)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=recipe.epochs)
    losses = []
    model.train()
    for epoch in track(range(recipe.epochs), recipe.epochs, f"training on {data.name}"):
        total = 0.0
        for x, y, index in batches(data, recipe.batch_size, shuffle_seed=recipe.seed, epoch=epoch):
            if recipe.crop:
                # One key for each (example, epoch): the crop depends on neither batch size nor device.
                keys = random.subkeys(random.keys(recipe.seed, len(data), index.device)[index], epoch)
                x = augment(x, keys, pad=recipe.crop)
            loss = objective(model, x, y)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            optimizer.step()
            total += float(loss.detach()) * len(x)
        schedule.step()
        losses.append(total / len(data))
    model.eval()
    return losses


@torch.no_grad()
def predictions(model: Model, data: Dataset, batch_size: int = 512) -> Labels:
    """The class the model gives each example."""
    with evaluating(model):
        return torch.cat([model(x).argmax(1) for x, _, _ in batches(data, batch_size)])
