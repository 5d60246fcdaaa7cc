"""Batches as they come give the numbers of the whole; the Quantus adapter gives the map."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from nets import batch, net

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.metrics import RunningMetric, as_quantus_explain

GRADIENT = gg.attribution("gradient")


@pytest.mark.parametrize("sizes", [(7,), (1, 2, 4), (3, 3, 1)])
def test_values_do_not_depend_on_how_the_data_came(sizes):
    x, target = batch(7)
    model = net("lenet")
    whole = gg.metric("rps", draws=3)(model, GRADIENT, x, target, seed=4)
    running = RunningMetric("rps", model, GRADIENT, seed=4, draws=3)
    for part, label in zip(x.split(sizes), target.split(sizes), strict=True):
        running.update(part, label)
    torch.testing.assert_close(running.values, whole)
    torch.testing.assert_close(running.compute(), whole.mean())
    assert running.seen == 7
    interval = running.interval()
    assert interval.n == 7
    assert interval.value == pytest.approx(whole.mean().item(), rel=1e-5)
    assert interval.low < interval.value < interval.high


def test_reset_begins_again():
    x, target = batch(3)
    running = RunningMetric("rps", net("lenet"), GRADIENT, draws=2)
    first = running(x, target)
    second = running(x, target)
    assert not torch.equal(first, second)  # later examples have draws of their own
    running.reset()
    assert running.seen == 0
    assert torch.equal(running(x, target), first)


def test_perturbed_inputs_go_through_to_the_metric():
    x, target = batch(3)
    model = net("lenet")
    running = RunningMetric(gg.metric("cosd"), model, GRADIENT)
    running.update(x, target, perturbed=1 - x)
    torch.testing.assert_close(running.values, gg.metric("cosd")(model, GRADIENT, x, target, perturbed=1 - x))


def test_the_direction_is_torchmetrics_higher_is_better():
    model = net("lenet")
    assert RunningMetric("rps", model, GRADIENT).higher_is_better is True
    assert RunningMetric("cosd", model, GRADIENT).higher_is_better is False
    assert RunningMetric("accuracy", model).higher_is_better is True


def test_mistakes_name_the_fix():
    with pytest.raises(UserError, match=r"call update\(x, target\) first"):
        RunningMetric("accuracy", net("lenet")).compute()
    with pytest.raises(UserError, match="leave them out"):
        RunningMetric(gg.metric("accuracy"), net("lenet"), max_batch=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantus_gets_the_map_of_arrays_and_tensors(dtype):
    x, target = batch(3)
    model = net("lenet").to(dtype)
    explain = as_quantus_explain(GRADIENT)
    expected = GRADIENT(model, x.to(dtype), target).numpy()
    for inputs, labels in ((x.numpy(), target.numpy()), (x, target)):
        map = explain(model, inputs, labels, device="cpu")
        assert isinstance(map, np.ndarray)
        np.testing.assert_array_equal(map, expected)
