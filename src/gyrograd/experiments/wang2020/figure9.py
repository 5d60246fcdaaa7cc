"""wang2020 Figure 9: seven maps side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gyrograd.attributions import LRP, Gradient, GuidedBackprop
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.experiments.wang2020.maps import maps_of
from gyrograd.experiments.wang2020.pictures import map_sections, maps_and_roughness
from gyrograd.registry import register
from gyrograd.reporting import Section
from gyrograd.types import Attribution


@register("experiment", "wang2020-figure9", paper="wang2020", equation="Figure 9")
def figure9() -> Experiment:
    """Seven maps of the same images, and how rough each is: mean step between neighbouring pixels over mean pixel."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    return maps_and_roughness(run, _seven)


def _seven(setting: str, sizes: Mapping[str, Any]) -> dict[str, Attribution]:
    """The paper's four, and three more; which seven it draws is not in its text."""
    others: dict[str, Attribution] = {"gradient": Gradient(), "gbp": GuidedBackprop(), "lrp": LRP()}
    return {**maps_of(setting, sizes), **others}


def _drawn(results: Results) -> tuple[Section, ...]:
    return map_sections(results)
