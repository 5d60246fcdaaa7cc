"""The four maps wang2020 attacks, each a gradient times the input (supplement C1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gyrograd.attributions import InputXGradient, IntegratedGradients, smoothgrad, unigrad
from gyrograd.types import Attribution, Inputs, Labels, Model

NAMES = ("sm", "ig", "sg", "ug")
DRAWS = 50
"""Points of IG's path, draws of SG and UG."""
QUANTITY = "probability"
"""Of IG, SG and UG in the released code; its saliency map explains the logit."""
IMAGENET_NOISE = 0.2
NOISE = {"sg": 0.1, "ug": 4 / 255}


@dataclass(frozen=True)
class TimesInput:
    """A map times the input. `draws` are the explainer's: an attack asks how many images it holds at once."""

    explain: Attribution
    draws: int = 1

    def __call__(self, model: Model, x: Inputs, target: Labels, *, create_graph: bool = False) -> Inputs:
        map = self.explain(model, x, target, create_graph=create_graph)
        return (x if create_graph else x.detach()) * map


def maps_of(setting: str, sizes: Mapping[str, Any]) -> dict[str, Attribution]:
    """The maps by the paper's names, with its noise for the setting.

    Deviations: noise counts in the data's range, 1, where the paper takes each image's own range; the factor is the
    input, where the released SG and UG multiply by their last noisy sample.
    """
    draws = int(sizes.get("draws", DRAWS))
    noise = dict.fromkeys(NOISE, IMAGENET_NOISE) if setting.startswith("imagenet") else NOISE
    return {
        "sm": InputXGradient(),
        "ig": IntegratedGradients(steps=draws, rule="right", quantity=QUANTITY),
        "sg": TimesInput(smoothgrad(noise["sg"], draws, quantity=QUANTITY), draws),
        "ug": TimesInput(unigrad(noise["ug"], draws, quantity=QUANTITY), draws),
    }
