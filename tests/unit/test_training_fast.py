"""The fast path of training: first-order passes and a penalty every few steps, next to the plain path."""

from __future__ import annotations

import sys
from dataclasses import fields
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import gyrograd as gg
from gyrograd.data import Dataset
from gyrograd.numerics import random
from gyrograd.regularizers import Atex
from gyrograd.training import TrainSettings, fit
from gyrograd.training.objective import Objective, Term, equal_when_fast, objective_of

ALIGN = {"l2_cosine": {"l2": 0.5, "cosine": 5.0, "eps": 16 / 255}}


def trained(**changes) -> tuple[torch.nn.Module, list[dict]]:
    data = gg.dataset("shapes", split="train", n=48)
    model = gg.model("lenet", activation="softplus", beta=10, image_size=16, init="he", seed=0).double()
    data = Dataset(data.pixels()[:, :, ::2, ::2].double(), data.labels, data.classes, "shapes in float64")
    settings = TrainSettings(epochs=2, batch_size=20, clip=0.5, terms=ALIGN, device="cpu", **changes)
    done = fit(model, data, settings)
    return done.model, done.history


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"regularized_fraction": 0.25},
        {"regularize_every": 2},
        {"regularized_fraction": 0.5, "regularize_every": 3, "label_smoothing": 0.1},
    ],
)
def test_the_fast_path_trains_the_same_weights(changes: dict) -> None:
    plain, said = trained(**changes)
    fast, also = trained(**changes, fast=True)
    for one, other in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)
    for entry, twin in zip(also, said, strict=True):
        assert entry["losses"] == pytest.approx(twin["losses"], rel=1e-6)


def batch() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    model = gg.model("lenet", activation="softplus", beta=3, image_size=8, seed=0)
    return model, torch.rand(8, 3, 8, 8), torch.arange(8)


def test_the_penalty_comes_every_few_steps_with_as_many_times_the_weight() -> None:
    model, x, y = batch()
    align = {"cosine": Term(gg.regularizer("cosine"), 2.0)}
    _, once = Objective(align)(model, x, y, seed=5)
    rare = Objective(align, regularize_every=4)
    _, due = rare(model, x, y, seed=5, number=8)
    _, free = rare(model, x, y, seed=5, number=9)
    torch.testing.assert_close(due["cosine"], 4 * once["cosine"])
    assert set(free) == {"loss", "cross_entropy"}
    torch.testing.assert_close(free["cross_entropy"], once["cross_entropy"])


def test_a_term_in_the_place_of_cross_entropy_is_there_at_every_step() -> None:
    model, x, y = batch()
    robust = Objective({"adversarial": Term(gg.regularizer("adversarial", steps=1))}, regularize_every=4)
    _, due = robust(model, x, y, seed=5, number=4)
    _, free = robust(model, x, y, seed=5, number=5)
    torch.testing.assert_close(due["adversarial"], free["adversarial"])


@pytest.mark.parametrize(
    "terms",
    [
        {"l2": {}, "hessian": {}},
        {"l2": {}, "cosine": {}},
        {"adversarial": {"steps": 1}, "l2": {}},
    ],
)
def test_objectives_the_fast_path_does_not_know_are_refused(terms: dict) -> None:
    with pytest.raises(
        gg.UserError, match="fast takes .* as the only term beside cross-entropy, .*, so leave fast out"
    ):
        objective_of(TrainSettings(terms=terms, fast=True))


def test_a_hessian_norm_is_computed_as_written_on_the_fast_path() -> None:
    model, x, y = batch()
    terms = {"hessian": {"weight": 2.0}}
    fast, plain = (
        objective_of(TrainSettings(terms=terms, regularized_fraction=0.5, regularize_every=2, fast=f))
        for f in (True, False)
    )
    assert fast.alignment is None
    for number in (0, 1):
        total, said = fast(model, x, y, seed=3, number=number)
        expected, also = plain(model, x, y, seed=3, number=number)
        torch.testing.assert_close(total, expected, rtol=0, atol=0)
        assert said == also


