"""joo2023 Table 2: the cost of each training variant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gyrograd.experiments.cost import Step as Stride
from gyrograd.experiments.cost import side_by_side
from gyrograd.experiments.engine import ExperimentContext, ExperimentOutput, MeasuredNets, RowRecord
from gyrograd.experiments.joo2023.measures import selected
from gyrograd.experiments.joo2023.variants import SETTINGS
from gyrograd.experiments.nets import Net, built, net_key, objective_of, train_settings
from gyrograd.experiments.results import of_prefix
from gyrograd.experiments.samples import images_of
from gyrograd.experiments.trained_nets import Columns, TrainedNet
from gyrograd.measurement import Cell
from gyrograd.measurement.machine import hardware
from gyrograd.numerics import random
from gyrograd.training.loop import Step, optimizer_of
from gyrograd.training.processes import process_group

ROWS = ("ce", "hessian", "atex", "iga", "l2_cosine")
BETWEEN = " : "


def timed(measured: MeasuredNets) -> ExperimentOutput:
    """Time steps of untrained nets. Each round runs one step per way, so a slow moment affects all of them."""
    run = measured.run
    found: list[RowRecord] = []
    for setting in run.included(SETTINGS):
        every = selected(setting, rows=ROWS)(replace(run, rows=()))
        shown = {s.way for s in every if run.select_rows([s.way])}
        # Cross-entropy is always timed, because the others are divided by it.
        mine = [s for s in every if s.seed == run.seeds[0] and s.way in {ROWS[0], *shown}]
        rounds = int(run.sizes(setting).get("rounds", 0))
        if shown and rounds:
            cell = _cell(run, setting, mine)
            (record,) = run.run_cells([cell], range(rounds), rounds, f"timing {setting}").values()
            found += [
                (setting, s.way, s.seed, of_prefix(record, f"{s.way}{BETWEEN}"))
                for s in mine
                if s.way in shown
            ]
    return ExperimentOutput(tuple(found))


def _cell(run: ExperimentContext, setting: str, trained_nets: Sequence[TrainedNet]) -> Cell:
    """One cell for all ways, since their times are compared."""

    def measure(rounds: Tensor) -> Columns:
        steps = {s.way: _step(run, s) for s in trained_nets}
        costs = side_by_side(steps, len(rounds), run.device)
        columns: Columns = {}
        for row, own in costs.items():
            pairs = list(zip(own, costs[trained_nets[0].way], strict=True))
            columns[f"{row}{BETWEEN}time"] = torch.tensor([mine.seconds / ce.seconds for mine, ce in pairs])
            columns[f"{row}{BETWEEN}memory"] = torch.tensor([mine.memory / ce.memory for mine, ce in pairs])
            columns[f"{row}{BETWEEN}step ms"] = torch.tensor([1000 * mine.seconds for mine in own])
        return columns

    nets = {s.way: net_key(s.net) for s in trained_nets}
    return Cell(f"{setting} cost", {"nets": nets, "machine": hardware(run.device)}, measure)


def _step(run: ExperimentContext, trained_net: TrainedNet) -> Stride:
    """One training step on one batch, as in training."""
    net, data = trained_net.net, images_of(trained_net.sizes, "train")
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
