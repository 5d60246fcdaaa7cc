"""Targets and inputs as Python callers give them: each works, or one sentence says what to give."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import batch, net
from small_attributions import ONE_OF_EACH, small
from torch import Tensor

import gyrograd as gg
from gyrograd.attributions import Gradient
from gyrograd.errors import UserError
from gyrograd.numerics.checks import class_indices
from gyrograd.types import Targets

EVERY = sorted(ONE_OF_EACH)
FORMS = {
    "uint8": lambda t: t.to(torch.uint8),
    "int8": lambda t: t.to(torch.int8),
    "int16": lambda t: t.to(torch.int16),
    "int32": lambda t: t.to(torch.int32),
    "a list": lambda t: t.tolist(),
    "a tuple": lambda t: tuple(t.tolist()),
    "numpy": lambda t: t.numpy(),
    "numpy of 32 bits": lambda t: t.numpy().astype(np.int32),
}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_every_attribution_takes_the_classes_in_any_form(name, form):
    model, (x, target), explain = net("lenet"), batch(2), small(name)
    assert torch.equal(explain(model, x, form(target)), explain(model, x, target))


@pytest.mark.parametrize("name", EVERY)
def test_one_class_may_be_given_for_all_examples(name):
    model, (x, _), explain = net("lenet"), batch(2), small(name)
    expected = explain(model, x, torch.tensor([3, 3]))
    assert torch.equal(explain(model, x, 3), expected)


WRONG = {
    "nothing": (None, "No target is given; name the class .* target=gyrograd.predict"),
    "a truth value": (True, r"The target has shape \(\) for 2 examples"),
    "truth values": ([True, False], "dtype torch.bool; give class indices"),
    "fractions": (torch.tensor([0.5, 1.0]), "dtype torch.float32; give class indices"),
    "words": (["cat", "dog"], "a list that holds other things than class indices"),
    "a word": ("cat", "a str that holds other things than class indices"),
    "too few": ([1], r"The target has shape \(1,\) for 2 examples"),
    "one row each": (torch.zeros(2, 5, dtype=torch.int64), r"The target has shape \(2, 5\)"),
}


@pytest.mark.parametrize(("target", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_target_that_is_none_is_one_sentence(target, words):
    # Past the type checks of the tests, which a caller does not have.
    check = getattr(class_indices, "__wrapped__", class_indices)
    with pytest.raises(UserError, match=words) as caught:
        check(target, torch.rand(2, 3))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("target", [7, -1, [0, 9]])
def test_a_class_the_model_does_not_have_is_refused(target: Targets):
    with pytest.raises(UserError, match="give class indices from 0 to 4"):
        Gradient()(net("lenet"), batch(2)[0], target)


@pytest.mark.parametrize("name", sorted(n for n in EVERY if ONE_OF_EACH[n].differentiable))
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_batch_of_none_is_one_sentence(name, create_graph):
    x, target = batch(2)
    with pytest.raises(UserError, match="at least one example"):
        small(name)(net("lenet"), x[:0], target[:0], create_graph=create_graph)


def test_torch_func_is_one_sentence():
    model, (x, target) = net("lenet"), batch(3)

    def one(x: Tensor, target: Tensor) -> Tensor:
        return Gradient()(model, x[None], target[None])[0]

    with pytest.raises(UserError, match=r"cannot be made inside torch.func .*; give the whole batch at once"):
        torch.func.vmap(one)(x, target)

    def penalty(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(
            _Penalty(model), {f"core.{k}": v for k, v in weights.items()}, (x, target)
        )

    with pytest.raises(UserError, match=r"inside torch.func .*torch.autograd.grad or backward"):
        torch.func.grad(penalty)(dict(model.named_parameters()))


class _Penalty(torch.nn.Module):
    def __init__(self, core: torch.nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return gg.regularizer("l2")(self.core, x, target, seed=0).mean()


def test_attacks_metrics_and_regularizers_take_classes_of_any_width():
    model, (x, target), explain = net("lenet"), batch(2), Gradient()
    narrow = target.to(torch.int16)
    hits = [gg.attack("untargeted_map", eps=0.1, steps=2)(model, explain, x, t).x for t in (target, narrow)]
    assert torch.equal(*hits)
    for name in (
        "insertion",
        "rps",
        "accuracy",
        "infidelity",
        "faithfulness",
        "model_lipschitz",
        "max_sensitivity",
    ):
        one, *others = (gg.metric(name)(model, explain, x, t) for t in (target, narrow, target.tolist()))
        assert all(torch.equal(one, other) for other in others)
    for name in ("l2_cosine", "iga", "ig_norm", "hessian"):
        assert torch.equal(*(gg.regularizer(name)(model, x, t, seed=0).detach() for t in (target, narrow)))
