"""joo2023 Table 2: what the ways to train cost."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gyrograd.experiments.cost import Step as Stride
from gyrograd.experiments.cost import side_by_side
from gyrograd.experiments.joo2023.measures import selected
from gyrograd.experiments.joo2023.ways import SETTINGS
from gyrograd.experiments.nets import Net, built, net_key, objective_of, train_settings
from gyrograd.experiments.results import of_prefix
from gyrograd.experiments.runs import Found, Measured, Run
from gyrograd.experiments.samples import images_of
from gyrograd.experiments.subjects import Columns, Subject
from gyrograd.measurement import Cell, run_cells
from gyrograd.measurement.machine import hardware
from gyrograd.numerics import random
from gyrograd.training.loop import Step, optimizer_of
from gyrograd.training.processes import process_group

ROWS = ("ce", "hessian", "atex", "iga", "l2_cosine")
BETWEEN = " : "


def timed(run: Run, subjects: Sequence[Subject], records: tuple[Measured, ...]) -> Found:  # noqa: ARG001
    """Each way takes one step a round, so that a slow moment of the machine hits all of them. Nets are untrained."""
    found: list[Measured] = []
    for setting in run.included(SETTINGS):
        mine = [s for s in selected(setting, rows=ROWS)(run) if s.seed == run.seeds[0]]
        rounds = int(run.sizes(setting).get("rounds", 0))
        if mine and rounds:
            cell = _cell(run, setting, mine)
            (record,) = run_cells(
                [cell], range(rounds), run.out, shard=rounds, what=f"timing {setting}"
            ).values()
            found += [(setting, s.way, s.seed, of_prefix(record, f"{s.way}{BETWEEN}")) for s in mine]
    return Found(tuple(found))


def _cell(run: Run, setting: str, subjects: Sequence[Subject]) -> Cell:
    """All ways in one cell: their times belong together."""

    def measure(rounds: Tensor) -> Columns:
        steps = {s.way: _step(run, s) for s in subjects}
        costs = side_by_side(steps, len(rounds), run.device)
        columns: Columns = {}
        for row, own in costs.items():
            pairs = list(zip(own, costs[subjects[0].way], strict=True))
            columns[f"{row}{BETWEEN}time"] = torch.tensor([mine.seconds / ce.seconds for mine, ce in pairs])
            columns[f"{row}{BETWEEN}memory"] = torch.tensor([mine.memory / ce.memory for mine, ce in pairs])
            columns[f"{row}{BETWEEN}step ms"] = torch.tensor([1000 * mine.seconds for mine in own])
        return columns

    nets = {s.way: net_key(s.net) for s in subjects}
    return Cell(f"{setting} cost", {"nets": nets, "machine": hardware(run.device)}, measure)


def _step(run: Run, subject: Subject) -> Stride:
    """One training step on one batch, as training takes it."""
    net, data = subject.net, images_of(subject.sizes, "train")
    assert isinstance(net, Net)
    settings = train_settings(net, run.device)
    some = data.rows(torch.arange(min(settings.batch_size, len(data)))).to(run.device)
    model = built(net, len(data.classes)).to(run.device).train()
    teacher = built(net.teacher, len(data.classes)).to(run.device) if net.teacher else None
    objective = objective_of(net, teacher)
    step = Step(model, optimizer_of(model, settings), objective, process_group(settings), settings.clip)
    x, y, keys = some.pixels(), some.labels, random.keys(0, len(some), some.labels.device)

    def stride() -> None:
        step(x, y, keys)

    return stride
