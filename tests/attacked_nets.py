"""What the attack tests share: a small net trained once a process, the attacks at test size, and fingerprints."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gyrograd as gg

SMALL: dict[str, dict[str, Any]] = {"random": {}, "pgd": {"steps": 3}, "auto": {"steps": 3}}
NEW = {"steps": 3}
EPS = 8 / 255


def small_attack(name: str, **settings: Any) -> Any:
    """The attack with few steps."""
    return gg.attack(name, **(SMALL.get(name, NEW) | settings))


def pictures(split: str, n: int) -> tuple[Tensor, Tensor]:
    """Shapes at 16 x 16."""
    data = gg.dataset("shapes", split=split, n=n)
    return F.avg_pool2d(data.pixels(), 2), data.labels


@cache
def trained() -> nn.Module:
    """A narrow LeNet with ReLUs, trained for a few epochs on shapes; right far more often than by chance."""
    x, y = pictures("train", 2000)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(24 * 16, 48), nn.ReLU(), nn.Linear(48, 10),
        )  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters(), 4e-3)
        for _ in range(6):
            for rows in torch.randperm(len(x)).split(50):
                optimizer.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
    model.zero_grad()
    return model.eval()


def fingerprint(model: nn.Module) -> dict[str, object]:
    """All that an attack could leave behind on a model."""
    return {
        "weights": [value.clone().flatten().tolist() for value in model.state_dict().values()],
        "modes": [module.training for module in model.modules()],
        "hooks": [
            [len(getattr(module, kind)) for kind in vars(module) if kind.endswith("_hooks")]
            for module in model.modules()
        ],
        "grads": [parameter.grad is None for parameter in model.parameters()],
        "needs": [parameter.requires_grad for parameter in model.parameters()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "types": [type(module) for module in model.modules()],
    }
