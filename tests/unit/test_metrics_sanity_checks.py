"""Each flag is raised by the thing it looks for, and by nothing milder."""

from __future__ import annotations

import pytest
import torch
from nets import batch, net
from torch import nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.metrics import raised_flags, sanity_checks

GRADIENT = gg.attribution("gradient")


def edges(model, x, target, *, create_graph=False):
    """A map that looks at the image alone."""
    return x - x.roll(1, 3)


def ruined(model, x, target, *, create_graph=False):
    """joo2023's broken attribution: the border, whatever the image, with a trace of the gradient in it."""
    frame = torch.ones_like(x)
    frame[..., 2:-2, 2:-2] = 0
    return frame + 1e-3 * GRADIENT(model, x, target, create_graph=create_graph)


def test_a_relu_gradient_has_no_derivative_and_a_softplus_one_has():
    x, target = batch()
    flag = sanity_checks.zero_derivative(net("functional_relu"), GRADIENT, x, target)
    assert flag is not None
    assert (flag.name, flag.measured) == ("zero_derivative", 1.0)
    assert sanity_checks.zero_derivative(net("residual"), GRADIENT, x, target) is None


def test_input_times_relu_gradient_has_a_derivative():
    x, target = batch()
    assert sanity_checks.zero_derivative(net("functional_relu"), gg.attribution("xgrad"), x, target) is None


def test_a_derivative_that_cancels_in_the_sum_of_the_map_is_seen():
    x, target = batch()
    assert sanity_checks.zero_derivative(net("residual"), edges, x, target) is None


def test_a_map_without_a_graph_has_no_derivative():
    x, target = batch()
    fixed = torch.rand_like(x)
    flag = sanity_checks.zero_derivative(
        net("residual"), lambda m, x, t, *, create_graph=False: fixed, x, target
    )
    assert flag is not None


def test_a_map_that_hangs_on_the_weights_alone_or_on_one_pixel_is_told_apart():
    x, target = batch(3)
    model = net("residual")

    def of_weights(model, x, target, *, create_graph=False):
        return next(model.parameters()).sum() * torch.ones_like(x)

    def of_one_pixel(model, x, target, *, create_graph=False):
        rows = torch.arange(len(x)) == 1  # the second image alone
        return torch.where(rows[:, None, None, None], x[:, :1, :1, :1].square(), 0) * torch.ones_like(x)

    flag = sanity_checks.zero_derivative(model, of_weights, x, target)
    assert flag is not None
    assert flag.measured == 1.0
    flag = sanity_checks.zero_derivative(model, of_one_pixel, x, target)
    assert flag is not None
    assert flag.measured == pytest.approx(2 / 3)
    assert sanity_checks.zero_derivative(model, of_one_pixel, x, target, share=0.7) is None


def test_constant_and_nearly_constant_maps_are_found_one_by_one():
    maps = torch.rand(4, 3, 5, 5)
    assert sanity_checks.constant_maps(maps) is None
    maps[1] = 0
    maps[2] = 0.7 + 1e-5 * maps[2]
    assert sanity_checks.is_constant(maps).tolist() == [False, True, True, False]
    flag = sanity_checks.constant_maps(maps)
    assert flag is not None
    assert flag.measured == 0.5
    assert sanity_checks.constant_maps(maps, share=0.5) is None


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_a_map_is_constant_by_its_own_size_whatever_that_is(scale):
    maps = torch.rand(2, 3, 5, 5)
    maps[1] = 0.7 + 1e-5 * maps[1]
    assert sanity_checks.is_constant(scale * maps).tolist() == [False, True]


def test_maps_whose_top_is_filled_up_with_zeros_are_found():
    maps = torch.zeros(2, 3, 4, 5)
    maps[:, 1, :2, :2] = -1.0
    assert sanity_checks.empty_top(maps, 5).tolist() == pytest.approx([0.2, 0.2])
    assert sanity_checks.sparse_maps(maps, top_fraction=0.2) is None
    flag = sanity_checks.sparse_maps(maps, top_fraction=0.25)
    assert flag is not None
    assert flag.measured == pytest.approx(0.2)
    assert sanity_checks.sparse_maps(maps, top_fraction=0.25, share=0.3) is None


def test_one_map_for_every_image_is_found():
    x, target = batch(4)
    model = net("residual")
    assert sanity_checks.same_map_everywhere(GRADIENT(model, x, target)) is None
    assert sanity_checks.same_map_everywhere(ruined(model, x, target)) is not None


def test_one_map_for_every_image_is_measured_over_pairs_of_different_images():
    maps = torch.tensor([[1.0, 0.0], [0.6, 0.8]]).view(2, 1, 1, 2)
    assert sanity_checks.same_map_everywhere(maps, limit=0.5).measured == pytest.approx(0.6)
    assert sanity_checks.same_map_everywhere(maps, limit=0.7) is None


