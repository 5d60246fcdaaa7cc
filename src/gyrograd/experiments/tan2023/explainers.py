"""The six explainers of tan2023 with its settings (Appendix B.3).

They explain the probability of the predicted class, as in the example of Section 3.1. The paper does not state the
class and quantity of its tables, the segments of SHAP, the kernel of LIME, or the quadrature rule of IG.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gyrograd.attributions import Gradient, InputXGradient, IntegratedGradients, Lime, Shap, smoothgrad
from gyrograd.attributions.smooth import OnSmoothed
from gyrograd.experiments.scales import pick_evenly
from gyrograd.types import Attribution

NAMES = ("grad", "gi", "ig", "sg", "lime", "shap")
QUANTITY = "probability"
SIGMA = 0.03
"""Noise of SmoothGrad in Table 1, and of the neighbours in every local Lipschitz constant."""
SAMPLES = 100
SIGMAS = (0.003, 0.01, 0.03, 0.06, 0.1, 0.2, 0.3)
"""Noise levels of SmoothGrad: our choice, including the paper's default 0.03. The paper's are only in its figures."""

CAPTUM_WIDTH = 2**0.5
"""Captum's kernel is exp(-distance^2 / (2 width^2)) with a width of 1; ours has no 2."""
IMAGE_NORM = 25.0
"""About the norm of a CIFAR-10 image with pixels in [0, 1]; with this width perturbed images have weight."""


def explainers(sizes: Mapping[str, Any]) -> dict[str, Attribution]:
    """The six explainers by the paper's names."""
    samples = int(sizes.get("samples", SAMPLES))
    return {
        "grad": Gradient(QUANTITY),
        "gi": InputXGradient(QUANTITY),
        "ig": IntegratedGradients(steps=10, rule="right", quantity=QUANTITY),
        "sg": smooth(SIGMA),
        # An image with a single segment gets a constant map, as in other implementations, instead of an error.
        "lime": Lime(draws=samples, quantity=QUANTITY, allow_single=True),
        "shap": Shap(draws=samples, quantity=QUANTITY, allow_single=True),
    }


def segmented(sizes: Mapping[str, Any]) -> dict[str, tuple[Lime | Shap, bool]]:
    """LIME and SHAP by their kind of features, and whether neighbours of an image use its segments.

    The paper segments by quickshift and does not say whether a neighbour x' is segmented anew:

    - anew: every neighbour is segmented. Segments jump under noise, and the map with them (rows `lime`, `shap`).
    - held: all neighbours use the clean image's segments.
    - pixels: every pixel is a feature, similar to Captum without a mask (there every channel of a pixel is one).

    LIME also has two other kernels, with held segments: "captum kernel" has Captum's default width, and "l2 kernel"
    the printed distance |x - z| in pixels, whose width the paper does not state.
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
    """SmoothGrad with the paper's number of draws for this noise."""
    return smoothgrad(sigma, draws_for(sigma), quantity=QUANTITY)


def draws_for(sigma: float) -> int:
    """10 for sigma below 0.01, else floor(sigma / 0.01) times 10; 1e-9 corrects the rounding of 0.03 / 0.01."""
    return max(1, int(sigma / 0.01 + 1e-9)) * 10


def sigmas_of(sizes: Mapping[str, Any]) -> list[float]:
    """The noise levels of a scale, always including the paper's default."""
    some = pick_evenly(list(SIGMAS), sizes.get("levels"))
    return [sigma for sigma in SIGMAS if sigma in some or sigma == SIGMA]
