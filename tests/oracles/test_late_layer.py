"""The plain pass of class activation maps beside the record, which is what a map with a graph is made of."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from threading import Thread

import pytest
import torch
from nets import CLASSES, TinyViT, batch, net
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attributions import cam, late_layer, replay


class Head(nn.Module):
    """Feature maps and a gate computed from them; the gate may be computed without gradients, the maps overwritten."""

    def __init__(self, *, gate_has_gradient: bool = True, overwrites: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.act = nn.Conv2d(3, 4, 3, stride=2), nn.Softplus()
        self.gate, self.out = nn.Linear(4, 4), nn.Linear(4, CLASSES)
        self.gate_has_gradient, self.overwrites = gate_has_gradient, overwrites
        self.double().eval()

    def forward(self, x: Tensor) -> Tensor:
        maps = self.act(self.conv(x))
        with nullcontext() if self.gate_has_gradient else torch.no_grad():
            gate = self.gate(maps.mean((2, 3))).sigmoid()
        maps = maps.mul_(3) if self.overwrites else maps * 3
        logits: Tensor = self.out(maps.mean((2, 3)) * gate)
        return logits


def places_of(model: nn.Module) -> list[late_layer.LayerSite | None]:
    return list(late_layer._SITES[model].values())


def residual_with_relus_in_place() -> nn.Module:
    from torchvision.models import resnet18

    torch.manual_seed(0)
    return resnet18(num_classes=CLASSES).double().eval()


NETS = {
    "lenet": lambda: net("lenet"),
    "residual": lambda: net("residual"),
    "relus in place, called twice": residual_with_relus_in_place,
    "class token": TinyViT,
    "gate": Head,
    "overwritten": lambda: Head(overwrites=True),
    "smoothed": lambda: gg.smoothed(net("lenet"), gg.kernel("gaussian", sigma=0.1), draws=3),
}


@pytest.mark.parametrize("method", ["grad_cam", "hires_cam"])
@pytest.mark.parametrize("name", NETS)
def test_a_map_is_the_same_with_and_without_a_graph(name, method):
    model, (x, target) = NETS[name](), batch(5)
    explain = gg.attribution(method, relu=False)
    expected = explain(model, x.clone().requires_grad_(), target, create_graph=True).detach()
    for _ in range(2):
        torch.testing.assert_close(explain(model, x, target), expected, rtol=1e-9, atol=1e-12)
    assert expected.abs().max() > 1e-6


@pytest.mark.parametrize("name", ["relus in place, called twice", "overwritten"])
def test_most_models_are_recorded_once_of_two_images(name, monkeypatch):
    model, (x, target) = NETS[name](), batch(5)
    from_record = []

    def counted(model: nn.Module, x: Tensor, *, create_graph: bool) -> replay.Tape:
        from_record.append(len(x))
        return replay.record(model, x, create_graph=create_graph)

    monkeypatch.setattr(cam, "record", counted)
    for _ in range(3):
        gg.attribution("grad_cam")(model, x, target)
    assert from_record == [2]
    assert places_of(model)[0] is not None
    assert not torch.nn.modules.module._global_forward_hooks


def test_a_gate_without_gradients_is_differentiated_as_in_the_record():
    (x, target), explain = batch(4), gg.attribution("hires_cam", relu=False)
    cut = Head(gate_has_gradient=False)
    torch.testing.assert_close(explain(cut, x, target), explain(Head(), x, target), rtol=1e-9, atol=1e-12)
    assert places_of(cut) == [None]


def test_a_model_that_was_changed_is_recorded_again():
    (x, target), explain = batch(4), gg.attribution("grad_cam", relu=False)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Softplus(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    )
    model.double().eval()
    explain(model, x, target)
    model[1] = nn.Sequential(nn.Softplus(), nn.Conv2d(4, 4, 3), nn.Tanh()).double()
    expected = explain(model, x.clone().requires_grad_(), target, create_graph=True).detach()
    for _ in range(2):
        torch.testing.assert_close(explain(model, x, target), expected, rtol=1e-9, atol=1e-12)
    assert places_of(model)[0] is not None


def test_modules_of_other_threads_are_not_heard():
    model, (x, _) = net("lenet"), batch(2)
    with replay.watch_modules(model, lambda *_: None) as heard:
        other = Thread(target=model, args=(x,))
        other.start()
        other.join()
        net("residual")(x)
        assert heard == []
        model(x)
    assert heard == [module for module in model.modules() if module is not model]


def test_a_model_is_freed_after_its_map():
    model, (x, target) = Head(), batch(2)
    gg.attribution("grad_cam")(model, x, target)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_half_precision_is_always_recorded():
    model, (x, target) = Head().to(torch.bfloat16), batch(2)
    gg.attribution("grad_cam")(model, x.to(torch.bfloat16), target)
    assert model not in late_layer._SITES
    with torch.autocast("cpu", torch.bfloat16):
        single = Head().float()
        gg.attribution("grad_cam")(single, x.float(), target)
    assert single not in late_layer._SITES
