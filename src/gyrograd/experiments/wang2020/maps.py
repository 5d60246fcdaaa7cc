"""The four maps that wang2020 attacks, each a gradient times the input (supplement C1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gyrograd.attributions import (
    LRP,
    Gradient,
    GuidedBackprop,
    InputXGradient,
    IntegratedGradients,
    smoothgrad,
    unigrad,
)
from gyrograd.experiments.scales import pick_evenly
from gyrograd.types import Attribution, Inputs, Labels, Model

NAMES = ("sm", "ig", "sg", "ug")
DRAWS = 50
"""Points on IG's path, and draws of SG and UG."""
QUANTITY = "probability"
"""What IG, SG and UG explain in the released code; its saliency map explains the logit."""
IMAGENET_NOISE = 0.2
UNIGRAD_RADII = (2, 4, 8, 16, 32, 64)
NOISE = {"sg": 0.1, "ug": 4 / 255}


@dataclass(frozen=True)
class TimesInput:
    """A map times the input. `draws` are those of the explainer; attacks size their batches by it."""

    explain: Attribution
    draws: int = 1

    def __call__(self, model: Model, x: Inputs, target: Labels, *, create_graph: bool = False) -> Inputs:
        map = self.explain(model, x, target, create_graph=create_graph)
        return (x if create_graph else x.detach()) * map


def maps_of(setting: str, sizes: Mapping[str, Any]) -> dict[str, Attribution]:
    """The maps by the paper's names, with its noise for this setting.

    Deviations: noise is relative to the data's range, 1, not to each image's range as in the paper; the factor is the
    input, while the released SG and UG multiply by their last noisy sample.
    """
    draws = int(sizes.get("draws", DRAWS))
    noise = dict.fromkeys(NOISE, IMAGENET_NOISE) if setting.startswith("imagenet") else NOISE
    return {
        "sm": InputXGradient(),
        "ig": IntegratedGradients(steps=draws, rule="right", quantity=QUANTITY),
        "sg": TimesInput(smoothgrad(noise["sg"], draws, quantity=QUANTITY), draws),
        "ug": TimesInput(unigrad(noise["ug"], draws, quantity=QUANTITY), draws),
    }


def seven_maps(setting: str, sizes: Mapping[str, Any]) -> dict[str, Attribution]:
    """The paper's four maps and three more; the text does not name the seven maps of Figure 9."""
    others: dict[str, Attribution] = {"gradient": Gradient(), "gbp": GuidedBackprop(), "lrp": LRP()}
    return {**maps_of(setting, sizes), **others}


def unigrads(setting: str, sizes: Mapping[str, Any]) -> dict[str, Attribution]:  # noqa: ARG001
    """The saliency map, and UniGrad with several radii (Figure 10)."""
    draws = int(sizes.get("draws", DRAWS))
    maps: dict[str, Attribution] = {"sm": InputXGradient(QUANTITY)}
    for radius in pick_evenly(list(UNIGRAD_RADII), sizes.get("levels")):
        maps[f"ug {radius}"] = TimesInput(unigrad(radius / 255, draws, quantity=QUANTITY), draws)
    return maps
