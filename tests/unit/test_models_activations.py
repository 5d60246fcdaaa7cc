"""Every ReLU is found and exchanged, wherever it hides; what cannot be exchanged is said."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from gyrograd.errors import UserError
from gyrograd.models import build, swap_report, with_activation
from gyrograd.models.activations import ACTIVATIONS, Activated


class Net(nn.Module):
    """Three nonlinear layers around a function given from outside, and a residual connection."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.act = activation

    def forward(self, x: Tensor) -> Tensor:
        z = self.act(self.first(x))
        z = self.act(self.second(z)) + z
        return self.last(self.act(z - 0.1))


def ignoring_the_result(z: Tensor) -> Tensor:
    z.relu_()
    return z


class OwnRelu(nn.Module):
    def forward(self, z: Tensor) -> Tensor:
        return torch.relu(z)


class Listed(nn.Module):
    """Keeps its activation where named_modules cannot see it."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = [nn.ReLU()]

    def forward(self, z: Tensor) -> Tensor:
        return self.hidden[0](z)


RELUS: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "module": nn.ReLU,
    "in-place module": lambda: nn.ReLU(inplace=True),
    "F.relu": lambda: F.relu,
    "F.relu in place": lambda: lambda z: F.relu(z, inplace=True),
    "F.relu in place by position": lambda: lambda z: F.relu(z, True),
    "F.relu by name": lambda: lambda z: F.relu(input=z),
    "torch.relu": lambda: torch.relu,
    "torch.relu_": lambda: torch.relu_,
    "Tensor.relu": lambda: lambda z: z.relu(),
    "Tensor.relu_": lambda: lambda z: z.relu_(),
    "Tensor.relu_ as a statement": lambda: ignoring_the_result,
    "own module": OwnRelu,
    "hidden in a list": Listed,
    "one module under two names": lambda: nn.Sequential(*([nn.ReLU()] * 2)),
}
EXAMPLE = torch.linspace(-1, 1, 8).reshape(2, 4)


def same_net(model: Net, activation: Callable[[Tensor], Tensor]) -> Net:
    net = Net(activation).double()
    net.load_state_dict(model.state_dict())
    return net


@pytest.mark.parametrize("make", RELUS.values(), ids=RELUS)
def test_a_relu_of_any_kind_becomes_softplus_and_its_derivatives_too(make) -> None:
    model = Net(make()).double()
    twin = with_activation(model, "softplus", 2.5, example=EXAMPLE.double())
    twice = isinstance(model.act, nn.Sequential)

    def softplus(z: Tensor) -> Tensor:
        z = torch.log1p(torch.exp(2.5 * z)) / 2.5
        return torch.log1p(torch.exp(2.5 * z)) / 2.5 if twice else z

    oracle = same_net(model, softplus)
    x = EXAMPLE.double().requires_grad_()
    outcomes = []
    for net in (twin, oracle):
        out = net(x)
        (gradient,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        second = torch.autograd.grad(gradient.square().sum(), list(net.parameters())[:-1])
        outcomes.append((out, gradient, second))
    torch.testing.assert_close(outcomes[0], outcomes[1], rtol=1e-8, atol=1e-10)
    assert swap_report(twin).swapped
    assert swap_report(twin).unswapped == ()


@pytest.mark.parametrize("make", RELUS.values(), ids=RELUS)
def test_the_original_is_left_as_it_was(make) -> None:
    model = Net(make())
    before = model(EXAMPLE).detach()
    twin = with_activation(model, "softplus", 1.0, example=EXAMPLE)
    assert torch.equal(model(EXAMPLE), before)
    assert not torch.equal(twin(EXAMPLE), before)
    with torch.no_grad():
        next(twin.parameters()).add_(1)
    assert torch.equal(model(EXAMPLE), before)


@pytest.mark.parametrize("make", RELUS.values(), ids=RELUS)
def test_swapping_back_gives_the_original_function(make) -> None:
    model = Net(make())
    there = with_activation(model, "softplus", 3, example=EXAMPLE)
    back = with_activation(there, "relu", example=EXAMPLE)
    assert torch.equal(back(EXAMPLE), model(EXAMPLE))
    again = with_activation(with_activation(there, "tanh", example=EXAMPLE), "softplus", 3, example=EXAMPLE)
    assert torch.equal(again(EXAMPLE), there(EXAMPLE))


FORMULAS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": lambda z: z.clamp(min=0),
    "gelu": lambda z: z * 0.5 * (1 + torch.erf(z / 2**0.5)),
    "silu": lambda z: z / (1 + torch.exp(-z)),
    "tanh": lambda z: (torch.exp(z) - torch.exp(-z)) / (torch.exp(z) + torch.exp(-z)),
    "sigmoid": lambda z: 1 / (1 + torch.exp(-z)),
    "elu": lambda z: torch.where(z > 0, z, torch.exp(z) - 1),
    "leaky_relu": lambda z: torch.where(z > 0, z, 0.01 * z),
    "softplus": lambda z: torch.log(1 + torch.exp(z)),
}


def test_every_activation_has_a_formula_here() -> None:
    assert set(FORMULAS) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("make", [nn.ReLU, lambda: F.relu], ids=["module", "function"])
def test_each_activation_is_its_formula(name: str, make) -> None:
    model = Net(make()).double()
    twin = with_activation(model, name, example=EXAMPLE.double())
    x = EXAMPLE.double()
    torch.testing.assert_close(twin(x), same_net(model, FORMULAS[name])(x))


@given(st.floats(0.05, 60), st.lists(st.floats(-4, 4), min_size=1, max_size=5))
def test_softplus_has_the_sharpness_beta(beta: float, z: list[float]) -> None:
    x = torch.tensor([z], dtype=torch.float64)
    expected = torch.logaddexp(beta * x, torch.zeros_like(x)) / beta
    out = with_activation(nn.ReLU(), "softplus", beta, example=x)(x)
    torch.testing.assert_close(out, expected, rtol=0, atol=3e-9 / beta)  # torch is linear above beta z = 20


LEFTOVERS: dict[str, tuple[Callable[[], Callable[[Tensor], Tensor]], str]] = {
    "clamp from above to zero": (lambda: lambda z: z.clamp(max=0), "clamp"),
    "another tensor's mask": (lambda: lambda z: z.flip(1) * (z > 0), "gt in"),
    "leaky where": (lambda: lambda z: torch.where(z < 0, 0.1 * z, z), "lt in"),
    "absolute value": (lambda: lambda z: (z + z.abs()) / 2, "abs"),
    "hardshrink": (nn.Hardshrink, "hardshrink in 'act'"),
    "threshold that jumps": (lambda: lambda z: F.threshold(z, 0.5, 0.0), "threshold"),
}


@pytest.mark.parametrize(("make", "words"), LEFTOVERS.values(), ids=LEFTOVERS)
def test_a_kink_that_cannot_be_swapped_is_an_error_that_names_it(make, words: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Net(make()))
    with pytest.raises(UserError, match=re.escape(words.replace("'act'", "'2.act'"))):
        with_activation(model, "softplus", example=EXAMPLE)
    twin = with_activation(model, "softplus", example=EXAMPLE, partial=True)
    report = swap_report(twin)
    assert [str(place) for place in report.swapped] == ["ReLU in '1'"]
    assert report.unswapped
    assert all(place.module.startswith("2") for place in report.unswapped)


def test_smooth_operations_are_not_reported() -> None:
    smooth = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.GELU(), nn.Dropout(),
        nn.Flatten(), nn.LazyLinear(5), nn.LayerNorm(5), nn.Softmax(1),
    )  # fmt: skip
    smooth(torch.rand(2, 3, 8, 8))
    twin = with_activation(smooth, "softplus", example=torch.rand(2, 3, 8, 8))
    assert swap_report(twin).unswapped == ()


def test_a_place_is_named_by_the_module_that_called() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Net(F.relu), nn.Linear(3, 3))
    report = swap_report(with_activation(model, "softplus", example=EXAMPLE))
    assert [str(place) for place in report.swapped] == ["relu in '1'"]


def test_scripted_parts_are_reported() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls scripting old; nets of this kind are still about
        scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    model = nn.Sequential(nn.ReLU(), scripted)
    with pytest.raises(UserError, match="would leave relu in '1"):
        with_activation(model, "softplus", example=EXAMPLE)


def test_a_model_without_relu_is_an_error_even_if_partial() -> None:
    for partial in (False, True):
        with pytest.raises(UserError, match="no ReLU to swap"):
            with_activation(
                nn.Sequential(nn.Linear(4, 4), nn.GELU()), "softplus", example=EXAMPLE, partial=partial
            )


def test_shared_weights_follow_the_original() -> None:
    model = Net(F.relu)
    twin = with_activation(model, "softplus", example=EXAMPLE, shared=True)
    assert {id(p) for p in twin.parameters()} == {id(p) for p in model.parameters()}
    before = twin(EXAMPLE).detach()
    with torch.no_grad():
        model.first.weight.add_(1)
    assert not torch.equal(twin(EXAMPLE), before)


def test_shared_statistics_follow_the_original() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    twin = with_activation(model, "softplus", shared=True)
    model(torch.rand(4, 3, 8, 8))
    assert twin[1].num_batches_tracked == 1
    assert torch.equal(twin[1].running_mean, model[1].running_mean)


def test_the_test_run_leaves_nothing_behind() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.ReLU()).train()
    model[1].eval()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    torch.manual_seed(0)
    before = torch.get_rng_state()
    twin = with_activation(model, "softplus")
    assert torch.equal(torch.get_rng_state(), before)
    assert [m.training for m in twin.modules()] == [m.training for m in model.modules()]
    assert all(torch.equal(value, state[key]) for key, value in twin.state_dict().items())
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert all(p.grad is None for p in twin.parameters())


def test_a_model_that_draws_does_not_move_the_random_state() -> None:
    class Noisy(nn.ReLU):
        def forward(self, z: Tensor) -> Tensor:
            return F.relu(z + torch.rand_like(z))

    before = torch.get_rng_state()
    with_activation(Noisy(), "softplus")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_module_under_two_names_stays_one_module() -> None:
    relu = nn.ReLU()
    block = nn.Sequential(relu, nn.Linear(4, 4))
    twin = with_activation(nn.Sequential(block, relu, block), "softplus", example=EXAMPLE)
    assert isinstance(twin, nn.Sequential)
    assert twin[1] is twin[0][0]
    assert twin[2] is twin[0]
    assert isinstance(twin[1], nn.Softplus)


def test_mode_of_a_model_with_calls_is_kept() -> None:
    for training in (True, False):
        twin = with_activation(Net(F.relu).train(training), "softplus", example=EXAMPLE)
        assert isinstance(twin, Activated)
        assert all(module.training is training for module in twin.modules())


def test_an_exchange_ends_with_the_forward_pass() -> None:
    twin = with_activation(Net(F.relu), "softplus", example=EXAMPLE)
    twin(EXAMPLE)
    assert F.relu(torch.tensor([-1.0])).item() == 0


def test_a_failed_test_run_leaves_no_hooks_and_asks_for_an_example() -> None:
    with pytest.raises(UserError, match="give example=") as caught:
        with_activation(Net(F.relu), "softplus")
    assert "\n" not in str(caught.value)
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert F.relu(torch.tensor([-1.0])).item() == 0


def test_models_that_need_224_pixels_are_tried_at_224() -> None:
    class Large(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            assert x.shape[-1] == 224
            return super().forward(x)

    assert swap_report(with_activation(Large(nn.Conv2d(3, 1, 9, 9), nn.ReLU()), "gelu")).swapped


@pytest.mark.parametrize(
    ("name", "beta", "words"),
    [
        ("softpluss", None, "did you mean 'softplus'"),
        ("gelu", 3.0, "leave beta out"),
        ("softplus", 0.0, "above 0"),
        ("softplus", -1, "above 0"),
        ("softplus", float("nan"), "above 0"),
        ("softplus", float("inf"), "above 0"),
    ],
)
def test_a_wrong_activation_is_explained(name: str, beta: float | None, words: str) -> None:
    with pytest.raises(UserError, match=words):
        with_activation(nn.ReLU(), name, beta)


def test_a_model_that_cannot_be_copied_is_explained() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model.kept = threading.Lock()
    with pytest.raises(UserError, match="cannot be copied"):
        with_activation(model, "softplus", example=EXAMPLE)


def test_a_report_needs_a_swapped_model() -> None:
    with pytest.raises(UserError, match="not made by with_activation"):
        swap_report(build("lenet"))


def test_the_report_is_found_through_wrappers() -> None:
    model = build("lenet", activation="softplus", beta=3, normalize="cifar10")
    assert [place.module for place in swap_report(model).swapped] == [f"act{i}" for i in range(1, 6)]
    assert [m.beta for m in model.modules() if isinstance(m, nn.Softplus)] == [3] * 5


@pytest.mark.parametrize("name", ["torchvision:densenet121", "torchvision:googlenet", "timm:resnet18"])
def test_models_of_other_libraries_are_swapped_whole(name: str) -> None:
    twin = build(name, num_classes=3, activation="softplus", beta=3, seed=0).eval()
    assert swap_report(twin).unswapped == ()
    x = torch.rand(1, 3, 32, 32, requires_grad=True)
    (gradient,) = torch.autograd.grad(twin(x)[0, 0], x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), x)
    assert second.any()
