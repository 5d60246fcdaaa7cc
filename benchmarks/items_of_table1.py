"""Pages of joo2023's items whose numbers the runs of its Table 1 have measured already.

    python benchmarks/items_of_table1.py

Figures 2a, 2b and 3a, Appendix Tables 1 to 3 and Appendix Figures 2, 4 and 5 measure nets of Table 1 (the appendix
more nets beside them) with parts that Table 1 has too. `gyrograd reproduce` in the folder of Table 1's run would read
its records and measure nothing again. The records are not kept under results/, their means and intervals are: this
copies them into the page of the item, for every part whose net, measurement and settings are the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import gyrograd.experiments  # noqa: F401 - registers the items
from gyrograd.experiments.engine import CHANGED, HOME, ExperimentContext, render
from gyrograd.experiments.nets import net_key
from gyrograd.experiments.results import Estimate, Quantity, Results, read_results, write_results
from gyrograd.experiments.scales import read_scale
from gyrograd.experiments.trained_nets import Part
from gyrograd.registry import lookup
from gyrograd.training.settings import OLD_FIELDS

RESULTS = Path(__file__).parents[1] / "results"
TABLE = "joo2023-table1"


@dataclass(frozen=True)
class Item:
    """An item, the page of Table 1 that has its numbers, and the options of the command for these numbers."""

    name: str
    source: str
    options: str
    folder: str = ""


RESNET18, IMAGENETTE, PRINTED = (f"{TABLE}-{end}" for end in ("resnet18", "imagenette", "printed"))
LENETS = "--rows 'ce,l2 0.1,l2_cosine 0.1 1'"
RESNETS = "--rows 'ce,l2 1,l2_cosine 0.1 1'"
THREE = "--rows ce,l2,l2_cosine"
AT_16 = "--parts 'accuracy,{0} rps 16,{1} rps 16'"
ITEMS = (
    Item("joo2023-figure2a", RESNET18, THREE),
    Item("joo2023-figure2a", IMAGENETTE, THREE, "joo2023-figure2a-imagenette"),
    Item("joo2023-figure2b", IMAGENETTE, ""),
    Item("joo2023-figure3a", RESNET18, THREE),
    Item("joo2023-figure3a", IMAGENETTE, THREE, "joo2023-figure3a-imagenette"),
    Item("joo2023-appendix-table1", PRINTED, f"{LENETS} {AT_16.format('grad', 'xgrad')}"),
    Item(
        "joo2023-appendix-table1",
        RESNET18,
        f"{RESNETS} --parts 'accuracy,grad rps 16'",
        "joo2023-appendix-table1-resnet18",
    ),
    Item("joo2023-appendix-table2", PRINTED, f"{LENETS} {AT_16.format('gbp', 'lrp')}"),
    Item("joo2023-appendix-table3", PRINTED, LENETS),
    Item(
        "joo2023-appendix-table3",
        RESNET18,
        f"{RESNETS} --parts accuracy,grad",
        "joo2023-appendix-table3-resnet18",
    ),
    Item("joo2023-appendix-figure2", PRINTED, LENETS),
    Item("joo2023-appendix-figure4", IMAGENETTE, "--rows 'ce,l2 0.3'"),
    Item("joo2023-appendix-figure5", IMAGENETTE, "--rows 'l2_cosine 1 1'"),
)


def derived(item: Item, results: Path = RESULTS) -> Results:
    """The results of an item, with the numbers of its page of Table 1."""
    source = read_results(results / item.source)
    (setting,) = source.measured_in
    theirs = {key(part): part.row for part in parts_of(TABLE, source, setting)}
    parts = parts_of(item.name, source, setting)
    found: dict[Quantity, Estimate] = {}
    for part in parts:
        row = theirs.get(key(part))
        columns = [q.column for q in source.estimates if q.row == row and belongs(q.column, part.what)]
        found |= {
            Quantity(setting, part.row, column): source.estimates[Quantity(setting, str(row), column)]
            for column in columns
        }
    sizes = dict(source.settings["sizes"][setting])
    nets, measured = len({key(part)[0] for part in parts}), len({q.row for q in found})
    looks = lookup("experiment", item.name).factory().looks
    sentences = (
        sizes.get("why"),
        f"The numbers are those of the page {item.source}, whose run measured these nets in the same way; the time "
        "below is of that whole run.",
        f"These are {measured} of the item's {nets} nets." if measured < nets else None,
        "The maps are not kept here; the command shows them." if looks else None,
    )
    sizes["why"] = " ".join(filter(None, sentences))
    facts = {**source.facts, "command": command(item, source)}
    return replace(
        source,
        name=item.name,
        settings={**source.settings, "sizes": {setting: sizes}},
        estimates=found,
        facts=facts,
    )


def parts_of(name: str, source: Results, setting: str) -> list[Part]:
    """What an item measures of the nets that the source's run has, and of others that it does not have."""
    entry = lookup("experiment", name)
    scale = read_scale(HOME / entry.paper / "scales.toml", "paper")
    train = changes_of(source)
    run = ExperimentContext(scale, Path(), (0,), settings=(setting,), train=train, look=False)
    experiment = entry.factory()
    makers = [make for group in experiment.measures for make in group]
    return [part for net in experiment.nets(run) for make in makers for part in make(net)]


def changes_of(source: Results) -> dict[str, Any]:
    """What `--train` changed, by the settings' names of today."""
    return {OLD_FIELDS.get(name, name): value for name, value in source.settings.get(CHANGED, {}).items()}


def key(part: Part) -> tuple[Any, ...]:
    """Everything that determines the values of a part besides data and seed."""
    return net_key(part.net), part.what, json.dumps(dict(part.settings), sort_keys=True), part.split


def belongs(column: str, what: str) -> bool:
    """Whether a part writes this column: "grad attack 2" writes "grad a-ins 2 @0.5" and others."""
    name, _, rest = what.partition(" ")
    kind, _, eps = rest.partition(" ")
    patterns = {
        "": [name],
        "rps": [f"{name} rps * {eps}"],
        "insertion": [f"{name} ins", f"{name} ins[ ,]*"],
        "attack": [
            f"{name} a-ins {eps}",
            f"{name} a-ins {eps}[ ,]*",
            f"{name} attacked cosine {eps}",
            f"{name} label kept {eps}",
        ],
    }
    return any(fnmatchcase(column, pattern) for pattern in patterns[kind])


def command(item: Item, source: Results) -> str:
    """The source's command with the item's name, and its rows and parts in place of Table 1's."""
    words = str(source.facts["command"]).split()
    for option in ("--rows", "--parts"):
        if option in words:
            place = words.index(option)
            del words[place : place + 2]
    words[words.index(TABLE)] = item.name
    if CHANGED in source.settings:
        words[words.index("--train") + 1] = ",".join(
            f"{name}={value}" for name, value in changes_of(source).items()
        )
    after = words.index("--settings") + 2
    return " ".join((*words[:after], *([item.options] if item.options else []), *words[after:]))


def main() -> None:
    for item in ITEMS:
        folder = RESULTS / (item.folder or item.name)
        folder.mkdir(exist_ok=True)
        write_results(folder, derived(item))
        render(folder)


if __name__ == "__main__":
    main()
