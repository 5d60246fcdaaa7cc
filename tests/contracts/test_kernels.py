"""What every kernel promises."""

from __future__ import annotations

import pytest
import torch

import gyrograd as gg

every = pytest.mark.parametrize("name", sorted(gg.available("kernel")))


@every
def test_draws_are_centred_finite_and_as_wide_as_the_settings_say(name):
    narrow, wide = (gg.kernel(name, **{key: scale}) for scale in (0.1, 0.2) for key in [scale_setting(name)])
    draws = narrow.sample((20_000,), seed=0)
    assert draws.shape == (20_000,)
    assert draws.dtype == torch.float32
    assert torch.isfinite(draws).all()
    assert abs(float(draws.mean())) < 4 * float(draws.std()) / 20_000**0.5
    torch.testing.assert_close(wide.sample((20_000,), seed=0), 2 * draws)


@every
def test_the_same_seed_gives_the_same_draws_in_both_precisions(name):
    kernel = gg.kernel(name)
    single, double = (kernel.sample((50, 3), seed=7, dtype=dtype) for dtype in (torch.float32, torch.float64))
    torch.testing.assert_close(single, double.float())
    assert torch.equal(kernel.sample((50, 3), seed=7), single)


@every
def test_the_slope_falls_with_the_width_and_the_global_generator_is_left_alone(name):
    before = torch.get_rng_state()
    narrow, wide = (gg.kernel(name, **{scale_setting(name): scale}) for scale in (0.1, 0.2))
    assert narrow.tv_slope(12) == pytest.approx(2 * wide.tv_slope(12))
    narrow.sample((3, 3), seed=0)
    assert torch.equal(torch.get_rng_state(), before)


@every
def test_equal_settings_are_equal_values(name):
    assert gg.kernel(name) == gg.kernel(name)
    assert hash(gg.kernel(name)) == hash(gg.kernel(name))


def scale_setting(name: str) -> str:
    """Every kernel has one setting: its width."""
    (setting,) = vars(gg.kernel(name))
    return setting
