"""The audit card as a file: read, checked against what a report needs, one sentence where it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from gyrograd.errors import UserError
from gyrograd.records import read_json
from gyrograd.reporting.table import GROUPS

SCHEMA = 1
CARD = "card.json"
REPORTS = ("report.html", "report.md")
LARGEST = 1e100
"""Of any number on a card: bounds of theorems can be astronomic, measurements are not."""


class _OneOf(NamedTuple):
    """A value out of a few."""

    choices: tuple[str | None, ...]


class _Maybe(NamedTuple):
    """A field that may be null or left out."""

    shape: Any


class _Each(NamedTuple):
    """An object whose keys are names."""

    shape: Any


_NUMBER = (int, float)
_STAT = _Maybe({"value": _Maybe(_NUMBER), "low": _Maybe(_NUMBER), "high": _Maybe(_NUMBER), "n": _Maybe(int)})
_CLASS = {"label": str, "probability": _Maybe(_NUMBER)}
_CURVE_LINE = {
    "method": str,
    "x": [_NUMBER],
    "y": [_Maybe(_NUMBER)],
    "low": _Maybe([_Maybe(_NUMBER)]),
    "high": _Maybe([_Maybe(_NUMBER)]),
}
_CURVE = _Maybe({"label": _Maybe(str), "x_label": _Maybe(str), "lines": [_CURVE_LINE]})
_SHAPE: dict[str, Any] = {
    "kind": _OneOf(("audit",)),
    "title": str,
    "model": {
        "source": str,
        "description": _Maybe(str),
        "parameters": _Maybe(int),
        "sha256": _Maybe(str),
        "classes": _Maybe(int),
    },
    "data": {
        "source": str,
        "images": int,
        "labelled": _Maybe(bool),
        "shape": _Maybe([int]),
        "sha256": _Maybe(str),
        "classes": _Maybe([str]),
    },
    "settings": _Maybe(dict),
    "complete": _Maybe(bool),
    "accuracy": _STAT,
    "verdict": {"grade": _OneOf(("steady", "shaky", "unsafe", None)), "sentences": [str]},
    "columns": [
        {
            "key": str,
            "label": str,
            "detail": _Maybe(str),
            "group": _OneOf(tuple(GROUPS)),
            "direction": _OneOf(("higher", "lower")),
            "range": _Maybe([_NUMBER]),
        }
    ],
    "methods": [
        {
            "name": str,
            "label": _Maybe(str),
            "settings": _Maybe(dict),
            "columns": _Each(_STAT),
            "notes": _Maybe([str]),
            "recommended": _Maybe(bool),
        }
    ],
    "curves": _Maybe(
        {
            "eps": _Maybe(
                {
                    "label": _Maybe(str),
                    "x_label": _Maybe(str),
                    "lines": [{"method": str, "label": str, "x": [_NUMBER], "y": [_STAT]}],
                }
            ),
            "insertion": _CURVE,
            "deletion": _CURVE,
        }
    ),
    "plane": _Maybe(
        {
            "x_label": _Maybe(str),
            "y_label": _Maybe(str),
            "points": [
                {
                    "method": str,
                    "setting": _Maybe(_NUMBER),
                    "setting_name": _Maybe(str),
                    "robustness": _STAT,
                    "faithfulness": _STAT,
                    "pareto": _Maybe(bool),
                }
            ],
            "recommended": _Maybe({"method": str, "setting": _Maybe(_NUMBER), "why": _Maybe(str)}),
        }
    ),
    "bounds": _Maybe(
        [
            {
                "label": str,
                "reference": _Maybe(str),
                "bound": _Maybe(_NUMBER),
                "measured": _Maybe(_NUMBER),
                "holds": _Maybe(bool),
                "note": _Maybe(str),
            }
        ]
    ),
    "worst": _Maybe(
        [
            {
                "row": int,
                "example": int,
                "method": str,
                "attack": _Maybe(str),
                "eps": _Maybe(_NUMBER),
                "cosine": _Maybe(_NUMBER),
                "before": _Maybe(_CLASS),
                "after": _Maybe(_CLASS),
            }
        ]
    ),
    "pictures": _Maybe(str),
    "flags": _Maybe(
        [
            {
                "name": str,
                "where": _Maybe(str),
                "raised_if": str,
                "explanation": str,
                "what_to_do": str,
                "measured": _Maybe(_NUMBER),
            }
        ]
    ),
    "rerun": _Maybe(
        {
            "command": _Maybe(str),
            "versions": _Maybe(_Each(str)),
            "hardware": _Maybe(str),
            "seconds": _Maybe(_NUMBER),
            "peak_memory_mb": _Maybe(_NUMBER),
            "seed": _Maybe(int),
        }
    ),
}


def card_path(place: Path | str) -> Path:
    """The card of an audit's folder, or beside its report, whose path an audit prints; a card itself is its own."""
    place = Path(place)
    if place.name in REPORTS:
        return place.with_name(CARD)
    return place / CARD if place.is_dir() else place


def read_card(place: Path | str) -> dict[str, Any]:
    """The card in a folder or a file, checked. Numbers JSON does not have (NaN) read as unknown."""
    path = card_path(place)
    try:
        card = read_json(path, parse_constant=lambda _: None)
    except FileNotFoundError:
        raise UserError(f"There is no {CARD} at {place}; give the folder an audit wrote.") from None
    except ValueError:
        raise UserError(f"{path} is no card (no valid JSON in it); run the audit again.") from None
    return checked(card, str(path))


