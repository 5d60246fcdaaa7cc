"""What every regulariser promises. Register a new one and all of these run on it."""

from __future__ import annotations

import copy
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from differences import derivative_errors
from nets import CLASSES, batch, net
from torch import nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.models import Normalized
from gyrograd.numerics import random

ENTRIES = gg.available("regularizer")
SMALL: dict[str, dict[str, Any]] = {
    "adversarial": {"steps": 3},
    "ig_norm": {"steps": 2, "points": 3, "search_points": 2},
    "iga": {"steps": 2},
    "atex": {"draws": 2, "teacher": net("lenet", seed=9)},
}
ALIGNMENT = {"l2", "cosine", "l2_cosine"}
DRAWN = {*ALIGNMENT, "hessian", "ig_norm", "iga", "atex"}
USES_LABELS = {*DRAWN, "adversarial"}
IN_THE_BOX = {"adversarial", "ig_norm", "iga"}
REPLACES_THE_LOSS = {"adversarial", "iga", "atex"}
HELD = {"adversarial": "images", "ig_norm": "images", "iga": "images", "atex": "samples"}
"""What is found first and then a constant to the weights."""
VARIANTS = [("iga", {"protocol": "reference"}), ("atex", {"protocol": "reference", "across": 2})]
every = pytest.mark.parametrize("name", sorted(ENTRIES))
every_drawn = pytest.mark.parametrize("name", sorted(DRAWN))


def small(name: str, **settings: Any) -> Any:
    return gg.regularizer(name, **(SMALL.get(name, {}) | settings))


def normalized(model: nn.Module) -> nn.Module:
    """The net behind channel means and deviations that differ, so that the input space matters."""
    return Normalized(model, (0.4, 0.5, 0.6), (0.2, 0.3, 0.5)).double().train(model.training)


def training(model: nn.Module) -> nn.Module:
    return model.train()


def weight_error(penalty: Any, model: nn.Module) -> float:
    """Autograd against central differences of a random mix of the penalties."""
    x, y = batch(3)
    mix = torch.tensor([0.7, -1.1, 1.3], dtype=torch.float64)

    def total() -> torch.Tensor:
        return (mix * penalty(model, x, y, seed=5)).sum()

    return derivative_errors(total, total(), dict(model.named_parameters()), bar=1e-5, floor=1e-4)["weights"]


def hold(monkeypatch: pytest.MonkeyPatch, penalty: Any, model: nn.Module, how: str) -> None:
    """What the penalty finds first stays what it was, however the weights are moved."""
    found = getattr(penalty, how)(model, *batch(3), seed=5)
    monkeypatch.setattr(type(penalty), how, lambda *_, **__: found)


@pytest.mark.parametrize("case", ["mlp", "residual", "residual in training mode", "residual, frozen"])
@pytest.mark.parametrize(
    ("name", "settings"), [*((name, {}) for name in sorted(ENTRIES)), *VARIANTS], ids=lambda v: str(v)
)
def test_derivatives_to_every_weight_match_finite_differences(monkeypatch, name, settings, case):
    model = normalized(net(case.split()[0].strip(",")))
    if "frozen" in case:
        settings = settings | {"batchnorm": "frozen"}
    if "training" in case or "frozen" in case:
        model.train()
    if name in ALIGNMENT:
        # With a constant clean gradient the derivative is deliberately not that of the value.
        settings = settings | {"detach_clean": False}
    penalty = small(name, **settings)
    if name in HELD:
        hold(monkeypatch, penalty, model, HELD[name])
    assert weight_error(penalty, model) < 1e-4


@every
def test_one_finite_number_each_with_a_graph_to_the_weights(name):
    x, y = batch(4)
    model = net("residual")
    penalty = small(name)(model, x, y, seed=0)
    assert penalty.shape == (4,)
    assert penalty.dtype == x.dtype
    assert torch.isfinite(penalty).all()
    slopes = torch.autograd.grad(penalty.sum(), [model.stem.weight, model.conv2.weight, model.head.weight])
    assert all((slope != 0).any() for slope in slopes)


