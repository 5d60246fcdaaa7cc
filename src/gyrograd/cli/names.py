"""gyrograd list: every name there is, with its paper."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterable
from dataclasses import asdict

from gyrograd import registry
from gyrograd.cli.catalogue import Listed, catalogue


def show(kind: str | None = None, json: bool = False) -> None:
    """List the names of a kind, or of all kinds.

    Args:
        kind: attribution, kernel, model, dataset, ...; all of them if left out.
        json: print JSON for machines instead of tables.
    """
    kinds = registry.kinds() if kind is None else (kind,)
    found = {each: catalogue(each).values() for each in kinds}
    if json:
        rows = {each: [asdict(entry) for entry in entries] for each, entries in found.items()}
        print(json_format.dumps(rows, indent=1))
        return
    for each, entries in found.items():
        _print_table(each, entries)


# `gyrograd list KIND` reads better than `--kind KIND`.
show.optional_positional = "kind"  # type: ignore[attr-defined]


def _print_table(kind: str, entries: Iterable[Listed]) -> None:
    from rich.table import Table

    from gyrograd.cli.terminal import Console

    table = Table("name", "what it is", "paper", title=kind, title_justify="left", box=None, pad_edge=False)
    for entry in entries:
        name = entry.name + (f" [dim]({', '.join(entry.aliases)})[/dim]" if entry.aliases else "")
        source = entry.paper if entry.package == "gyrograd" else f"package {entry.package}"
        table.add_row(name, entry.summary, source)
    console = Console()
    console.print(table)
    console.print()
