"""The card tells what is wrong with the model, and how much of LRP's relevance arrived."""

from __future__ import annotations

from dataclasses import replace

import torch
from small_audits import CLASSES, SIDE, SMALL
from torch import Tensor, nn

from gyrograd.audit import engine, sanity_checks
from gyrograd.audit.map_checks import map_check_plans
from gyrograd.audit.methods import methods_of
from gyrograd.measurement import measure


class Mixing(nn.Module):
    """A net that tells its rows apart by their place, with a sum of signed values inside."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem, self.branch = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = self.stem(x)
        logits = self.head((z + self.branch(nn.functional.softplus(z))).mean((2, 3)))
        return logits + 0.01 * torch.arange(len(x)).to(x)[:, None]


def test_flags_of_the_model_and_of_lrp_are_on_the_card(monkeypatch):
    x = torch.rand(6, 3, SIDE, SIDE)
    model, preset = Mixing().eval(), replace(SMALL, methods=("gradient", "lrp"))
    inputs = engine._inputs(model, x, [0, 1, 2, 0, 1, 2], None, None, None, None, None, preset, 0)
    methods, _ = methods_of(None, preset, model, x[:1], inputs.sample.target[:1], max_batch=8)
    monkeypatch.setattr(
        sanity_checks, "_of_numbers", lambda *_: []
    )  # flags of numbers, which would take an audit
    table = measure(model, inputs.sample, map_check_plans(inputs, methods))
    flags = {(flag["name"], flag["where"]) for flag in sanity_checks.audit_flags(inputs, table, methods)}
    assert ("rows_depend", "model") in flags
    assert ("relevance_lost", "lrp") in flags
    assert ("relevance_lost", "gradient") not in flags
