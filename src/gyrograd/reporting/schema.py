"""The specification of the audit card, and the reader that checks files against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypedDict, Union, get_args, get_origin, get_type_hints, is_typeddict

from gyrograd.errors import UserError, check_schema
from gyrograd.numerics.statistics import Stat
from gyrograd.numerics.wording import Number
from gyrograd.records import read_json

SCHEMA = 1
CARD = "card.json"
REPORTS = ("report.html", "report.md")
LARGEST = 1e100
"""Largest number on a card: bounds of theorems can be huge, measurements cannot."""


HOLLOW = {"ignores_model", "same_map_everywhere", "constant_map", "sparse_map", "calm_but_empty"}
"""Flags of maps that are stable for a reason that makes them useless."""
MASKED = {
    "attacked_by_transfer",
    "beaten_by_noise",
    "beaten_by_transfer",
    "beaten_by_squares",
    "search_misled",
}
"""Flags of maps without a derivative, or with one that misleads a search, so that they look steadier than they are."""

Group = Literal["noise", "attack", "transform", "certificate", "faithfulness", "other"]
Direction = Literal["higher", "lower"]


class AuditedModel(TypedDict):
    """The audited model."""

    source: str
    description: str | None
    parameters: int | None
    sha256: str | None
    classes: int | None


class AuditedData(TypedDict):
    """The audited images; `planned` is their number in a finished audit."""

    source: str
    images: int
    planned: int | None
    labelled: bool | None
    shape: list[int] | None
    sha256: str | None
    classes: list[str] | None


class Verdict(TypedDict):
    """The grade and its sentences."""

    grade: Literal["steady", "shaky", "unsafe"] | None
    sentences: list[str]


class CardColumn(TypedDict):
    """A column of the table of methods."""

    key: str
    label: str
    detail: str | None
    group: Group
    direction: Direction
    range: list[float] | None


class MethodRow(TypedDict):
    """A method and its number in each column."""

    name: str
    label: str | None
    settings: dict[str, Any] | None
    columns: dict[str, Stat | None]
    grade: str | None
    notes: list[str] | None
    recommended: bool | None
    passes: int | None
    """Model passes per map."""


class EpsLine(TypedDict):
    """A method over eps, under attack or under noise."""

    method: str
    label: str
    x: list[float]
    y: list[Stat | None]


class EpsCurves(TypedDict):
    """Share of the map that stays, over eps."""

    label: str | None
    x_label: str | None
    lines: list[EpsLine]


class PixelLine(TypedDict):
    """A method's insertion or deletion curve."""

    method: str
    x: list[float]
    y: list[float | None]
    low: list[float | None] | None
    high: list[float | None] | None


class PixelCurves(TypedDict):
    """Probability over the share of pixels inserted or removed."""

    label: str | None
    x_label: str | None
    lines: list[PixelLine]


class Curves(TypedDict):
    """All curves."""

    eps: EpsCurves | None
    insertion: PixelCurves | None
    deletion: PixelCurves | None


class PlanePoint(TypedDict):
    """Robustness and faithfulness of a method, or of one of its widths."""

    method: str
    label: str | None
    setting: float | None
    setting_name: str | None
    robustness: Stat | None
    faithfulness: Stat | None
    pareto: bool | None


class Recommended(TypedDict):
    """The recommended point."""

    method: str
    setting: float | None
    why: str | None


class Plane(TypedDict):
    """The plane of robustness and faithfulness."""

    x_label: str | None
    y_label: str | None
    points: list[PlanePoint]
    recommended: Recommended | None


class Bound(TypedDict):
    """A theorem's bound and the measured value."""

    label: str
    reference: str | None
    bound: float | None
    measured: float | None
    holds: bool | None
    note: str | None


class Predicted(TypedDict):
    """A class and its probability."""

    label: str
    probability: float | None


class BestUnderAttack(TypedDict):
    """The recommended method, attacked on the same image."""

    method: str
    cosine: float | None
    kept: float | None


class WorstAttack(TypedDict):
    """One of the most damaging attacks.

    row: its row in the pictures. name: the image's file, or set and number. kept: the share of the map's top pixels
    that stay.
    """

    row: int
    example: int
    name: str | None
    method: str
    attack: str | None
    eps: float | None
    cosine: float | None
    kept: float | None
    before: Predicted | None
    after: Predicted | None
    best: BestUnderAttack | None


