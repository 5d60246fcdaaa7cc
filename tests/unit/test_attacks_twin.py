"""Piecewise linear nets: a twin where it helps, a flag and a NaN where nothing does, never a robust number."""

from __future__ import annotations

import pytest
import torch
from attacked_nets import fingerprint
from nets import SIDE, batch, net
from torch import nn

import gyrograd as gg
from gyrograd.attacks.twin import GROWTH, guide_for
from gyrograd.errors import UserError
from gyrograd.models import with_activation
from gyrograd.models.piecewise import MODULES

GRADIENT = gg.attribution("gradient")


def kinked(activation: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _kinked(activation)


def _kinked(activation: type[nn.Module]) -> nn.Module:
    first, second, third = nn.Linear(3 * SIDE * SIDE, 16), nn.Linear(16, 12), nn.Linear(12, 5)
    layers = [nn.Flatten(), first, activation(), second, activation(), third]
    return nn.Sequential(*layers).double().eval()


@pytest.mark.parametrize(
    "settings", [{}, {"penalty": 1.0, "start": "random"}], ids=["plain", "with a penalty"]
)
@pytest.mark.parametrize("name", ["targeted_map", "untargeted_map", "top_k", "mass_center", "manipulate"])
def test_without_a_twin_the_attack_on_a_relu_net_is_stuck_and_says_so(name, settings):
    x, target = batch(3)
    hit = gg.attack(name, steps=3, twin_beta=None, **settings)(kinked(nn.ReLU), GRADIENT, x, target)
    assert hit.stuck.all()
    assert hit.value.isnan().all()
    assert any("zero derivative" in flag and "3 of 3 images" in flag for flag in hit.flags)


def test_with_the_twin_the_same_net_is_moved_and_judged_on_itself():
    x, target = batch(3)
    model = kinked(nn.ReLU)
    hit = gg.attack("untargeted_map", steps=10, eps=0.1)(model, GRADIENT, x, target)
    assert not hit.stuck.any()
    assert (hit.value < hit.start).all()
    torch.testing.assert_close(hit.map, GRADIENT(model, hit.x, target))
    assert hit.flags == ("piecewise linear: searched on a Softplus twin, beta=20",)


def test_iterates_are_judged_on_the_model_and_not_on_its_twin():
    x, target = batch(3)
    settings = {"steps": 4, "eps": 0.1, "twin_beta": 1, "constraint": "soft", "restore": False, "trace": True}
    hit = gg.attack("top_k", **settings)(kinked(nn.ReLU), GRADIENT, x, target)
    torch.testing.assert_close(hit.trace[0], hit.start)
    torch.testing.assert_close(hit.value, hit.trace.amin(0))


def test_a_penalty_is_zero_at_x_on_the_twin_too():
    x, target = batch(3)
    settings = {"steps": 1, "twin_beta": 1, "selection": "last", "constraint": "soft", "restore": False}
    free, held = (
        gg.attack("targeted_map", penalty=penalty, **settings)(kinked(nn.ReLU), GRADIENT, x, target)
        for penalty in (0.0, 1e3)
    )
    assert not free.unmoved.any()
    torch.testing.assert_close(held.x, free.x)


class Own(nn.Module):
    """An activation nothing is known of: no ReLU in it, and no kink at zero."""

    def forward(self, z):
        return z.clamp(-0.1, 0.3)


class Once(nn.Module):
    """It holds an operation that torch differentiates once only, out of reach of a swap."""

    def forward(self, z):
        return torch.ops.aten.hardsigmoid(z).sin()


FLAT = "no second derivative and no twin to search on"


def test_a_net_no_twin_can_be_made_of_is_flagged_with_the_reason():
    x, target = batch(2)
    hit = gg.attack("targeted_map", steps=2)(kinked(Own), GRADIENT, x, target)
    assert hit.value.isnan().all()
    assert any(flag.startswith("no twin: Sequential has no ReLU") for flag in hit.flags)


@pytest.mark.parametrize("name", ["input_x_gradient", "integrated_gradients"])
def test_a_map_with_another_derivative_is_not_attacked_in_silence_where_no_slope_changes(name):
    x, target = batch(2)
    attribution = gg.attribution(name)
    hit = gg.attack("targeted_map", steps=2, eps=0.1)(kinked(Own), attribution, x, target)
    assert any(flag.startswith(FLAT) for flag in hit.flags)
    for smooth in (net("mlp"), kinked(nn.ReLU)):
        hit = gg.attack("targeted_map", steps=2, eps=0.1)(smooth, attribution, x, target)
        assert not any(FLAT in flag for flag in hit.flags)


@pytest.mark.parametrize("name", ["input_x_gradient", "integrated_gradients"])
def test_a_twin_that_was_declined_leaves_the_same_flag_on_a_net_of_relus(name):
    x, target = batch(2)
    attack = gg.attack("targeted_map", steps=2, eps=0.1, twin_beta=None)
    attribution = gg.attribution(name)
    assert any(flag.startswith(FLAT) for flag in attack(kinked(nn.ReLU), attribution, x, target).flags)
    assert not any(FLAT in flag for flag in attack(net("mlp"), attribution, x, target).flags)


@pytest.mark.parametrize(("name", "settings"), [("random", {"draws": 2}), ("pgd", {"steps": 2})])
def test_what_follows_no_map_has_no_doubt_about_slopes(name, settings):
    x, target = batch(2)
    hit = gg.attack(name, **settings)(kinked(nn.ReLU), gg.attribution("input_x_gradient"), x, target)
    assert not any(FLAT in flag for flag in hit.flags)


def test_a_smoothed_net_of_an_unknown_activation_is_flagged_too():
    x, target = batch(1)
    calm = gg.smoothed(kinked(Own), gg.kernel("gaussian", sigma=0.05), draws=3)
    hit = gg.attack("targeted_map", steps=1)(calm, gg.attribution("input_x_gradient"), x, target)
    assert any(flag.startswith(FLAT) for flag in hit.flags)


def test_a_twin_that_is_left_with_no_curvature_is_flagged():
    class Deaf(nn.Module):
        """Its ReLU is heard by nobody."""

        def __init__(self):
            super().__init__()
            self.act, self.rest = nn.ReLU(), kinked(Own)

        def forward(self, x):
            return self.rest(x) + 0 * self.act(x.flatten(1)).sum(1, keepdim=True)

    x, _ = batch(1)
    note = guide_for(Deaf().double().eval(), x, "auto").note
    assert note.startswith("piecewise linear: searched on a Softplus twin")
    assert FLAT in note


def test_a_net_that_can_be_differentiated_once_only_is_not_judged():
    x, _ = batch(1)
    guide = guide_for(kinked(Once), x, "auto")
    assert "whether the model has a second derivative is not known" in guide.note
    assert "\n" not in guide.note


@pytest.mark.parametrize("activation", sorted(MODULES, key=lambda kind: kind.__name__))
def test_every_net_of_relus_in_disguise_is_searched_on_its_twin(activation):
    x, target = batch(2)
    model = kinked(activation)
    for layer in model[1::2]:
        layer.weight.data *= 8  # so that the numbers reach the kinks, which are up to 6 away from zero
    hit = gg.attack("untargeted_map", steps=8, eps=0.1)(model, GRADIENT, x, target)
    bends = activation is nn.Hardswish
    assert hit.flags == (() if bends else ("piecewise linear: searched on a Softplus twin, beta=20",))
    assert not hit.stuck.any()
    assert (hit.value < hit.start).all()
    torch.testing.assert_close(hit.map, GRADIENT(model, hit.x, target))


def test_hardswish_gets_a_twin_where_one_is_asked_for_or_needed():
    x, _ = batch(1)
    alone = kinked(nn.Hardswish)
    assert guide_for(alone, x, "auto").model is alone
    assert guide_for(alone, x, 20).model is not alone
    mixed = nn.Sequential(alone, nn.Hardsigmoid())
    guide = guide_for(mixed, x, "auto")
    assert "twin" in guide.note
    assert not any(isinstance(module, nn.Hardswish) for module in guide.model.modules())


def test_a_growing_twin_sharpens_all_its_parts():
    x, _ = batch(1)
    model = nn.Sequential(kinked(nn.ReLU6), nn.LeakyReLU(), Calling())
    guide = guide_for(model, x, (10, 1000))
    guide.set_step(2, 3)
    gap = (guide.model(x) - model(x)).abs().max()
    guide.set_step(0, 3)
    assert (guide.model(x) - model(x)).abs().max() > 10 * gap


class Calling(nn.Module):
    def forward(self, z):
        return nn.functional.hardtanh(z, -0.05, 0.05)


def test_smooth_models_are_attacked_as_they_are():
    x, _ = batch(1)
    trained_smooth = with_activation(net("functional_relu"), "softplus", 3.0, example=x)
    for model in (net("residual"), net("mlp"), trained_smooth):
        assert guide_for(model, x, "auto").model is model
        assert guide_for(model, x, "auto").note == ""


@pytest.mark.parametrize("model", [net("functional_relu"), kinked(nn.ReLU)], ids=["functional", "modules"])
def test_the_twin_shares_the_weights_and_leaves_the_model_alone(model):
    x, target = batch(2)
    before, logits = fingerprint(model), model(x)
    guide = guide_for(model, x, 5)
    assert {id(p) for p in guide.model.parameters()} == {id(p) for p in model.parameters()}
    assert not torch.allclose(guide.model(x), logits, atol=1e-6)
    gg.attack("targeted_map", steps=3, twin_beta=(5, 50))(model, GRADIENT, x, target)
    assert fingerprint(model) == before
    assert torch.equal(model(x), logits)


def test_a_sharper_twin_is_nearer_to_the_model():
    x, _ = batch(2)
    model = kinked(nn.ReLU)
    gaps = [(guide_for(model, x, beta).model(x) - model(x)).abs().max() for beta in (1, 10, 100)]
    assert gaps[0] > gaps[1] > gaps[2] > 0


def test_a_growing_twin_sharpens_geometrically_from_first_to_last_step():
    x, _ = batch(1)
    guide = guide_for(kinked(nn.ReLU), x, (10, 1000))
    betas = []
    for step in range(3):
        guide.set_step(step, 3)
        betas.append(next(m.beta for m in guide.model.modules() if isinstance(m, nn.Softplus)))
    assert betas == pytest.approx([10, 100, 1000])
    assert guide.note.endswith("beta=10 to 1000")


def test_growing_makes_a_twin_only_where_one_is_needed():
    x, _ = batch(1)
    assert guide_for(kinked(nn.ReLU), x, "growing").growth == GROWTH
    for activation in (nn.Softplus, nn.Hardswish):  # the second has kinks and a second derivative
        model = kinked(activation)
        assert guide_for(model, x, "growing").model is model


def test_the_twin_goes_inside_a_smoothed_model():
    x, target = batch(2)
    calm = gg.smoothed(net("functional_relu"), gg.kernel("gaussian", sigma=0.05), draws=4, max_batch=3)
    hit = gg.attack("targeted_map", steps=2, eps=0.1)(calm, GRADIENT, x, target)
    assert any("Softplus twin" in flag for flag in hit.flags)
    assert not hit.stuck.any()


def test_a_twin_asked_for_where_there_is_nothing_to_swap_is_refused():
    x, target = batch(1)
    with pytest.raises(UserError, match="no ReLU to swap"):
        gg.attack("targeted_map", twin_beta=20)(net("mlp"), GRADIENT, x, target)


@pytest.mark.parametrize("wrong", [0, -1.0, (10.0, 0.0), "never"])
def test_what_is_no_sharpness_is_refused(wrong):
    with pytest.raises(UserError, match="give a sharpness such as 20"):
        gg.attack("top_k", twin_beta=wrong)