@every
def test_a_step_against_the_gradient_lowers_the_penalty_in_float32(name):
    x, y = (part.float() if part.is_floating_point() else part for part in batch(8))
    model = net("lenet").float().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    values = []
    for _ in range(12):
        penalty = small(name)(model, x, y, seed=0).mean()
        optimizer.zero_grad()
        penalty.backward()
        optimizer.step()
        values.append(float(penalty.detach()))
    assert values[-1] < values[0] - 0.01 * abs(values[0])


@every
def test_values_do_not_depend_on_the_batch_split(name):
    x, y = batch(5)
    model, keys = normalized(net("residual")), random.keys(3, 5)
    whole = small(name)(model, x, y, seed=3)
    for size in (1, 3):
        parts = [
            small(name)(model, x[i : i + size], y[i : i + size], seed=keys[i : i + size])
            for i in range(0, 5, size)
        ]
        torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-8, atol=1e-12)


@every
def test_examples_do_not_see_one_another_in_evaluation_mode(name):
    x, y = batch(3)
    model = net("residual")
    before = small(name)(model, x, y, seed=0)
    other = x.clone()
    other[1:] = 1 - other[1:]
    after = small(name)(model, other, y, seed=0)
    torch.testing.assert_close(after[0], before[0], rtol=1e-9, atol=1e-12)
    assert (after[1:] != before[1:]).all()


@every
def test_an_int_seed_repeats_and_leaves_torchs_generator_alone(name):
    x, y = batch(2)
    model, chance = net("lenet"), torch.get_rng_state()
    first = small(name)(model, x, y, seed=1)
    assert torch.equal(small(name)(model, x, y, seed=1), first)
    assert torch.equal(torch.get_rng_state(), chance)
    again = small(name)(model, x, y, seed=2)
    assert bool((again != first).all()) is (name in DRAWN)


