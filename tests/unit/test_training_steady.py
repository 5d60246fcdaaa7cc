"""The steady preset in a loop of one's own: its loss, its averaged weights, and nets it cannot bend."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.training import Steady, TrainSettings, steady_settings
from gyrograd.training.loop import Average
from gyrograd.training.steady import without_curvature

X, Y = torch.rand(8, 3, 6, 6, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3


def net(activation: type[nn.Module] = nn.Softplus) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), activation(), nn.Flatten(), nn.Linear(64, 3))


def test_the_loss_is_the_signed_step_and_on_every_fourth_call_curvature_on_a_quarter():
    model = net()
    steady = Steady(model, eps=2 / 255, curvature=0.1)
    step = gg.regularizer("adversarial", eps=2 / 255, steps=1, selection="last")
    plain = step(model, X, Y).mean().item()
    losses = [steady(X, Y).item() for _ in range(5)]
    assert losses[1:4] == pytest.approx([plain] * 3)
    # the probe is random: a penalty of two images with four times its weight, above zero
    assert losses[0] > plain + 1e-6
    assert losses[4] > plain + 1e-6


def test_after_finish_the_model_has_the_mean_of_the_weights_on_the_way():
    model = net()
    steady, optimizer = Steady(model), torch.optim.SGD(model.parameters(), lr=0.5)
    seen = [copy.deepcopy(model.state_dict())]
    for _ in range(3):
        optimizer.zero_grad()
        steady(X, Y).backward()
        optimizer.step()
        seen.append(copy.deepcopy(model.state_dict()))
    steady.finish()
    expected = seen[0]["3.weight"]
    for number, weights in enumerate(seen[1:], start=1):
        decay = (1 + number) / (10 + number)
        expected = decay * expected + (1 - decay) * weights["3.weight"]
    assert torch.allclose(model.state_dict()["3.weight"], expected, atol=1e-6)
    assert not torch.allclose(expected, seen[-1]["3.weight"], atol=1e-4)


def test_where_gradients_are_off_it_is_cross_entropy():
    model = net()
    with torch.no_grad():
        assert Steady(model)(X, Y).item() == pytest.approx(float(F.cross_entropy(model(X), Y)))


def test_finish_before_any_step_is_one_sentence():
    with pytest.raises(UserError, match="Nothing was trained yet"):
        Steady(net()).finish()


def test_a_relu_net_trains_without_curvature_and_is_told_so_once():
    model = net(nn.ReLU)
    steady = Steady(model)
    with pytest.warns(UserWarning, match="curvature penalty is left out .the net is piecewise linear"):
        steady(X, Y)
    step = gg.regularizer("adversarial", eps=1 / 255, steps=1, selection="last")
    assert steady(X, Y).item() == pytest.approx(step(model, X, Y).mean().item())
    Steady(model, curvature=0.0)(X, Y)  # no warning


def test_frozen_layers_stay_in_evaluation_mode():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), net()[1], nn.Flatten(), nn.Linear(64, 3))
    model.train()
    model[1].eval()
    before = copy.deepcopy(model[1].state_dict())
    Steady(model)(X, Y)
    assert [layer.training for layer in model] == [True, False, True, True, True]
    assert all(torch.equal(value, before[key]) for key, value in model[1].state_dict().items())


class Shared(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 4, 3), nn.Linear(64, 3)
        self.other_name = self.first

    def forward(self, x):
        return self.head(F.softplus(self.first(x)).flatten(1))


def trained(model: nn.Module, steady: Steady, steps: int = 3, x: torch.Tensor = X) -> nn.Module:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        steady(x, Y).backward()
        optimizer.step()
    return model


def test_a_weight_with_two_names_is_averaged():
    model = Shared()
    steady = Steady(model)
    last = trained(model, steady).first.weight.detach().clone()
    steady.finish()
    assert not torch.allclose(model.first.weight, last, atol=1e-4)


def test_weights_in_half_precision_are_averaged_in_single():
    model = nn.Linear(1, 1, bias=False).bfloat16()
    model.weight.data.fill_(1.0)
    average = Average(model, 0.999)
    model.weight.data.fill_(1.5)
    for _ in range(1000):
        average.update(model, 1_000_000)
    average.give_to(model)
    assert model.weight.dtype == torch.bfloat16
    assert model.weight.item() == pytest.approx(1 + 0.5 * (1 - 0.999**1000), abs=0.01)


def test_weights_in_whole_numbers_are_kept_as_they_are():
    """As in a quantised layer that is frozen."""
    model = net()
    model.codes = nn.Parameter(torch.arange(3), requires_grad=False)
    steady = Steady(model)
    trained(model, steady, steps=2)
    steady.finish()
    assert model.codes.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("x", "y", "words"),
    [(X.double(), Y, "cannot take float64 images"), (X, Y + 3, "class indices from 0 to 2")],
)
def test_a_wrong_batch_is_refused_before_anything_is_left_out(x, y, words, recwarn):
    with pytest.raises(UserError, match=words):
        Steady(net())(x, y)
    assert not recwarn.list


def test_a_frozen_model_is_refused():
    with pytest.raises(UserError, match="no weights that learn"):
        Steady(net().requires_grad_(False))(X, Y)


@pytest.mark.parametrize("eps", [8, 1])
def test_a_radius_in_grey_levels_is_refused(eps):
    with pytest.raises(UserError, match=f"eps is {eps} and pixels lie in .0, 1.; write eps={eps} / 255"):
        Steady(net(), eps=eps)


def test_with_accumulated_gradients_it_counts_steps_of_the_optimizer():
    """Two calls of half a batch per step end with the weights of one call of the whole batch."""
    whole, halves = net(), net()
    one = Steady(whole, curvature=0)
    trained(whole, one)
    two = Steady(halves, curvature=0, accumulate=2)
    optimizer = torch.optim.SGD(halves.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        for rows in (slice(4), slice(4, 8)):
            (two(X[rows], Y[rows]) / 2).backward()
        optimizer.step()
    one.finish()
    two.finish()
    for key, value in whole.state_dict().items():
        assert torch.allclose(halves.state_dict()[key], value, atol=1e-6)


def test_with_accumulated_gradients_every_batch_of_a_fourth_step_is_curved():
    model = net()
    steady = Steady(model, curvature=0.1, accumulate=2)
    plain = gg.regularizer("adversarial", eps=1 / 255, steps=1, selection="last")(model, X, Y).mean().item()
    curved = [steady(X, Y).item() > plain + 1e-6 for _ in range(10)]
    assert curved == [True] * 2 + [False] * 6 + [True] * 2


def test_no_call_per_step_is_refused():
    with pytest.raises(UserError, match="accumulate"):
        Steady(net(), accumulate=0)


def test_under_autocast_the_curvature_has_the_gradient_of_full_precision():
    def slope(curvature: float, *, halved: bool) -> torch.Tensor:
        model = net()
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=halved):
            loss = Steady(model, curvature=curvature)(X, Y)
        loss.backward()
        return model[0].weight.grad

    without = slope(0.0, halved=False)
    expected, found = (slope(100.0, halved=halved) - without for halved in (False, True))
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("activation", [nn.Softplus, nn.ReLU])
@pytest.mark.filterwarnings("ignore:steady")
def test_a_resumed_loop_ends_with_the_weights_of_an_uninterrupted_one(activation):
    def seeded(model: nn.Module, steady: Steady, steps: int) -> nn.Module:
        torch.manual_seed(steady.steps)
        return trained(model, steady, steps)

    whole, part, rest = net(activation), net(activation), net(activation)
    steady = Steady(whole)
    seeded(seeded(whole, steady, 3), steady, 4)
    steady.finish()

    first = Steady(part)
    seeded(part, first, 3)
    rest.load_state_dict(part.state_dict())
    second = Steady(rest)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    seeded(rest, second, 4)
    second.finish()
    assert all(torch.equal(value, whole.state_dict()[key]) for key, value in rest.state_dict().items())


class Slope(torch.autograd.Function):
    @staticmethod
    def forward(ctx, slope):
        return 2 * slope

    @staticmethod
    def backward(ctx, _):
        raise RuntimeError("derivative of my backward is not implemented")


class Twice(torch.autograd.Function):
    """Twice its input, with a derivative that has none."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, slope):
        return Slope.apply(slope)


