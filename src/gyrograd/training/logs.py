"""What a run says while it goes: a bar on a terminal, a line of JSON for each epoch, TensorBoard on request."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from gyrograd.errors import UserError
from gyrograd.training.files import replace_file

NAME = "log.jsonl"


class Bar(Protocol):
    """Where a run is, and its losses."""

    def __call__(self, step: int, epoch: int, losses: Mapping[str, float]) -> None: ...


@contextmanager
def bar(steps: int, epochs: int, *, shown: bool) -> Iterator[Bar]:
    """A bar with the loss and its parts; silent in logs, pipes and tests."""
    if not (shown and sys.stderr.isatty()):
        yield lambda step, epoch, losses: None  # noqa: ARG005
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training", total=steps)

        def show(step: int, epoch: int, losses: Mapping[str, float]) -> None:
            parts = "  ".join(f"{name} {value:.3g}" for name, value in losses.items())
            progress.update(task, completed=step, description=f"epoch {epoch + 1}/{epochs}  {parts}")

        yield show


def write_log(out: Path, history: list[dict[str, Any]]) -> None:
    """The whole log, one line an epoch. It is a function of the run's history, so a resumed run repeats no line."""
    replace_file(out / NAME, "".join(json.dumps(entry) + "\n" for entry in history).encode())


def read_log(out: Path | str) -> list[dict[str, Any]]:
    """The entries of a run's log, oldest first."""
    path = Path(out) / NAME
    if not path.is_file():
        raise UserError(f"There is no log at {path}; give the folder of a training run.")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def tensorboard_writer(out: Path, epoch: int) -> Any:
    """A writer for TensorBoard; what an interrupted run wrote from this epoch on is taken back."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("tensorboard true needs it installed: pip install 'gyrograd[tensorboard]'.") from None
    return SummaryWriter(out / "tensorboard", purge_step=epoch + 1)


def write_scalars(writer: Any, entry: Mapping[str, Any]) -> None:
    """An epoch's numbers for TensorBoard."""
    numbers = {f"losses/{name}": value for name, value in entry["losses"].items()}
    numbers |= {key: entry[key] for key in ("lr", "accuracy", "seconds") if key in entry}
    for name, value in numbers.items():
        writer.add_scalar(name, value, entry["epoch"])
    writer.flush()
