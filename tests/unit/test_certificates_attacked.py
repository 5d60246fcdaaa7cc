"""The attack on certificates finds nothing where they are right, and both planted faults where they are not."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import gyrograd as gg
from gyrograd.numerics import random

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "certificates_attacked.py"


@pytest.fixture(scope="module")
def attack():
    """The benchmark as a module."""
    spec = importlib.util.spec_from_file_location("certificates_attacked", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Weighted(nn.Module):
    """Logits that are weighted sums of the pixels: input x gradient ranks pixels by |weight x pixel|."""

    def __init__(self, pixels):
        super().__init__()
        self.weight = nn.Parameter(
            torch.rand(2, pixels, generator=torch.Generator().manual_seed(0)) / 5 + 0.9
        )

    def forward(self, x):
        return x.flatten(1) @ self.weight.T


class Kinked(nn.Module):
    """The gradient turns round where the first pixel changes its sign."""

    def forward(self, x):
        return x.flatten(1).abs() * torch.tensor([1.0, 0.0])


def images(count, height, width, low=0.0, high=1.0):
    drawn = torch.rand(count, 1, height, width, generator=torch.Generator().manual_seed(1))
    return low + drawn * (high - low), torch.zeros(count, dtype=torch.int64)


def verdict(attack, kind, plant, at, **effort):
    effort = attack.Effort(**{"draws": 100, "held_out": 10, "alpha": 0.01, "screen": 4, **effort})
    keys = random.keys(0, len(at[2]))
    claims = attack.CERTIFICATES[kind](at, effort, plant, random.subkeys(keys, 7))
    row = attack.attacked(at, claims, effort, random.subkeys(keys, 8))
    return attack.verdict([{"what": kind, "first": 0, "seconds": 0.0, **row}], effort.alpha)


# Two pixels, where one line decides: certificates are nearly tight, and a fault shows.
TIGHT = {
    "pixels": (Weighted(2), gg.attribution("input_x_gradient"), *images(60, 1, 2)),
    "direction": (Kinked(), gg.attribution("gradient"), *images(60, 1, 2, 0.0, 0.4)),
}


@pytest.mark.parametrize("kind", TIGHT)
@pytest.mark.parametrize("plant", [None, "sigma"])
def test_a_certificate_with_the_wrong_sigma_is_refuted_and_the_right_one_is_not(attack, kind, plant):
    found = verdict(attack, kind, plant, TIGHT[kind], draws=300, radii=3, select=50, suspects=10, confirm=200)
    assert found["holds"] is (plant is None)
    assert found["pairs"] > 80


@pytest.mark.parametrize("plant", [None, "correction"])
def test_a_certificate_that_forgets_that_there_are_many_pixels_is_refuted(attack, plant):
    """At distance 0 the claim is the confidence bound itself: of thousands of pixels at 1 % each, some are wrong."""
    at = (Weighted(50), gg.attribution("input_x_gradient"), *images(100, 5, 10, 0.4, 0.6))
    effort = {"draws": 20, "radii": 1, "slope_draws": 2, "steps": 0, "select": 200, "suspects": 40}
    effort |= {"confirm": 1000, "level": 1e-3}
    found = verdict(attack, "pixels", plant, at, **effort)
    assert found["holds"] is (plant is None)
    assert found["pairs"] > 30


def test_a_run_that_was_stopped_goes_on_and_counts_what_it_had(attack, tmp_path):
    def run(seconds):
        options = argparse.Namespace(
            nets=["cifar10/lenet-ce:gradient:2"], data="shapes", device="cpu", shard=1, seconds=seconds, plant=None,
            out=tmp_path,
        )  # fmt: skip
        effort = attack.Effort(
            draws=30, held_out=2, radii=2, slope_draws=2, steps=1, step_draws=1, screen=1, select=2, confirm=2
        )
        return attack.run(options, effort)

    whole = run(1e9)
    kept = {path: path.read_bytes() for path in (tmp_path / "shards").iterdir()}
    assert len(kept) == 4  # two images, two certificates
    assert json.loads((tmp_path / "attacked.json").read_text()) == whole
    assert run(-1.0) == whole
    first = min(kept)
    first.unlink()
    assert run(-1.0)["total"]["images"] <= whole["total"]["images"]
    again = run(1e9)
    assert {**again["total"], "seconds": 0} == {**whole["total"], "seconds": 0}
