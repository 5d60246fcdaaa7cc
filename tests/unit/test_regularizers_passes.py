"""BatchNorm choices, the input space, keys, and what bad settings are answered with."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from nets import batch, net
from torch import nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.models import Normalized
from gyrograd.numerics import random
from gyrograd.regularizers.passes import WrittenOut, auxiliary_pass, fresh_keys, input_scale, seen_in


def test_evaluation_mode_is_left_alone_by_every_choice():
    x, _ = batch(3)
    model = net("residual")
    plain = model(x)
    for choice in ("batch", "train", "frozen"):
        with auxiliary_pass(model, choice):
            assert torch.equal(model(x), plain)
        assert not any(module.training for module in model.modules())


def test_a_layer_that_tracks_nothing_still_tracks_nothing_afterwards():
    model = nn.Sequential(
        nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten(), nn.Linear(432, 2)
    ).double()
    for choice in ("batch", "train", "frozen"):
        with auxiliary_pass(model, choice):
            model(batch(2)[0])
        assert not model[0].track_running_stats
        assert model[0].training


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("shape", [(5, 4), (3, 4, 6), (3, 4, 2, 5), (2, 4, 2, 3, 2)])
def test_the_written_out_batch_norm_is_torchs_in_value_slope_and_running_statistics(shape, momentum, affine):
    kind = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}[len(shape)]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    along = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    layers = [kind(4, momentum=momentum, affine=affine, eps=1e-3).double() for _ in range(2)]
    for layer in layers:
        if affine:
            layer.weight.data.copy_(torch.arange(1.0, 5))
            layer.bias.data.copy_(torch.arange(4.0) - 1)
    with WrittenOut():
        found = layers[0](x)
    expected = layers[1](x)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    slopes = [torch.autograd.grad((out * along).sum(), x)[0] for out in (found, expected)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-9, atol=1e-11)
    for key, value in layers[0].state_dict().items():
        torch.testing.assert_close(value, layers[1].state_dict()[key])


def test_the_written_out_batch_norm_leaves_running_statistics_to_torch():
    layer = nn.BatchNorm2d(3).double().eval()
    nn.init.uniform_(layer.running_mean)
    x, _ = batch(2)
    with WrittenOut():
        assert torch.equal(
            layer(x), F.batch_norm(x, layer.running_mean, layer.running_var, layer.weight, layer.bias)
        )


def test_the_scale_is_the_std_of_the_normalisation_wherever_it_is():
    x, _ = batch(2)
    model = Normalized(net("lenet"), (0.1, 0.2, 0.3), (0.25, 0.5, 0.125)).double()
    expected = torch.tensor([0.25, 0.5, 0.125], dtype=torch.float64).view(1, 3, 1, 1)
    for outer in (model, nn.Sequential(model)):
        assert torch.equal(torch.as_tensor(input_scale(outer, x, "normalized")), expected)
        assert input_scale(outer, x, "pixel") == 1.0
    assert input_scale(net("lenet"), x, "normalized") == 1.0


def test_the_model_in_its_space_says_the_same():
    x, _ = batch(2)
    model = Normalized(net("lenet"), (0.1, 0.2, 0.3), (0.25, 0.5, 0.125)).double()
    there, u = seen_in(model, x, "normalized")
    torch.testing.assert_close(there(u), model(x), rtol=1e-10, atol=1e-12)
    assert seen_in(model, x, "pixel") == (model, x)


def test_keys_come_from_the_seed_or_from_torchs_generator():
    x, _ = batch(3)
    assert torch.equal(fresh_keys(5, x), random.keys(5, 3))
    own = torch.tensor([3, 1, 2])
    assert torch.equal(fresh_keys(own, x), own)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first, second = fresh_keys(None, x), fresh_keys(None, x)
    assert len({*first.tolist(), *second.tolist()}) == 6


WRONG = [
    ("l2_cosine", {"l2": -0.1}, "give finite weights of 0 or more, not both 0"),
    ("l2_cosine", {"cosine": float("nan")}, "give a finite number"),
    ("l2_cosine", {"l2": float("nan")}, "give a finite number"),
    ("l2_cosine", {"l2": float("inf")}, "give a finite number"),
    ("l2_cosine", {"l2": 0.0, "cosine": 0.0}, "not both 0"),
    ("l2", {"eps": -1 / 255}, "finite radius above 0"),
    ("cosine", {"eps": 0.0}, "finite radius above 0"),
    ("cosine", {"eps": float("nan")}, "give a finite number"),
    ("l2", {"draws": 0}, "draws is 0; give at least 1"),
    ("l2", {"space": "pixels"}, "did you mean 'pixel'"),
    ("l2", {"quantity": "logits"}, "did you mean 'logit'"),
    ("hessian", {"draws": 0}, "draws is 0; give at least 1"),
    ("hessian", {"probe": "norml"}, "did you mean 'normal'"),
    ("hessian", {"space": "normalised"}, "did you mean 'normalized'"),
    ("hessian", {"quantity": "lossy"}, "did you mean 'loss'"),
    ("ssr", {"scale": 0.0}, "finite factor above 0"),
    ("ssr", {"scale": float("nan")}, "give a finite number"),
    ("ssr", {"channels": "men"}, "did you mean 'mean'"),
    ("ssr", {"space": "pixl"}, "did you mean 'pixel'"),
    ("adversarial", {"eps": 0.0}, "finite radius above 0"),
    ("adversarial", {"eps": -0.1}, "finite radius above 0"),
    ("adversarial", {"eps": 8.0}, "eps is 8 and pixels lie in .0, 1.; write eps=8 / 255"),
    ("iga", {"eps": 8.0}, "write eps=8 / 255"),
    ("ig_norm", {"eps": 2.5}, "write eps=2.5 / 255"),
    ("adversarial", {"norm": "l3"}, "There is no norm 'l3'"),
    ("adversarial", {"steps": 0}, "give at least 1"),
    ("adversarial", {"step_size": -0.1}, "above 0"),
    ("adversarial", {"start": "randm"}, "did you mean 'random'"),
]


@pytest.mark.parametrize(("name", "settings", "words"), WRONG)
def test_a_wrong_setting_is_answered_with_one_sentence(name, settings, words):
    with pytest.raises(UserError, match=words) as refusal:
        gg.regularizer(name, **settings)
    assert "\n" not in str(refusal.value)


def test_a_radius_in_grey_levels_is_refused_for_images_and_taken_for_other_inputs():
    x, y = batch(2)
    with pytest.raises(UserError, match="eps is 8 and pixels lie in .0, 1.; write eps=8 / 255"):
        gg.regularizer("l2_cosine", eps=8.0)(net("lenet").double(), x, y)
    table, linear = torch.rand(4, 5, generator=torch.Generator().manual_seed(0)), torch.nn.Linear(5, 3)
    labels = torch.tensor([0, 1, 2, 0])
    assert gg.regularizer("l2_cosine", eps=8.0)(linear, table, labels).shape == (4,)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("l2_cosine", {}), ("hessian", {}), ("ssr", {}), ("ig_norm", {"steps": 1}), ("iga", {"steps": 1})],
)
def test_a_compiled_model_is_refused_where_a_gradient_is_differentiated(name, settings):
    x, y = batch(2)
    with pytest.raises(UserError, match="give the module that was compiled"):
        gg.regularizer(name, **settings)(torch.compile(net("lenet").double()), x, y)
