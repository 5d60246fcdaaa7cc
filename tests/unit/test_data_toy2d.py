from __future__ import annotations

import pytest
import torch

import gyrograd as gg
from gyrograd.data.toy2d import moon, toy2d
from gyrograd.errors import UserError


def test_points_lie_in_the_square_in_two_equal_classes() -> None:
    data = gg.dataset("toy2d", n=400)
    assert data.images.shape == (400, 2)
    assert data.images.min() >= 0
    assert data.images.max() <= 1
    assert data.labels.bincount().tolist() == [200, 200]


def test_a_larger_set_extends_a_smaller_one_and_splits_and_seeds_differ() -> None:
    assert torch.equal(toy2d(n=30).images, toy2d(n=50).images[:30])
    assert not torch.equal(toy2d(n=30).images, toy2d("test", n=30).images)
    assert not torch.equal(toy2d(n=30).images, toy2d(n=30, seed=1).images)


def test_without_noise_the_points_are_on_the_two_moons() -> None:
    data = toy2d(n=200, noise=0.0)
    centres = torch.tensor([[0.37, 0.44], [0.63, 0.56]])[data.labels]
    torch.testing.assert_close((data.images - centres).norm(dim=1), torch.full((200,), 0.25))
    above = data.images[:, 1] - centres[:, 1]
    assert ((above >= -1e-6) == (data.labels == 0)).all()


def test_the_noise_has_the_standard_deviation_asked_for() -> None:
    noisy, exact = toy2d(n=4000, noise=0.03), toy2d(n=4000, noise=0.0)
    assert float((noisy.images - exact.images).std()) == pytest.approx(0.03, rel=0.05)


def test_no_straight_line_parts_the_classes_but_the_nearest_neighbour_does() -> None:
    train, test = toy2d(), toy2d("test")
    x = torch.cat((train.images, torch.ones(500, 1)), 1).double()
    line = torch.linalg.lstsq(x, (train.labels * 2 - 1).double()[:, None]).solution
    straight = ((x @ line)[:, 0] > 0).long() == train.labels
    nearest = train.labels[torch.cdist(test.images, train.images).argmin(1)] == test.labels
    assert straight.double().mean() < 0.93
    assert nearest.double().mean() > 0.9


def test_the_second_moon_is_the_first_turned_half_round() -> None:
    place = torch.linspace(0, 1, 7)
    torch.testing.assert_close(moon(place, torch.zeros(7).long()), 1 - moon(place, torch.ones(7).long()))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"split": "tset"}, "toy2d has no split 'tset': did you mean 'test'?"),
        ({"n": 0}, "give n >= 1 and noise >= 0"),
        ({"noise": -1.0}, "give n >= 1 and noise >= 0"),
        ({"noise": float("nan")}, "noise=nan; give a finite number"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        gg.dataset("toy2d", **settings)
