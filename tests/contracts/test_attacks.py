"""What every attack promises. Register a new one and all of these run on it."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from attacked_nets import EPS, fingerprint, pictures, small_attack, trained
from bad_attack_inputs import BAD
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import batch, net

import gyrograd as gg
from gyrograd.attacks import Noise, TopK, engine, transfer
from gyrograd.numerics import random
from gyrograd.numerics.balls import ball

ENTRIES = gg.available("attack")
NAMES = sorted(ENTRIES)
PROTOCOLS = {name: e.factory.protocols for name, e in ENTRIES.items() if hasattr(e.factory, "protocols")}
ON_MAPS = sorted(PROTOCOLS)
PUBLISHED = [(name, protocol) for name in ON_MAPS for protocol in PROTOCOLS[name]]
every = pytest.mark.parametrize("name", NAMES)
every_on_maps = pytest.mark.parametrize("name", ON_MAPS)
every_protocol = pytest.mark.parametrize(("name", "protocol"), PUBLISHED)
GRADIENT = gg.attribution("gradient")


def seen(result) -> dict[str, torch.Tensor]:
    names = [
        "x",
        "map_clean",
        "map",
        "start",
        "value",
        "prediction_kept",
        "stuck",
        "linf",
        "l2",
        "steps",
        "target",
    ]
    return {name: getattr(result, name) for name in names}


def assert_same(one, other, **tolerance) -> None:
    for name, column in seen(one).items():
        torch.testing.assert_close(column, seen(other)[name], equal_nan=True, msg=name, **tolerance)


def test_the_design_s_seven_attacks_and_auto_are_registered():
    wanted = {"targeted_map", "untargeted_map", "top_k", "mass_center", "manipulate", "random", "pgd", "auto"}
    assert set(NAMES) == wanted
    assert set(ON_MAPS) == wanted - {"random", "pgd", "auto"}


@every
@settings(max_examples=8)
@given(
    eps=st.sampled_from([0.0, 1e-4, 0.03, 0.5, 3.0]),
    norm=st.sampled_from(["linf", "l2"]),
    seed=st.integers(0, 2**63),
    edge=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_images_stay_in_the_ball_and_in_the_box(name, eps, norm, seed, edge):
    eps = min(eps, 1.0) if norm == "linf" else eps  # larger radii are refused: pixels lie in [0, 1]
    x, target = batch(2, seed=seed % 1000)
    x[:, :, ::2] = edge
    x = x.float()
    hit = small_attack(name, eps=eps, norm=norm)(net("mlp").float(), GRADIENT, x, target, seed=seed)
    assert ((hit.x >= 0) & (hit.x <= 1)).all()
    assert (ball(norm, 0).norm((hit.x - x).double()) <= eps + 1e-6).all()


@every_protocol
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_every_protocol_stays_in_the_ball_and_in_the_box(name, protocol, norm):
    x, target = batch(3, seed=5)
    eps = 0.4 if norm == "l2" else 0.02
    hit = gg.attack(name, eps=eps, norm=norm, protocol=protocol, steps=6)(net("lenet"), GRADIENT, x, target)
    assert ball(norm, eps).inside(x, hit.x - x, tol=1e-12).all()
    assert (ball(norm, eps).norm(hit.x - x) > 0).any()


@every
def test_same_seed_same_result_and_the_global_generator_is_not_touched(name):
    x, target = batch(3)
    attack, model = small_attack(name), net("residual")
    before = torch.get_rng_state()
    first = attack(model, GRADIENT, x, target, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert_same(attack(model, GRADIENT, x, target, seed=7), first, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["random", "untargeted_map", "mass_center"])
def test_another_seed_gives_another_result_where_the_start_is_random(name):
    x, target = batch(2)
    one, other = (small_attack(name)(net("lenet"), GRADIENT, x, target, seed=seed) for seed in (0, 1))
    assert not torch.equal(one.x, other.x)


@every
def test_results_do_not_depend_on_the_batch(name):
    x, target = batch(5, seed=2)
    attack, model, seeds = small_attack(name), net("residual"), random.keys(3, 5)
    whole = attack(model, GRADIENT, x, target, seed=3)
    for i in range(5):
        rows = slice(i, i + 1)
        alone = attack(model, GRADIENT, x[rows], target[rows], seed=seeds[rows])
        for key, column in seen(alone).items():
            torch.testing.assert_close(column[0], seen(whole)[key][i], rtol=1e-9, atol=1e-10, msg=key)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "random"])
def test_a_small_budget_of_rows_gives_the_same_result(name):
    x, target = batch(5)
    model = net("lenet")
    whole = small_attack(name)(model, GRADIENT, x, target)
    assert_same(small_attack(name, max_batch=2)(model, GRADIENT, x, target), whole, rtol=1e-9, atol=1e-10)


@every
def test_a_radius_of_zero_returns_x(name):
    x, target = batch(2)
    hit = small_attack(name, eps=0)(net("lenet"), GRADIENT, x, target)
    assert torch.equal(hit.x, x)
    assert torch.equal(hit.map, hit.map_clean)
    assert torch.equal(hit.value, hit.start)
    assert hit.prediction_kept.all()
    assert (hit.budget_used == 0).all()
    assert hit.flags == ()


# `auto` goes on from radius to radius.
@pytest.mark.parametrize("name", [name for name in NAMES if name != "auto"])
def test_several_radii_give_what_each_gives_alone(name, monkeypatch):
    x, target = batch(2)
    model, radii = net("lenet"), [0.01, 0.0, 0.05]
    in_turn = small_attack(name, eps=radii)(model, GRADIENT, x, target)
    assert [hit.eps for hit in in_turn] == radii
    for eps, hit in zip(radii, in_turn, strict=True):
        assert_same(hit, small_attack(name, eps=eps)(model, GRADIENT, x, target), rtol=0, atol=0)
    monkeypatch.setattr(engine, "_radii_at_once", lambda *_: True)  # as on a GPU
    for hit, one in zip(small_attack(name, eps=radii)(model, GRADIENT, x, target), in_turn, strict=True):
        assert_same(hit, one, rtol=1e-8, atol=1e-10)


@every
def test_the_numbers_of_the_result_are_those_of_its_images(name):
    x, target = batch(3)
    model = net("functional_relu")
    hit = small_attack(name, norm="l2", eps=0.3)(model, GRADIENT, x, target)
    change = hit.x - x
    assert torch.equal(hit.x_clean, x)
    torch.testing.assert_close(hit.map_clean, GRADIENT(model, x, hit.target))
    torch.testing.assert_close(hit.map, GRADIENT(model, hit.x, hit.target))
    assert torch.equal(hit.prediction_kept, model(hit.x).argmax(1) == model(x).argmax(1))
    torch.testing.assert_close(hit.linf, change.abs().flatten(1).amax(1))
    torch.testing.assert_close(hit.l2, change.flatten(1).norm(dim=1))
    torch.testing.assert_close(hit.budget_used, change.flatten(1).norm(dim=1) / 0.3)


@every
def test_nothing_is_left_behind_on_a_model_in_training_mode(name):
    x, target = batch(2)
    model = net("residual").train()
    model.bn2.eval()
    before, kept = fingerprint(model), x.clone()
    small_attack(name)(model, GRADIENT, x.requires_grad_(), target)
    assert fingerprint(model) == before
    assert torch.equal(x.detach(), kept)
    assert x.grad is None


@every
def test_attacks_run_inside_no_grad_too(name):
    x, target = batch(2)
    model, attack = net("lenet"), small_attack(name)
    with torch.no_grad():
        inside = attack(model, GRADIENT, x, target)
    assert_same(inside, attack(model, GRADIENT, x, target), rtol=0, atol=0)
    assert not inside.x.requires_grad
    assert not inside.map.requires_grad
    assert not inside.value.requires_grad


@every
def test_same_settings_are_equal_and_print_their_settings(name):
    assert small_attack(name, eps=0.1) == small_attack(name, eps=0.1)
    assert hash(small_attack(name, eps=0.1)) == hash(small_attack(name, eps=0.1))
    assert small_attack(name, eps=0.1) != small_attack(name, eps=0.2)
    assert "eps=0.1" in repr(small_attack(name, eps=0.1))


@cache
def on_the_trained_net(name: str):
    """An attack at full strength on 32 test pictures, and noise of its budget."""
    x, y = pictures("test", 32)
    attack = gg.attack(name, eps=EPS, steps=25)
    noise = None if name == "pgd" else Noise(eps=EPS, like=attack)(trained(), GRADIENT, x, y)
    return attack(trained(), GRADIENT, x, y), noise


def test_the_net_the_strength_tests_run_on_has_learned_something():
    x, y = pictures("test", 200)
    assert (trained()(x).argmax(1) == y).float().mean() > 0.4


@every_on_maps
def test_the_attack_beats_its_start_and_noise_of_its_budget(name):
    hit, noise = on_the_trained_net(name)
    assert (hit.value < hit.start).float().mean() >= 0.95
    assert (hit.value < noise.value).float().mean() >= 0.95


@every_on_maps
def test_the_best_image_is_never_worse_than_x_and_keeps_the_label(name):
    hit, _ = on_the_trained_net(name)
    assert (hit.value <= hit.start).all()
    assert hit.prediction_kept.all()
    assert not hit.stuck.any()


@every_on_maps
def test_an_attack_on_a_piecewise_linear_net_says_that_it_used_a_twin(name):
    hit, noise = on_the_trained_net(name)
    assert any("Softplus twin, beta=20" in flag for flag in hit.flags)
    assert not any("twin" in flag for flag in noise.flags)


def test_pgd_changes_far_more_predictions_than_noise():
    hit, _ = on_the_trained_net("pgd")
    x, y = pictures("test", 32)
    noise = Noise(eps=EPS)(trained(), GRADIENT, x, y)
    assert (hit.value < hit.start).all()
    assert (~hit.prediction_kept).float().mean() > (~noise.prediction_kept).float().mean() + 0.3


def test_top_k_overlap_falls_as_the_ball_grows():
    x, y = pictures("test", 16)
    hits = TopK(eps=[2 / 255, 4 / 255, 8 / 255], steps=10, judged_by="overlap")(trained(), GRADIENT, x, y)
    means = [1.0, *(float(hit.value.mean()) for hit in hits)]
    assert all(later < earlier for earlier, later in pairwise(means))


@every_on_maps
def test_transfer_evaluates_other_attributions_on_the_attacked_images(name):
    x, target = batch(2)
    model, attack = net("lenet"), small_attack(name)
    others = {"same": GRADIENT, "ig": gg.attribution("ig", steps=4)}
    hit, seen_by = attack(model, GRADIENT, x, target), transfer(model, attack, GRADIENT, others, x, target)
    assert_same(seen_by["same"], hit)
    assert torch.equal(seen_by["ig"].x, hit.x)
    torch.testing.assert_close(seen_by["ig"].map, others["ig"](model, hit.x, hit.target))
    torch.testing.assert_close(seen_by["ig"].map_clean, others["ig"](model, x, hit.target))
    assert (seen_by["ig"].value != hit.value).any()


def test_a_transferred_value_is_measured_from_the_clean_map_of_the_attribution_that_looks():
    x, target = batch(2)
    model, attack, path = net("lenet"), small_attack("untargeted_map"), gg.attribution("ig", steps=4)
    hit = transfer(model, attack, GRADIENT, {"ig": path}, x, target)["ig"]
    before, after = (path(model, at, target).abs().sum(1).flatten(1) for at in (x, hit.x))
    torch.testing.assert_close(hit.start, torch.ones_like(hit.start))
    torch.testing.assert_close(hit.value, torch.cosine_similarity(before, after))


def test_a_transferred_attack_starts_where_the_attribution_that_looks_does():
    x, target = batch(2)
    model, attack, path = net("lenet"), small_attack("targeted_map"), gg.attribution("ig", steps=4)
    seen = transfer(model, attack, GRADIENT, {"ig": path}, x, target)["ig"]
    torch.testing.assert_close(seen.start, attack(model, path, x, target).start)
    assert (seen.start != attack(model, GRADIENT, x, target).start).all()


@pytest.fixture(scope="module")
def complaints() -> dict[str, dict[str, str]]:
    """What each attack says to each bad input, where no run-time type check of the tests stands before it."""
    script = Path(__file__).parents[1] / "bad_attack_inputs.py"
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@every
@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_input_gives_one_sentence_that_names_the_fix(complaints, name, case):
    assert BAD[case][1] in complaints[name][case]
    assert "\n" not in complaints[name][case]
