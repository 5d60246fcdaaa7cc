"""The six explainers of tan2023 with its settings (Appendix B.3).

They explain the probability of the class the net chose, the example of Section 3.1; the paper does not say which class
and quantity its tables have, nor the segments of SHAP, the kernel of LIME and the rule of IG.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gyrograd.attributions import Gradient, InputXGradient, IntegratedGradients, Lime, Shap, smoothgrad
from gyrograd.attributions.smooth import OnSmoothed
from gyrograd.experiments.scales import picked
from gyrograd.types import Attribution

NAMES = ("grad", "gi", "ig", "sg", "lime", "shap")
QUANTITY = "probability"
SIGMA = 0.03
"""Of SmoothGrad in Table 1, and of the neighbours in every local Lipschitz constant."""
SAMPLES = 100
SIGMAS = (0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3)
"""Noise levels of SmoothGrad. The paper's are in its figures alone; these are ours, its default 0.03 among them."""

CAPTUM_WIDTH = 2**0.5
"""Captum's kernel is exp(-distance^2 / (2 width^2)) with a width of 1; ours has no 2."""
IMAGE_NORM = 25.0
"""About the norm of a CIFAR-10 image with pixels in [0, 1]: a width at which perturbed images have weight."""


def explainers(sizes: Mapping[str, Any]) -> dict[str, Attribution]:
    """All six by the paper's names."""
    samples = int(sizes.get("samples", SAMPLES))
    return {
        "grad": Gradient(QUANTITY),
        "gi": InputXGradient(QUANTITY),
        "ig": IntegratedGradients(steps=10, rule="right", quantity=QUANTITY),
        "sg": smooth(SIGMA),
        # An image of one segment has a constant map, here and in others' code: no reason to end a long run.
        "lime": Lime(draws=samples, quantity=QUANTITY, allow_single=True),
        "shap": Shap(draws=samples, quantity=QUANTITY, allow_single=True),
    }


def segmented(sizes: Mapping[str, Any]) -> dict[str, tuple[Lime | Shap, bool]]:
    """LIME and SHAP by what their features are, and whether neighbours of an image have its own segments.

    The paper segments by quickshift and does not say whether a neighbour x' is segmented anew:

    - anew: every neighbour by itself. Segments jump under noise, and the map with them (the rows `lime`, `shap`).
    - held: the clean image's segments for all its neighbours.
    - pixels: every pixel a feature, near what Captum does without a mask (there every channel of it).

    LIME also with two other kernels, the clean image's segments held: "captum kernel" has Captum's default width, and
    "l2 kernel" the printed distance |x - z| in pixels, whose width the paper does not state.
    """
    found: dict[str, tuple[Lime | Shap, bool]] = {}
    for name in ("lime", "shap"):
        explain = explainers(sizes)[name]
        assert isinstance(explain, Lime | Shap)
        found[f"{name} anew"] = explain, False
        found[f"{name} held"] = explain, True
        found[f"{name} pixels"] = replace(explain, segments="pixels"), False
    lime = explainers(sizes)["lime"]
    assert isinstance(lime, Lime)
    found["lime captum kernel"] = replace(lime, width=CAPTUM_WIDTH), True
    found["lime l2 kernel"] = replace(lime, distance="l2", width=IMAGE_NORM), True
    return found


def smooth(sigma: float) -> OnSmoothed:
    """SmoothGrad with the paper's draws: 10 below 0.01, else ten for each whole 0.01 of sigma."""
    return smoothgrad(sigma, draws_for(sigma), quantity=QUANTITY)


def draws_for(sigma: float) -> int:
    """10 for sigma below 0.01, else floor(sigma / 0.01) times 10; 0.03 / 0.01 counts as the 3 that is meant."""
    return max(1, int(sigma / 0.01 + 1e-9)) * 10


def sigmas_of(sizes: Mapping[str, Any]) -> list[float]:
    """The noise levels of a scale; the paper's default always among them."""
    some = picked(list(SIGMAS), sizes.get("levels"))
    return [sigma for sigma in SIGMAS if sigma in some or sigma == SIGMA]
