"""ReLUs that are spelled otherwise, or written into a tensor that is read again: the twin has them all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attacks.twin import guide_for
from gyrograd.models.activations import swap_report, with_activation


def masked(z: Tensor) -> Tensor:
    z = z * 1.0
    z[z < 0] = 0
    return z


def gated_in_place(z: Tensor) -> Tensor:
    z = z * 1.0
    z *= (z > 0).to(z.dtype)
    return z


SPELLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp(min=0)": lambda z: z.clamp(min=0),
    "clamp(0)": lambda z: torch.clamp(z, 0),
    "clamp_": lambda z: (z * 1.0).clamp_(min=0.0),
    "clip": lambda z: torch.clip(z, 0.0),
    "clamp_min": lambda z: z.clamp_min(0),
    "clamp_min_": lambda z: torch.clamp_min_(z * 1.0, 0),
    "threshold": lambda z: F.threshold(z, 0, 0),
    "threshold in place": lambda z: nn.Threshold(0.0, 0.0, inplace=True)(z * 1.0),
    "maximum": lambda z: torch.maximum(z, torch.zeros_like(z)),
    "maximum, the other way round": lambda z: torch.maximum(torch.tensor(0.0, dtype=z.dtype), z),
    "max": lambda z: torch.max(z, z.new_zeros(1)),
    "fmax": lambda z: z.fmax(torch.zeros_like(z)),
    "where": lambda z: torch.where(z > 0, z, 0),
    "where below": lambda z: torch.where(z <= 0, torch.zeros_like(z), z),
    "Tensor.where": lambda z: z.where(z > 0, 0.0),
    "gate": lambda z: z * (z > 0),
    "gate first": lambda z: (z >= 0) * z,
    "gate as numbers": lambda z: z.mul(z.gt(0).type_as(z)),
    "gate in place": gated_in_place,
    "masked_fill": lambda z: z.masked_fill(z < 0, 0),
    "masked": masked,
    "relu_": lambda z: torch.relu_(z * 1.0),
}


class Spelt(nn.Module):
    """A net whose only kinks are written by hand."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.activation = activation
        self.first, self.second, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.activation(self.second(self.activation(self.first(x))))
        return self.head(z.mean((2, 3)))


def made(build: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build().double().eval(), torch.rand(2, 3, 6, 6, dtype=torch.float64)


def sharp(model: nn.Module, x: Tensor, **settings: bool) -> nn.Module:
    return with_activation(model, "softplus", 1e6, example=x[:1], **settings)


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_relu_is_found_however_it_is_spelled(name):
    model, x = made(lambda: Spelt(SPELLINGS[name]))
    plain, _ = made(lambda: Spelt(torch.relu))
    soft, twin = (
        with_activation(plain, "softplus", 3, example=x),
        with_activation(model, "softplus", 3, example=x),
    )
    torch.testing.assert_close(twin(x), soft(x), rtol=1e-10, atol=1e-12)
    assert [place.function for place in swap_report(twin).swapped] == ["relu"]
    assert not swap_report(twin).unswapped
    assert "Softplus twin" in guide_for(model, x, "auto").note


def test_a_clamp_between_zero_and_six_is_a_relu6():
    model, x = made(lambda: Spelt(lambda z: (4 * z).clamp(0, 6)))
    plain, _ = made(lambda: Spelt(lambda z: F.relu6(4 * z)))
    twin, soft = (with_activation(one, "softplus", 3, example=x) for one in (model, plain))
    torch.testing.assert_close(twin(x), soft(x), rtol=1e-10, atol=1e-12)


OTHER = {
    "another mask": lambda z: z.flip(1) * (z > 0),
    "a mask used twice": lambda z: z * (mask := z > 0) + 0.1 * mask,
    "a mask of what was changed since": lambda z: _changed_since(z),
    "a largest value": lambda z: torch.maximum(z, z.flip(1)).clamp(min=0.5),
    "a small floor": lambda z: z / z.square().mean((1, 2, 3), keepdim=True).clamp_min(1e-12),
    "a leaky where": lambda z: torch.where(z > 0, z, 0.1 * z),
}


def _changed_since(z: Tensor) -> Tensor:
    z = z * 1.0
    mask = z > 0
    z.add_(0.3)
    return z * mask


@pytest.mark.parametrize("name", OTHER)
def test_what_is_no_relu_is_left_alone_and_said(name):
    model, x = made(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Spelt(OTHER[name]).second, Act(OTHER[name]))
    )
    twin = sharp(model, x, partial=True)
    torch.testing.assert_close(twin(x), model(x), rtol=1e-6, atol=1e-8)
    left = {place.function for place in swap_report(twin).unswapped}
    assert left == ({"gt"} if "mask" in name or "where" in name else set())


