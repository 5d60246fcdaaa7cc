from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.training import Recipe, cross_entropy, predictions, train

NET = {"activation": "softplus", "beta": 10, "normalize": ((0.38,) * 3, (0.2,) * 3), "init": "he", "seed": 0}


def aligned(model, x, y):
    return F.cross_entropy(model(x), y) + gg.regularizer("l2_cosine")(model, x[:8], y[:8]).mean()


def trained(objective, **changes):
    model = gg.model("lenet", **NET)
    losses = train(
        model, gg.dataset("shapes", n=96), Recipe(**({"epochs": 2, "batch_size": 32} | changes)), objective
    )
    return model, losses


@pytest.mark.parametrize("objective", [cross_entropy, aligned])
def test_the_same_seed_gives_the_same_weights_bit_for_bit(objective):
    before = torch.get_rng_state()
    (first, losses), (second, again), (other, _) = (trained(objective, seed=seed) for seed in (0, 0, 1))
    assert losses == again
    pairs = zip(first.parameters(), second.parameters(), other.parameters(), strict=True)
    same, different = zip(*((torch.equal(a, b), torch.equal(a, c)) for a, b, c in pairs), strict=True)
    assert all(same)
    assert not any(different)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_loss_falls_and_the_net_learns_its_training_images():
    data = gg.dataset("shapes", n=64)
    model = gg.model("lenet", **NET)
    losses = train(model, data, Recipe(epochs=25, batch_size=16, crop=0))
    assert losses[-1] < 0.5 * losses[0]
    assert float((predictions(model, data) == data.labels).double().mean()) > 0.7
    assert not model.training


def test_a_recipe_that_trains_nothing_is_refused():
    with pytest.raises(UserError, match="at least one epoch"):
        Recipe(epochs=0)
