"""Channels last on a CPU: the same maps, no view that fails, no write that is lost, nothing left on the model."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attacks.engine import derivative
from gyrograd.attributions import layout
from gyrograd.attributions.layout import in_fast_layout, logits_of

LAST = torch.channels_last


class Net(nn.Module):
    """A convolution, then whatever `tail` does with its output, then a linear layer."""

    def __init__(self, tail: str = "view") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.head = nn.Linear(4 * 6 * 6, 5)
        self.tail = tail
        self.seen: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.is_contiguous(memory_format=LAST) and not x.is_contiguous())
        z = F.gelu(self.conv(x))
        flat = {
            "view": lambda: z.view(len(z), -1),
            "flatten": lambda: z.flatten(1),
            "reshape": lambda: torch.reshape(z, (len(z), -1)),
            "write to the view": lambda: _written(z.flatten(1), z),
            "write to the source": lambda: _written(z, z.flatten(1)),
            "write to what is contiguous": lambda: _written(z.contiguous(), z),
            "write to the source of what is contiguous": lambda: _written(z, z.contiguous()),
            "write to the ravelled": lambda: _written(z.ravel(), z),
            "write to pixels in a row": lambda: _written(z.permute(0, 2, 3, 1).contiguous(), z),
            "strided": lambda: z.as_strided((len(z), 144), (144, 1)),
            "refuse": lambda: _only_plain(z),
        }[self.tail]()
        logits: Tensor = self.head(flat.flatten(1))
        return logits


def _written(written: Tensor, read: Tensor) -> Tensor:
    """In the plain layout both are one memory, so what is read has been doubled."""
    written.mul_(2)
    return read


def _only_plain(z: Tensor) -> Tensor:
    if not z.is_contiguous():
        raise RuntimeError("this layer wants its pixels plain")
    return z


def images() -> Tensor:
    return torch.rand(3, 3, 6, 6, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("tail", ["view", "flatten", "reshape"])
def test_the_layout_changes_and_the_logits_do_not(tail):
    model, x = Net(tail).eval(), images()
    torch.testing.assert_close(logits_of(model, x), model(x), rtol=1e-5, atol=1e-6)
    assert model.seen == [True, False]


@pytest.mark.parametrize(
    "tail",
    [
        "write to the view",
        "write to the source",
        "write to what is contiguous",
        "write to the source of what is contiguous",
        "write to the ravelled",
        "write to pixels in a row",
        "strided",
        "refuse",
    ],
)
def test_a_model_that_needs_the_plain_layout_gets_it_from_then_on(tail):
    model, x = Net(tail).eval(), images()
    with torch.no_grad():
        assert torch.equal(logits_of(model, x), model(x))
        assert torch.equal(logits_of(model, x), model(x))
    assert model.seen == [True, False, False, False, False]


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (Net(), images().double()),
        (Net(), images()[:, :1]),
        (nn.Sequential(nn.Flatten(), nn.Linear(108, 5)), images()),
        (nn.Linear(4, 5), torch.rand(3, 4)),
    ],
    ids=["double", "grey", "no convolution", "no image"],
)
def test_other_inputs_and_nets_keep_their_layout(model, x):
    given = []
    in_fast_layout(model, x, given.append, given.append)
    assert given[0] is x


def test_memory_that_runs_out_is_not_taken_for_a_matter_of_layout():
    model = Net()

    def out_of_memory(x: Tensor) -> Tensor:
        raise torch.OutOfMemoryError("not enough memory")

    with pytest.raises(torch.OutOfMemoryError):
        in_fast_layout(model, images(), out_of_memory, model)
    assert model not in layout._PLAIN_ONLY


def test_an_error_of_the_model_itself_is_the_one_the_plain_layout_gives():
    model = Net()
    model.head = nn.Linear(7, 5)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        logits_of(model, images())


@pytest.mark.parametrize(
    "name", ["gradient", "integrated_gradients", "smoothgrad", "guided_backprop", "lime"]
)
def test_maps_are_those_of_the_plain_layout_and_plain_themselves(name, monkeypatch):
    settings = {"lime": {"segments": "grid", "grid": 2}, "guided_backprop": {}, "gradient": {}}
    model, x, target = Net("view").eval(), images(), torch.tensor([0, 1, 4])
    explain = gg.attribution(name, **settings.get(name, {}))
    fast = explain(model, x, target)
    assert model.seen[2]  # the first two looks are the trial of a new model
    monkeypatch.setattr(layout, "_pays", lambda *_: False)
    plain = explain(model, x, target)
    assert not model.seen[-1]
    assert fast.is_contiguous()
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))


TWICE = {
    "gradient": {},
    "integrated_gradients": {"steps": 3},
    "smoothgrad": {"draws": 3},
    "guided_backprop": {},
    "lrp": {},
}


@pytest.mark.parametrize("name", TWICE)
def test_a_map_that_is_differentiated_to_weights_keeps_the_plain_layout(name):
    model, x = Net("view").eval(), images().requires_grad_()
    gg.attribution(name, **TWICE[name])(model, x, torch.tensor([0, 1, 4]), create_graph=True).sum().backward()
    assert not any(model.seen)
    assert x.grad is not None


class Pooled(nn.Module):
    """Two convolutions with a max-pool after each, whose windows may overlap."""

    def __init__(self, **window: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.Softplus(2), nn.MaxPool2d(**window),
            nn.Conv2d(4, 6, 3, padding=1), nn.Softplus(2), nn.MaxPool2d(**window),
        )  # fmt: skip
        self.head = nn.LazyLinear(5)
        self.seen: list[bool] = []
        self(torch.zeros(1, 3, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.is_contiguous(memory_format=LAST) and not x.is_contiguous())
        logits: Tensor = self.head(self.body(x).flatten(1))
        return logits


@pytest.mark.parametrize("window", [{"kernel_size": 2}, {"kernel_size": 3, "stride": 1, "padding": 1}])
@pytest.mark.parametrize("name", TWICE)
def test_with_frozen_weights_the_derivative_of_a_map_is_that_of_the_plain_layout(name, window, monkeypatch):
    model = Pooled(**window).eval().requires_grad_(False)
    target = torch.tensor([0, 1, 4])
    generator = torch.Generator().manual_seed(2)
    x, along = torch.rand(2, 3, 3, 8, 8, generator=generator)
    explain = gg.attribution(name, **TWICE[name])

    def map_and_derivative() -> tuple[Tensor, Tensor]:
        model.seen.clear()
        found = derivative(model, explain, x, target, lambda map, *_: (map * along).flatten(1).sum(1))
        return found.map, found.gradient

    fast = map_and_derivative()
    assert any(model.seen)
    monkeypatch.setattr(layout, "_pays", lambda *_: False)
    plain = map_and_derivative()
    assert not any(model.seen)
    for one, other in zip(fast, plain, strict=True):
        assert float(other.abs().max()) > 0
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5 * float(other.abs().max()))


@pytest.mark.parametrize("name", ["insertion", "max_sensitivity"])
def test_metrics_run_in_the_fast_layout_and_score_the_same(name, monkeypatch):
    model, x, target = Net("view").eval(), images(), torch.tensor([0, 1, 4])
    measure, explain = gg.metric(name), gg.attribution("gradient")
    fast = measure(model, explain, x, target)
    assert all(model.seen[2:])  # the first two looks are the trial of a new model
    monkeypatch.setattr(layout, "_pays", lambda *_: False)
    torch.testing.assert_close(fast, measure(model, explain, x, target), rtol=1e-4, atol=1e-5)


def test_the_weights_and_the_images_stay_as_they_are():
    model, x = Net().eval(), images()
    logits_of(model, x)
    assert x.is_contiguous()
    assert model.conv.weight.is_contiguous()
