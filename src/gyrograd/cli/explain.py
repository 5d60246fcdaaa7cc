"""gyrograd explain: images to heat maps."""

from __future__ import annotations

import json as json_format
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gyrograd.cli.inputs import (
    AT_ONCE,
    USUAL,
    WHY_NOT_FINITE,
    CommandInputs,
    Opening,
    check_folder,
    open_inputs,
)
from gyrograd.cli.options import Syntax
from gyrograd.errors import UserError, printable
from gyrograd.occupancy import exclusive_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gyrograd.records import JsonObject, Record
    from gyrograd.types import Attribution

IN_OVERVIEW = 8
ALL = "all"
SHEET = "contact_sheet.html"
LONGEST_STEM = 40
"""Letters of a file's name in the names of its pictures."""
TITLE = 22
"""Letters that fit above a picture of the overview."""


@dataclass(frozen=True)
class ExplainedImage:
    """Prediction, explained class and maps of one image.

    `totals` is the sum of each method's map; NaN marks a map that is not finite, for which no picture is written.
    """

    index: int
    name: str
    predicted: int
    probability: float
    target: int
    label: int | None
    totals: dict[str, float]

    @property
    def finite_methods(self) -> list[str]:
        """The methods whose map can be shown."""
        return [word for word, total in self.totals.items() if math.isfinite(total)]

    @property
    def files(self) -> dict[str, str]:
        """The pictures by what they show; the name of the image's own file follows the number."""
        own = Path(self.name)
        stem = f"_{_slug(own.stem)[:LONGEST_STEM]}" if own.suffix else ""
        start = f"{self.index:05d}{stem}"
        files = {"image": f"{start}_image.png"}
        for word in self.finite_methods:
            files[word] = f"{start}_{_slug(word)}.png"
            files[f"{word} overlay"] = f"{start}_{_slug(word)}_overlay.png"
        return files


def _slug(word: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in word).strip("_")


@dataclass(frozen=True, eq=False)
class ImageMaps:
    """One image to draw: its pixels `h w 3` and its finite maps `h w` by method."""

    row: ExplainedImage
    image: NDArray[np.float32]
    maps: dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Methods:
    """Attributions by the words that named them; `refused` holds the errors of methods that `all` tried."""

    used: dict[str, Attribution]
    refused: dict[str, str] = field(default_factory=dict)
    sheet: bool = False


@Syntax(words={"data": "+"})
def explain(
    model: str,
    data: str | list[str],
    methods: str = "gradient",
    target: str = "predicted",
    out: Path = Path("out/explain"),
    opening: Opening = USUAL,
    json: bool = False,
) -> None:
    """Explain images: heat maps, and a table of predictions.

    Each method's map is written alone and laid over the image.

    Args:
        methods: attributions, comma-separated, settings in brackets: gradient,'smoothgrad(sigma=0.2)'; all: every
            method that supports this model, and a page that shows them side by side.
        out: folder for the pictures and the record.
        json: print one JSON document instead of a table.
    """
    check_folder(out)
    chosen = _methods(methods)
    here = open_inputs(model, data, opening, target=target)
    if chosen.sheet:
        chosen = _working_methods(here, chosen, target)
    settings = {
        "model": model,
        "data": here.data.name,
        "methods": {word: repr(made) for word, made in chosen.used.items()},
        "target": target,
        "seed": opening.seed,
    }
    with exclusive_folder(out):
        _remove_earlier(out)
        done, seen = _explain_images(here, chosen.used, target, out, settings)
        shown = [one for one in seen if len(one.maps) == len(chosen.used)]
        if not shown and not chosen.sheet:
            raise UserError(_notes(here, done)[-1])
        if shown:
            _write_overview(out, here, shown[:IN_OVERVIEW])
        if chosen.sheet:
            _write_sheet(out, model, here, chosen, done, seen[:IN_OVERVIEW])
    if json:
        print(json_format.dumps(_document(out, here, done, chosen), indent=1))
    else:
        _print(out, here, done, chosen)


def _methods(text: str) -> Methods:
    """Parse the named attributions; `all` adds every registered one that is not named."""
    from gyrograd.cli.parsing import make_from_text, parse_call, several
    from gyrograd.registry import in_order, lookup

    words = several(text)
    if ALL not in words:
        return Methods({word: make_from_text("attribution", word) for word in words})
    named = {lookup("attribution", parse_call(word)[0]).name for word in words if word != ALL}
    rest = [entry.name for entry in in_order("attribution") if entry.name not in named]
    place = words.index(ALL)
    words[place : place + 1] = rest
    return Methods({word: make_from_text("attribution", word) for word in words}, sheet=True)


