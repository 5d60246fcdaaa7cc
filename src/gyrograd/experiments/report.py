"""The page of an experiment: a pure function of its results and its paper's claims."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from gyrograd.experiments.claims import (
    ELSEWHERE,
    Claims,
    ClaimVerdict,
    Value,
    count_verdicts,
    quantities,
)
from gyrograd.experiments.codes import explained
from gyrograd.experiments.results import Estimate, Quantity, Results
from gyrograd.reporting import Section, Table, page

POINT = "@"
"""A column whose name contains this sign is a point of a curve: it is plotted and left out of the tables."""
NOT_MEASURED = "not measured"
ORDER_HEADER = ("setting", "claim", "verdict", "lower", "higher", "why")
BADGES = {
    "confirmed": "steady",
    "within interval": "steady",
    "inconclusive": "shaky",
    "not confirmed": "unsafe",
}
"""The audit grade whose colour each verdict has."""
COLOURS = {"confirmed": "good", "not confirmed": "bad"}
VALUE_HEADER = ("setting", "row", "column", "verdict", "paper", "ours", "why")


def experiment_page(
    title: str,
    about: tuple[str, ...],
    results: Results,
    claims: Claims,
    verdicts: Sequence[ClaimVerdict],
    figures: tuple[Section, ...],
) -> str:
    """The page as HTML."""
    drawn = tuple(section for section in figures if section.figures)
    printed = tuple(section for section in figures if not section.figures)
    sections = (
        *drawn,
        Section("How it was measured", (*about[1:], _scale_line(results), *claims.notes)),
        *_code_section(results),
        *(section for setting in results.measured_in for section in _numbers(setting, results, claims)),
        *printed,
        *_verdict_sections(verdicts),
        *_error_section(claims),
    )
    lead = (*about[:1], verdict_line(verdicts))
    return page(title, lead, sections, _footer(results), badges=verdict_badges(verdicts))


def verdict_badges(verdicts: Sequence[ClaimVerdict]) -> tuple[tuple[str, str], ...]:
    """The number of claims with each verdict, as text and colour; claims about unmeasured numbers are left out."""
    counts = count_verdicts(judgement for judgement in verdicts if judgement.why != ELSEWHERE)
    return tuple(
        (f"{number} {verdict}", BADGES.get(verdict, "plain")) for verdict, number in counts.items() if number
    )


def _code_section(results: Results) -> tuple[Section, ...]:
    """A section that explains the short names of rows and columns."""
    settings = results.measured_in
    names = [name for s in settings for name in (*tabled(results, s), *results.rows(s))]
    rows = tuple(explained(dict.fromkeys(names)))
    table = Table(("name", "what it is"), rows, names=("name",), sentences=("what it is",))
    return (Section("What the short names stand for", (), table, folded=True),) if rows else ()


def numbers_csv(results: Results, claims: Claims, verdicts: Sequence[ClaimVerdict]) -> str:
    """Every number of the run as CSV: ours, its interval, the paper's, the verdict."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ("setting", "row", "column", "ours", "low", "high", "images", "seeds", "paper", "verdict")
    )
    printed = claims.reported()
    said = {one.claim.quantity: one.verdict for one in verdicts if isinstance(one.claim, Value)}
    for q, e in results.estimates.items():
        paper = printed[q].reported if q in printed else ""
        numbers = (e.value, e.low, e.high, e.images, len(e.by_seed), paper, said.get(q, ""))
        writer.writerow((q.setting, q.row, q.column, *numbers))
    return text.getvalue()


def summary_table(results: Results, claims: Claims, setting: str, columns: Sequence[str]) -> Table:
    """A table of our numbers with intervals, and the paper's numbers if printed.

    Rows without a number in any of these columns are left out.
    """
    reported = claims.reported()

    def cell(row: str, column: str) -> str:
        quantity = Quantity(setting, row, column)
        ours = results.estimates.get(quantity)
        if ours is None:
            return NOT_MEASURED
        paper = reported.get(quantity)
        return shown(ours) + (f"; paper {paper.reported:g}" if paper else "")

    rows = [(row, *(cell(row, column) for column in columns)) for row in results.rows(setting)]
    return Table(("", *columns), tuple(row for row in rows if set(row[1:]) != {NOT_MEASURED}))


def column_groups(results: Results, claims: Claims, setting: str) -> list[list[str]]:
    """The columns of a setting, grouped into tables by their first word, or else by the rows that have them.

    The paper's columns come first, in its order.
    """
    printed = list(dict.fromkeys(q.column for q in claims.reported()))
    columns = sorted(
        tabled(results, setting), key=lambda c: printed.index(c) if c in printed else len(printed)
    )
    first_words = [column.split()[0] for column in columns]
    groups: dict[object, list[str]] = {}
    for column, word in zip(columns, first_words, strict=True):
        # The rows with a number in this column: rank correlations have rows of their own.
        rows = tuple(row for row in results.rows(setting) if results.column_of(setting, row, column))
        groups.setdefault(word if first_words.count(word) > 1 else rows, []).append(column)
    return list(groups.values())