@pytest.mark.parametrize(
    ("name", "terms", "equal"),
    [
        ("lenet", {}, True),
        ("lenet", {"l2_cosine": {}}, True),
        ("lenet", {"l2_cosine": {"draws": 2}}, False),
        ("lenet", {"hessian": {}}, True),
        ("lenet", {"adversarial": {"steps": 1}}, True),
        ("lenet", {"ssr": {}}, True),
        ("lenet", {"hessian": {}, "max_entropy": {}}, True),
        ("lenet", {"hessian": {}, "l2": {}}, False),
        ("resnet20", {}, True),
        ("resnet20", {"l2_cosine": {}}, False),
        ("resnet20", {"hessian": {}}, True),
    ],
)
def test_the_fast_path_is_taken_for_equal_only_where_it_is(name: str, terms: dict, equal: bool) -> None:
    model = gg.model(name, activation="softplus", beta=3, seed=0)
    assert equal_when_fast(objective_of(TrainSettings(terms=terms)), model) == equal


class Reads(TorchDispatchMode):
    """Operations that make the host wait for values, or bring values from it: a CUDA graph can hold neither."""

    WAITS = (
        "_local_scalar_dense",
        "nonzero",
        "masked_select",
        "equal",
        "lift_fresh",
        "_linalg_eigh",
        "_linalg_svd",
    )

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name in ("index", "index_put_") and any(
            i is not None and i.dtype == torch.bool for i in args[1]
        )
        if masks or name in self.WAITS:
            self.seen.append(name)
        return func(*args, **(kwargs or {}))


def as_if_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step does while a CUDA graph is made of it, on a CPU; random numbers are those of the host."""
    for name, module in list(sys.modules.items()):
        for check, answer in (("is_being_recorded", True), ("may_look_at", False)):
            if name.startswith("gyrograd") and hasattr(module, check):
                monkeypatch.setattr(module, check, lambda _, answer=answer: answer)
    monkeypatch.setattr(random, "_fill", lambda _, keys, shape, *__: torch.full((len(keys), *shape), 0.5))


CAPTURABLE = [entry.factory for entry in gg.available("regularizer").values() if entry.capturable]


@pytest.mark.parametrize("net", ["lenet", "resnet20"])
@pytest.mark.parametrize("kind", CAPTURABLE, ids=lambda kind: kind.__name__)
def test_terms_of_a_recorded_step_never_look_at_a_value(
    kind: Any, net: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_if_recorded(monkeypatch)
    known = {field.name for field in fields(kind)}
    few = {key: n for key, n in {"steps": 2, "points": 3, "search_points": 2}.items() if key in known}
    model = gg.model(net, activation="softplus", beta=3, normalize="cifar10", seed=0).train()
    if kind is Atex:
        few = {"teacher": gg.model(net, seed=1), "weight": 1.0, "eps": 1.0}
    x, y = torch.rand(2, 3, 32, 32), torch.tensor([3, 7])
    objective = Objective({"it": Term(kind(**few))}, fast=True)
    with Reads() as reads:
        objective(model, x, y, seed=torch.arange(2))[0].backward()
    assert not reads.seen


def test_a_term_that_looks_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_recorded(monkeypatch)
    with Reads() as reads:
        float(torch.rand(2).sum())
        torch.as_tensor(0.5, device="cpu")
    assert reads.seen == ["_local_scalar_dense", "lift_fresh"]
    with Reads() as reads:
        torch.linalg.eigvalsh(torch.eye(2))
    assert reads.seen == ["_linalg_eigh"]


def test_settings_that_need_a_second_derivative_are_refused() -> None:
    with pytest.raises(gg.UserError, match="one draw"):
        objective_of(TrainSettings(terms={"l2": {"draws": 2}}, fast=True))
    with pytest.raises(gg.UserError, match="every is 0; give at least 1"):
        TrainSettings(regularize_every=0)
