"""A small net with everything a run must carry over (BatchNorm, dropout), on 8 x 8 pictures of three classes."""

from __future__ import annotations

import torch
from torch import nn

from gyrograd.data import Dataset
from gyrograd.training import TrainSettings


def pictures(n: int = 48, seed: int = 0) -> Dataset:
    """Noise with a bright row, column or block: learnable in a few steps."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 100, (n, 3, 8, 8), generator=generator)
    labels = torch.arange(n) % 3
    images[labels == 0, :, 3] += 120
    images[labels == 1, :, :, 3] += 120
    images[labels == 2, :, :4, :4] += 120
    return Dataset(images.to(torch.uint8), labels, ("row", "column", "block"), f"pictures {seed}")


def net(*, batchnorm: bool = True, dropout: float = 0.2, seed: int = 0) -> nn.Module:
    """Two convolutions and a linear layer, smooth, with seeded weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        norm = nn.BatchNorm2d(6) if batchnorm else nn.Identity()
        return nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), norm, nn.Softplus(3), nn.MaxPool2d(2), nn.Dropout(dropout),
            nn.Conv2d(6, 8, 3, padding=1), nn.Softplus(3), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(8, 3),
        )  # fmt: skip


EVERYTHING = {
    "terms": {"l2_cosine": {"l2": 0.1, "cosine": 0.5}, "max_entropy": {"weight": 0.01}},
    "regularized_fraction": 0.5,
    "ema": 0.9,
    "crop": 1,
    "flip": True,
    "zoom": 0.5,
    "clip": 0.5,
    "label_smoothing": 0.1,
    "warmup": 0.5,
    "lr": 1e-2,
    "epochs": 4,
    "batch_size": 10,
    "device": "cpu",
}
"""A run that uses all a checkpoint must hold."""


def settings(**changes) -> TrainSettings:
    return TrainSettings(**(EVERYTHING | changes))
