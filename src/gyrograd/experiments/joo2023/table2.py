"""joo2023 Table 2: what the ways to train cost."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gyrograd.experiments.cost import Step as Stride
from gyrograd.experiments.cost import side_by_side
from gyrograd.experiments.joo2023.measures import Subject, selected
from gyrograd.experiments.joo2023.ways import SETTINGS
from gyrograd.experiments.nets import built, net_key, objective_of, train_settings
from gyrograd.experiments.runs import Columns, Experiment, Found, Measured, Run, hardware
from gyrograd.experiments.samples import images_of
from gyrograd.measurement import Cell, run_cells
from gyrograd.numerics import random
from gyrograd.records import Record
from gyrograd.registry import register
from gyrograd.training.loop import Step, optimizer_of
from gyrograd.training.processes import launched

ROWS = ("ce", "hessian", "atex", "iga", "l2_cosine")
BETWEEN = " : "


@register("experiment", "joo2023-table2", paper="joo2023", equation="Table 2")
def table2() -> Experiment:
    """Seconds and peak memory of a training step over those of cross-entropy alone, side by side in one process.

    Each way takes one step a round, so that a slow moment of the machine hits all of them; the interval is over
    rounds. Memory: the most bytes of a step's own tensors alive at once, without weights and moments. ATEX is its
    third stage, as in the paper: the teacher is there. Weights do not change the cost, and nets are untrained.
    """
    return Experiment(_measured, over="rounds")


def _measured(run: Run) -> Found:
    found: list[Measured] = []
    for setting in run.included(SETTINGS):
        subjects = [s for s in selected(run, (setting,), ROWS) if s.seed == run.seeds[0]]
        rounds = int(run.sizes(setting).get("rounds", 0))
        if subjects and rounds:
            cell = _cell(run, setting, subjects)
            (record,) = run_cells(
                [cell], range(rounds), run.out, shard=rounds, what=f"timing {setting}"
            ).values()
            found += [(setting, s.row, s.seed, _of_row(record, s.row)) for s in subjects]
    return Found(tuple(found))


def _cell(run: Run, setting: str, subjects: Sequence[Subject]) -> Cell:
    """All ways in one cell: their times belong together."""

    def measure(rounds: Tensor) -> Columns:
        steps = {s.row: _step(run, s) for s in subjects}
        costs = side_by_side(steps, len(rounds), run.device)
        columns: Columns = {}
        for row, own in costs.items():
            pairs = list(zip(own, costs[subjects[0].row], strict=True))
            columns[f"{row}{BETWEEN}time"] = torch.tensor([mine.seconds / ce.seconds for mine, ce in pairs])
            columns[f"{row}{BETWEEN}memory"] = torch.tensor([mine.memory / ce.memory for mine, ce in pairs])
            columns[f"{row}{BETWEEN}step ms"] = torch.tensor([1000 * mine.seconds for mine in own])
        return columns

    nets = {s.row: net_key(s.net) for s in subjects}
    return Cell(f"{setting} cost", {"nets": nets, "machine": hardware(run.device)}, measure)


def _step(run: Run, subject: Subject) -> Stride:
    """One training step on one batch, as training takes it."""
    data = images_of(subject.sizes, "train")
    settings = train_settings(subject.net, run.device)
    some = data.rows(torch.arange(min(settings.batch_size, len(data)))).to(run.device)
    model = built(subject.net, len(data.classes)).to(run.device).train()
    teacher = built(subject.net.teacher, len(data.classes)).to(run.device) if subject.net.teacher else None
    objective = objective_of(subject.net, teacher)
    step = Step(model, optimizer_of(model, settings), objective, launched(settings), settings.clip)
    x, y, keys = some.pixels(), some.labels, random.keys(0, len(some), some.labels.device)

    def stride() -> None:
        step(x, y, keys)

    return stride


def _of_row(record: Record, row: str) -> Record:
    start = f"{row}{BETWEEN}"
    mine = {key.removeprefix(start): values for key, values in record.values.items() if key.startswith(start)}
    return Record(record.name, record.settings, record.examples, mine)
