"""Claims of a paper, as data, and the verdict of a run on each. Needs no torch.

A paper's `claims.toml` holds:
- `[[tolerance]]` column (pattern), row (pattern, all by default), within: the largest distance that counts as
  confirmed, fixed before anything is measured; the first entry that matches is used;
- `[[values]]` experiment, setting (or a list of them), columns, rows: a table as printed; optional `spread`, the
  printed deviations;
- `[[order]]` experiment, setting, column, rising (rows from lowest to highest), or row and rising_columns; optionally
  a `text` in place of the words "higher above lower";
- `[[known_error]]` experiment, setting, row, column (patterns, "*" by default), why: numbers that cannot be compared;
- `[[note]]` experiment, text: a sentence for the reader of the page.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeAlias

from gyrograd.errors import UserError
from gyrograd.experiments.results import Estimate, Quantity, Results, seed_by_seed

Verdict = Literal["confirmed", "within interval", "inconclusive", "not confirmed", "not comparable"]
"""A value may be "within interval", an order "inconclusive"; the other three are for both."""
ELSEWHERE = "not measured in this run"
ACCURACIES = ("accuracy", "test accuracy")
"""Columns with a net's accuracy on test images, in per cent."""
Comparison = Literal["nothing", "orders", "values"]
"""Which claims of a paper a run of this scale can be compared with; "values" includes the orders."""


@dataclass(frozen=True)
class Value:
    """A printed number. `within` is the distance that counts as confirmed, `spread` the printed deviation."""

    quantity: Quantity
    reported: float
    within: float
    spread: float = 0.0

    @property
    def text(self) -> str:
        """The claim in words."""
        return f"{self.quantity.row}, {self.quantity.column}"


@dataclass(frozen=True)
class Order:
    """One quantity lies above another."""

    lower: Quantity
    higher: Quantity
    text: str


Claim: TypeAlias = Value | Order


@dataclass(frozen=True)
class KnownError:
    """Numbers of the paper (given by patterns) that cannot be compared, and the reason."""

    why: str
    setting: str = "*"
    row: str = "*"
    column: str = "*"

    def covers(self, quantity: Quantity) -> bool:
        """Whether the quantity matches the patterns."""
        patterns = {"setting": self.setting, "row": self.row, "column": self.column}
        return all(fnmatchcase(getattr(quantity, key), pattern) for key, pattern in patterns.items())


@dataclass(frozen=True)
class Claims:
    """Everything that a paper's file says about one experiment."""

    claims: tuple[Claim, ...] = ()
    known_errors: tuple[KnownError, ...] = ()
    notes: tuple[str, ...] = ()

    def reported(self) -> dict[Quantity, Value]:
        """The printed values by quantity."""
        return {claim.quantity: claim for claim in self.claims if isinstance(claim, Value)}


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim, its verdict, and the reason."""

    claim: Claim
    verdict: Verdict
    why: str
    ours: tuple[Estimate, ...] = field(default=())
    """The estimate of a value; the lower and the higher one of an order."""


def read_claims(path: Path, experiment: str) -> Claims:
    """Read the claims of one experiment from a paper's file."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    tolerances = document.get("tolerance", [])
    mine = {
        kind: list(_of(document, kind, experiment)) for kind in ("values", "order", "known_error", "note")
    }
    claims = [claim for table in mine["values"] for claim in _values(table, tolerances)]
    orders = [claim for entry in mine["order"] for claim in _orders(entry)]
    errors = (
        KnownError(entry["why"], *(entry.get(key, "*") for key in ("setting", "row", "column")))
        for entry in mine["known_error"]
    )
    return Claims((*claims, *orders), tuple(errors), tuple(entry["text"] for entry in mine["note"]))


def judge_claims(claims: Claims, results: Results, compares: Comparison) -> tuple[ClaimVerdict, ...]:
    """Judge every claim."""
    return tuple(verdict(claim, results, compares, claims.known_errors) for claim in claims.claims)


def verdict(
    claim: Claim, results: Results, compares: Comparison, known_errors: Iterable[KnownError] = ()
) -> ClaimVerdict:
    """Judge one claim.

    A value is confirmed if ours is within the tolerance that was fixed beforehand, within interval if our interval
    meets the printed number and its deviation, else not confirmed. An order is confirmed if the two intervals do
    not touch, inconclusive if they do, not confirmed if they lie the other way round. Only like is compared with like:
    a public net is not the paper's net, and a public net and one trained here differ in more than their row.
    """
    places = quantities(claim)
    ours = tuple(results.estimates[q] for q in places if q in results.estimates)
    obstacle = _obstacle(claim, places, ours, results, compares, known_errors)
    if obstacle:
        return ClaimVerdict(claim, "not comparable", obstacle, ours)
    found, why = _value_verdict(claim, ours[0]) if isinstance(claim, Value) else _order_verdict(*ours)
    return ClaimVerdict(claim, found, why, ours)


def quantities(claim: Claim) -> tuple[Quantity, ...]:
    """The quantities of a claim: one for a value; the lower and the higher one for an order."""
    return (claim.quantity,) if isinstance(claim, Value) else (claim.lower, claim.higher)


def count_verdicts(verdicts: Iterable[ClaimVerdict]) -> dict[str, int]:
    """The number of claims with each verdict, including verdicts with none."""
    counts: dict[str, int] = dict.fromkeys(Verdict.__args__, 0)  # type: ignore[attr-defined]
    for judgement in verdicts:
        counts[judgement.verdict] += 1
    return counts


