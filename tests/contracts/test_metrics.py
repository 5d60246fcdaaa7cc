"""What every metric promises. Register a new one and all of these run on it."""

from __future__ import annotations

import inspect
import json
import math
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from nets import CLASSES, batch, net

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.numerics import random

ENTRIES = gg.available("metric")
SMALL: dict[str, dict[str, Any]] = {
    "random_perturbation_similarity": {"draws": 4},
    "local_lipschitz": {"draws": 5},
    "model_lipschitz": {"draws": 5},
    "model_smoothness": {"draws": 5},
    "max_sensitivity": {"draws": 5},
    "infidelity": {"draws": 5},
    "faithfulness": {"grid": 3},
    "insertion": {"ratios": (0.0, 0.3, 0.7, 1.0)},
    "deletion": {"ratios": (0.0, 0.3, 0.7, 1.0)},
    "adversarial_insertion": {"ratios": (0.0, 0.3, 0.7, 1.0)},
    "top_k_intersection": {"k": 10},
    "road": {"ratios": (0.2, 0.6)},
    "soft_stability": {"draws": 40, "grid": 4},
    "top_k_nearby": {"k": 20},
    "certified_pixels": {"draws": 30, "held_out": 5, "radius": 0.005},
    "certified_cosine": {"draws": 30, "held_out": 5, "radius": 0.005, "alpha": 0.5},
}
DRAWN = (
    "random_perturbation_similarity",
    "local_lipschitz",
    "model_lipschitz",
    "max_sensitivity",
    "infidelity",
    "road",
    "certified_pixels",
    "certified_cosine",
    "soft_stability",
)
WITHOUT_MAP = ("accuracy", "model_lipschitz", "model_smoothness")
every = pytest.mark.parametrize("name", sorted(ENTRIES))


def small(name: str, **settings: Any) -> Any:
    return gg.metric(name, **(SMALL.get(name, {}) | settings))


def takes_perturbed(name: str) -> bool:
    metric = small(name)
    attack_response = "perturbed" in inspect.signature(type(metric).__call__).parameters
    return attack_response and getattr(metric, "attacked", True)


ATTACK_RESPONSES = sorted(name for name in ENTRIES if takes_perturbed(name))
BATCHED = sorted(
    name for name, entry in ENTRIES.items() if "max_batch" in inspect.signature(entry.factory).parameters
)


def moved(x: torch.Tensor) -> torch.Tensor:
    """Stands in for an attack's result: a fixed push, the same for an example in any batch."""
    return (x + 0.1 * torch.sin(40 * x)).clamp(0, 1)


def measure(name, model, x, target, attribution=None, seed=0, **settings):
    more = further(name, x)
    attribution = attribution or gg.attribution("gradient")
    return small(name, **settings)(model, attribution, x, target, seed=seed, **more)


