"""Attacks on maps made of forward passes: occlusion, RISE, LIME and SHAP are followed by their own derivative."""

from __future__ import annotations

import pytest
import torch
from attacked_nets import EPS, pictures, trained
from torch import Tensor

import gyrograd as gg
from gyrograd.attacks import engine

CUT = {"segments": "grid", "grid": 4}
METHODS = {
    "occlusion": {"patch": 4},
    "rise": {"draws": 40, "grid": 4},
    "lime": {"draws": 40, **CUT},
    "shap": {"draws": 40, **CUT},
}
every_method = pytest.mark.parametrize("name", sorted(METHODS))


@every_method
def test_their_own_derivative_moves_them_further_than_the_gradient_map_does(name):
    x, y = pictures("test", 8)
    explain = gg.attribution(name, **METHODS[name])
    own, through_gradient = (
        gg.attack("auto", eps=EPS, steps=7, transfer_from=other)(trained(), explain, x, y).value.mean()
        for other in (None, "gradient")
    )
    assert own < through_gradient - 0.05


@every_method
def test_a_net_of_relus_is_searched_itself_and_not_a_smooth_twin(name):
    x, y = pictures("test", 2)
    explain = gg.attribution(name, **METHODS[name])
    hit = gg.attack("top_k", eps=EPS, steps=3)(trained(), explain, x, y)
    assert not any("twin" in flag or "transfer" in flag for flag in hit.flags)
    assert not hit.stuck.any()
    assert (hit.value < hit.start).any()


def test_a_twin_that_is_asked_for_is_searched():
    x, y = pictures("test", 2)
    explain = gg.attribution("occlusion", **METHODS["occlusion"])
    hit = gg.attack("top_k", eps=EPS, steps=2, twin_beta=20.0)(trained(), explain, x, y)
    assert any("Softplus twin" in flag for flag in hit.flags)


def test_the_gradient_map_as_a_challenger_still_has_the_twin(monkeypatch):
    """The derivative of a ReLU net's gradient map is zero."""
    x, y = pictures("test", 2)
    models: dict[str, set[bool]] = {}
    derivative = engine.derivative

    def spy(model, attribution, *args, **settings):
        models.setdefault(type(attribution).__name__, set()).add(model is trained())
        return derivative(model, attribution, *args, **settings)

    monkeypatch.setattr(engine, "derivative", spy)
    explain = gg.attribution("occlusion", **METHODS["occlusion"])
    gg.attack("auto", eps=1 / 255, steps=8)(trained(), explain, x, y)
    assert models == {"Occlusion": {True}, "Gradient": {False}}


def test_memory_holds_the_activations_of_one_part_only():
    """The graph of RISE with 200 masks, cut into parts, keeps less than a tenth of what the whole graph keeps."""
    (x, y), model = pictures("test", 1), trained()
    kept: dict[int, int] = {}
    for rows in (8, 512):
        explain = gg.attribution("rise", draws=200, grid=4, max_batch=rows)
        sizes: list[int] = []

        def note(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            explain(model, x.clone().requires_grad_(), y, create_graph=True)
        kept[rows] = sum(sizes)
    assert kept[8] < kept[512] / 10