class Act(nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.call = call

    def forward(self, z: Tensor) -> Tensor:
        return self.call(z).mean((2, 3))


class Reused(nn.Module):
    """The input of an in-place activation module is used again, and has changed."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation
        self.first, self.second, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 1), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        g = self.second(self.activation(h))
        return self.head((h + g).mean((2, 3)))


@pytest.mark.parametrize(
    "activation",
    [
        nn.ReLU(True),
        nn.ReLU6(True),
        nn.Hardtanh(-0.2, 0.3, True),
        nn.LeakyReLU(0.1, True),
        nn.Hardswish(True),
    ],
)
def test_an_in_place_module_writes_into_its_input_on_the_twin_too(activation):
    model, x = made(lambda: Reused(activation))
    torch.testing.assert_close(sharp(model, x)(x), model(x), rtol=0, atol=1e-5)
    again = with_activation(sharp(model, x), "softplus", 1e6, example=x)
    torch.testing.assert_close(again(x), model(x), rtol=0, atol=1e-5)
    back = with_activation(sharp(model, x), "relu", example=x, partial=True)
    torch.testing.assert_close(back(x), model(x), rtol=1e-10, atol=1e-12)


def test_any_activation_is_written_in_place():
    model, x = made(lambda: Reused(nn.ReLU(True)))
    swapped = with_activation(model, "gelu", example=x)
    h = F.gelu(model.first(x))
    wanted = model.head((h + model.second(h)).mean((2, 3)))
    torch.testing.assert_close(swapped(x), wanted)


def test_a_module_whose_input_is_not_read_again_stays_a_plain_softplus():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(True), nn.Flatten(), nn.Linear(64, 3))
    twin = with_activation(model, "softplus", 3, example=torch.rand(1, 3, 6, 6))
    assert type(twin[1]) is nn.Softplus


class Hiding(nn.Module):
    """It looks at its activation's kind, so that the copy takes another way."""

    def __init__(self) -> None:
        super().__init__()
        self.activation, self.head = nn.ReLU(), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.activation(x.flatten(1) - 0.5)
        return self.head(z if type(self.activation) is nn.ReLU else 2 * z)


def test_a_copy_that_does_not_follow_its_net_is_refused_in_a_sentence():
    model, x = Hiding(), torch.rand(2, 3, 2, 2)
    with pytest.raises(
        gg.UserError, match=r"an activation that was not found .* swap the activations where it is built"
    ):
        with_activation(model, "softplus", 20, example=x)
    guide = guide_for(model, x, "auto")
    assert guide.model is model
    assert "an activation that was not found" in guide.refusal


class Writing(nn.Module):
    """It normalises its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x.data.sub_(0.5)
        return self.head(F.relu(x.flatten(1)))


def test_the_test_run_of_a_twin_leaves_the_callers_image_alone():
    x = torch.rand(2, 3, 2, 2)
    before = x.clone()
    with_activation(Writing(), "softplus", 20, example=x[:1])
    assert torch.equal(x, before)


@pytest.mark.parametrize("name", SPELLINGS)
@pytest.mark.parametrize("method", ["guided_backprop", "lrp"])
def test_maps_with_rules_for_activations_see_a_spelled_relu_or_refuse_it(method, name):
    model, x = made(lambda: Spelt(SPELLINGS[name]))
    plain, _ = made(lambda: Spelt(torch.relu))
    explain, target = gg.attribution(method), torch.tensor([0, 1])
    try:
        found = explain(model, x, target)
    except gg.UserError as refusal:
        assert any(word in str(refusal) for word in ("has no rule", "writes into"))  # noqa: PT017
        return
    torch.testing.assert_close(found, explain(plain, x, target), rtol=1e-9, atol=1e-12)
