"""`gyrograd sweep`: train a grid of settings, in this process or on a Ray cluster, and choose the best."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyrograd.cli.options import Syntax
from gyrograd.errors import UserError, printable
from gyrograd.records import JsonObject

if TYPE_CHECKING:
    from gyrograd.training.clusters import Outcome
    from gyrograd.training.sweep import SweepResult
    from gyrograd.training.trials import Trial


@Syntax(bare={"ray": "local"})
def sweep(
    file: Path,
    out: Path | None = None,
    seeds: list[int] | None = None,
    max_accuracy_loss: float = 0.01,
    images: int = 200,
    ray: str | None = None,
    max_retries: int = 2,
    cpus: float = 1.0,
    gpus: float | None = None,
    json: bool = False,
) -> int:
    """Train a grid of settings and choose the steadiest.

    Trains every point of the grid with every seed, and chooses the highest similarity of gradients under noise (RPS)
    among the points whose accuracy is near that of cross-entropy.
    Exit code 1: a trial failed, or no point is within the limit.

    Args:
        file: YAML with settings of `gyrograd train` (recipe, epochs, ...), a grid of dotted keys
            (terms.l2_cosine.l2: [0.01, 0.1]) and perhaps seeds ([0, 1, 2]).
        out: folder for trials and table; default: out/FILE. An interrupted sweep continues there.
        seeds: seeds, instead of those in the file.
        max_accuracy_loss: largest loss of accuracy against cross-entropy; 0.01 is one point.
        images: test images on which Grad RPS is measured.
        ray: local (a Ray cluster of this machine), auto (one that runs already) or its address.
        max_retries: on Ray, retries of a trial whose worker died.
        cpus: on Ray, processors per trial.
        gpus: on Ray, GPUs per trial, or a share of one.
        json: print the table as JSON.
    """
    from gyrograd.cli.inputs import check_folder
    from gyrograd.training.clusters import Cluster
    from gyrograd.training.sweep import sweep as swept
    from gyrograd.training.trials import Measuring

    base, grid, own_seeds = _plan(file)
    folder = Path("out") / file.stem if out is None else out
    check_folder(folder)
    done = swept(
        base,
        grid,
        out=folder,
        seeds=own_seeds if seeds is None else seeds,
        max_accuracy_loss=max_accuracy_loss,
        measuring=Measuring(images=images),
        ray=None if ray is None else Cluster(ray, max_retries, cpus, gpus),
        says=_say,
    )
    _print(done, json)
    return 1 if done.failures or done.selection.chosen is None else 0


def _plan(file: Path) -> tuple[JsonObject, JsonObject, list[Any]]:
    """The file's settings, grid and seeds."""
    from gyrograd.training.settings import read_tree

    tree = dict(read_tree(file))
    grid, seeds = tree.pop("grid", None), tree.pop("seeds", [0])
    if grid is None:
        raise UserError(
            f"{file} has no grid; write one, such as `grid: {{terms.l2_cosine.l2: [0.01, 0.1]}}`."
        )
    if not isinstance(grid, dict):
        raise UserError(f"The grid of {file} is {grid!r}; give keys with lists of values.")
    if not isinstance(seeds, list):
        raise UserError(f"The seeds of {file} are {seeds!r}; give a list, such as [0, 1, 2].")
    return tree, {str(key): values for key, values in grid.items()}, seeds


def _say(trial: Trial, outcome: Outcome, done: int, of: int) -> None:
    """Print a line per trial on stderr; stdout is for the table."""
    from gyrograd.training.trials import mean

    if isinstance(outcome, str):
        what = f"failed: {outcome}"
    else:
        what = f"accuracy {mean(outcome.values, 'accuracy'):.3f}, Grad RPS {mean(outcome.values, 'rps'):.3f}"
    print(
        printable(f"{done}/{of} {trial.point}, seed {trial.settings.seed}: {what}"),
        file=sys.stderr,
        flush=True,
    )


def _print(done: SweepResult, json: bool) -> None:
    if json:
        print(json_format.dumps(done.selection.document() | {"table": str(done.path)}, indent=1))
        return
    from gyrograd.cli.terminal import print_table, say

    table = done.selection.table()
    print_table(table.header, table.rows)
    say(done.selection.sentence, style="bold")
    print(printable(done.path))
