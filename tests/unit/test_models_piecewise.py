"""Activations made of ReLUs: their smooth form bends, and goes to torch's own as beta grows."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.models import build, load, save, swap_report, with_activation
from gyrograd.models.piecewise import CALLS, FORMS, MODULES, WITHOUT_CURVATURE, Softened

SLOPES = torch.tensor([0.3, -0.5, 0.0, 1.7], dtype=torch.float64)


def prelu() -> nn.Module:
    module = nn.PReLU(len(SLOPES)).double()
    module.weight.data.copy_(SLOPES)
    return module


# For each form: a module of other settings than torch's own, its kinks, and how many ReLUs tall its error may be.
KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[float, ...], float]] = {
    "relu": (nn.ReLU, (0,), 1),
    "relu6": (nn.ReLU6, (0, 6), 1),
    "hardtanh": (lambda: nn.Hardtanh(-0.7, 1.9), (-0.7, 1.9), 1),
    "leaky_relu": (lambda: nn.LeakyReLU(0.2), (0,), 1),
    "prelu": (prelu, (0,), 1.5),
    "rrelu": (lambda: nn.RReLU(0.1, 0.5).eval(), (0,), 1),
    "hardsigmoid": (nn.Hardsigmoid, (-3, 3), 1 / 6),
    "hardswish": (nn.Hardswish, (-3, 3), 5 / 6),
    "softshrink": (lambda: nn.Softshrink(0.8), (-0.8, 0.8), 1),
}
CALLED: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "hardtanh": lambda z: F.hardtanh(z, -0.7, max_val=1.9),
    "leaky_relu": lambda z: F.leaky_relu(z, 0.2),
    "prelu": lambda z: F.prelu(z, SLOPES),
    "rrelu": lambda z: F.rrelu(z, 0.1, 0.5),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "softshrink": lambda z: F.softshrink(z, 0.8),
}
IN_PLACE: dict[str, Callable[[Tensor], Any]] = {
    "F.relu6 in place": lambda z: F.relu6(z, inplace=True),
    "F.relu6 by position": lambda z: F.relu6(z, True),
    "F.hardtanh_": lambda z: F.hardtanh_(z, 0.0, 6.0),
    "F.hardtanh by position": lambda z: F.hardtanh(z, 0.0, 6.0, True),
    "module": nn.ReLU6(inplace=True),
}


class Called(nn.Module):
    """Makes a call, so that there is no activation module to find."""

    def __init__(self, call: Callable[[Tensor], Any], *, returns: bool = True) -> None:
        super().__init__()
        self.call, self.returns = call, returns

    def forward(self, z: Tensor) -> Tensor:
        out = self.call(z)
        return out if self.returns else z


def softened(model: nn.Module, beta: float) -> nn.Module:
    return with_activation(model, "softplus", beta, example=torch.zeros(2, len(SLOPES)).double())


def points(values: list[float]) -> Tensor:
    """One row a value, so that each meets every slope of the PReLU."""
    return torch.tensor(values, dtype=torch.float64)[:, None].expand(-1, len(SLOPES)).clone()


def test_every_form_is_tested_here() -> None:
    assert set(KINDS) == set(CALLED) == set(FORMS) == set(MODULES.values()) == set(CALLS.values())


def test_every_continuous_piecewise_linear_activation_of_torch_has_a_form() -> None:
    """Found by their derivatives, so that one torch adds is not missed. Those that jump have none."""
    z = torch.linspace(-9, 9, 40001, dtype=torch.float64)
    found: set[type[nn.Module]] = set()
    for kind in vars(nn.modules.activation).values():
        if (
            not (isinstance(kind, type) and issubclass(kind, nn.Module))
            or kind.__module__ != nn.ReLU.__module__
        ):
            continue
        if "dim" in inspect.signature(kind).parameters or kind in (nn.MultiheadAttention, nn.Softmax2d):
            continue  # takes more than a number: attention, softmax, glu
        y = (kind(0.5, 0.1) if kind is nn.Threshold else kind()).double().eval()(z[:, None])[:, 0]
        if bool((y.diff().abs() > 0.01).any()):
            continue
        bends = y.diff(n=2).abs() > 1e-10
        if 0 < int(bends.sum()) < 10:
            found.add(kind)
    assert found == set(MODULES) - {nn.Hardswish}


@pytest.mark.parametrize("name", FORMS)
@settings(deadline=None, max_examples=20)
@given(z=st.lists(st.floats(-10, 10), min_size=1, max_size=6), exponent=st.floats(0, 4))
def test_the_smooth_form_is_as_near_as_its_sharpness_says(name: str, z: list[float], exponent: float) -> None:
    make, _, tall = KINDS[name]
    beta = 10**exponent
    x = points(z)
    gap = (softened(make(), beta)(x) - make()(x)).abs().max()
    # Of hardswish the error is z times that of hardsigmoid, which is largest near its ends.
    assert gap <= tall * (1 + 0.2 * (name == "hardswish")) * math.log(2) / beta + 1e-9


@pytest.mark.parametrize("name", FORMS)
def test_away_from_its_kinks_a_very_sharp_form_is_the_activation_itself(name: str) -> None:
    make, kinks, _ = KINDS[name]
    z = [v for v in torch.linspace(-9, 9, 101).tolist() if min(abs(v - k) for k in kinks) > 0.01]
    torch.testing.assert_close(softened(make(), 1e5)(points(z)), make()(points(z)), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("make", ["module", "call"])
@settings(deadline=None, max_examples=20)
@given(z=st.lists(st.floats(-6, 6), min_size=1, max_size=4), beta=st.floats(0.5, 2))
def test_both_derivatives_are_those_of_finite_differences(
    name: str, make: str, z: list[float], beta: float
) -> None:
    # Torch cuts its Softplus off where beta z > 20, a step of 1e-9 that a difference would see; no point comes near.
    module = softened(KINDS[name][0]() if make == "module" else Called(CALLED[name]), beta)
    x = points(z).requires_grad_()

    def slope(at: Tensor) -> Tensor:
        return torch.autograd.grad(module(at).sum(), at, create_graph=True)[0]

    (bend,) = torch.autograd.grad(slope(x).sum(), x)
    step = 1e-5
    up, down = (x.detach() + step).requires_grad_(), (x.detach() - step).requires_grad_()
    torch.testing.assert_close(slope(x), (module(up) - module(down)) / (2 * step), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(bend, (slope(up) - slope(down)) / (2 * step), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FORMS)
def test_a_form_bends_at_every_kink(name: str) -> None:
    make, kinks, _ = KINDS[name]
    x = points(list(map(float, kinks))).requires_grad_()
    (slope,) = torch.autograd.grad(softened(make(), 4.0)(x).sum(), x, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), x)
    assert (bend.abs() > 0.1).all()


@pytest.mark.parametrize("name", FORMS)
def test_a_call_becomes_what_the_module_becomes(name: str) -> None:
    x = points([-7.0, -3.1, -0.4, 0.2, 2.9, 6.5])
    by_call = softened(Called(CALLED[name]), 2.0)
    torch.testing.assert_close(by_call(x), softened(KINDS[name][0](), 2.0)(x), rtol=0, atol=0)
    assert [place.function for place in swap_report(by_call).swapped] == [name]
    assert swap_report(by_call).unswapped == ()


@pytest.mark.parametrize("call", IN_PLACE.values(), ids=IN_PLACE)
def test_an_in_place_call_changes_its_tensor(call: Callable[[Tensor], Any]) -> None:
    x = points([-2.0, 0.5, 5.5, 8.0])
    expected = softened(nn.ReLU6(), 2.0)(x)
    if isinstance(call, nn.Module):
        torch.testing.assert_close(softened(call, 2.0)(x.clone()), expected)
        return
    z = x.clone()
    torch.testing.assert_close(softened(Called(call, returns=False), 2.0)(z), expected)
    torch.testing.assert_close(z, expected)


def test_the_weight_of_a_prelu_stays_one_weight_under_its_name() -> None:
    model = nn.Sequential(nn.Linear(4, 4).double(), prelu())
    twin = with_activation(model, "softplus", 2, example=torch.zeros(1, 4, dtype=torch.float64), shared=True)
    assert set(twin.state_dict()) == set(model.state_dict())
    assert twin[1].weight is model[1].weight
    torch.autograd.grad(twin(points([1.0, -1.0])).sum(), list(twin.parameters()))
    copied = with_activation(model, "softplus", 2, example=torch.zeros(1, 4, dtype=torch.float64))
    assert copied[1].weight is not model[1].weight


def test_the_slopes_of_a_prelu_belong_to_channels() -> None:
    x = torch.randn(2, 4, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sharp = with_activation(prelu(), "softplus", 1e6, example=x)
    torch.testing.assert_close(sharp(x), prelu()(x), rtol=0, atol=1e-6)
    one = nn.PReLU(init=0.4).double()
    torch.testing.assert_close(with_activation(one, "softplus", 1e6, example=x)(x), one(x), rtol=0, atol=1e-6)


def test_rrelu_has_its_mean_slope_in_training_too() -> None:
    x = points([-2.0, 3.0])
    for module in (nn.RReLU(0.1, 0.5), Called(lambda z: F.rrelu(z, 0.1, 0.5, training=True))):
        twin = softened(module.train(), 2.0)
        assert twin.training
        torch.testing.assert_close(twin(x), softened(nn.LeakyReLU(0.3), 2.0)(x))


@pytest.mark.parametrize("name", [name for name in FORMS if name != "relu"])
def test_any_other_activation_stands_for_plain_relus_alone(name: str) -> None:
    example = torch.zeros(1, 4, dtype=torch.float64)
    for kinked in (KINDS[name][0](), Called(CALLED[name])):
        model = nn.Sequential(nn.ReLU(), kinked)
        with pytest.raises(UserError, match="would leave"):
            with_activation(model, "gelu", example=example)
        swapped = with_activation(model, "gelu", example=example, partial=True)
        x = points([-2.0, 0.3, 4.0])
        torch.testing.assert_close(swapped(x), kinked(F.gelu(x)))


@pytest.mark.parametrize("name", FORMS)
def test_swapping_back_gives_the_activation_itself_and_again_its_form(name: str) -> None:
    make = KINDS[name][0]
    x = points([-4.0, -0.3, 0.9, 6.4])
    there = nn.Sequential(nn.ReLU(), softened(make(), 2.0))
    back = with_activation(there, "relu", example=x, partial=True)
    assert type(make()) in {type(module) for module in back.modules()}
    assert torch.equal(back(x), make()(F.relu(x)))
    again = with_activation(there, "softplus", 5.0, example=x)
    torch.testing.assert_close(again(x), softened(make(), 5.0)(softened(nn.ReLU(), 5.0)(x)), rtol=0, atol=0)


def test_threshold_and_hardshrink_jump_and_are_refused() -> None:
    for jumping in (nn.Threshold(0.5, 0.1), nn.Hardshrink()):
        with pytest.raises(UserError, match="would leave .* in '1'"):
            softened(nn.Sequential(nn.ReLU(), jumping), 2.0)


def test_only_hardswish_bends_without_its_kinks() -> None:
    for name, (make, _, _) in KINDS.items():
        slopes = []
        for step in (0.0, 1e-3):
            x = (points([-2.0, -0.4, 0.2, 2.9]) + step).requires_grad_()
            slopes.append(torch.autograd.grad(make()(x).sum(), x)[0])
        assert (not torch.equal(*slopes)) is (name not in WITHOUT_CURVATURE) is (name == "hardswish")
        assert (type(make()).__name__ in WITHOUT_CURVATURE) is (name != "hardswish")


def test_models_of_others_become_smooth_and_come_back_from_a_checkpoint(tmp_path) -> None:
    model = build(
        "torchvision:mobilenet_v3_small", num_classes=3, activation="softplus", beta=3, seed=0
    ).eval()
    assert swap_report(model).unswapped == ()
    assert {type(m) for m in model.modules()} & set(MODULES) == set()
    x = torch.rand(1, 3, 32, 32, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(x)[0, 0], x, create_graph=True)
    assert torch.autograd.grad(gradient.square().sum(), x)[0].any()
    save(tmp_path / "net.safetensors", model)
    assert torch.equal(load(tmp_path / "net.safetensors")(x), model(x))


def test_a_softened_module_says_what_it_was() -> None:
    assert "LeakyReLU" in repr(softened(nn.LeakyReLU(), 2.0))
    assert isinstance(softened(nn.LeakyReLU(), 2.0), Softened)


class Mixed(nn.Module):
    """The activation as a module and as a call, with a ReLU call between them."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(a, b) for a, b in ((12, 4), (4, 4), (4, 3)))
        self.act, self.call = KINDS[name][0](), CALLED[name]

    def forward(self, x: Tensor) -> Tensor:
        z = F.relu(self.second(self.act(self.first(x.flatten(1)))))
        return self.last(self.call(z + 0.7))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("attribution", ["guided_backprop", "lrp"])
def test_rules_for_activations_see_a_form_as_one(attribution: str, graph: bool, name: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = Mixed(name).double().eval()
        x, target = 3 * torch.rand(4, 3, 2, 2).double(), torch.arange(4) % 3
    explain = gg.attribution(attribution)
    maps = [
        explain(net, x.clone().requires_grad_(graph), target, create_graph=graph)
        for net in (model, with_activation(model, "softplus", 1e7, example=x))
    ]
    assert maps[0].any()
    torch.testing.assert_close(*maps, rtol=1e-4, atol=1e-6)
