"""gyrograd reproduce: run a table or figure of a paper and compare with its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gyrograd.cli.options import Syntax
from gyrograd.errors import printable

if TYPE_CHECKING:
    from gyrograd.experiments.engine import State

MOST_LINES = 20
"""Most numbers to print; all of a table would take hundreds of lines."""
NUMBERS = "numbers.csv"
"""All numbers, next to the page."""


@Syntax(words={"name": "?"})
def reproduce(
    name: str | None = None,
    scale: str = "smoke",
    out: Path = Path("out/reproduce"),
    seeds: int | None = None,
    settings: str = "",
    rows: str = "",
    images: int | None = None,
    parts: str = "",
    train: str = "",
    device: str = "auto",
    list: bool = False,
    render: bool = False,
) -> None:
    """Rerun a table or figure of a paper and compare its numbers.

    Writes a page with the paper's values, ours, intervals and verdicts.

    Args:
        name: a table or figure, such as joo2023-table1; --list shows all.
        scale: smoke (seconds, made images: does it run?), small (minutes, orders can be compared) or paper (all of it).
        out: folder; experiments share nets and records in it, and finished work is not repeated.
        seeds: nets trained per row; default: that of the scale.
        settings: only these data sets and models, such as cifar10-lenet; comma between several.
        rows: only these rows, such as ce,l2_cosine; the first words are enough (ssr for all maps of the ssr net).
        images: test images measured; default: that of the scale.
        parts: only measurements whose names begin like one of these, such as accuracy,grad.
        train: other training settings for every net, such as epochs=12,schedule=one_cycle,lr=0.05,precision=tf32; only
            orders are then compared with the paper, not values (both if tf32 is all that changes).
        device: auto, cpu, cuda or cuda:INDEX.
        list: show every experiment with its needs, its cost and its state in the folder.
        render: show existing results and write their page again, without measuring.
    """
    from gyrograd import experiments
    from gyrograd.cli import parsing
    from gyrograd.cli.inputs import check_folder
    from gyrograd.errors import UserError
    from gyrograd.models.opening import resolve_device
    from gyrograd.registry import lookup

    if list:
        _print_states(experiments.states(out))
        return
    if name is None:
        raise UserError(
            "Say what to reproduce, such as joo2023-table1; `gyrograd reproduce --list` shows all."
        )
    if render:
        _print_results(experiments.render(out / scale / lookup("experiment", name).name))
        return
    check_folder(out)
    page = experiments.reproduce(
        name,
        scale,
        out,
        seeds=seeds,
        settings=_words(settings),
        rows=_words(rows),
        images=images,
        parts=_words(parts),
        train=parsing.settings(train, such_as="epochs=12,lr=0.05"),
        device=resolve_device(device),
    )
    _print_results(page)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _print_states(states: Sequence[State]) -> None:
    """Print a few lines per experiment: name and state, content, requirements, cost and measured times."""
    from gyrograd.cli.terminal import print_table, say

    for one in states:
        say(f"{one.name} ({one.place}): {one.state}", style="bold")
        lines = [("", one.about)]
        for scale, nets in one.nets.items():
            cost = [
                f"{nets or 'no'} net{'' if nets == 1 else 's'}",
                "needs " + (", ".join(one.needs[scale]) or "no data"),
            ]
            took = [one.took[scale].text] if scale in one.took else []
            lines.append((f"  {scale}:", ", ".join(cost + took)))
        print_table(("", ""), lines, styles=[None, *["dim"] * len(one.nets)])
    say(
        "Nets are trained first, then measured; experiments in one folder share them. smoke takes seconds. The other "
        "times were measured, those of small on a machine with other work on it."
    )


def _print_results(page: Path) -> None:
    """Print the paper's numbers next to ours, the verdicts, the path of all numbers, and last the page."""
    from gyrograd.cli.terminal import print_table, say
    from gyrograd.experiments.engine import verdicts_of
    from gyrograd.experiments.report import (
        NOT_MEASURED,
        column_groups,
        numbers_csv,
        summary_table,
        verdict_line,
    )
    from gyrograd.experiments.results import read_results
    from gyrograd.records import write_text

    results = read_results(page.parent)
    claims, verdicts = verdicts_of(results)
    numbers = page.parent / NUMBERS
    write_text(numbers, numbers_csv(results, claims, verdicts))
    lines = []
    for setting in results.measured_in:
        columns = [column for group in column_groups(results, claims, setting) for column in group]
        for row in summary_table(results, claims, setting, columns).rows:
            cells = zip(columns, row[1:], strict=True)
            lines += [(setting, row[0], column, cell) for column, cell in cells if cell != NOT_MEASURED]
    # Numbers that the paper prints come first; the stable sort keeps the order of the rest.
    lines.sort(key=lambda line: "; paper " not in line[3])
    print_table(("setting", "row", "column", "ours; paper"), lines[:MOST_LINES])
    left = f"{len(lines)} numbers" + (f", {MOST_LINES} of them above" if len(lines) > MOST_LINES else "")
    say(f"{left}; all of them, with the points of curves: {printable(numbers)}", wrap=False)
    say(verdict_line(verdicts), wrap=False)
    print(printable(page))
