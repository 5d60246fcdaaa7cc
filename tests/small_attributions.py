"""Settings small enough that the whole suite runs in seconds, by registry name."""

from __future__ import annotations

from typing import Any

from nets import TinyViT, net
from torch import nn

import gyrograd as gg

SMALL: dict[str, dict[str, Any]] = {
    "integrated_gradients": {"steps": 5},
    "smoothgrad": {"draws": 4},
    "unigrad": {"draws": 4, "eps": 0.1},
    "lime": {"draws": 40, "segments": "grid", "grid": 4},
    "shap": {"draws": 40, "segments": "grid", "grid": 4},
    "gradient_shap": {"draws": 5},
    "deep_shap": {"draws": 3},
    "occlusion": {"patch": 6, "stride": 3},
    "smooth_lrp": {"draws": 3},
    "rise": {"draws": 20, "grid": 3, "quantity": "logit"},
    # With the cut at zero some of these small nets' maps are zero everywhere.
    "grad_cam": {"relu": False},
    "hires_cam": {"relu": False},
}
NEEDS_PLACES = {"grad_cam", "grad_cam_plus_plus", "hires_cam", "layer_cam"}
"""They look at a layer with height and width, which the MLP has not."""
NEEDS_ATTENTION = {"attention_rollout", "gradient_x_attention"}
"""They look at the attention of a vision transformer, which no other net has."""
CLASS_BLIND = {"attention_rollout"}
"""Their map is the same for every class and quantity."""
NOT_ODD = {"guided_backprop", "lrp", "smooth_lrp", "grad_cam_plus_plus", "layer_cam", *NEEDS_ATTENTION}
"""Explaining the opposite does not turn their map around: they treat positive and negative values differently."""
SAME_MECHANISM = {"grad_cam_plus_plus", "hires_cam", "layer_cam", "deep_shap", "smooth_lrp"}
"""They differ from `grad_cam`, `deep_lift` and `lrp` in a formula or a mean alone: costly suites take those."""
ON_ANY_NET = {
    name: entry for name, entry in gg.available("attribution").items() if name not in NEEDS_ATTENTION
}
"""Entries by name that explain convolutional nets."""
ONE_OF_EACH = {name: entry for name, entry in ON_ANY_NET.items() if name not in SAME_MECHANISM}


def small(name: str, **settings: Any) -> Any:
    """The attribution with its small settings."""
    return gg.attribution(name, **(SMALL.get(name, {}) | settings))


def fitting(name: str, structure: str, seed: int = 0) -> nn.Module:
    """The net of this structure, or a transformer if the attribution needs one."""
    return TinyViT(seed) if name in NEEDS_ATTENTION else net(structure, seed)