def _working_methods(here: CommandInputs, asked: Methods, target: str) -> Methods:
    """The methods that explain the first image, with the errors of the others as `refused`."""
    used, refused = {}, {}
    for word, method in asked.used.items():
        try:
            _part(here, {word: method}, target, 0, 1)
        except UserError as wrong:
            refused[word] = str(wrong)
            continue
        used[word] = method
    if not used:
        raise UserError(f"No method explains this model; the first one said: {next(iter(refused.values()))}")
    return Methods(used, refused, asked.sheet)


def _explain_images(
    here: CommandInputs, methods: dict[str, Attribution], target: str, out: Path, settings: JsonObject
) -> tuple[list[ExplainedImage], list[ImageMaps]]:
    """Explain all images in parts; also returns the first images with their maps, for the overview.

    Pictures are written after each part, and the record also after an early end.
    """
    from gyrograd import records
    from gyrograd.progress import track

    done: list[ExplainedImage] = []
    seen: list[ImageMaps] = []
    whole = 0
    starts = range(0, len(here.data), AT_ONCE)
    try:
        for first in track(starts, len(starts), "explaining"):
            for one in _part(here, methods, target, first):
                _write_pictures(out, one)
                done.append(one.row)
                complete = len(one.maps) == len(methods)
                if len(seen) < IN_OVERVIEW or (complete and whole < IN_OVERVIEW):
                    seen.append(one)
                    whole += complete
    finally:
        if done:
            records.write(out / "record.json", _record(here, done, settings))
    return done, seen


def _remove_earlier(out: Path) -> None:
    """Remove the pictures that the record of an earlier run lists, so that two runs do not mix.

    Nothing else in the folder is touched. The record is removed last: if this is killed, the next run finishes it.
    """
    path = out / "record.json"
    try:
        document = json_format.loads(path.read_text(encoding="utf-8"))
        listed = [str(name) for row in document["facts"]["pictures"] for name in row.values()]
        own = document["name"] == "explain"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # no record, or not one of this verb's
    if own:
        for name in (*listed, "overview.png", SHEET, path.name):
            (out / Path(name).name).unlink(missing_ok=True)


def _part(
    here: CommandInputs, methods: dict[str, Attribution], target: str, first: int, count: int = 0
) -> list[ImageMaps]:
    """Explain some images with every method, before any of them is written."""
    from gyrograd.numerics.maps import reduce

    x, logits, chosen = here.part(target, first, count or AT_ONCE)
    maps = {word: reduce(method(here.model, x, chosen)).detach() for word, method in methods.items()}
    part = []
    for place, image in enumerate(x):
        own = {word: map[place] for word, map in maps.items()}
        row = ExplainedImage(
            index=here.index[first + place],
            name=here.names[first + place],
            predicted=int(logits[place].argmax()),
            probability=float(logits[place].softmax(0).max()),
            target=int(chosen[place]),
            label=int(here.data.labels[first + place]) if here.labelled else None,
            totals={
                word: float(map.double().sum()) if bool(map.isfinite().all()) else math.nan
                for word, map in own.items()
            },
        )
        coloured = image.float() if len(image) == 3 else image[:1].float().expand(3, -1, -1)
        arrays = {word: own[word].float().cpu().numpy() for word in row.finite_methods}
        part.append(ImageMaps(row, coloured.movedim(0, -1).cpu().numpy(), arrays))
    return part


def _write_pictures(out: Path, one: ImageMaps) -> None:
    from gyrograd.records import write_bytes
    from gyrograd.reporting.pictures import colour_map, overlay, png, shared_scale

    files = one.row.files
    write_bytes(out / files["image"], png(one.image))
    for word, map in one.maps.items():
        end = shared_scale(map, map)
        write_bytes(out / files[word], png(colour_map(map, end)))
        write_bytes(out / files[f"{word} overlay"], png(overlay(one.image, map, end)))


def _record(here: CommandInputs, done: list[ExplainedImage], settings: JsonObject) -> Record:
    from gyrograd.measurement.machine import versions
    from gyrograd.records import Record

    values: dict[str, list[float | None]] = {
        "predicted": [float(one.predicted) for one in done],
        "probability": [one.probability for one in done],
        "target": [float(one.target) for one in done],
    }
    if here.labelled:
        values["label"] = [None if one.label is None else float(one.label) for one in done]
    for word in done[0].totals:
        values[f"{word}: total"] = [one.totals[word] for one in done]
    facts = {
        **versions(),
        "names": [one.name for one in done],
        "pictures": [one.files for one in done],
        "notes": list(_notes(here, done)),
        "complete": len(done) == len(here.data),
    }
    return Record("explain", settings, [one.index for one in done], values, facts)