def checked(card: Any, where: str = "The card") -> dict[str, Any]:
    """The card with every field a report knows (None where it was left out); one sentence names the first misfit."""
    schema = card.get("schema") if isinstance(card, dict) else None
    if type(schema) is not int or schema < 1:
        raise UserError(f"{where} is no audit card (it names no schema); give the folder an audit wrote.")
    if schema > SCHEMA:
        raise UserError(
            f"{where} has schema {schema} and this gyrograd reads up to {SCHEMA}; "
            "upgrade it: pip install -U gyrograd."
        )
    trouble = _misfit(card, _SHAPE, "") or _uneven(card)
    if trouble:
        raise UserError(f"{where} is not a card a report can show: {trouble}; run the audit again.")
    whole: dict[str, Any] = _completed(card, _SHAPE)
    return whole


def _completed(value: Any, shape: Any) -> Any:
    """The value with the fields it leaves out as None, so that no page has to ask whether they are there."""
    if isinstance(shape, _Maybe):
        return None if value is None else _completed(value, shape.shape)
    if isinstance(shape, _Each):
        return {key: _completed(item, shape.shape) for key, item in value.items()}
    if isinstance(shape, list):
        return [_completed(item, shape[0]) for item in value]
    if isinstance(shape, dict):
        return {**value, **{key: _completed(value.get(key), inner) for key, inner in shape.items()}}
    return value


def _misfit(value: Any, shape: Any, at: str) -> str | None:
    """What is wrong with a value and where, or None."""
    if isinstance(shape, _Maybe):
        return None if value is None else _misfit(value, shape.shape, at)
    if isinstance(shape, _OneOf):
        known = ", ".join(str(choice) for choice in shape.choices)
        return None if value in shape.choices else f"'{at}' is {value!r}, known: {known}"
    if isinstance(shape, dict | _Each):
        return _object_misfit(value, shape, at)
    if isinstance(shape, list):
        return _list_misfit(value, shape[0], at)
    # True is an int to Python and no number to a reader.
    fits = isinstance(value, shape) and (shape is bool or not isinstance(value, bool))
    if fits and isinstance(value, int | float) and not abs(value) <= LARGEST:
        return f"'{at}' is too large to be a measurement"
    return None if fits else f"'{at}' is {_named(value)} where {_wanted(shape)} belongs"


def _object_misfit(value: Any, shape: dict[str, Any] | _Each, at: str) -> str | None:
    if not isinstance(value, dict):
        return f"'{at}' is {_named(value)} where an object belongs"
    shapes = dict.fromkeys(value, shape.shape) if isinstance(shape, _Each) else shape
    for key, inner in shapes.items():
        place = f"{at}.{key}".lstrip(".")
        if key not in value and not isinstance(inner, _Maybe):
            return f"'{place}' is missing"
        trouble = _misfit(value.get(key), inner, place)
        if trouble:
            return trouble
    return None


def _list_misfit(value: Any, shape: Any, at: str) -> str | None:
    if not isinstance(value, list):
        return f"'{at}' is {_named(value)} where a list belongs"
    found = (_misfit(item, shape, f"{at}[{index}]") for index, item in enumerate(value))
    return next((trouble for trouble in found if trouble), None)


def _uneven(card: dict[str, Any]) -> str | None:
    """What fields say of one another: lengths, ranges, names given twice, and pictures beside the card."""
    names = [method["name"] for method in card["methods"]]
    if len(set(names)) < len(names):
        return "'methods' names a method twice"
    for column in card["columns"]:
        span = column.get("range")
        if span is not None and (len(span) != 2 or span[0] >= span[1]):
            return f"the range of column '{column['key']}' is not two rising numbers"
        outside = span and next(
            (m["name"] for m in card["methods"] if _is_outside(m, column["key"], span)), None
        )
        if outside:
            return f"'{column['key']}' of {outside} lies outside its range of {span[0]} to {span[1]}"
    pictures = card.get("pictures")
    if pictures is not None and (Path(pictures).name != pictures or "\\" in pictures or "\0" in pictures):
        return f"'pictures' is {pictures!r}, which is no file beside the card"
    if any(attack["row"] < 0 or attack["example"] < 0 for attack in card.get("worst") or ()):
        return "'worst' names a row or an image below 0"
    for name in ("eps", "insertion", "deletion"):
        for line in ((card.get("curves") or {}).get(name) or {}).get("lines", ()):
            rows = [line[key] for key in ("x", "y", "low", "high") if line.get(key) is not None]
            if len({len(row) for row in rows}) > 1:
                return f"a line of 'curves.{name}' has {len(line['x'])} x and not as many values"
    return None


def _is_outside(method: dict[str, Any], key: str, span: list[Any]) -> bool:
    """True if a method's value of this column is beyond its range by more than rounding."""
    value = (method["columns"].get(key) or {}).get("value")
    slack = 1e-3 * (span[1] - span[0])
    return value is not None and not span[0] - slack <= value <= span[1] + slack


def _named(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number")


def _wanted(shape: Any) -> str:
    names = {str: "text", bool: "true or false", int: "a whole number", dict: "an object"}
    return names.get(shape, "a number") if isinstance(shape, type) else "a number"
