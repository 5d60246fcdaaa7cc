"""Training: one loop, alone or in several processes, any model, data set and objective.

`fit(model, data, settings)` trains what is at hand; `train(settings, out)` builds everything from plain values and
keeps the run in a folder; `recipe(name)` gives the settings of a paper; `Steady(model)` is a loss for anyone's loop,
whose nets hold under attack. Files: settings, cookbook, steady (what is asked for), building (model and data),
objective, steps (one update), schedules, augmentation, loop, runs (what happens between steps), snapshots (the run on
disk), stopping (signals), processes (several), logs.
"""

from gyrograd.training.cookbook import recipe, recipes
from gyrograd.training.logs import read_log
from gyrograd.training.loop import fit, predictions, train
from gyrograd.training.objective import Objective, Term, objective_of
from gyrograd.training.runs import Trained
from gyrograd.training.settings import TrainSettings, settings_from
from gyrograd.training.steady import Steady, steady_settings
from gyrograd.training.stopping import Stopped

__all__ = [
    "Objective",
    "Steady",
    "Stopped",
    "Term",
    "TrainSettings",
    "Trained",
    "fit",
    "objective_of",
    "predictions",
    "read_log",
    "recipe",
    "recipes",
    "settings_from",
    "steady_settings",
    "train",
]