class Odd(nn.Module):
    def forward(self, x):
        return Twice.apply(x)


class Halved(nn.Sequential):
    """Turns autocast on by itself, as Hugging Face's Trainer lets models do under bf16=True."""

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x).float()


@pytest.mark.parametrize("model", [net().bfloat16(), Halved(net())], ids=["weights", "autocast"])
def test_a_net_that_computes_in_half_precision_trains_without_curvature(model):
    steady = Steady(model)
    with pytest.warns(UserWarning, match="curvature penalty is left out .the net computes in half precision"):
        steady(X.to(next(model.parameters()).dtype), Y).backward()
    assert "hessian" not in steady.objective.terms


def test_a_net_that_cannot_be_differentiated_twice_is_named_and_left_as_it_was():
    assert without_curvature(net(), X, Y) is None
    model = nn.Sequential(Odd(), net()).eval()
    before = copy.deepcopy(model.state_dict())
    assert "no second derivative" in without_curvature(model, X, Y)
    assert not model.training
    assert all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_the_settings_go_into_any_training():
    settings = TrainSettings(epochs=1, **steady_settings(eps=0.5 / 255, curvature=0.0))
    assert settings.terms == {"adversarial": {"eps": 0.5 / 255, "steps": 1, "selection": "last"}}
    assert (settings.regularized_fraction, settings.regularize_every, settings.ema) == (0.25, 4, 0.999)


