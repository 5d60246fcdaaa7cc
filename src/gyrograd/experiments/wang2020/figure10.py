"""wang2020 Figure 10: UniGrad with several radii."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gyrograd.attributions import InputXGradient, unigrad
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.experiments.scales import picked
from gyrograd.experiments.wang2020.maps import DRAWS, QUANTITY, TimesInput
from gyrograd.experiments.wang2020.pictures import map_sections, maps_and_roughness
from gyrograd.registry import register
from gyrograd.reporting import Section
from gyrograd.types import Attribution

RADII = (2, 4, 8, 16, 32, 64)


@register("experiment", "wang2020-figure10", paper="wang2020", equation="Figure 10")
def figure10() -> Experiment:
    """UniGrad maps for radii from 2 to 64 of 255, how rough each is, and how large beside the saliency map's."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    return maps_and_roughness(run, _radii, beside="sm")


def _radii(setting: str, sizes: Mapping[str, Any]) -> dict[str, Attribution]:  # noqa: ARG001
    draws = int(sizes.get("draws", DRAWS))
    maps: dict[str, Attribution] = {"sm": InputXGradient(QUANTITY)}
    for radius in picked(list(RADII), sizes.get("levels")):
        maps[f"ug {radius}"] = TimesInput(unigrad(radius / 255, draws, quantity=QUANTITY), draws)
    return maps


def _drawn(results: Results) -> tuple[Section, ...]:
    return map_sections(results)