def test_ruined_attributions_are_calm_but_empty():
    x, target = batch(6)
    model = net("lenet")
    game, rps = gg.metric("insertion"), gg.metric("rps", draws=3)
    target = model(x).argmax(1)
    chance = game.chance(model, x, target)
    stability = rps(model, ruined, x, target)
    assert stability.mean() > 0.99
    worst = game.curve_of_map(model, -GRADIENT(model, x, target).clamp(max=0), x, target).mean(1)
    low = torch.minimum(worst, chance)
    assert sanity_checks.calm_but_empty(stability, low, chance) is not None
    assert sanity_checks.calm_but_empty(stability, chance, chance) is not None
    assert sanity_checks.calm_but_empty(stability, chance + 0.1, chance) is None
    assert sanity_checks.calm_but_empty(stability - 0.5, low, chance) is None


def test_a_map_of_the_image_alone_ignores_the_model():
    x, target = batch(4)
    model = net("lenet")
    assert sanity_checks.ignores_model(model, edges, x, target) is not None
    assert sanity_checks.ignores_model(model, GRADIENT, x, target) is None


def test_shuffled_weights_are_the_same_numbers_in_another_order():
    model = net("residual")
    before = [weight.clone() for weight in model.parameters()]
    twin = sanity_checks.shuffle_weights(model, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    for old, new in zip(before, twin.parameters(), strict=True):
        assert torch.equal(old.flatten().sort().values, new.flatten().sort().values)
        assert not torch.equal(old, new)
    again = sanity_checks.shuffle_weights(model, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(twin.parameters(), again.parameters(), strict=True))
    usual, zero = sanity_checks.shuffle_weights(model), sanity_checks.shuffle_weights(model, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(usual.parameters(), zero.parameters(), strict=True))


@pytest.mark.parametrize("direction", ["higher is better", "lower is better"])
def test_noise_that_does_more_harm_than_the_attack_is_found(direction):
    sign = 1 if direction == "higher is better" else -1
    attacked = sign * torch.tensor([0.1, 0.2, 0.3, 0.4])
    assert sanity_checks.noise_beats_attack(attacked, attacked + sign * 0.2, direction) is None
    flag = sanity_checks.noise_beats_attack(
        attacked, attacked - sign * torch.tensor([0.1, 0.0, -0.1, -0.1]), direction
    )
    assert flag is not None
    assert flag.measured == 0.5
    with pytest.raises(UserError, match="no direction"):
        sanity_checks.noise_beats_attack(attacked, attacked, "none")


def test_changed_predictions_are_counted():
    x, _ = batch(4)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()).double()
    other = x.clone()
    other[0] = other[0].roll(1, 0) * torch.tensor([1.0, 0.0, 0.0]).view(3, 1, 1).roll(
        int(model(x[:1]).argmax()) + 1, 0
    )
    assert sanity_checks.prediction_changed(model, x, x) is None
    flag = sanity_checks.prediction_changed(model, x, other)
    assert flag is not None
    assert flag.measured == 0.25


def test_training_mode_of_batchnorm_and_dropout_is_found():
    model = net("residual")
    assert sanity_checks.training_mode(model) is None
    model.bn2.train()
    assert sanity_checks.training_mode(model).measured == 1
    assert sanity_checks.training_mode(nn.Sequential(nn.Dropout(0.5))) is not None
    assert sanity_checks.training_mode(nn.Sequential(nn.Linear(2, 2), nn.ReLU())) is None


def test_saturated_probabilities_are_found_at_both_ends():
    x, target = batch(4)
    model = net("lenet")
    assert sanity_checks.saturation_flag(model, x, target) is None
    with torch.no_grad():
        model[-1].weight *= 1000
    right, wrong = model(x).argmax(1), model(x).argmin(1)
    assert sanity_checks.saturation_flag(model, x, right).measured == 1
    assert sanity_checks.saturation_flag(model, x, wrong).measured == 1


def test_too_few_draws_are_found_and_more_cure_it():
    generator = torch.Generator().manual_seed(0)
    examples = torch.randn(200, 1, generator=generator)
    noise = torch.randn(200, 400, generator=generator)
    noisy = examples + 2 * noise
    flag = sanity_checks.too_few_draws(noisy[:, :4])
    assert flag is not None
    assert flag.measured == pytest.approx(1 / 2, abs=0.15)  # within 4 / 4, between 1 + 4 / 4
    assert sanity_checks.too_few_draws(noisy) is None
    assert sanity_checks.too_few_draws(examples) is not None
    assert sanity_checks.too_few_draws(torch.ones(3, 5)) is None
    with pytest.raises(UserError, match="at least two"):
        sanity_checks.too_few_draws(noisy[:1])


