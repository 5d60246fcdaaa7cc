"""DeepLIFT beside Captum, beside the rule written out, and against what it promises: no change is lost."""

from __future__ import annotations

import captum.attr as captum
import pytest
import torch
import torch.nn.functional as F
from nets import CLASSES, Squeezed, TinyViT, batch, lively, net
from test_second_order import BAR, relative_errors
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attributions.differences import Change, log_softmax, normalised, pointwise, softmax
from gyrograd.errors import UserError


def of_modules(*, relu: bool = True) -> nn.Module:
    """What Captum supports: every activation a module of its own, used once; its max-pools lose some of the change."""
    torch.manual_seed(0)
    act = nn.ReLU if relu else nn.Softplus
    return lively(nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), act(), nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5), act(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(125, 10), act(), nn.Linear(10, CLASSES),
    ))  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # Captum tells of its hooks
@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("baseline", [0.0, 0.3])
def test_maps_agree_with_captum_on_nets_it_supports(relu, baseline):
    model, (x, target) = of_modules(relu=relu), batch(3)
    own = gg.attribution("deep_lift", baseline=baseline)(model, x, target)
    peer = captum.DeepLift(model).attribute(x, torch.full_like(x, baseline), target=target)
    torch.testing.assert_close(own, peer.detach(), rtol=1e-6, atol=1e-8)


@pytest.mark.filterwarnings("ignore")  # Captum tells of its hooks
def test_deep_shap_agrees_with_captum_on_given_images():
    model, (x, target) = of_modules(), batch(2)
    others = batch(4, seed=8)[0]
    own = gg.attribution("deep_shap", baseline=others, draws=4)(model, x, target)
    peer = captum.DeepLiftShap(model).attribute(x, others, target=target)
    torch.testing.assert_close(own, peer.detach(), rtol=1e-6, atol=1e-8)


def test_the_multipliers_are_those_of_the_rescale_rule_written_out():
    torch.manual_seed(0)
    first, second = nn.Linear(4, 6).double(), nn.Linear(6, 3).double()
    x, start = torch.rand(2, 2, 4, dtype=torch.float64)
    z, z0 = first(x), first(start)
    expected = torch.zeros_like(x)
    for b in range(2):
        for i in range(4):
            for j in range(6):
                ratio = (torch.tanh(z[b, j]) - torch.tanh(z0[b, j])) / (z[b, j] - z0[b, j])
                expected[b, i] += (
                    (x[b, i] - start[b, i]) * first.weight[j, i] * ratio * second.weight[1, j]
                ).detach()
    model = nn.Sequential(first, nn.Tanh(), second)
    torch.testing.assert_close(gg.attribution("deep_lift", baseline=start)(model, x, 1), expected)


