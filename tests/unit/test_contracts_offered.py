"""The checks offered to authors of plug-ins: gyrograd's own methods pass them, broken ones are told what they break."""

from __future__ import annotations

import doctest
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from nets import TinyViT, batch
from small_attributions import NEEDS_ATTENTION, SMALL

import gyrograd as gg
from gyrograd import contracts, registry
from gyrograd.contracts import check
from gyrograd.errors import UserError

FEW: dict[str, dict[str, dict[str, Any]]] = {
    "attribution": SMALL | {"occlusion": {"patch": 4, "stride": 4}},
    "attack": {name: {"steps": 2} for name in gg.available("attack") if name != "random"},
    "metric": {
        "faithfulness": {"grid": 3},
        "top_k_intersection": {"k": 10},
        "certified_pixels": {"draws": 30, "held_out": 5, "radius": 0.005},
        "certified_cosine": {"draws": 30, "held_out": 5, "radius": 0.005, "alpha": 0.5},
    },
    "regularizer": {},
}
KINDS = ("attribution", "attack", "metric", "regularizer")
OURS = [
    (kind, name) for kind in KINDS for name in gg.available(kind) if name != "atex"
]  # that needs a teacher


@pytest.mark.parametrize(("kind", "name"), OURS)
def test_gyrograds_own_methods_keep_what_plug_ins_are_asked_to(kind, name):
    transformer = {"model": TinyViT(), "images": batch(4)[0]} if name in NEEDS_ATTENTION else {}
    check(kind, name, **transformer, **FEW[kind].get(name, {}))


@dataclass(frozen=True)
class Bad:
    """A method with one thing wrong."""

    how: str = ""

    def __call__(self, model, x, target, *, create_graph=False):
        explain = gg.attribution("gradient")
        if self.how == "graph kept":
            return explain(model, x.requires_grad_(), target, create_graph=True)
        if self.how == "whole batch":
            return explain(model, x, target) * x.mean()
        if self.how == "rng":
            torch.rand(1)
        if self.how == "mode":
            model.train()
        if self.how == "half a derivative":
            return explain(model, x.detach(), target, create_graph=create_graph) * (
                x if create_graph else x.detach()
            )
        if self.how == "shape":
            return explain(model, x, target)[:, :1]
        if self.how == "nan":
            return explain(model, x, target) * torch.nan
        return explain(model, x, target, create_graph=create_graph)


SENTENCES = {
    "graph kept": "keeps a graph without create_graph=True",
    "whole batch": "explains an image differently alone and in a batch",
    "rng": "draws from torch's global generator",
    "mode": "changes the model",
    "half a derivative": "has a derivative that differs from central differences",
    "shape": "returns maps of shape \\(4, 1, 8, 8\\) for images \\(4, 3, 8, 8\\)",
    "nan": "returns values that are not finite",
}


@pytest.fixture
def scratch(monkeypatch):
    registry.available("attribution")
    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    registry.register("attribution", "bad", paper="own", differentiable=True)(Bad)


@pytest.mark.parametrize("how", SENTENCES)
def test_what_is_broken_is_said_in_a_sentence(scratch, how):
    with pytest.raises(UserError, match=f"The attribution 'bad' {SENTENCES[how]}"):
        check("attribution", "bad", how=how)


def test_nothing_is_said_of_a_method_that_keeps_its_promises(scratch):
    check("attribution", "bad")


def test_kinds_without_checks_are_refused():
    with pytest.raises(
        UserError, match="no checks for the kind 'kernel'; they exist for attribution, attack"
    ):
        check("kernel", "gaussian")


def test_the_example_runs():
    assert doctest.testmod(contracts).attempted > 0