class CardFlag(TypedDict):
    """A reason to doubt a number."""

    name: str
    where: str | None
    raised_if: str
    explanation: str
    what_to_do: str
    measured: float | None


class CertifiedRow(TypedDict):
    """A method's certified share of pixels and cosine, or its soft stability, and the number of draws per image."""

    method: str
    label: str
    pixels: Stat | None
    cosine: Stat | None
    stability: Stat | None
    draws: Stat | None


class CertifiedPicture(TypedDict):
    """Pixel states of an image for one method, one character each: + in the top, - not, x refuted, . undecided."""

    example: int
    method: str
    label: str
    rows: list[str]


class Certificates(TypedDict):
    """Certificates, with probability 1 - alpha per image; radii are Euclidean, `per_value` in grey levels."""

    images: int
    alpha: float
    draws: int
    top: float
    radius: float
    radius_per_value: float
    sigma: float
    cosine_radius: float
    cosine_radius_per_value: float
    cosine_sigma: float
    segments_shown: float | None
    segments_added: int | None
    rows: list[CertifiedRow]
    pictures: list[CertifiedPicture] | None


class Rerun(TypedDict):
    """How and where the audit ran."""

    command: str | None
    versions: dict[str, str] | None
    hardware: str | None
    seconds: float | None
    peak_memory_mb: float | None
    seed: int | None


class Conclusions(TypedDict):
    """The part of a card that follows from its records."""

    accuracy: Stat | None
    verdict: Verdict
    columns: list[CardColumn]
    methods: list[MethodRow]
    curves: Curves | None
    plane: Plane | None
    bounds: list[Bound] | None


class AuditCard(Conclusions):
    """The card of an audit, as `audit` makes it, card.json stores it and reports show it.

    A field that may be None may be left out of the file. Means with intervals are `Stat`s.
    """

    schema: int
    kind: Literal["audit"]
    title: str
    model: AuditedModel
    data: AuditedData
    settings: dict[str, Any] | None
    complete: bool | None
    certificates: Certificates | None
    worst: list[WorstAttack] | None
    pictures: str | None
    flags: list[CardFlag] | None
    rerun: Rerun | None


def card_path(place: Path | str) -> Path:
    """The path of the card, from an audit's folder, its report (whose path an audit prints), or the card itself."""
    place = Path(place)
    if place.name in REPORTS:
        return place.with_name(CARD)
    return place / CARD if place.is_dir() else place


def read_card(place: Path | str) -> AuditCard:
    """Read and check the card in a folder or file; NaN becomes unknown."""
    path = card_path(place)
    try:
        card = read_json(path, parse_constant=lambda _: None)
    except FileNotFoundError:
        raise UserError(f"There is no {CARD} at {place}; give the folder an audit wrote.") from None
    except ValueError:
        raise UserError(f"{path} is not a card (no valid JSON in it); run the audit again.") from None
    return check_card(card, str(path))


def version_of(card: AuditCard) -> str | None:
    """The version of gyrograd that made the card."""
    rerun = card["rerun"]
    return None if rerun is None or rerun["versions"] is None else rerun["versions"].get("gyrograd")


def attack_radii(card: AuditCard, column: CardColumn) -> tuple[float, ...]:
    """The radii whose attacks a column's numbers come from; empty for a column without attacks.

    A search at eps starts where those at smaller radii ended, so with fewer radii it finds less and maps look steadier.
    """
    settings = card["settings"] or {}
    largest, curve = settings.get("eps"), settings.get("curve")
    attacked = column["group"] == "attack" or column["key"] == "adversarial_insertion"
    if not attacked or not isinstance(largest, float) or not isinstance(curve, list | tuple):
        return ()
    return tuple(sorted({eps for eps in (largest, *curve) if isinstance(eps, float) and 0 < eps <= largest}))


def check_card(card: Any, where: str = "The card") -> AuditCard:
    """The card with all fields (None if left out); the error names the first field that does not fit."""
    schema = card.get("schema") if isinstance(card, dict) else None
    if type(schema) is not int or schema < 1:
        raise UserError(f"{where} is not an audit card (it names no schema); give the folder an audit wrote.")
    check_schema(where, schema, SCHEMA)
    try:
        whole: AuditCard = check_value(card, AuditCard, "")
        _check_relations(whole)
    except CardError as trouble:
        raise UserError(f"{where} is not a card a report can show: {trouble}; run the audit again.") from None
    return whole


