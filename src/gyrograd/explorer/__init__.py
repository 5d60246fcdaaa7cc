"""The web page: look at an image through several explanations, attack one, compare two models.

Files: stage (models and images), scenes (what is computed), watching (progress and stopping), pictures and markup
(what is seen), wording (the plain words), page (Gradio), server (its address). All but page and server work
without Gradio.
"""

from gyrograd.explorer.scenes import (
    Attacked,
    AttackPlan,
    Explained,
    Prediction,
    attacked,
    compared,
    explained,
)
from gyrograd.explorer.stage import Net, Stage, opened_stage, staged
from gyrograd.explorer.watching import Stopped

Plan = AttackPlan
"""Its former name; a plan of measurements is `gyrograd.measurement.Plan`."""

__all__ = [
    "AttackPlan",
    "Attacked",
    "Explained",
    "Net",
    "Plan",
    "Prediction",
    "Stage",
    "Stopped",
    "attacked",
    "compared",
    "explained",
    "opened_stage",
    "staged",
]
