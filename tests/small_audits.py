"""What the audit tests share: a net and images so small that a whole audit takes seconds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gyrograd.audit import Preset

SIDE = 10
CLASSES = 3

SMALL = Preset(
    methods=("gradient", "smoothgrad"),
    attacks=("top_k", "untargeted_map"),
    method_settings={"smoothgrad": {"draws": 4}},
    curve=(4 / 255,),
    steps=2,
    attacked_images=4,
    search_rows=2,
    draws=3,
    points=3,
    sweep={"smoothgrad": (0.05, 0.2)},
    sweep_images=5,
    sweep_draws=2,
    sweep_noise=2,
    bound_images=2,
    bound_draws=2,
    flag_images=4,
    pictures=2,
    shard=3,
)


def small_net(seed: int = 0, activation: Any = nn.Softplus) -> nn.Module:
    """Two convolutions and a head, in float64 so that a batch's size shows in no digit a test looks at."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), activation(), nn.Conv2d(4, 6, 3, stride=2), activation(),
            nn.Flatten(), nn.Linear(6 * 16, CLASSES),
        )  # fmt: skip
    with torch.no_grad():
        for weight in net.parameters():
            weight *= 4  # curved enough that noise and attacks move its maps
    return net.double().eval()


def small_images(n: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Pixels in [0, 1] and a class for each."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, 3, SIDE, SIDE, generator=generator, dtype=torch.float64)
    return x, torch.randint(CLASSES, (n,), generator=generator)
