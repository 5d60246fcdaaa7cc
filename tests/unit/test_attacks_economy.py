"""Cheaper steps of `auto`: bfloat16 and coarser paths save time in the search; what is reported is exact."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attacks import engine
from gyrograd.attacks.auto import Auto
from gyrograd.attacks.engine import derivative
from gyrograd.attributions.path import IntegratedGradients
from gyrograd.audit.engine import _inputs
from gyrograd.audit.methods import methods_of
from gyrograd.audit.plans import attacks_on
from gyrograd.audit.presets import preset_of
from gyrograd.errors import UserError
from gyrograd.metrics import MapSimilarity, TopKIntersection
from gyrograd.numerics import bfloat16
from gyrograd.numerics.bfloat16 import bfloat16_pays
from gyrograd.numerics.modes import freeze_weights

GRADIENT = gg.attribution("gradient")


@pytest.fixture
def with_instructions(monkeypatch):
    """As on a processor with instructions for bfloat16; torch computes in it on every processor."""
    monkeypatch.setattr(bfloat16, "is_fast_in_bfloat16", lambda: True)


@pytest.fixture
def without_instructions(monkeypatch):
    monkeypatch.setattr(bfloat16, "is_fast_in_bfloat16", lambda: False)


def smooth_net() -> nn.Module:
    return gg.load("cifar10/lenet-ce").eval()


def images(n: int = 3) -> tuple[Tensor, Tensor]:
    x = gg.dataset("shapes", n=n).pixels()
    return x, gg.predict(smooth_net(), x)


def found(model: nn.Module, fast: bool, attribution=GRADIENT) -> engine.Derivative:
    x, y = images()
    with freeze_weights(model):
        return derivative(model, attribution, x, y, lambda map, *_: map.square().flatten(1).sum(1), fast=fast)


@pytest.mark.parametrize("name", ["gradient", "lrp", "guided_backprop", "smoothgrad", "integrated_gradients"])
def test_a_fast_derivative_points_where_the_exact_one_does(name, with_instructions):
    settings = {"smoothgrad": {"draws": 3}, "integrated_gradients": {"steps": 3}}.get(name, {})
    attribution = gg.attribution(name, **settings)
    exact, fast = (found(smooth_net(), each, attribution) for each in (False, True))
    assert not torch.equal(exact.gradient, fast.gradient)
    for one, other in zip(exact, fast, strict=True):
        assert one.dtype == other.dtype == torch.float32
    for field, least in (("gradient", 0.95), ("map", 0.98), ("logits", 0.999)):
        pair = (getattr(each, field).flatten(1) for each in (exact, fast))
        assert torch.cosine_similarity(*pair).min() > least, field


def test_without_the_instructions_nothing_changes(without_instructions):
    exact, fast = (found(smooth_net(), each) for each in (False, True))
    assert all(torch.equal(one, other) for one, other in zip(exact, fast, strict=True))


def test_what_this_processor_has_is_asked_of_torch(monkeypatch):
    def answer(avx512: bool, amx: bool, capability: str = "AVX512") -> bool:
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512, raising=False)
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
        bfloat16.is_fast_in_bfloat16.cache_clear()
        return bfloat16.is_fast_in_bfloat16()

    available = torch.backends.mkldnn.is_available()
    try:
        assert answer(True, False) == answer(False, True) == available
        assert not answer(False, False)
        assert not answer(True, True, "AVX2")
        monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported", raising=False)
        monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported", raising=False)
        bfloat16.is_fast_in_bfloat16.cache_clear()
        assert not bfloat16.is_fast_in_bfloat16()
    finally:
        bfloat16.is_fast_in_bfloat16.cache_clear()


def test_only_single_precision_images_of_nets_with_a_dense_convolution_and_no_sharp_softplus(
    with_instructions,
):
    x, dense = torch.rand(2, 4, 8, 8), nn.Conv2d(4, 4, 3)
    assert bfloat16_pays(nn.Sequential(dense, nn.Softplus(5)), x)
    assert not bfloat16_pays(nn.Sequential(dense, nn.Softplus(6)), x)
    assert not bfloat16_pays(nn.Sequential(nn.Conv2d(4, 4, 3, groups=4)), x)
    assert not bfloat16_pays(nn.Sequential(nn.Linear(8, 8)), x)
    assert not bfloat16_pays(nn.Sequential(dense), x.double())
    assert not bfloat16_pays(nn.Sequential(dense), x[0])


class OnlySingle(nn.Module):
    """A layer that fails in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    def forward(self, z: Tensor) -> Tensor:
        if z.dtype != torch.float32:
            self.refused += 1
            raise RuntimeError("expected single precision")
        return z


