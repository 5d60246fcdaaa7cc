from __future__ import annotations

import pytest
import torch

import gyrograd as gg
from gyrograd.errors import UserError


def test_he_weights_have_he_et_als_variance_and_no_bias():
    model = gg.model("lenet", init="he", seed=0)
    weight = model.conv4.weight
    fan_in = weight[0].numel()
    assert float(weight.detach().var()) == pytest.approx(2 / fan_in, rel=0.05)
    assert model.conv4.bias.abs().max() == 0


def test_the_start_is_seeded_and_differs_from_the_default():
    first, second = (gg.model("lenet", init="he", seed=1).conv1.weight for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, gg.model("lenet", seed=1).conv1.weight)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [({"init": "hee"}, "did you mean 'he'"), ({"init": "he", "weights": "a.pt"}, "leave one out")],
)
def test_a_start_that_cannot_be_meant_is_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        gg.model("lenet", **settings)
