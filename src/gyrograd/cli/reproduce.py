"""gyrograd reproduce: a paper's table or figure, with the paper's numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gyrograd.errors import printable


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
    device: str = "cpu",
    list: bool = False,
    render: bool = False,
) -> None:
    """Run a table or figure of a paper and write its page: paper's value, ours, interval, verdict.

    Args:
        name: which one, such as joo2023-table1; --list shows all.
        scale: smoke (seconds, made images: does it run?), small (minutes, orders can be compared) or paper (all of it).
        out: folder; nets and records in it are shared, and what is finished is not done again.
        seeds: nets trained for each row; the scale's own number by default.
        settings: only these data sets and models, such as cifar10-lenet; comma between several.
        rows: only these rows, such as ce,l2_cosine; the first words are enough (ssr for all maps of the ssr net).
        images: test images measured; the scale's own number by default.
        parts: only measurements whose names begin like one of these, such as accuracy,grad.
        train: train every net in another way, such as epochs=12,schedule=one_cycle,lr=0.05,precision=tf32; the paper's
            orders are then compared, its values not.
        device: auto, cpu, cuda or cuda:INDEX.
        list: show every experiment and what there is of it in the folder.
        render: show the results that are there and write their page anew; nothing is measured.
    """
    from gyrograd import experiments
    from gyrograd.cli import written
    from gyrograd.cli.subject import check_folder
    from gyrograd.errors import UserError
    from gyrograd.models.opening import place_of
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
        train=written.settings(train, such_as="epochs=12,lr=0.05"),
        device=place_of(device),
    )
    _print_results(page)


reproduce.optional_positional = "name"  # type: ignore[attr-defined]


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _print_states(states: Any) -> None:
    from rich.table import Table

    from gyrograd.cli.terminal import Console

    table = Table("name", "where in the paper", "state", box=None, pad_edge=False)
    for name, paper, place, state in states:
        table.add_row(name, f"{paper} {place}", state)
    Console().print(table)


def _print_results(page: Path) -> None:
    """The numbers beside the paper's, how the claims came out, and last the page."""
    from rich.table import Table

    from gyrograd.cli.terminal import Console
    from gyrograd.experiments.report import NOT_MEASURED, column_groups, summary_table, verdict_line
    from gyrograd.experiments.results import read_results
    from gyrograd.experiments.runs import verdicts_of

    results = read_results(page.parent)
    claims, verdicts = verdicts_of(results)
    console = Console()
    for setting in results.measured_in:
        columns = [column for group in column_groups(results, claims, setting) for column in group]
        shown = summary_table(results, claims, setting, columns)
        # A row a number: tables of a dozen columns do not fit a terminal.
        table = Table(
            "row", "column", "ours; paper", title=setting, title_justify="left", box=None, pad_edge=False
        )
        for row in shown.rows:
            for column, cell in zip(columns, row[1:], strict=True):
                if cell != NOT_MEASURED:
                    table.add_row(row[0], column, cell)
        console.print(table)
    console.print(verdict_line(verdicts), highlight=False)
    print(printable(page))