def test_a_row_alone_in_its_batch_statistics_ends_no_run_and_is_no_relu_net(recwarn):
    """A quarter of the last batch of three is one row, which BatchNorm1d turns into a constant without curvature."""
    torch.manual_seed(0)
    layers = nn.Flatten(), nn.Linear(108, 8), nn.BatchNorm1d(8), nn.Softplus(), nn.Linear(8, 3)
    for sizes in ([3, 8], [8, 8, 8, 8, 3]):
        steady = Steady(nn.Sequential(*layers))
        for rows in sizes:
            assert steady(X[:rows], Y[:rows]).isfinite()
        assert "hessian" in steady.objective.terms
    assert not len(recwarn)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"weight": torch.zeros(3)}, "not a state of Steady"),
        ({"steps": 2, "curvature": True, "average": {"0.weight": torch.zeros(3)}}, "differs in '0.weight'"),
        ({"steps": 2, "curvature": True, "average": {**net().state_dict(), "more": X}}, "differs in 'more'"),
    ],
)
def test_a_state_of_something_else_is_refused_and_changes_nothing(state, words):
    steady = Steady(net())
    with pytest.raises(UserError, match=words):
        steady.load_state_dict(state)
    assert (steady.average, steady.steps) == (None, 0)


def test_confident_examples_are_attacked_in_float16_too():
    """The slope of their loss to a pixel, some 1e-8 here, is zero in float16."""
    model, labels = net().eval(), torch.zeros(len(X), dtype=torch.int64)
    with torch.no_grad():
        model[-1].bias[0] += 13
    trained_on = gg.regularizer("adversarial", eps=1 / 255, steps=1, selection="last").images
    attacked = gg.attack("pgd", eps=1 / 255, steps=1, selection="last").images
    for find in (trained_on, attacked):
        exact = find(model, X, labels)
        with torch.autocast("cpu", dtype=torch.float16):
            found = find(model, X, labels)
        assert ((found - X).abs() > 1e-4).double().mean() > 0.9
        assert ((found - X).sign() == (exact - X).sign()).double().mean() > 0.9