def test_a_model_that_fails_in_bfloat16_is_searched_in_single_precision_from_then_on(with_instructions):
    strict = OnlySingle()
    model = smooth_net()
    model.core.pool1 = nn.Sequential(strict, model.core.pool1)
    exact = found(model, False)
    assert torch.equal(found(model, True).gradient, exact.gradient)
    refused = strict.refused
    assert refused > 0
    assert torch.equal(found(model, True).gradient, exact.gradient)
    assert strict.refused == refused


def test_an_error_of_another_cause_is_raised(with_instructions):
    def broken(z: Tensor) -> Tensor:
        raise RuntimeError("no such layer")

    model = smooth_net()
    found(model, True)
    model.core.pool1.forward = broken
    with pytest.raises(RuntimeError, match="no such layer"):
        found(model, True)


@pytest.mark.parametrize("column", ["top_kept", "cosine"])
def test_what_is_reported_is_exact(column, with_instructions):
    (x, y), model, calm = images(4), smooth_net(), gg.attribution("smoothgrad", draws=2)
    hit = Auto(eps=8 / 255, steps=4, column=column)(model, calm, x, y)
    measure = TopKIntersection(k=102) if column == "top_kept" else MapSimilarity()
    again = calm(model, hit.x, y)
    torch.testing.assert_close(hit.value, measure(calm(model, x, y), again), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(hit.map, again, rtol=1e-4, atol=1e-5 * float(again.abs().max()))
    assert hit.value.mean() < hit.start.mean() - 0.1


def steps_of(monkeypatch, attribution, model=None, **settings) -> list[tuple[bool, object]]:
    """Whether each step was fast, and through which map it was taken."""
    steps, (x, y) = [], images(2)

    def spy(*args, fast=False):
        steps.append((fast, args[1]))
        return derivative(*args, fast=fast)

    monkeypatch.setattr(engine, "derivative", spy)
    Auto(**{"eps": 4 / 255, "steps": 3} | settings)(model or smooth_net(), attribution, x, y)
    return steps


def test_a_map_of_one_pass_is_searched_in_single_precision(monkeypatch):
    assert [fast for fast, _ in steps_of(monkeypatch, GRADIENT)] == [False] * 3


def test_a_mean_over_passes_takes_all_its_steps_in_bfloat16(monkeypatch):
    calm = gg.attribution("smoothgrad", draws=2)
    assert [fast for fast, _ in steps_of(monkeypatch, calm)] == [True] * 3
    monkeypatch.undo()
    chosen = steps_of(monkeypatch, calm, search_precision="single")
    assert [fast for fast, _ in chosen] == [False] * 3


def test_differences_between_passes_are_searched_in_single_precision(monkeypatch):
    """Their rounding does not average out: at 8/255 occlusion of a steady LeNet keeps .08 in place of .04."""
    steps = steps_of(monkeypatch, gg.attribution("occlusion", patch=16, stride=16))
    assert len(steps) >= 3
    assert not any(fast for fast, _ in steps)


def test_a_twin_is_searched_in_single_precision(monkeypatch):
    calm = gg.attribution("smoothgrad", draws=2)
    steps = steps_of(monkeypatch, calm, gg.model("lenet", num_classes=10, seed=0).eval())
    assert len(steps) >= 3
    assert not any(fast for fast, _ in steps)


def test_the_first_steps_follow_a_coarser_path(monkeypatch):
    path = gg.attribution("integrated_gradients", steps=16)
    through = [map for _, map in steps_of(monkeypatch, path)]
    assert through == [path.coarser(), path.coarser(), path]
    monkeypatch.undo()
    short = gg.attribution("integrated_gradients", steps=15)
    assert [map for _, map in steps_of(monkeypatch, short)] == [short] * 3


def test_an_iterate_of_a_coarser_path_is_not_judged_by_it(monkeypatch):
    """Its map is another one, whose column would select the wrong iterate."""
    judged = []
    path = IntegratedGradients(steps=16)
    true_verdict = engine._verdict

    def spy(aim, scene, map, logits, x):
        judged.append((x.clone(), map))
        return true_verdict(aim, scene, map, logits, x)

    monkeypatch.setattr(engine, "_verdict", spy)
    (x, y), model = images(2), smooth_net()
    Auto(eps=4 / 255, steps=3, search_precision="single")(model, path, x, y)
    assert judged
    for perturbed, map in judged:
        own = path(model, perturbed, y[: len(perturbed)])
        torch.testing.assert_close(map, own, rtol=1e-3, atol=1e-4 * float(own.abs().max()))


def test_a_search_that_begins_at_known_images_follows_a_coarser_path_too(monkeypatch):
    """Their exact map is known, so that the images are candidates without a pass."""
    path, (x, y) = IntegratedGradients(steps=16), images(2)
    known = Auto(eps=4 / 255, steps=2)(smooth_net(), path, x, y)
    seen = []
    monkeypatch.setattr(
        engine, "derivative", lambda *a, fast=False: seen.append(a[1]) or derivative(*a, fast=fast)
    )
    Auto(eps=4 / 255, steps=3, column="cosine").every_radius(smooth_net(), path, x, y, begin=known)
    assert seen == [path.coarser(), path.coarser(), path]


def test_a_coarser_path_has_a_quarter_of_the_points_and_moves_like_the_whole():
    path, (x, y), model = IntegratedGradients(steps=20, baseline="blur"), images(), smooth_net()
    coarse = path.coarser()
    assert coarse == replace(path, steps=5, rule="midpoint")
    assert IntegratedGradients(steps=15).coarser() is None
    maps = (each(model, x, y).flatten(1) for each in (path, coarse))
    assert torch.cosine_similarity(*maps).min() > 0.9


def test_an_unknown_precision_is_refused():
    with pytest.raises(UserError, match="search_precision"):
        Auto(search_precision="double")
    assert preset_of("standard", search_precision="single").search_precision == "single"


@pytest.mark.parametrize("radii", [(2 / 255,), (2 / 255, 4 / 255)])
def test_noise_takes_one_map_per_radius_besides_the_clean_one(radii):
    calls, (x, y) = [], images(2)

    def counted(model, x, target, *, create_graph=False):
        calls.append(len(x))
        return GRADIENT(model, x, target, create_graph=create_graph)

    hits = gg.attack("random", eps=radii)(smooth_net(), gg.attribution(counted), x, y)
    assert len(calls) <= 1 + len(radii)
    for hit in hits:
        assert hit.linf.min() > 0.9 * hit.eps
        torch.testing.assert_close(hit.map, GRADIENT(smooth_net(), hit.x, y), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["fast", "single"])
def test_an_audits_precision_is_that_of_its_searches(precision):
    preset = preset_of("glance", search_precision=precision, methods=("gradient",))
    x, y = images(2)
    inputs = _inputs(smooth_net(), x, y, None, None, None, None, None, preset, 0)
    (method,), _ = methods_of(None, preset, smooth_net(), x[:1], y[:1], max_batch=8)
    (search,) = attacks_on(inputs, method, {"auto": (4 / 255,)})
    assert search.attack.search_precision == precision
