"""joo2023 Figure 1: four nets, and the ordering the paper draws from them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.theory.alignment_toy import (
    PANELS,
    OneLogit,
    Panel,
    Turn,
    boundary,
    logit,
    sharpest_turn,
    trained_net,
)

SEEDS = (0, 2)  # benchmarks/figure1.py has five


class Circle(nn.Module):
    """z = 40 (|x - middle|^2 - 1/16): its boundary is a circle of radius 1/4, its gradient known."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = 40 * ((x - 0.5).square().sum(1, keepdim=True) - 1 / 16)
        return torch.cat((-z / 2, z / 2), 1)


def penalty_of(panel: Panel):
    return gg.regularizer(panel.regularizer, **panel.settings) if panel.regularizer else None


@pytest.fixture(scope="module")
def turns() -> list[dict[str, Turn]]:
    rows = []
    for seed in SEEDS:
        row = {}
        for panel in PANELS:
            model, data = trained_net(panel, penalty_of(panel), seed=seed)
            assert (model(data.pixels()).argmax(1) == data.labels).double().mean() > 0.9
            row[panel.letter] = sharpest_turn(model, data.pixels())
        rows.append(row)
    return rows


def test_softplus_turns_less_than_relu(turns):
    assert all(row["b"].l2 < row["a"].l2 for row in turns)
    assert all(row["b"].cosine > row["a"].cosine for row in turns)


def test_max_entropy_shrinks_the_distance_and_leaves_the_angle(turns):
    assert all(row["c"].l2 < 0.7 * row["b"].l2 for row in turns)
    assert all(abs(row["c"].cosine - row["b"].cosine) < 0.1 for row in turns)


def test_alignment_lowers_the_distance_and_turns_the_gradients_together(turns):
    assert all(row["d"].l2 < row["b"].l2 for row in turns)
    assert all(row["d"].cosine > max(row[other].cosine for other in "abc") for row in turns)


def test_the_boundary_of_a_circle_is_found_and_its_turn_is_the_known_one():
    near = 0.5 + 0.25 * torch.tensor(
        [[math.cos(a), math.sin(a)] for a in torch.linspace(0, 6.28, 60).tolist()]
    )
    found = boundary(Circle(), near)
    radius = (found - 0.5).norm(dim=1)
    assert len(found) > 60
    torch.testing.assert_close(radius, torch.full_like(radius, 0.25), rtol=0, atol=1e-4)
    turn = sharpest_turn(Circle(), near, apart=0.1)
    # Both ends lie on a tangent of length 0.1: the angle between them, seen from the middle, is 2 atan(0.05 / 0.25).
    assert turn.cosine == pytest.approx(math.cos(2 * math.atan(0.2)), abs=1e-3)
    assert turn.l2 == pytest.approx(80 * 0.1, rel=1e-3)
    assert (turn.points[0] - turn.points[1]).norm().item() == pytest.approx(0.1, rel=1e-4)


def test_only_the_boundary_among_the_data_counts():
    corner = torch.tensor([[0.5, 0.75]])
    found = boundary(Circle(), corner)
    assert ((found - corner).norm(dim=1) < 0.075).all()
    with pytest.raises(UserError, match="no boundary among the data"):
        sharpest_turn(Circle(), torch.tensor([[0.0, 0.0]]))


def test_one_logit_has_the_binary_cross_entropy():
    core = nn.Linear(2, 1)
    x, y = torch.rand(8, 2), torch.arange(8) % 2
    two = nn.functional.cross_entropy(OneLogit(core)(x), y)
    one = nn.functional.binary_cross_entropy_with_logits(core(x)[:, 0], y.float())
    torch.testing.assert_close(two, one)
    torch.testing.assert_close(logit(OneLogit(core), x), core(x)[:, 0])


def test_nets_repeat_and_share_their_first_weights_and_leave_the_generator_alone():
    chance = torch.get_rng_state()
    one, _ = trained_net(PANELS[0], None, steps=3, points=20)
    two, _ = trained_net(PANELS[0], None, steps=3, points=20)
    start, _ = trained_net(PANELS[0], None, steps=0, points=20)
    smooth, _ = trained_net(PANELS[1], None, steps=0, points=20)
    assert torch.equal(torch.get_rng_state(), chance)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(start.parameters(), smooth.parameters(), strict=True))


def test_a_panel_without_its_penalty_is_refused():
    with pytest.raises(UserError, match="Panel d is trained with l2_cosine"):
        trained_net(PANELS[3], None)
