"""The web page: explain an image with several methods, attack an explanation, compare two models.

Files: stage (models and images), scenes (computation), watching (progress and stopping), pictures and markup (output),
wording (sentences), page (Gradio), server (its address). All but page and server work without Gradio.
"""

from gyrograd.explorer.scenes import (
    AttackPlan,
    AttackScene,
    MapsScene,
    Prediction,
    attack_image,
    compare_models,
    explain_image,
)
from gyrograd.explorer.stage import Net, Stage, make_stage, open_stage
from gyrograd.explorer.watching import Stopped
from gyrograd.renames import keep_old_names

Plan = AttackPlan
"""Its former name; a plan of measurements is `gyrograd.measurement.Plan`."""

__all__ = [
    "AttackPlan",
    "AttackScene",
    "MapsScene",
    "Net",
    "Plan",
    "Prediction",
    "Stage",
    "Stopped",
    "attack_image",
    "compare_models",
    "explain_image",
    "make_stage",
    "open_stage",
]

keep_old_names(
    __name__,
    Attacked="gyrograd.explorer.AttackScene",
    Explained="gyrograd.explorer.MapsScene",
    attacked="gyrograd.explorer.attack_image",
    compared="gyrograd.explorer.compare_models",
    explained="gyrograd.explorer.explain_image",
    opened_stage="gyrograd.explorer.open_stage",
    staged="gyrograd.explorer.make_stage",
)
