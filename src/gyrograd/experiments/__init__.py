"""Reproductions of every table and figure of three papers, each with the paper's number beside ours.

    gyrograd reproduce joo2023-table1 --scale small

A run has two stages: first the missing nets are trained, then the missing measurements are taken.

Each paper has a folder: `experiments.py` lists its tables and figures, `variants.py` says which recipe of `training`
trains each row's net, `measures.py` has the measurements, `scales.toml` the sizes, `claims.toml` the paper's claims.
To add an experiment, add an entry to the list:

    Listed(
        "table1",                                      # registered as joo2023-table1
        "Table 1",
        "One sentence about what is measured, shown on the page and by `gyrograd list experiment`.",
        Experiment(
            nets=selected(*SETTINGS),                  # (run) -> list of `TrainedNet`
            measures=([accuracy, rps("grad", 16)],),   # each (trained_net) -> list of `Part`, its measurements
            finish=under_attack("grad"), looks=True,   # optional: adds pictures, correlations, timings
            sections=attack_sections("..."),           # optional: (results) -> figures, a pure function
        ),
        took={"small": Took(1580)},                    # optional: seconds of measured runs, by scale
    )

- `ExperimentContext` (`run`) has the scale and the selections of the user: `run.seeds`, `run.device`,
  `run.included(SETTINGS)` (selected settings), `run.select_rows(rows)`, `run.trained_nets(SETTINGS, rows_of)` (the
  selected nets by row and seed), `run.sizes(setting)` (a table of `scales.toml`), `run.net(net)` (loads a trained
  net), `run.test_images(setting)`, `run.positions(setting)` (the positions of the measured images).
- `Net(label, model, sizes, recipe, terms, seed, teacher)` describes a net in plain values; `trained_nets.net_of` makes
  one from a recipe. `train_or_load` stores it under a hash of these values, so experiments in one folder share nets. A
  net with weights from elsewhere is `PretrainedNet(label, path, model)`.
- `Part(setting, row, seed, what, net, settings, columns)` is one measurement: `columns(model, x, y, keys)` returns one
  number per image for each column. `settings` holds, as JSON, everything else that determines the numbers. Finished
  shards are read, not measured again. `finish(measured_nets)` may add records of other things than images (timings)
  to `ExperimentOutput`, as `(setting, row, seed, Record)`.
- Columns are on the paper's scale (per cent if the paper prints per cent). A column with "@" in its name is a point of
  a curve: it is plotted and left out of the tables. If several parts of a row have a column of the same name, the
  last one counts.
- `claims.toml` is described in `claims`, `scales.toml` in `scales`. A scale sets sizes, never the method.
- `plots.line` makes a line of estimates, `plots.curves` plots lines with intervals, `plots.figures_of` splits panels
  over figures; `pictures.shown_by` yields the images of a figure and `reporting.map_grid` draws them with their maps.
- `reproduce(name, scale, out)` runs an experiment and writes `out/SCALE/NAME/{results.json, pictures.npz, index.html}`.
  All experiments of a scale share `out/SCALE/records` and `out/SCALE/nets`. `render(folder)` writes the page again
  from the files alone.
"""

from gyrograd.experiments import joo2023, tan2023, wang2020
from gyrograd.experiments.claims import Claims, ClaimVerdict, judge_claims, read_claims
from gyrograd.experiments.engine import (
    Experiment,
    ExperimentContext,
    ExperimentOutput,
    Listed,
    MeasuredNets,
    Took,
    render,
    reproduce,
    states,
)
from gyrograd.experiments.nets import Net, PretrainedNet, train_or_load
from gyrograd.experiments.results import Estimate, Quantity, Results, estimate, read_results, write_results
from gyrograd.experiments.scales import Scale, pick_evenly, read_scale
from gyrograd.experiments.trained_nets import Part, TrainedNet
from gyrograd.renames import keep_old_names

__all__ = [
    "ClaimVerdict",
    "Claims",
    "Estimate",
    "Experiment",
    "ExperimentContext",
    "ExperimentOutput",
    "Listed",
    "MeasuredNets",
    "Net",
    "Part",
    "PretrainedNet",
    "Quantity",
    "Results",
    "Scale",
    "Took",
    "TrainedNet",
    "estimate",
    "joo2023",
    "judge_claims",
    "pick_evenly",
    "read_claims",
    "read_results",
    "read_scale",
    "render",
    "reproduce",
    "states",
    "tan2023",
    "train_or_load",
    "wang2020",
    "write_results",
]

keep_old_names(
    __name__,
    Found="gyrograd.experiments.ExperimentOutput",
    Given="gyrograd.experiments.PretrainedNet",
    Judged="gyrograd.experiments.ClaimVerdict",
    Run="gyrograd.experiments.ExperimentContext",
    Subject="gyrograd.experiments.TrainedNet",
    judged="gyrograd.experiments.judge_claims",
    picked="gyrograd.experiments.pick_evenly",
    trained="gyrograd.experiments.train_or_load",
)
