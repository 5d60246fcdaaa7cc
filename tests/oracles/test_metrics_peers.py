"""The shared metrics against Quantus and Captum, on the same perturbed inputs handed in through their hooks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from captum.metrics import infidelity, sensitivity_max
from nets import batch, net

import gyrograd as gg
from gyrograd.metrics import as_quantus_explain
from gyrograd.metrics.noise import GaussianNoise, UniformNoise
from gyrograd.numerics import random

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import quantus

# Their own warnings are not about our code.
pytestmark = pytest.mark.filterwarnings("ignore")

SEED, DRAWS = 5, 6
CLOSE = {"rtol": 1e-4, "atol": 1e-7}


@pytest.fixture(scope="module")
def scene():
    x, target = batch(4)
    return net("lenet").float(), gg.attribution("gradient"), x.float(), target


def neighbours(noise, x):
    keys = random.keys(SEED, len(x))
    return [noise(x, keys, draw) for draw in range(DRAWS)]


def handed_out(images):
    """A Quantus perturb_func that ignores its input and returns these, one call after the other."""
    turns = iter(images)
    return lambda arr, **_: next(turns).flatten(1).numpy()


def quantus_values(metric, scene, **more):
    model, attribution, x, target = scene
    return metric(
        model=model,
        x_batch=x.numpy(),
        y_batch=target.numpy(),
        explain_func=as_quantus_explain(attribution),
        device="cpu",
        **more,
    )


PLAIN = {"disable_warnings": True, "normalise": False, "abs": False}


def test_max_sensitivity_is_quantus(scene):
    model, attribution, x, target = scene
    near = neighbours(UniformNoise(0.1), x)
    theirs = quantus.MaxSensitivity(nr_samples=DRAWS, perturb_func=handed_out(near), **PLAIN)
    ours = gg.metric("max_sensitivity", eps=0.1, draws=DRAWS)(model, attribution, x, target, seed=SEED)
    np.testing.assert_allclose(ours, quantus_values(theirs, scene), **CLOSE)


def test_max_sensitivity_is_captum(scene):
    model, attribution, x, target = scene
    near = torch.stack(neighbours(UniformNoise(0.1), x), 1).flatten(0, 1)

    def explain(inputs, target):
        """Captum gives the clean input as a tuple and wants one back."""
        if isinstance(inputs, tuple):
            return (attribution(model, inputs[0], target),)
        return attribution(model, inputs, target)

    theirs = sensitivity_max(
        explain,
        x,
        perturb_func=lambda inputs: near,
        n_perturb_samples=DRAWS,
        target=target,
    )
    ours = gg.metric("max_sensitivity", eps=0.1, draws=DRAWS)(model, attribution, x, target, seed=SEED)
    np.testing.assert_allclose(ours, theirs, **CLOSE)


def test_local_lipschitz_is_quantus(scene):
    model, attribution, x, target = scene
    near = neighbours(GaussianNoise(0.03), x)
    theirs = quantus.LocalLipschitzEstimate(nr_samples=DRAWS, perturb_func=handed_out(near), **PLAIN)
    ours = gg.metric("local_lipschitz", draws=DRAWS)(model, attribution, x, target, seed=SEED)
    np.testing.assert_allclose(ours, quantus_values(theirs, scene), **CLOSE)


def test_local_lipschitz_of_normalised_maps_is_quantus_with_its_normalisation_for_each_image(scene):
    """Quantus' default divides by the largest size of the whole batch, so that its values depend on the batch."""
    model, attribution, x, target = scene
    near = neighbours(GaussianNoise(0.03), x)
    theirs = quantus.LocalLipschitzEstimate(
        nr_samples=DRAWS,
        perturb_func=handed_out(near),
        disable_warnings=True,
        normalise=True,
        normalise_func_kwargs={"normalise_axes": (1, 2, 3)},
    )
    ours = gg.metric("local_lipschitz", draws=DRAWS, normalize="max")(
        model, attribution, x, target, seed=SEED
    )
    np.testing.assert_allclose(ours, quantus_values(theirs, scene), **CLOSE)


def test_infidelity_is_captum(scene):
    model, attribution, x, target = scene
    shakes = [0.2 * random.normal(random.keys(SEED, 4), (3, 12, 12), stream=draw) for draw in range(DRAWS)]
    stacked = torch.stack(shakes, 1).flatten(0, 1)

    def perturb(inputs):
        return stacked, inputs - stacked

    for rescale in (False, True):
        theirs = infidelity(
            model,
            perturb,
            x,
            attribution(model, x, target),
            target=target,
            n_perturb_samples=DRAWS,
            normalize=rescale,
        )
        metric = gg.metric("infidelity", sigma=0.2, draws=DRAWS, rescale=rescale)
        np.testing.assert_allclose(metric(model, attribution, x, target, seed=SEED), theirs, **CLOSE)


def test_infidelity_is_quantus_where_one_patch_covers_the_image(scene):
    """Quantus lets its patches pile up on one another within a sample; with one patch a sample there is no pile."""
    model, attribution, x, target = scene
    shakes = [0.2 * random.normal(random.keys(SEED, 4), (3, 12, 12), stream=draw) for draw in range(DRAWS)]
    theirs = quantus.Infidelity(
        perturb_patch_sizes=[12],
        n_perturb_samples=DRAWS,
        perturb_func=handed_out([x - shake for shake in shakes]),
        **PLAIN,
    )
    ours = gg.metric("infidelity", sigma=0.2, draws=DRAWS)(model, attribution, x, target, seed=SEED)
    np.testing.assert_allclose(ours, quantus_values(theirs, scene), **CLOSE)


@pytest.mark.parametrize("step", [16, 48])
def test_deletion_of_elements_is_quantus_pixel_flipping(scene, step):
    model, attribution, x, target = scene
    # Quantus' "black" is the smallest value in the image, so zero is asked for by number.
    theirs = quantus.PixelFlipping(features_in_step=step, perturb_baseline=0.0, **PLAIN)
    curves = quantus_values(theirs, scene, softmax=True)
    size = 3 * 12 * 12
    ratios = tuple(i * step / size for i in range(1, size // step + 1))
    ours = gg.metric("deletion", ratios=ratios, substrate="zero", reduce="none")
    np.testing.assert_allclose(ours.curve(model, attribution, x, target), curves, **CLOSE)
