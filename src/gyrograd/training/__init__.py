"""Training: one loop for any model, data set and objective, in one process or several.

`fit(model, data, settings)` trains a given model; `train(settings, out)` builds everything from plain values and keeps
the run in a folder; `recipe(name)` gives the settings of a paper; `Steady(model)` is a loss for your own loop.

To understand how a net is trained, read in this order: loop (the steps of an epoch, and one step), objective (the
loss), runs (train, fit, and the work between steps), settings (and recipes), building (model, data and checks),
processes (several). Also: capture (a step as one CUDA graph), snapshots (checkpoints), steady, and sweep, trials,
clusters, tables (many runs).
"""

import sys

from gyrograd.training import building, loop, runs, settings
from gyrograd.training.loop import Average
from gyrograd.training.objective import Objective, Term, objective_of
from gyrograd.training.runs import Stopped, Trained, fit, predictions, read_log, train
from gyrograd.training.settings import TrainSettings, recipe, recipes, settings_from
from gyrograd.training.steady import Steady, steady_settings

# Modules that were merged; their names keep working for one release.
_MERGED = {
    "cookbook": settings,
    "files": runs,
    "logs": runs,
    "schedules": loop,
    "splits": building,
    "steps": loop,
    "stopping": runs,
}
for _name, _module in _MERGED.items():
    sys.modules[f"{__name__}.{_name}"] = globals()[_name] = _module

__all__ = [
    "Average",
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