def _obstacle(
    claim: Claim,
    places: tuple[Quantity, ...],
    ours: tuple[Estimate, ...],
    results: Results,
    compares: Comparison,
    known_errors: Iterable[KnownError],
) -> str:
    """Why the claim cannot be compared; empty if it can."""
    if len(ours) < len(places):
        return ELSEWHERE
    reasons = [error.why for error in known_errors for q in places if error.covers(q)]
    if reasons:
        return reasons[0]
    if results.scale != "paper" and (
        compares == "nothing" or (compares == "orders" and isinstance(claim, Value))
    ):
        return f"the scale '{results.scale}' is smaller than the paper's"
    given = [was_given(results, q) for q in places]
    if isinstance(claim, Value) and given[0]:
        return "the net is a public one, not the paper's own"
    if any(given) and not all(given):
        return "one net is public, the other was trained here in another way"
    if compares == "nothing" or (compares == "orders" and isinstance(claim, Value)):
        return "the nets were trained in another way than the paper's"
    if not all(estimate.bounded for estimate in ours):
        return "one image has no interval"
    idle = [q.row for q in places if has_not_learnt(results, q)]
    return f"{idle[0]} has not learnt: its accuracy is no better than chance" if idle else ""


def was_given(results: Results, quantity: Quantity) -> bool:
    """Whether the quantity's net was loaded from a file, so that changed training settings do not affect it."""
    sizes = results.settings.get("sizes", {}).get(quantity.setting, {})
    return quantity.row.split()[0] in sizes.get("model", {}).get("weights", {})


def has_not_learnt(results: Results, quantity: Quantity) -> bool:
    """Whether the accuracy of the quantity's net was measured and is compatible with guessing.

    Maps of such a net are smooth and meaningless; an order between two of them would be confirmed by accident.
    """
    chance = results.settings.get("chance", {}).get(quantity.setting)
    # The row "ssr ig" is a map of the net "ssr"; the net's accuracy is in the row "ssr" or "ssr model".
    net = quantity.row.rpartition(" ")[0]
    found = (
        results.column_of(quantity.setting, row, column)
        for row in (quantity.row, net, f"{net} model")
        for column in ACCURACIES
    )
    return chance is not None and any(accuracy.low <= chance for accuracy in found if accuracy)


def _value_verdict(claim: Value, ours: Estimate) -> tuple[Verdict, str]:
    distance = abs(ours.value - claim.reported)
    if distance <= claim.within:
        return "confirmed", f"{distance:.3g} away, at most {claim.within:g} allowed"
    if ours.low <= claim.reported + claim.spread and ours.high >= claim.reported - claim.spread:
        return "within interval", f"{distance:.3g} away, inside the interval"
    return "not confirmed", f"{distance:.3g} away, outside the interval"


def _order_verdict(lower: Estimate, higher: Estimate) -> tuple[Verdict, str]:
    if lower.high < higher.low:
        return "confirmed", "the intervals do not touch"
    if higher.high < lower.low:
        return "not confirmed", "the other way round"
    apart = seed_by_seed(lower, higher)
    paired = f"; seed by seed {apart.value:.3g} apart [{apart.low:.3g}, {apart.high:.3g}]" if apart else ""
    return "inconclusive", f"the intervals touch{paired}"


def _of(document: Mapping[str, Any], kind: str, experiment: str) -> Iterable[Mapping[str, Any]]:
    """The entries of this experiment; an entry with a list of settings is repeated for each of them."""
    for entry in document.get(kind, ()):
        if fnmatchcase(experiment, entry.get("experiment", "*")):
            settings = entry.get("setting", "*")
            for setting in settings if isinstance(settings, list) else [settings]:
                yield {**entry, "setting": setting}


def _values(table: Mapping[str, Any], tolerances: Sequence[Mapping[str, Any]]) -> Iterable[Value]:
    columns = table["columns"]
    for row, numbers in table["rows"].items():
        spreads = table.get("spread", {}).get(row, [0.0] * len(columns))
        if not len(numbers) == len(spreads) == len(columns):
            raise UserError(
                f"claims.toml, {table['setting']}, row '{row}': {len(numbers)} numbers and {len(spreads)} "
                f"deviations for {len(columns)} columns; give one each (nan where none is printed)."
            )
        for column, reported, spread in zip(columns, numbers, spreads, strict=True):
            if reported == reported:  # not nan
                quantity = Quantity(table["setting"], row, column)
                yield Value(quantity, float(reported), _tolerance(quantity, tolerances), float(spread))


def _tolerance(quantity: Quantity, tolerances: Sequence[Mapping[str, Any]]) -> float:
    for entry in tolerances:
        if fnmatchcase(quantity.column, entry["column"]) and fnmatchcase(quantity.row, entry.get("row", "*")):
            return float(entry["within"])
    raise UserError(
        f"claims.toml has no tolerance for the column '{quantity.column}'; add a [[tolerance]] for it."
    )


def _orders(entry: Mapping[str, Any]) -> Iterable[Order]:
    setting = entry["setting"]
    if "rising_columns" in entry:
        places = [Quantity(setting, entry["row"], column) for column in entry["rising_columns"]]
    else:
        places = [Quantity(setting, row, entry["column"]) for row in entry["rising"]]
    for low, high in pairwise(places):
        text = entry.get("text") or f"{high.row} above {low.row}, {high.column}"
        yield Order(low, high, text)
