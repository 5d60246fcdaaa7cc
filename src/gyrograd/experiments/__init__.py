"""Every table and figure of the three papers, by name: run it, and see the paper's number beside ours.

    gyrograd reproduce joo2023-table1 --scale small

It has two stages: the nets that are missing are trained, then what is missing is measured. Nothing is trained while
something is measured.

A paper is a folder here: `experiments.py`, a table with a row for each table or figure, `ways.py` (which nets, out of
which recipes of `training`), `measures.py`, `scales.toml` (sizes), `claims.toml` (what the paper says). To add one,
add a row:

    Listed(
        "table1",                                      # joo2023-table1
        "Table 1",
        "One sentence that says what is measured; it stands on the page and in `gyrograd list experiment`.",
        Experiment(
            nets=selected(*SETTINGS),                  # (run) -> the nets, as `Subject`s
            measures=([accuracy, rps("grad", 16)],),   # each (subject) -> `Part`s, the measurements of a net
            finish=under_attack("grad"), looks=True,   # what is made of nets and records besides, if anything
            sections=attack_sections("..."),           # (results) -> figures, pure, if any
        ),
    )

- `Run` says where and how large: `run.seeds`, `run.device`, `run.included(SETTINGS)` (settings this scale has and
  the user did not leave out), `run.subjects(SETTINGS, rows_of)` (their nets by row and seed), `run.kept(rows)`,
  `run.sizes(setting)` (the setting's table of `scales.toml`),
  `run.net(net)` (a trained net), `run.test_images(setting)`, `run.positions(setting)` (which images are measured).
- `Net(label, model, sizes, recipe, terms, seed, teacher)` is a net in plain values, made of a recipe by
  `subjects.net_of`; `trained` keeps it by their hash, shared by all experiments of a folder. A net that is not trained
  here (given weights) is `Given(label, path, model)`.
- `Part(setting, row, seed, what, net, settings, columns)` is one measurement: `columns(model, x, y, keys)` gives
  numbers for each image by the column's name. `settings` holds all else that decides them, in JSON. Finished shards
  are read, not measured. Records not of images (timings) may be put into `Found` as `(setting, row, seed, Record)`.
- A column is on the paper's scale (per cent where the paper has per cent). A column with an "@" is a point of a curve:
  it is drawn and left out of the tables. Where the columns of several parts of one row have one name, the last wins.
- `claims.toml`: see `claims`; `scales.toml`: see `scales`. A scale sets sizes, never the method.
- `plots.line` takes what was measured, `plots.curves` draws lines with intervals, `plots.figures_of` a few panels to a
  figure; `pictures.shown_by` gives the images a figure shows and `reporting.map_grid` draws them with their maps.
- `reproduce(name, scale, out)` runs it all and writes `out/SCALE/NAME/{results.json, pictures.npz, index.html}` beside
  `out/SCALE/records` and `out/SCALE/nets`, which all experiments of a scale share. `render(folder)` writes the page
  anew from the files alone.
"""

from gyrograd.experiments import joo2023, tan2023, wang2020
from gyrograd.experiments.claims import Claims, Judged, judged, read_claims
from gyrograd.experiments.nets import Given, Net, trained
from gyrograd.experiments.results import Estimate, Quantity, Results, estimate, read_results, write_results
from gyrograd.experiments.runs import Experiment, Found, Listed, Run, render, reproduce, states
from gyrograd.experiments.scales import Scale, picked, read_scale
from gyrograd.experiments.subjects import Part, Subject

__all__ = [
    "Claims",
    "Estimate",
    "Experiment",
    "Found",
    "Given",
    "Judged",
    "Listed",
    "Net",
    "Part",
    "Quantity",
    "Results",
    "Run",
    "Scale",
    "Subject",
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