def test_a_maximum_that_still_grows_is_found():
    rising = torch.arange(1.0, 11).expand(3, 10)
    assert sanity_checks.still_growing(rising).measured == pytest.approx(0.5)
    assert sanity_checks.still_growing(rising.flip(1)) is None
    assert sanity_checks.still_growing(torch.zeros(2, 4)) is None
    with pytest.raises(UserError, match="give at least two"):
        sanity_checks.still_growing(rising[:, :1])


def test_suspicions_gathers_the_flags_and_each_says_what_to_do():
    x, target = batch(4)
    assert raised_flags(net("residual"), GRADIENT, x, target) == ()
    found = raised_flags(net("residual").train(), ruined, x, target)
    assert {"training_mode", "same_map_everywhere", "ignores_model"} == {flag.name for flag in found}
    for flag in found:
        text = str(flag)
        for part in (flag.raised_if, flag.explanation, flag.what_to_do):
            assert len(part) > 15
            assert part in text
    names = {flag.name for flag in raised_flags(net("functional_relu"), GRADIENT, x, target)}
    assert "zero_derivative" in names
    assert "zero_derivative" not in {
        flag.name for flag in raised_flags(net("functional_relu"), GRADIENT, x, target, differentiable=False)
    }


class Wayward(nn.Module):
    """A net whose answers are changed by `how`, in eval mode too."""

    def __init__(self, how):
        super().__init__()
        self.core = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16, 4))
        self.how = how
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.how(self, x, self.core(x))


def nan_for_dark(net, x, z):
    dark = x.flatten(1).mean(1, keepdim=True) < 0.4
    return torch.where(dark, torch.nan, z)


WAYWARD = {
    "dropout": (lambda net, x, z: nn.functional.dropout(z, 0.5, training=True), {"answers_change"}),
    "drift": (lambda net, x, z: z + 1e-3 * net.calls, {"answers_change"}),
    "centred by the batch": (lambda net, x, z: z - z.mean(0), {"rows_depend"}),
    "told by the place": (lambda net, x, z: z + torch.arange(len(z))[:, None], {"rows_depend"}),
    "NaN": (nan_for_dark, {"not_finite"}),
    "sigmoid": (lambda net, x, z: z.sigmoid(), {"squashed"}),
    "small logits": (lambda net, x, z: 0.49 * z.sigmoid(), set()),
    "log-softmax": (lambda net, x, z: z.log_softmax(1), set()),
    "steady": (lambda net, x, z: z, set()),
}


@pytest.mark.parametrize(("how", "names"), WAYWARD.values(), ids=WAYWARD.keys())
def test_a_model_whose_answers_cannot_be_repeated_is_flagged(how, names):
    x = torch.rand(5, 3, 4, 4)
    x[3] *= 0.1
    flags = sanity_checks.model_flags(Wayward(how).eval(), x)
    assert {flag.name for flag in flags} == names
    assert all("\n" not in flag.note and flag.note.endswith(".") for flag in flags)


@pytest.mark.parametrize(("change", "names"), [(1e-4, []), (1e-2, ["rows_depend"])])
def test_rows_may_differ_by_rounding_from_place_to_place_and_by_no_more(change, names):
    def placed(net, x, z):
        return z + change * z.detach().abs().max() * (torch.arange(len(z))[:, None] % 2)

    assert [
        flag.name for flag in sanity_checks.model_flags(Wayward(placed).eval(), torch.rand(5, 3, 4, 4))
    ] == names


def test_one_image_alone_shows_a_model_that_looks_at_its_neighbours():
    flags = sanity_checks.model_flags(Wayward(lambda net, x, z: z - z.mean(0)).eval(), torch.rand(1, 3, 4, 4))
    assert [flag.name for flag in flags] == ["rows_depend"]


def test_half_precision_and_large_batches_raise_no_flag_of_a_steady_model():
    model = gg.model("lenet", num_classes=5, image_size=16, seed=0).eval()
    assert sanity_checks.model_flags(model, torch.rand(9, 3, 16, 16)) == ()
    assert sanity_checks.model_flags(model.bfloat16(), torch.rand(9, 3, 16, 16).bfloat16()) == ()


def test_maps_that_are_no_numbers_are_flagged():
    maps = torch.rand(4, 3, 5, 5)
    assert sanity_checks.not_finite_maps(maps) is None
    maps[2, 0, 0, 0] = torch.nan
    flag = sanity_checks.not_finite_maps(maps)
    assert (flag.name, flag.measured) == ("not_finite_map", 0.25)
