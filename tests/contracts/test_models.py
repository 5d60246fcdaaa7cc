"""What every model promises: images in [0, 1] to logits, seeded, rebuilt from its spec, differentiable twice."""

from __future__ import annotations

import pytest
import torch

import gyrograd as gg
from gyrograd.models import rebuild, spec_of

MODELS = sorted(gg.available("model"))
every = pytest.mark.parametrize("name", MODELS)


def pixels(name: str, b: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (2,) if name == "mlp" else (3, 32, 32)
    return torch.rand(b, *shape, generator=generator)


@every
def test_a_row_of_logits_for_each_example(name):
    model = gg.model(name, num_classes=7, seed=0).eval()
    with torch.no_grad():
        logits = model(pixels(name))
    assert logits.shape == (2, 7)
    assert torch.isfinite(logits).all()


@every
def test_examples_do_not_see_one_another_in_evaluation(name):
    model, x = gg.model(name, seed=0).eval(), pixels(name)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-4, atol=1e-5)


@every
def test_the_seed_fixes_the_weights_and_leaves_the_global_generator_alone(name):
    before = torch.get_rng_state()
    first, second, other = (gg.model(name, seed=seed).state_dict() for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


@every
def test_the_spec_builds_the_same_model_again(name):
    model = gg.model(name, num_classes=4, seed=0).eval()
    spec = spec_of(model)
    again = rebuild(type(spec).from_json(spec.to_json())).eval()
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(again(pixels(name)), model(pixels(name)))