def further(name: str, x: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a metric is told besides: the attacked images, or where the object is."""
    if takes_perturbed(name):
        return {"perturbed": moved(x)}
    return {"mask": halves(x)} if takes_masks(name) else {}


def takes_masks(name: str) -> bool:
    return "mask" in inspect.signature(type(small(name)).__call__).parameters


def halves(x: torch.Tensor) -> torch.Tensor:
    """Stands in for objects: where an image is brighter than its mean."""
    bright = x.detach().nan_to_num()[:, 0]
    mask = bright > bright.mean((1, 2), keepdim=True) if len(x) else bright > 0
    mask[:, 0, 0] = True
    return mask


def zero_map(model, x, target, *, create_graph=False):
    return torch.zeros_like(x)


@pytest.mark.parametrize("name", sorted(set(ENTRIES) - set(WITHOUT_MAP)))
def test_a_map_that_holds_nan_has_no_value_and_no_guarantee(name):
    """Sorting takes NaN for the largest value, so that such a map would be ranked like any other."""
    x, target = batch(3)

    def holed(model, x, target, *, create_graph=False):
        map = gg.attribution("gradient")(model, x, target)
        hole = torch.zeros_like(map).index_fill_(3, torch.tensor([0]), 1).bool()
        return torch.where(hole & (target == 0).view(-1, 1, 1, 1), torch.nan, map)

    target = torch.tensor([0, 1, 2])
    values = measure(name, net("residual"), x, target, gg.attribution(holed))
    whole = measure(name, net("residual"), x, target)
    nothing_shown = {"certified_pixels": 0.0, "certified_cosine": -1.0}
    expected = nothing_shown.get(name, math.nan)
    torch.testing.assert_close(values[0], values.new_tensor(expected), equal_nan=True)
    torch.testing.assert_close(values[1:], whole[1:])


@every
def test_a_row_of_pixels_has_a_number_or_a_sentence(name):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(15, 3)).double().eval()
    x, target = torch.rand(2, 3, 1, 5, dtype=torch.float64), torch.tensor([0, 2])
    refused = name in {"shift_similarity", "rotation_similarity", "similarity_to_target", "faithfulness"}
    with pytest.raises(UserError, match="1 x 5 pixels") if refused else nullcontext():
        values = measure(name, model, x, target, **({"k": 1} if "k" in SMALL.get(name, {}) else {}))
        assert values.shape == (2,)


@every
def test_one_finite_number_for_each_example_in_the_declared_range(name):
    x, target = batch(5)
    values = measure(name, net("residual"), x, target)
    low, high = small(name).range
    assert values.shape == (5,)
    assert values.dtype == x.dtype
    assert torch.isfinite(values).all()
    assert not values.requires_grad
    assert low < high
    assert (values >= low).all()
    assert (values <= high).all()


@every
def test_a_direction_is_declared(name):
    assert ENTRIES[name].direction in {"higher is better", "lower is better"}


@every
def test_values_do_not_depend_on_the_batch_split(name):
    x, target = batch(6)
    model, keys = net("lenet"), random.keys(3, 6)
    whole = measure(name, model, x, target, seed=3)
    for size in (1, 4):
        parts = [
            measure(name, model, x[i : i + size], target[i : i + size], seed=keys[i : i + size])
            for i in range(0, 6, size)
        ]
        torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.parametrize("max_batch", [1, 3, 7])
def test_a_small_budget_of_rows_gives_the_same_values(name, max_batch):
    x, target = batch(4)
    model = net("lenet")
    whole = measure(name, model, x, target)
    torch.testing.assert_close(
        measure(name, model, x, target, max_batch=max_batch), whole, rtol=1e-9, atol=1e-11
    )


@every
def test_examples_do_not_see_one_another(name):
    x, target = batch(3)
    model = net("residual")
    before = measure(name, model, x, target)
    other = x.clone()
    other[1:] = 1 - other[1:]
    torch.testing.assert_close(measure(name, model, other, target)[0], before[0], rtol=1e-9, atol=1e-11)


@every
def test_nothing_is_left_behind_on_a_model_in_training_mode(name):
    x, target = batch(3)
    model = net("residual")
    calm = measure(name, model, x, target)
    model.train()
    model.bn2.eval()
    modes = [module.training for module in model.modules()]
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    chance, pixels = torch.get_rng_state(), x.clone()
    live = measure(name, model, x, target)
    torch.testing.assert_close(live, calm, rtol=1e-10, atol=1e-12)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert torch.equal(torch.get_rng_state(), chance)
    assert torch.equal(x, pixels)


@every
def test_an_input_that_requires_grad_changes_nothing(name):
    x, target = batch(2)
    model = net("lenet")
    plain = measure(name, model, x, target)
    values = measure(name, model, x.clone().requires_grad_(), target)
    assert not values.requires_grad
    torch.testing.assert_close(values, plain)


@every
def test_the_seed_decides_the_draws(name):
    x, target = batch(3)
    model = net("residual")
    first = measure(name, model, x, target, seed=1)
    assert torch.equal(measure(name, model, x, target, seed=1), first)
    again = measure(name, model, x, target, seed=2)
    drawn = name in {*DRAWN, "model_smoothness"}
    assert bool((again != first).any()) is drawn  # a share of few pixels may be the same by chance


@every
def test_zero_maps_are_defined(name):
    x, target = batch(3)
    values = measure(name, net("lenet"), x, target, attribution=zero_map)
    assert not values.isnan().any()
    calm = {"random_perturbation_similarity": 1, "similarity_to_clean": 1, "rank_correlation": 1}
    still = {"local_lipschitz": 0, "max_sensitivity": 0, "cosine_distance": 0, "center_dislocation": 0}
    if name in calm | still:
        assert (values == (calm | still)[name]).all()


@every
def test_the_map_matters_unless_the_metric_is_about_the_model(name):
    x, target = batch(3)
    model = net("residual")
    gradient = measure(name, model, x, target)
    other = measure(name, model, x, target, attribution=gg.attribution("input_x_gradient"))
    assert bool((gradient == other).all()) is (name in WITHOUT_MAP)


@every
def test_a_smoothed_model_is_a_model(name):
    x, target = batch(2)
    calm = gg.smoothed(net("lenet"), gg.kernel("gaussian", sigma=0.05), draws=3, seed=1)
    assert torch.isfinite(measure(name, calm, x, target)).all()


@every
def test_same_settings_are_equal_and_print_themselves(name):
    assert small(name) == small(name)
    assert hash(small(name)) == hash(small(name))
    for value in SMALL.get(name, {}).values():
        assert repr(value) in repr(small(name))


@every
def test_the_clean_map_is_made_once(name):
    calls = []

    def counted(model, x, target, *, create_graph=False):
        calls.append(len(x))
        return gg.attribution("gradient")(model, x, target, create_graph=create_graph)

    x, target = batch(3)
    measure(name, net("lenet"), x, target, attribution=counted)
    draws = (
        small(name).draws
        if name in {"random_perturbation_similarity", "local_lipschitz", "max_sensitivity"}
        else 0
    )
    if hasattr(small(name), "change"):
        draws = small(name).change.variants
    if name == "parameter_randomization":  # a map after each layer
        draws = len(list(small(name).stages(net("lenet"))))
    expected = 0 if name in WITHOUT_MAP else 3 * (1 + draws)
    if name.startswith("certified"):  # of the smoothed map: the clean one is never asked for
        expected = 3 * (small(name).held_out + small(name).draws)
    # Attack responses need the attacked map as well; two of them need nothing else.
    if takes_perturbed(name) and name not in {"adversarial_insertion", "similarity_to_target"}:
        expected += 3
    assert sum(calls) == expected


@pytest.mark.parametrize("name", ATTACK_RESPONSES)
def test_attack_responses_without_perturbed_inputs_name_the_fix(name):
    x, target = batch(2)
    with pytest.raises(
        UserError, match=r"run an attack and pass its result: metric\(..., perturbed=result.x\)"
    ):
        small(name)(net("lenet"), gg.attribution("gradient"), x, target)


@every
def test_an_unknown_setting_is_refused(name):
    with pytest.raises(UserError, match="has no setting 'nonsense'"):
        gg.metric(name, nonsense=1)


BAD = {
    "empty batch": (lambda x, t: (x[:0], t[:0]), "at least one example"),
    "NaN": (lambda x, t: (x.clone().fill_(math.nan), t), "NaN"),
    "bytes": (lambda x, t: ((x * 255).byte(), t), "floating point"),
    "target out of range": (lambda x, t: (x, t + CLASSES), "from 0 to 4"),
    "negative target": (lambda x, t: (x, t - 9), "from 0 to 4"),
    "target too short": (lambda x, t: (x, t[:1]), "one class index for each"),
    "seeds too few": (lambda x, t: (x, t), "one key for each"),
    "perturbed of another shape": (lambda x, t: (x, t), "pass the attack's result for this x"),
}
# Cases that are no mistake for the other metrics, which draw nothing or look at no attack.
ONLY_FOR = {"seeds too few": (*DRAWN, "model_smoothness"), "perturbed of another shape": ATTACK_RESPONSES}


def complaint(name: str, case: str) -> str:
    """The sentence a metric answers bad input with, or what happened instead."""
    x, target = BAD[case][0](*batch(3))
    seed = torch.arange(2) if case == "seeds too few" else 0
    perturbed = x[:, :, 1:] if case == "perturbed of another shape" else x
    more = {"perturbed": perturbed} if takes_perturbed(name) else further(name, x.double())
    try:
        small(name)(net("lenet"), gg.attribution("gradient"), x, target, seed=seed, **more)
    except UserError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__} instead of a sentence: {error}"
    return "no complaint"


@pytest.fixture(scope="module")
def complaints() -> dict[str, dict[str, str]]:
    """Made by this file as a script, where no run-time type check of the tests stands before the metrics."""
    here = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    result = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=240, env=here)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@every
@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_input_gives_one_sentence_that_names_the_fix(complaints, name, case):
    said = complaints[name][case]
    if name not in ONLY_FOR.get(case, ENTRIES):
        assert said == "no complaint"
    else:
        assert BAD[case][1] in said
    assert "\n" not in said


if __name__ == "__main__":
    print(json.dumps({name: {case: complaint(name, case) for case in BAD} for name in ENTRIES}))
