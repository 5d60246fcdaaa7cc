"""Noisy copies whose first convolution is computed once per image, beside the model run on every copy."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.models import Normalized
from gyrograd.numerics import convolution, copies, cpu_layers
from gyrograd.numerics.copies import copies_of, mark_copies
from gyrograd.numerics.second_order import made_for_second_derivatives
from gyrograd.smoothing import Gaussian, Smoothed

DRAWS = 3


class Net(nn.Module):
    """Normalised images through two convolutions, of which the first has strides and padding."""

    def __init__(self, writes: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Conv2d(4, 5, 3)
        self.writes = writes

    def forward(self, x: Tensor) -> Tensor:
        if self.writes:
            x.mul_(torch.linspace(0.5, 1, len(x), dtype=x.dtype).view(-1, 1, 1, 1))
        return F.softplus(self.second(F.softplus(self.first(x)))).mean((2, 3))


def smooth(core: nn.Module) -> Smoothed:
    return Smoothed(Normalized(core, [0.5, 0.4, 0.3], [0.2, 0.3, 0.4]), Gaussian(0.1), DRAWS, seed=0)


def plainly(model: Smoothed, x: Tensor) -> Tensor:
    """The mean over draws, each passed through torch's own layers."""
    mean, std = (part.to(x.dtype).view(-1, 1, 1) for part in (model.core.mean, model.core.std))
    noise = Gaussian(0.1).sample((DRAWS, *x.shape[1:]), 0, x.dtype)
    return torch.stack([model.core.core((x + one - mean) / std) for one in noise]).mean(0)


@pytest.mark.parametrize("last", [False, True])
def test_values_and_derivatives_are_those_of_every_copy(last):
    torch.manual_seed(0)
    model = smooth(Net().double())
    x = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    x = (x.contiguous(memory_format=torch.channels_last) if last else x).requires_grad_()
    along = torch.randn_like(x)

    def derivatives(run) -> list[Tensor]:
        logits = run(x)
        (first,) = torch.autograd.grad(logits[:, 1].sum(), x, create_graph=True)
        wanted = [x, *model.parameters()]
        return [logits, first, *torch.autograd.grad((first * along).sum(), wanted, allow_unused=True)]

    expected = derivatives(lambda x: plainly(model, x))
    with made_for_second_derivatives(x):
        found = derivatives(model)
    with cpu_layers.CpuLayers():
        again = derivatives(model)
    for one, two, three in zip(found, expected, again, strict=True):
        assert (one is None) == (two is None) == (three is None)
        if one is not None:
            torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(three, two, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("create_graph", [False, True])
def test_the_first_convolution_and_its_derivatives_see_each_image_once(monkeypatch, create_graph):
    taken = []
    original = copies.convolve_copies

    def noted(*args: object, **named: object) -> Tensor | None:
        out = original(*args, **named)
        taken.append(out is not None)
        return out

    for module in (cpu_layers, convolution):
        monkeypatch.setattr(module, "convolve_copies", noted)
    model = Normalized(Net(), [0.5] * 3, [0.2] * 3).eval().requires_grad_(False)
    gg.attribution("smoothgrad", draws=DRAWS)(model, torch.rand(2, 3, 8, 8), 0, create_graph=create_graph)
    assert taken.count(True) == 1  # and not for the second convolution, nor for the parts of the first


def test_rows_that_were_written_to_are_not_known_any_more():
    x, noise = torch.rand(2, 3, 8, 8, requires_grad=True), torch.randn(DRAWS, 3, 8, 8)
    rows = (x + noise[:, None]).flatten(0, 1)
    mark_copies(rows, x, noise)
    assert copies_of(rows) is not None
    rows[0].mul_(2)
    assert copies_of(rows) is None


def test_a_model_that_writes_into_its_input_gets_its_own_derivative():
    torch.manual_seed(0)
    core = Net(writes=True).double()
    model = Smoothed(core, Gaussian(0.1), DRAWS, seed=0)
    x = torch.rand(2, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    noise = Gaussian(0.1).sample((DRAWS, *x.shape[1:]), 0, x.dtype)
    expected = core((x + noise[:, None]).flatten(0, 1)).unflatten(0, (DRAWS, 2)).mean(0)
    with made_for_second_derivatives(x):
        found = model(x)
    torch.testing.assert_close(found, expected)
    one, two = (torch.autograd.grad(logits.square().sum(), x)[0] for logits in (found, expected))
    torch.testing.assert_close(one, two)
