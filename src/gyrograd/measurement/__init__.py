"""Measure a model: a typed plan goes in, a typed table comes out.

A plan is methods x conditions x metrics:

    plan = Plan(
        methods={"gradient": gg.attribution("gradient"), "ig": gg.attribution("ig", steps=20)},
        conditions=(CLEAN, noise((8 / 255,)), attacked("top_k", (4 / 255, 8 / 255), steps=20)),
        metrics=(registered("rps"), registered("insertion"), registered("top_k_intersection")),
        images=100,
    )
    table = measure(model, data, plan, out=Path("out/numbers"))
    table.of(method="ig", condition="top_k", eps=8 / 255, metric="top_k_intersection")   # {example: value}

A metric is a function of a `Look` (one method on some images in one condition); `registered` makes one from a registry
entry, `Metric` from any function. Several plans can be measured together: `measure(model, data, [first, second])`. With
`out`, each (method, condition) is stored in shards, one file each: a killed run resumes where it stopped and leaves the
same bytes. Nothing is trained here.

Files: plan (what to measure), table (the result), run (`measure`), cells (shards and resuming, for measurements of any
kind).
"""

from gyrograd.measurement.cells import Cell, Workers, fingerprint, finished, forget, run_cells, streams
from gyrograd.measurement.plan import CLEAN, Condition, Look, Metric, Plan, attacked, noise, registered
from gyrograd.measurement.run import Interrupted, Sample, measure
from gyrograd.measurement.table import Column, Table, mean_over

__all__ = [
    "CLEAN",
    "Cell",
    "Column",
    "Condition",
    "Interrupted",
    "Look",
    "Metric",
    "Plan",
    "Sample",
    "Table",
    "Workers",
    "attacked",
    "fingerprint",
    "finished",
    "forget",
    "mean_over",
    "measure",
    "noise",
    "registered",
    "run_cells",
    "streams",
]
