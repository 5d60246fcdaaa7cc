"""What the verbs return, as a type checker sees it: mypy fails here where a door says less than it could.

`tests/unit/test_doors.py` runs it too.
"""

from __future__ import annotations

from typing import assert_type

import torch
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.data import Dataset
from gyrograd.types import Attack, AttackOutcome, Attribution, Kernel, Metric, Regularizer


def walk_through_every_door() -> AttackOutcome:
    """Twelve lines as a user writes them."""
    model = assert_type(gg.model("lenet", num_classes=3, seed=0), nn.Module)
    data = assert_type(gg.dataset("shapes", split="test", n=2), Dataset)
    x, target = torch.rand(2, 3, 32, 32), data.labels % 3
    explain = assert_type(gg.attribution("ig", steps=2), Attribution)
    assert_type(explain(model, x, target), Tensor)
    attack = assert_type(gg.attack("top_k", steps=1), Attack)
    hit = assert_type(attack(model, explain, x, target), AttackOutcome)
    assert_type(attack.every_radius(model, explain, x, target)[0].value, Tensor)
    metric = assert_type(gg.metric("k_in", k=5), Metric)
    assert_type(metric(model, explain, x, target, perturbed=hit.x), Tensor)
    penalty = assert_type(gg.regularizer("max_entropy"), Regularizer)
    assert_type(penalty(model, x, target), Tensor)
    gg.smoothed(model, assert_type(gg.kernel("gaussian", sigma=0.1), Kernel), draws=2)
    return hit
