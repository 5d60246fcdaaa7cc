"""What every attribution promises. Register a new one and all of these run on it."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from bad_inputs import BAD
from nets import batch
from small_attributions import CLASS_BLIND, NEEDS_ATTENTION, NOT_ODD, fitting, small
from torch import nn

import gyrograd as gg
from gyrograd.errors import UserError

ENTRIES = gg.available("attribution")
DIFFERENTIABLE = [name for name, entry in ENTRIES.items() if entry.differentiable]
every = pytest.mark.parametrize("name", sorted(ENTRIES))
every_differentiable = pytest.mark.parametrize("name", sorted(DIFFERENTIABLE))


def fingerprint(model: nn.Module) -> dict[str, object]:
    """All that an attribution could leave behind on a model."""
    return {
        "weights": {key: value.clone() for key, value in model.state_dict().items()},
        "modes": [module.training for module in model.modules()],
        "hooks": [
            [len(getattr(module, kind)) for kind in vars(module) if kind.endswith("_hooks")]
            for module in model.modules()
        ],
        "grads": [parameter.grad for parameter in model.parameters()],
        "needs": [parameter.requires_grad for parameter in model.parameters()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
    }


def same(before: dict[str, object], after: dict[str, object]) -> bool:
    weights = zip(before.pop("weights").values(), after.pop("weights").values(), strict=True)
    return before == after and all(torch.equal(a, b) for a, b in weights)


@every
def test_maps_are_finite_shaped_like_x_and_carry_no_graph(name):
    x, target = batch()
    maps = small(name)(fitting(name, "residual"), x, target)
    assert maps.shape == x.shape
    assert maps.dtype == x.dtype
    assert torch.isfinite(maps).all()
    assert not maps.requires_grad
    assert (maps.abs().flatten(1).sum(1) > 0).all()


@every
def test_the_input_is_left_as_it_was(name):
    x, target = batch()
    x.requires_grad_()
    before = x.detach().clone()
    small(name)(fitting(name, "functional_relu"), x, target)
    assert torch.equal(x.detach(), before)
    assert x.grad is None


@every
def test_examples_do_not_see_one_another(name):
    x, target = batch(4)
    model, explain = fitting(name, "residual"), small(name)
    together = explain(model, x, target)
    changed = x.clone()
    changed[1:] = 1 - changed[1:]
    torch.testing.assert_close(explain(model, changed, target)[0], together[0], rtol=1e-10, atol=1e-12)
    for i in range(4):
        torch.testing.assert_close(
            explain(model, x[i : i + 1], target[i : i + 1])[0], together[i], rtol=1e-9, atol=1e-11
        )


@every
def test_nothing_is_left_behind_on_a_model_in_training_mode(name):
    x, target = batch()
    model = fitting(name, "residual").train()
    list(model.children())[3].eval()
    before, random_before = fingerprint(model), torch.get_rng_state()
    small(name)(model, x, target)
    assert same(before, fingerprint(model))
    assert torch.equal(torch.get_rng_state(), random_before)


@every
def test_training_mode_does_not_change_the_map(name):
    x, target = batch()
    model, explain = fitting(name, "residual"), small(name)
    calm = explain(model, x, target)
    assert torch.equal(explain(copy.deepcopy(model).train(), x, target), calm)


@every
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_batch_sizes_1_7_and_64_agree(name, precision):
    x, target = batch(64)
    model, x, explain = fitting(name, "lenet").to(precision), x.to(precision), small(name)
    whole = explain(model, x, target)
    # Batches of another size go through other kernels, which round otherwise; what SHAP adds up is larger than its map.
    allowed = {torch.float32: 1e-4, torch.float64: 1e-11}[precision] * whole.abs().max()
    for size, rows in ((1, 8), (7, 64)):
        parts = [explain(model, x[i : i + size], target[i : i + size]) for i in range(0, rows, size)]
        found = torch.cat(parts)
        assert (found - whole[: len(found)]).abs().max() <= allowed


@every
def test_a_small_budget_of_rows_gives_the_same_map(name):
    x, target = batch(5)
    model = fitting(name, "residual")
    whole = small(name)(model, x, target)
    torch.testing.assert_close(small(name, max_batch=3)(model, x, target), whole, rtol=1e-9, atol=1e-11)


@every
def test_maps_are_made_inside_no_grad_too(name):
    x, target = batch()
    model, explain = fitting(name, "lenet"), small(name)
    with torch.no_grad():
        inside = explain(model, x, target)
    assert torch.equal(inside, explain(model, x, target))


@every
def test_the_class_explained_matters_unless_the_method_is_blind_to_it(name):
    x, target = batch()
    model, explain = fitting(name, "lenet"), small(name)
    same = torch.allclose(explain(model, x, target), explain(model, x, (target + 1) % 5))
    assert same == (name in CLASS_BLIND)


@every
def test_the_weights_matter(name):
    x, target = batch()
    explain = small(name)
    assert not torch.allclose(
        explain(fitting(name, "lenet", seed=0), x, target), explain(fitting(name, "lenet", seed=1), x, target)
    )


@every
@pytest.mark.parametrize("quantity", ["logit", "probability", "log_probability", "loss"])
def test_every_quantity_can_be_explained(name, quantity):
    x, target = batch()
    maps = small(name, quantity=quantity)(fitting(name, "lenet"), x, target)
    assert torch.isfinite(maps).all()
    if quantity == "loss":
        opposite = small(name, quantity="log_probability")(fitting(name, "lenet"), x, target)
        if name not in NOT_ODD:
            torch.testing.assert_close(maps, -opposite)


@every
def test_it_runs_on_a_smoothed_model(name):
    x, target = batch(2)
    calm = gg.smoothed(fitting(name, "residual"), gg.kernel("uniform", eps=0.05), draws=3, seed=1)
    maps = small(name)(calm, x, target)
    assert torch.isfinite(maps).all()
    assert (maps.abs().flatten(1).sum(1) > 0).all()


@every
def test_same_settings_are_equal_and_print_their_settings(name):
    assert small(name) == small(name)
    assert hash(small(name)) == hash(small(name))
    assert "quantity='logit'" in repr(small(name))


@every_differentiable
def test_the_graph_reaches_x_and_every_weight(name):
    x, target = batch(2)
    model = fitting(name, "residual")
    x.requires_grad_()
    maps = small(name)(model, x, target, create_graph=True)
    # The last bias shifts a logit and no slope of it, so a map of a logit cannot depend on it.
    weights = {key: value for key, value in model.named_parameters() if key != "head.bias"}
    if name in NEEDS_ATTENTION:  # attention is all they see of the net
        weights = {key: value for key, value in weights.items() if key.startswith(("patch", "qkv.w"))}
    grads = torch.autograd.grad(
        (maps * torch.linspace(-1, 1, maps.numel()).view_as(maps)).sum(), [x, *weights.values()]
    )
    for what, gradient in zip(["x", *weights], grads, strict=True):
        assert gradient.abs().sum() > 0, what


@every_differentiable
def test_the_map_is_the_same_with_and_without_a_graph(name):
    x, target = batch()
    model, explain = fitting(name, "residual"), small(name)
    with_graph = explain(model, x.requires_grad_(), target, create_graph=True)
    torch.testing.assert_close(
        with_graph.detach(), explain(model, x.detach(), target), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("name", sorted(set(ENTRIES) - set(DIFFERENTIABLE)))
def test_a_map_that_cannot_be_differentiated_says_so(name):
    x, target = batch()
    with pytest.raises(UserError, match="transfer"):
        small(name)(fitting(name, "lenet"), x, target, create_graph=True)


@pytest.fixture(scope="module")
def complaints() -> dict[str, dict[str, str]]:
    """What each attribution says to each bad input, where no run-time type check of the tests stands before it."""
    script = Path(__file__).parents[1] / "bad_inputs.py"
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@every
@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_input_gives_one_sentence_that_names_the_fix(complaints, name, case):
    assert BAD[case][1] in complaints[name][case]
    assert "\n" not in complaints[name][case]


@every
def test_an_unknown_quantity_names_the_nearest(name):
    with pytest.raises(UserError, match="did you mean 'probability'"):
        small(name, quantity="probabilty")