def _notes(here: CommandInputs, done: list[ExplainedImage]) -> tuple[str, ...]:
    """Notes for the reader, such as maps that are zero everywhere, which look black in a picture."""
    empty = {word: sum(one.totals[word] == 0 for one in done) for word in done[0].totals}
    broken = {word: [one for one in done if word not in one.finite_methods] for word in done[0].totals}
    return (
        *here.notes,
        *(f"{word} gave a map of zeros for {n} of {len(done)} images." for word, n in empty.items() if n),
        *(
            f"{word} gave NaN or infinite numbers for {len(rows)} of {len(done)} images ({rows[0].name}, ...), of "
            f"which there is no picture: {WHY_NOT_FINITE}."
            for word, rows in broken.items()
            if rows
        ),
    )


def _write_overview(out: Path, here: CommandInputs, shown: list[ImageMaps]) -> None:
    """The first images, the explained classes and all maps in one picture."""
    import numpy as np

    from gyrograd.records import write_bytes
    from gyrograd.reporting import map_grid

    maps = {_title(word): np.stack([one.maps[word] for one in shown]) for word in shown[0].maps}
    images = {"image": np.stack([one.image for one in shown])}
    # Between dollar signs matplotlib reads formulas; file names have none.
    names = [
        f"{printable(Path(row.name).name[-18:])}\n{printable(here.class_name(row.target)[:18])}".replace(
            "$", r"\$"
        )
        for row in (one.row for one in shown)
    ]
    write_bytes(out / "overview.png", map_grid(images, maps, names))


def _write_sheet(
    out: Path,
    model: str,
    here: CommandInputs,
    methods: Methods,
    done: list[ExplainedImage],
    seen: list[ImageMaps],
) -> None:
    """Every method side by side on one page."""
    from gyrograd.attributions.settings import passes_of
    from gyrograd.cli.parsing import parse_call
    from gyrograd.records import write_text
    from gyrograd.registry import lookup
    from gyrograd.reporting.contact_sheet import SheetColumn, SheetRow, contact_sheet

    def column(word: str, method: Attribution | None) -> SheetColumn:
        entry = lookup("attribution", parse_call(word)[0])
        label = entry.label if word == entry.name else word
        about = entry.about or entry.summary
        if method is None:
            return SheetColumn(word, label, about, word, refused=methods.refused[word])
        looks_at = f", {method.chosen(here.model, here.pixels(0, 1))}" if hasattr(method, "chosen") else ""
        return SheetColumn(word, label, about, repr(method) + looks_at, passes_of(method))

    def row(one: ImageMaps) -> SheetRow:
        said = one.row
        words = f"predicted {here.class_name(said.predicted)} ({said.probability:.0%}); explained: "
        return SheetRow(said.name, words + here.class_name(said.target), one.image, one.maps)

    columns = [column(word, method) for word, method in methods.used.items()]
    columns += [column(word, None) for word in methods.refused]
    notes = list(_notes(here, done))
    if len(seen) < len(done):
        notes.append(f"The first {len(seen)} of {len(done)} images are shown.")
    title = f"{model} on {here.data.name}, explained by {len(methods.used)} methods"
    write_text(out / SHEET, contact_sheet(title, columns, [row(one) for one in seen], notes))


def _title(word: str) -> str:
    """The method's name with its settings below it, in lines as wide as the picture."""
    import textwrap

    name, bracket, settings = word.partition("(")
    return "\n".join([name, *textwrap.wrap(bracket + settings, TITLE)])


def _document(out: Path, here: CommandInputs, done: list[ExplainedImage], methods: Methods) -> JsonObject:
    examples = [
        {
            "index": one.index,
            "name": one.name,
            "predicted": one.predicted,
            "predicted_class": here.class_name(one.predicted),
            "probability": one.probability,
            "target": one.target,
            "target_class": here.class_name(one.target),
            "label": one.label,
            "pictures": {what: str(out / file) for what, file in one.files.items()},
        }
        for one in done
    ]
    sheet = {"sheet": str(out / SHEET), "refused": methods.refused} if methods.sheet else {}
    return {
        "record": str(out / "record.json"),
        "notes": list(_notes(here, done)),
        **sheet,
        "examples": examples,
    }


def _print(out: Path, here: CommandInputs, done: list[ExplainedImage], methods: Methods) -> None:
    from gyrograd.cli.terminal import print_table, say

    heads = ["image", *(["label"] if here.labelled else []), "prediction", "probability", "explained"]
    rows = [
        [
            one.name,
            *([] if one.label is None else [here.data.classes[one.label]]),
            here.class_name(one.predicted),
            f"{one.probability:.3f}",
            here.class_name(one.target),
        ]
        for one in done
    ]
    print_table(heads, rows)
    for note in _notes(here, done):
        say(f"Note: {note}", wrap=False)
    count = sum(len(one.files) for one in done) + 1
    for word, why in methods.refused.items():
        say(f"Left out: {word}: {why}", wrap=False)
    say(f"{count} pictures; all at a glance:")
    print(printable(out / (SHEET if methods.sheet else "overview.png")))