@every_drawn
def test_no_seed_draws_anew_and_manual_seed_governs_it(name):
    x, y = batch(2)
    model, penalty = net("lenet"), small(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        first, second = penalty(model, x, y), penalty(model, x, y)
        torch.manual_seed(7)
        assert torch.equal(penalty(model, x, y), first)
    assert (first != second).all()


@every
@pytest.mark.parametrize("batchnorm", ["batch", "train", "frozen"])
def test_running_statistics_follow_the_batchnorm_setting(name, batchnorm):
    x, y = batch(3)
    model = training(net("residual"))
    model.bn2.eval()  # a layer someone froze stays frozen
    modes = [module.training for module in model.modules()]
    tracking = [module.track_running_stats for module in (model.bn1, model.bn2)]
    state = copy.deepcopy(model.state_dict())
    small(name, batchnorm=batchnorm)(model, x, y, seed=0)
    moved = {key for key, value in model.state_dict().items() if not torch.equal(value, state[key])}
    followed = {f"bn1.{part}" for part in ("running_mean", "running_var", "num_batches_tracked")}
    assert moved == (followed if batchnorm == "train" else set())
    assert [module.training for module in model.modules()] == modes
    assert [module.track_running_stats for module in (model.bn1, model.bn2)] == tracking
    assert all(weight.grad is None for weight in model.parameters())


@every
def test_batch_statistics_matter_unless_they_are_frozen(name):
    x, y = batch(3)
    calm = small(name)(net("residual"), x, y, seed=0)
    live = {
        how: small(name, batchnorm=how)(training(net("residual")), x, y, seed=0)
        for how in ("batch", "train", "frozen")
    }
    torch.testing.assert_close(live["frozen"], calm, rtol=1e-10, atol=0)
    torch.testing.assert_close(live["batch"], live["train"], rtol=1e-10, atol=0)
    assert (live["batch"] != calm).all()


@every
def test_an_error_in_the_model_leaves_its_layers_as_they_were(name):
    model = training(net("residual"))
    model.head = nn.Linear(3, CLASSES).double()  # does not fit
    x, y = batch(2)
    for statistics in ("frozen", "batch"):
        with pytest.raises(UserError, match="cannot take images of .*RuntimeError") as caught:
            small(name, batchnorm=statistics)(model, x, y, seed=0)
        assert isinstance(caught.value.__cause__, RuntimeError)
    assert all(layer.training and layer.track_running_stats for layer in (model.bn1, model.bn2))


@every
def test_without_grad_mode_the_values_are_the_same_and_hold_no_graph(name):
    x, y = batch(2)
    model = net("lenet")
    with torch.no_grad():
        calm = small(name)(model, x, y, seed=0)
    assert not calm.requires_grad
    torch.testing.assert_close(calm, small(name)(model, x, y, seed=0).detach(), rtol=1e-10, atol=0)


@pytest.mark.parametrize("name", sorted(set(ENTRIES) - IN_THE_BOX))
def test_points_of_a_plane_are_inputs_too(name):
    model, other = (
        nn.Sequential(nn.Linear(2, 8), nn.Softplus(3), nn.Linear(8, 2)).double() for _ in range(2)
    )
    x, y = torch.rand(4, 2, dtype=torch.float64), torch.tensor([0, 1, 1, 0])
    penalty = small(name, teacher=other) if name == "atex" else small(name)
    assert torch.isfinite(penalty(model, x, y)).all()


@every
def test_whole_objectives_say_that_they_take_the_place_of_the_clean_loss(name):
    assert gg.available("regularizer")[name].replaces_cross_entropy is (name in REPLACES_THE_LOSS)


@every
def test_same_settings_are_equal_and_print_themselves(name):
    assert small(name) == small(name)
    assert hash(small(name)) == hash(small(name))
    assert small(name) != small(name, batchnorm="frozen")
    assert "batchnorm='frozen'" in repr(small(name, batchnorm="frozen"))


@every
def test_an_unknown_setting_is_refused(name):
    with pytest.raises(UserError, match="has no setting 'nonsense'"):
        gg.regularizer(name, nonsense=1)


@every
def test_an_unknown_batchnorm_is_refused(name):
    with pytest.raises(UserError, match="There is no batchnorm 'frozne': did you mean 'frozen'?"):
        gg.regularizer(name, batchnorm="frozne")


BAD = {
    "empty batch": (lambda x, y: (x[:0], y[:0]), "at least one example"),
    "NaN": (lambda x, y: (x.clone().fill_(math.nan), y), "NaN"),
    "bytes": (lambda x, y: ((x * 255).byte(), y), "floating point"),
    "label out of range": (lambda x, y: (x, y + CLASSES), "from 0 to 4"),
    "labels too few": (lambda x, y: (x, y[:1]), "one class index for each"),
    "labels in a list": (lambda x, y: (x, y.tolist()), "torch.tensor"),
    "labels of floats": (lambda x, y: (x, y.double()), "integers"),
    "seeds too few": (lambda x, y: (x, y), "one key for each"),
    "clean gradient of another shape": (lambda x, y: (x, y), "give the gradient at x"),
}


def complaint(name: str, case: str) -> str:
    """The sentence a regulariser answers bad input with, or what happened instead."""
    x, y = BAD[case][0](*batch(3))
    penalty, more = small(name), {"seed": torch.arange(2) if case == "seeds too few" else 0}
    if case.startswith("clean") and name in ALIGNMENT:
        penalty, more = penalty.terms, {"clean": x[:, :1]}
    try:
        penalty(net("lenet"), x, y, **more)
    except UserError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__} instead of a sentence: {error}"
    return "no complaint"


@pytest.fixture(scope="module")
def complaints() -> dict[str, dict[str, str]]:
    """Made by this file as a script, where no run-time type check of the tests stands before the regularisers."""
    here = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    result = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=240, env=here)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@every
@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_input_gives_one_sentence_that_names_the_fix(complaints, name, case):
    said = complaints[name][case]
    concerned = {"label": USES_LABELS, "seeds": USES_LABELS, "clean": ALIGNMENT}
    if case == "labels in a list":
        concerned["label"] = USES_LABELS - {"atex"}  # which takes one
    if name in next((names for key, names in concerned.items() if case.startswith(key)), ENTRIES):
        assert BAD[case][1] in said
    else:
        assert said == "no complaint"
    assert "\n" not in said


if __name__ == "__main__":
    print(json.dumps({name: {case: complaint(name, case) for case in BAD} for name in ENTRIES}))