class CardError(ValueError):
    """A value of a card does not fit; the message says which and why."""


def check_value(value: Any, kind: Any, at: str) -> Any:
    """The value, checked against a type of the specification, with missing optional fields as None.

    `at` is the value's path in the card, for errors.

    Raises:
        CardError: if the value does not fit.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return None if value is None else check_value(value, next(k for k in inner if k is not NoneType), at)
    if kind is Any:
        return value
    if origin is Literal:
        if value not in inner:
            raise CardError(f"'{at}' is {value!r}, known: {', '.join(inner)}")
        return value
    if origin is list:
        _expect(isinstance(value, list), at, value, "a list")
        return [check_value(item, inner[0], f"{at}[{index}]") for index, item in enumerate(value)]
    if origin is dict:
        _expect(isinstance(value, dict), at, value, "an object")
        return {key: check_value(item, inner[1], f"{at}.{key}") for key, item in value.items()}
    if is_typeddict(kind):
        _expect(isinstance(value, dict), at, value, "an object")
        fields = {}
        for key, field in _fields(kind).items():
            place = f"{at}.{key}".lstrip(".")
            if key not in value and NoneType not in get_args(field):
                raise CardError(f"'{place}' is missing")
            fields[key] = check_value(value.get(key), field, place)
        return {**value, **fields}
    # In Python True is an int, but it is no number on a card; JSON writes 1.0 as 1.
    fits = isinstance(value, int | float if kind is float else kind) and (
        kind is bool or not isinstance(value, bool)
    )
    _expect(fits, at, value, WANTED[kind])
    if isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise CardError(f"'{at}' is too large to be a measurement")
    return value


_fields = cache(get_type_hints)
WANTED = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
NAMED = {dict: "an object", list: "a list", str: "text", bool: "true or false", NoneType: "nothing"}


def _expect(fits: bool, at: str, value: Any, wanted: str) -> None:
    if not fits:
        raise CardError(f"'{at}' is {NAMED.get(type(value), 'a number')} where {wanted} belongs")


def _check_relations(card: AuditCard) -> None:
    """Check relations between fields: lengths, ranges, repeated names, and the file of the pictures."""
    names = [method["name"] for method in card["methods"]]
    if len(set(names)) < len(names):
        raise CardError("'methods' names a method twice")
    for column in card["columns"]:
        span = column["range"]
        if span is None:
            continue
        if len(span) != 2 or span[0] >= span[1]:
            raise CardError(f"the range of column '{column['key']}' is not two rising numbers")
        outside = next((m["name"] for m in card["methods"] if _is_outside(m, column["key"], span)), None)
        if outside:
            raise CardError(
                f"'{column['key']}' of {outside} lies outside its range of {span[0]} to {span[1]}"
            )
    pictures = card["pictures"]
    if pictures is not None and (Path(pictures).name != pictures or "\\" in pictures or "\0" in pictures):
        raise CardError(f"'pictures' is {pictures!r}, which is not a file next to the card")
    if any(attack["row"] < 0 or attack["example"] < 0 for attack in card["worst"] or ()):
        raise CardError("'worst' names a row or an image below 0")
    certificates = card["certificates"]
    for drawn in (certificates and certificates["pictures"]) or ():
        widths = {len(row) for row in drawn["rows"]}
        if len(widths) != 1 or 0 in widths or set("".join(drawn["rows"])) - set("-.+x"):
            raise CardError("a picture of 'certificates' is not a grid of the characters - . + x")
    curves: Mapping[str, Any] = card["curves"] or {}
    for name in ("eps", "insertion", "deletion"):
        for line in (curves.get(name) or {}).get("lines", ()):
            rows = [line[key] for key in ("x", "y", "low", "high") if line.get(key) is not None]
            if len({len(row) for row in rows}) > 1:
                raise CardError(f"a line of 'curves.{name}' has {len(line['x'])} x and not as many values")


def _is_outside(method: MethodRow, key: str, span: Sequence[Number]) -> bool:
    """True if a method's value of this column is beyond its range by more than rounding."""
    stat = method["columns"].get(key)
    value = None if stat is None else stat["value"]
    slack = 1e-3 * (span[1] - span[0])
    return value is not None and not span[0] - slack <= value <= span[1] + slack