def shown(estimate: Estimate) -> str:
    """A number with its interval, and on how many images it rests if others have no value."""
    total = estimate.images + estimate.missing
    rest = f", {estimate.images} of {total} images" if estimate.missing else ""
    if not estimate.bounded:
        return f"{_number(estimate.value)} [one image, no interval]{rest}"
    return f"{_number(estimate.value)} [{_number(estimate.low)}, {_number(estimate.high)}]{rest}"


def tabled(results: Results, setting: str) -> list[str]:
    """The columns of a setting without the points of curves."""
    return [column for column in results.columns(setting) if POINT not in column]


def verdict_line(verdicts: Sequence[ClaimVerdict]) -> str:
    """One line with the number of claims for each verdict."""
    if not verdicts:
        return "The paper prints no number to compare with here."
    here = [judgement for judgement in verdicts if judgement.why != ELSEWHERE]
    if not here:
        return "The paper claims nothing about what this run measured."
    counts = ", ".join(f"{number} {verdict}" for verdict, number in count_verdicts(here).items() if number)
    others = f" {len(verdicts) - len(here)} more are about what this run did not measure."
    of_paper = f"{len(here)} claim{'' if len(here) == 1 else 's'} of the paper: {counts}."
    return of_paper + (others if len(here) < len(verdicts) else "")


def _number(value: float) -> str:
    """Three decimals below ten (similarities), one above (per cent)."""
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"


def _numbers(setting: str, results: Results, claims: Claims) -> list[Section]:
    """A table per group of columns; the first has the setting's sizes above it."""
    sizes = results.settings.get("sizes", {}).get(setting, {})
    held = ", ".join(f"{key} {_words(value)}" for key, value in sizes.items() if key != "why")
    about = (*((str(sizes["why"]),) if "why" in sizes else ()), *((f"Sizes: {held}.",) if held else ()))
    sections: list[Section] = []
    for columns in column_groups(results, claims, setting):
        heading = setting if not sections else f"{setting}, {columns[0].split()[0]}"
        paragraphs = about if not sections else ()
        sections.append(Section(heading, paragraphs, summary_table(results, claims, setting, columns)))
    return sections


def _words(value: Any) -> str:
    """A size as text: a name with its settings in brackets."""
    if not isinstance(value, dict):
        return str(value)
    more = ", ".join(f"{key} {_words(item)}" for key, item in value.items() if key != "name")
    name = str(value.get("name", ""))
    return f"{name} ({more})" if more else name


def _verdict_sections(verdicts: Sequence[ClaimVerdict]) -> tuple[Section, ...]:
    """Tables of the judged values and of the judged orders, without unmeasured ones; empty tables are left out."""
    values, orders = [], []
    for judged in (one for one in verdicts if one.why != ELSEWHERE):
        claim, ours = judged.claim, [shown(estimate) for estimate in judged.ours]
        if isinstance(claim, Value):
            q, spread = claim.quantity, f" ± {claim.spread:g}" if claim.spread else ""
            numbers = (f"{claim.reported:g}{spread}", *(ours or [""]))
            values.append((q.setting, q.row, q.column, judged.verdict, *numbers, judged.why))
        else:
            sides = ours if len(ours) == 2 else ["", ""]
            orders.append((claim.lower.setting, claim.text, judged.verdict, *sides, judged.why))
    tables = {
        "What the paper says lies above what": _worded(ORDER_HEADER, tuple(orders)),
        "The paper's numbers": _worded(VALUE_HEADER, tuple(values)),
    }
    return tuple(Section(heading, (), table) for heading, table in tables.items() if table.rows)


def _worded(header: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> Table:
    return Table(
        header, rows, names=("row", "column", "verdict"), sentences=("claim", "why"), colours=COLOURS
    )


def _error_section(claims: Claims) -> tuple[Section, ...]:
    claimed = [q for claim in claims.claims for q in quantities(claim)]
    mine = [error for error in claims.known_errors if any(map(error.covers, claimed))]
    rows = tuple((error.setting, error.row, error.column, error.why) for error in mine)
    table = _worded(("setting", "row", "column", "why"), rows)
    return (Section("What cannot be compared, and why", (), table),) if rows else ()


def _scale_line(results: Results) -> str:
    seeds = max((len(e.by_seed) for e in results.estimates.values()), default=0)
    what = results.settings.get("over", "images")
    over = (
        f"{what} and seeds" if seeds > 1 else f"{what}; one seed, so nothing is said of how training varies"
    )
    return f"Scale {results.scale}, {seeds} seed(s). Brackets: 95 % interval over {over}."


def _footer(results: Results) -> tuple[str, ...]:
    facts = results.facts
    lines = [f"Run again: {facts['command']}"] if "command" in facts else []
    lines += [f"Measured on {facts['hardware']}."] if facts.get("hardware") else []
    if "seconds" in facts:
        lines.append(f"{facts['seconds']:.0f} s of training and measuring, resumed parts left out.")
    # Older results recorded "not installed" as the version if gyrograd ran from its source.
    known = {
        name: version for name, version in facts.get("versions", {}).items() if "not installed" not in version
    }
    lines += [", ".join(f"{name} {version}" for name, version in known.items())] if known else []
    return tuple(lines)
