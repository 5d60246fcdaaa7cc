"""The bookkeeping of recorded steps, with a graph that replays by calling: CUDA itself is not here to be asked."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import gyrograd as gg
from gyrograd.training import TrainSettings
from gyrograd.training.capture import WARM_UP, CapturedStep
from gyrograd.training.loop import Step, optimizer_of
from gyrograd.training.objective import objective_of
from gyrograd.training.processes import process_group

SETTINGS = TrainSettings(terms={"l2": {}}, regularize_every=2, lr=0.01, clip=0.5, device="cpu")


@dataclass
class Graph:
    """Does again what was recorded, on what lies in the inputs, and leaves the losses where they were."""

    step: CapturedStep
    number: int
    losses: dict[str, Tensor]

    def replay(self) -> None:
        for name, value in self.step.step(**self.step.inputs, number=self.number).items():
            self.losses[name].copy_(value)


def recording(self: CapturedStep, whole: int | None, number: int) -> tuple[Any, dict[str, Tensor]]:
    for _ in range(WARM_UP):
        losses = self.step(**self.inputs, whole=whole, number=number)
    # a recording computes nothing, so what it hands out is overwritten by the first replay
    held = {name: torch.full_like(value, torch.nan) for name, value in losses.items()}
    return Graph(self, number, held), held


def refusing(self: CapturedStep, whole: int | None, number: int) -> tuple[Any, dict[str, Tensor]]:
    self.step(**self.inputs, whole=whole, number=number)
    raise RuntimeError("operation not permitted when stream is capturing\nmore words")


def steps() -> tuple[Step, Step]:
    model = gg.model("resnet20", activation="softplus", beta=3, seed=0, num_classes=3).double().train()
    both = (model, copy.deepcopy(model))
    return tuple(  # type: ignore[return-value]
        Step(m, optimizer_of(m, SETTINGS), objective_of(SETTINGS), process_group(SETTINGS), SETTINGS.clip)
        for m in both
    )


def batches() -> list[tuple[Tensor, Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    sizes = (4, 4, 4, 2, 4)
    return [
        (
            torch.rand(n, 3, 8, 8, generator=generator, dtype=torch.float64),
            torch.arange(n) % 3,
            torch.arange(n) + 10 * place,
        )
        for place, n in enumerate(sizes)
    ]


@pytest.mark.filterwarnings("ignore:fast. no CUDA graph")
@pytest.mark.parametrize("record", [recording, refusing])
def test_recorded_steps_train_the_same_weights(record: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CapturedStep, "_recorded", record)
    plain, step = steps()
    captured = CapturedStep(step)
    for number, batch in enumerate(batches()):
        expected = plain(*batch, number=number)
        found = captured(*batch, number=number)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-8)
    # the rate is a float32 tensor inside a graph
    torch.testing.assert_close(step.model.state_dict(), plain.model.state_dict(), rtol=1e-4, atol=1e-6)
    assert set(captured.graphs) == ({True, False} if record is recording else set())


def test_a_step_that_cannot_be_recorded_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CapturedStep, "_recorded", refusing)
    captured = CapturedStep(steps()[1])
    words = r"no CUDA graph could be recorded \(operation not permitted when stream is capturing\); going on"
    first, *others = batches()
    with pytest.warns(UserWarning, match=words):
        captured(*first, number=0)
    for number, batch in enumerate(others, start=1):  # a second warning would be an error here
        captured(*batch, number=number)
    assert len(captured.refusals) == 1
