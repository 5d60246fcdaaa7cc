"""Every table and figure of the three papers, by name: run it, and see the paper's number beside ours.

    gyrograd reproduce joo2023-table1 --scale small

A paper is a folder here: a file for each table or figure, `scales.toml` (sizes), `claims.toml` (what the paper says).
To add one:

    @register("experiment", "joo2023-table1", paper="joo2023", equation="Table 1")
    def table1() -> Experiment:
        '''One sentence that says what is measured; it stands on the page and in `gyrograd list experiment`.'''
        return Experiment(measured, drawn)           # drawn may be left out

    def measured(run: Run) -> Found: ...             # train and measure what is missing
    def drawn(results: Results) -> tuple[Section, ...]: ...   # pure: figures out of numbers and arrays

and import its file in the paper's `__init__.py`, the paper's folder in this one.

- `Run` says where and how large: `run.seeds`, `run.device`, `run.included(SETTINGS)` (settings this scale has and
  the user did not leave out), `run.kept(rows)`, `run.sizes(setting)` (the setting's table of `scales.toml`),
  `run.net(Net(...))` (a trained net; trained on first need, shared by all experiments of a folder),
  `run.test_images(setting)`, `run.positions(setting)` (which images are measured).
- `Net(label, model, sizes, recipe, terms, seed, teacher)` is a net in plain values; `trained` keeps it by their hash.
  A net that is not trained here (given weights) needs no `Net`: `Part.net` takes `Given(label, path, model)` too.
- `Part(setting, row, seed, what, net, settings, columns)` is one measurement: `columns(model, x, y, keys)` gives
  numbers for each image by the column's name. `settings` holds all else that decides them, in JSON.
  `run.measured(parts)` gives the records for `Found(records, pictures)`; finished shards are read, not measured.
  Records not of images (timings) may be put into `Found` as `(setting, row, seed, Record)` as well.
- A column is on the paper's scale (per cent where the paper has per cent). A column with an "@" is a point of a curve:
  it is drawn and left out of the tables. Where the columns of several parts of one row have one name, the last wins.
- `claims.toml`: see `claims`; `scales.toml`: see `scales`. A scale sets sizes, never the method.
- `subjects.net_of` makes a `Net` out of a recipe of `training`; a `Subject` is a net of a run that makes its `Part`s.
- `plots.curves` draws lines with intervals, `panels.figures_of` a few panels to a figure; `reporting.map_grid` images
  and maps.
- `reproduce(name, scale, out)` runs it all and writes `out/SCALE/NAME/{results.json, pictures.npz, index.html}` beside
  `out/SCALE/records` and `out/SCALE/nets`, which all experiments of a scale share. `render(folder)` writes the page
  anew from the files alone.
"""

from gyrograd.experiments import joo2023, tan2023, wang2020
from gyrograd.experiments.claims import Claims, Judged, judged, read_claims
from gyrograd.experiments.nets import Given, Net, trained
from gyrograd.experiments.results import Estimate, Quantity, Results, estimate, read_results, write_results
from gyrograd.experiments.runs import Experiment, Found, Part, Run, render, reproduce, states
from gyrograd.experiments.scales import Scale, picked, read_scale

__all__ = [
    "Claims",
    "Estimate",
    "Experiment",
    "Found",
    "Given",
    "Judged",
    "Net",
    "Part",
    "Quantity",
    "Results",
    "Run",
    "Scale",
    "estimate",
    "joo2023",
    "judged",
    "picked",
    "read_claims",
    "read_results",
    "read_scale",
    "render",
    "reproduce",
    "states",
    "tan2023",
    "trained",
    "wang2020",
    "write_results",
]
