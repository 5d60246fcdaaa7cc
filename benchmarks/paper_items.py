"""What was reached of every table and figure of the papers: writes the table of results/README.md.

    python benchmarks/paper_items.py

Read from the results.json of each page under results/ and, for items that were only run small, from results/small.md;
the verdicts are those of the papers' claims as they stand now, so the table cannot drift from them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gyrograd.experiments  # noqa: F401 - registers the items
from gyrograd.experiments.claims import ELSEWHERE, count_verdicts, was_given
from gyrograd.experiments.engine import HOME, ExperimentContext, begins, verdicts_of
from gyrograd.experiments.results import Results, read_results
from gyrograd.experiments.scales import read_scale
from gyrograd.records import write_text
from gyrograd.registry import available, lookup

RESULTS = Path(__file__).parents[1] / "results"
BEGIN, END = "<!-- paper_items.py: begin -->\n", "<!-- paper_items.py: end -->\n"
VERDICTS = ("confirmed", "within interval", "inconclusive", "not confirmed", "not comparable")
HEADER = ("item", "scale reached", "seeds", *VERDICTS)


def table(results: Path = RESULTS) -> str:
    """The Markdown table: a row per page, or the counts of results/small.md for an item without one."""
    pages: dict[str, list[Path]] = {}
    for path in sorted(results.glob("*/results.json")):
        found = read_results(path.parent)
        if found.scale == "paper":
            pages.setdefault(found.name, []).append(path.parent)
    small = small_counts(results / "small.md")
    lines = [HEADER, ("---",) * len(HEADER)]
    for name, entry in available("experiment").items():
        where = f"{entry.paper} {entry.equation}"
        lines += [page_row(where, folder) for folder in pages.get(name, ())]
        if name not in pages and name in small:
            lines.append((f"{where}: [small](small.md)", "small", "1", *small[name]))
        elif name not in pages:
            lines.append((where, "not run", "", *("",) * len(VERDICTS)))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page_row(where: str, folder: Path) -> tuple[str, ...]:
    """One page: what was reached, and how its claims came out; claims of what it did not measure are left out."""
    results = read_results(folder)
    counts = count_verdicts(one for one in verdicts_of(results)[1] if one.why != ELSEWHERE)
    seeds = max(len(one.by_seed) for one in results.estimates.values())
    reached = "; ".join(reaches(results))
    numbers = (str(counts[verdict] or "") for verdict in VERDICTS)
    return (f"{where}: [{folder.name}]({folder.name}/index.html)", reached, str(seeds), *numbers)


def reaches(results: Results) -> Iterator[str]:
    """Epochs and images per setting, each beside the paper's where it is fewer."""
    entry = lookup("experiment", results.name)
    paper = read_scale(HOME / entry.paper / "scales.toml", "paper").settings
    over = entry.factory().over
    for setting, sizes in results.settings["sizes"].items():
        if "images" not in paper[setting]:
            continue  # what is said of all settings together
        if over != "images":
            yield f"{setting}: {sizes[over]} {over}"
        elif "data" not in sizes:
            yield f"{setting}: {of(sizes['images'], paper[setting]['images'])} draws"
        else:
            images = of(sizes["images"], paper[setting]["images"])
            origin = " and ".join(nets(results, setting, paper[setting].get("epochs")))
            yield f"{setting}: {origin}{share_of_nets(results, setting)}, {images} images"


def nets(results: Results, setting: str, epochs: int | None) -> Iterator[str]:
    """Where the nets of a setting come from, or how long they were trained."""
    sizes = results.settings["sizes"][setting]
    given = {was_given(results, q) for q in results.estimates if q.setting == setting}
    if epochs is None:
        yield "nets of the zoo"
    elif True in given:
        yield "a public net"
    if epochs is not None and False in given:
        yield f"{of(sizes['epochs'], epochs)} epochs"


def share_of_nets(results: Results, setting: str) -> str:
    """How many of the item's nets were measured, where some were not."""
    entry = lookup("experiment", results.name)
    scale = read_scale(HOME / entry.paper / "scales.toml", "paper")
    run = ExperimentContext(scale, Path(), (0,), settings=(setting,), look=False)
    ways = {net.way for net in entry.factory().nets(run)}
    measured = {way for way in ways for row in results.rows(setting) if begins(row, way)}
    return f", {len(measured)} of {len(ways)} nets" if 0 < len(measured) < len(ways) else ""


def of(ours: int, paper: int) -> str:
    """A number, beside the paper's where it is smaller."""
    return f"{ours:,}" if ours >= paper else f"{ours:,} of {paper:,}"


def small_counts(path: Path) -> dict[str, tuple[str, ...]]:
    """The counts of results/small.md by item; it has no values, and leaves out what cannot be compared."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            name, _, confirmed, inconclusive, not_confirmed = cells
            counts = (confirmed, "", inconclusive, not_confirmed, "")
            found[name.strip("`")] = tuple("" if count in ("-", "0") else count for count in counts)
    return found


def main() -> None:
    path = RESULTS / "README.md"
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    write_text(path, f"{before}{BEGIN}{table()}{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