def test_a_max_pool_hands_its_change_to_the_winner_of_the_larger_maximum():
    x, start = torch.rand(2, 1, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 2)).double()
    expected = torch.zeros(4, 4, dtype=torch.float64)
    larger = set()
    for window in range(4):
        places = [(2 * (window // 2) + i, 2 * (window % 2) + j) for i in range(2) for j in range(2)]
        tops = [max(places, key=lambda place: image[0, 0][place]) for image in (x, start)]
        change = x[0, 0][tops[0]] - start[0, 0][tops[1]]
        larger.add(bool(change > 0))
        expected[tops[0] if change > 0 else tops[1]] = change * model[2].weight[1, window].detach()
    assert larger == {True, False}
    torch.testing.assert_close(gg.attribution("deep_lift", baseline=start)(model, x, 1)[0, 0], expected)


def nets() -> dict[str, nn.Module]:
    plain = {name: net(name) for name in ("mlp", "lenet", "residual", "functional_relu", "vgg")}
    return plain | {f"vit {how}": TinyViT(attention=how) for how in ("fused", "written")} | {"gates": gates()}


def gates() -> nn.Module:
    """Squeeze and excitation, GroupNorm and LayerNorm, SiLU, padding; a division of two values."""

    class Gates(Squeezed):
        def forward(self, x: Tensor) -> Tensor:
            z = F.hardswish(self.norm(self.stem(x)))
            z = z * self.expand(F.softplus(self.reduce(z.mean((2, 3), keepdim=True)))).sigmoid()
            z = F.silu(self.mix(F.pad(z, (1, 1, 1, 1), value=0.2)))
            z = z / (1 + z.square().mean(1, keepdim=True)) + 1 / (2 + z.abs())
            return self.head(F.layer_norm(z.mean((2, 3)), (4,)))

    return Gates()


@pytest.mark.parametrize("quantity", ["logit", "probability", "log_probability", "loss"])
@pytest.mark.parametrize("structure", sorted(nets()))
def test_the_map_sums_to_the_change_of_the_explained_number(structure, quantity):
    model, (x, target) = nets()[structure], batch(3)
    start = batch(3, seed=9)[0]
    with torch.no_grad():
        top, low = (gg.numerics.quantities.quantity_of(model(t), target, quantity) for t in (x, start))
    map = gg.attribution("deep_lift", baseline=start, quantity=quantity)(model, x, target)
    torch.testing.assert_close(map.sum((1, 2, 3)), top - low, rtol=1e-7, atol=1e-9)


def test_deep_shap_sums_to_the_gain_over_the_mean_baseline():
    model, (x, target) = net("residual"), batch(3)
    others = batch(7, seed=9)[0]
    method = gg.attribution("deep_shap", baseline=others, draws=4, seed=2)
    chosen = method.baselines(x)
    assert len({tuple(one.flatten()[:3].tolist()) for one in chosen}) == 4
    with torch.no_grad():
        gain = (model(x) - model(chosen).mean(0)).gather(1, target[:, None])[:, 0]
    torch.testing.assert_close(method(model, x, target).sum((1, 2, 3)), gain, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("structure", ["vit fused", "gates"])
def test_second_derivatives_match_finite_differences_on_attention_and_gates(structure):
    x, target = batch(2, seed=3)
    errors = relative_errors(gg.attribution("deep_lift", baseline=0.4), nets()[structure], x, target)
    assert max(errors.values()) <= BAR, errors


def test_second_derivatives_reach_through_a_gate_that_torch_differentiates_once():
    torch.manual_seed(0)
    core = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Hardsigmoid(), nn.Linear(8, 3), nn.Hardsigmoid())
    model, x = core.double().eval(), torch.rand(2, 3, 2, 2, dtype=torch.float64)
    errors = relative_errors(gg.attribution("deep_lift", baseline=0.4), model, x, torch.tensor([0, 2]))
    assert max(errors.values()) <= BAR, errors


def test_an_unchanged_pixel_has_no_share_and_no_nan():
    model, (x, target) = net("lenet"), batch(2)
    start = x.clone()
    start[:, :, :6] = 0.5
    map = gg.attribution("deep_lift", baseline=start)(model, x, target)
    assert torch.isfinite(map).all()
    assert torch.equal(map[:, :, 6:], torch.zeros_like(map[:, :, 6:]))
    nothing = gg.attribution("deep_lift", baseline=x)(model, x, target)
    assert torch.equal(nothing, torch.zeros_like(x))


@pytest.mark.parametrize("function", [softmax, log_softmax])
def test_changes_of_a_softmax_add_up_also_where_a_mask_hides_values(function):
    true, low = torch.randn(2, 3, 5, dtype=torch.float64)
    true[:, 4] = low[:, 4] = -torch.inf
    step = torch.where(true == low, 0, true - low)
    out = function(Change(true, low, step), 1)
    difference = (out.true - out.reference)[:, :4]
    torch.testing.assert_close(out.moved[:, :4], difference)
    assert torch.isfinite(out.moved[:, :4]).all()


@pytest.mark.parametrize("function", [softmax, log_softmax])
def test_changes_of_a_softmax_add_up_for_runs_that_are_far_apart(function):
    true, low = 1000 * torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0))
    out = function(Change(true, low - 2000, true - (low - 2000)), 1)
    torch.testing.assert_close(out.moved, out.true - out.reference, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("apart", [1e-6, 1e-2, 1.0, 1e3])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_changes_of_a_normalisation_are_those_of_its_mean_slope(spread, apart):
    generator = torch.Generator().manual_seed(0)
    low = spread * torch.randn(3, 8, dtype=torch.float64, generator=generator)
    step, along = apart * torch.randn(2, 3, 8, dtype=torch.float64, generator=generator)

    def function(d: Tensor) -> Tensor:
        return d / (d.square().mean(1, keepdim=True) + 1e-5).sqrt()

    found = normalised(Change(low + step, low, step), [1], 1e-5)
    torch.testing.assert_close(found, function(low + step) - function(low), rtol=1e-8, atol=1e-12)
    if apart > 1:
        return
    # The mean slope along another direction, by many points on the way.
    points = (torch.arange(20000, dtype=torch.float64)[:, None, None] + 0.5) / 20000
    way = (low + points * step).flatten(0, 1)
    slopes = torch.autograd.functional.jvp(function, way, along.repeat(20000, 1))[1]
    found = normalised(Change(low + step, low, along), [1], 1e-5)
    expected = slopes.unflatten(0, (20000, 3)).mean(0)
    assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_a_map_that_rounding_has_spoilt_is_refused():
    class Amplified(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((x + 3e7) - 3e7)

    with pytest.raises(UserError, match="amplifies rounding"):
        gg.attribution("deep_lift")(Amplified(), torch.rand(2, 4), 0)


def test_a_tiny_change_takes_the_slope():
    z = torch.tensor([0.3, 0.3, 0.3], dtype=torch.float64)
    low = z - torch.tensor([0.0, 1e-9, 1e-3], dtype=torch.float64)
    ratio = pointwise(torch.tanh, Change(z, low, torch.ones_like(z))).moved
    torch.testing.assert_close(ratio, (1 - torch.tanh((z + low) / 2) ** 2).detach(), rtol=1e-6, atol=0)


def test_a_model_that_branches_between_image_and_baseline_is_refused():
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x.tanh() if bool((x > 0).any()) else x.relu())

    with pytest.raises(UserError, match="other operations for the baseline"):
        gg.attribution("deep_lift")(Branches(), torch.rand(2, 4), 0)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"baseline": "zero"}, "use 'deep_lift'"),
        ({"draws": 0}, "at least one"),
        ({"baseline": torch.rand(2, 3)}, "shape"),
    ],
)
def test_settings_of_deep_shap_that_make_no_map_are_refused(settings, sentence):
    x, target = batch(1)
    with pytest.raises(UserError, match=sentence):
        gg.attribution("deep_shap", **settings)(net("lenet"), x, target)


def test_a_maximum_that_hardly_changes_has_a_finite_derivative():
    # Far below its kink a sharp Softplus changes by less than 1e-38, whose reciprocal is infinite in single precision.
    shift = nn.Conv2d(1, 1, 1)
    nn.init.ones_(shift.weight)
    nn.init.constant_(shift.bias, -0.88)
    model = nn.Sequential(shift, nn.Softplus(100), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1, 2)).eval()
    x = torch.linspace(0.001, 0.03, 16).view(16, 1, 1, 1).repeat(1, 1, 2, 2).requires_grad_()
    maps = gg.attribution("deep_lift")(model, x, 0, create_graph=True)
    (slope,) = torch.autograd.grad(maps.sum(), x)
    assert slope.isfinite().all()
