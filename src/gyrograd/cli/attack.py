"""gyrograd attack: adversarial images and what they do to the maps."""

from __future__ import annotations

import json as json_format
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from gyrograd.cli.parsing import make_from_text
from gyrograd.errors import UserError, printable
from gyrograd.occupancy import exclusive_folder
from gyrograd.records import JsonObject
from gyrograd.registry import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gyrograd.attacks import AttackResult
    from gyrograd.numerics.statistics import Stat
    from gyrograd.records import Record

IN_OVERVIEW = 6


@dataclass(frozen=True, eq=False)
class AttackProgress:
    """The records of the finished parts, and the whole first part, for the overview."""

    here: CommandInputs
    settings: JsonObject
    first: AttackResult | None = None
    parts: tuple[Record, ...] = ()

    @property
    def count(self) -> int:
        """Number of finished images."""
        return sum(len(part.examples) for part in self.parts)

    def with_part(self, hit: AttackResult) -> AttackProgress:
        """A copy with one more finished part."""
        index = self.here.index[self.count : self.count + len(hit)]
        record = hit.record(index)
        record = replace(record, values={**record.values, "cosine": _cosines(hit)})
        return replace(self, first=self.first or hit, parts=(*self.parts, record))


@Syntax(words={"data": "+"})
def attack(
    model: str,
    data: str | list[str],
    attack: str = "auto",
    methods: str = "gradient",
    eps: str | float = "8/255",
    steps: int | None = None,
    norm: str = "linf",
    target: str = "predicted",
    out: Path = Path("out/attack"),
    opening: Opening = USUAL,
    json: bool = False,
) -> None:
    """Attack the explanations of images.

    Writes the attacked images, and the maps before and after.

    Args:
        attack: which attack, with settings in brackets: 'top_k(k=100)'; auto is the strongest, `gyrograd list attack`
            shows all.
        methods: the attribution under attack, one, with settings in brackets: 'integrated_gradients(steps=20)'.
        eps: how far a pixel may move: 8/255 or 0.03.
        steps: gradient steps; default: that of the attack.
        norm: linf or l2.
        out: folder for the pictures and the record.
        seed: for random starts and the choice of images.
        json: print one JSON document instead of a table.
    """
    check_folder(out)
    attacker, explainer = _attack(attack, eps, steps, norm), make_from_text("attribution", methods)
    here = open_inputs(model, data, opening, target=target)
    settings = {
        "model": model,
        "data": here.data.name,
        "method": repr(explainer),
        "target": target,
        "seed": opening.seed,
    }
    with exclusive_folder(out):
        done = _attack_images(AttackProgress(here, settings), attacker, explainer, target, opening.seed, out)
        _write_overview(out, done)
    record = _record(done)
    if json:
        print(json_format.dumps(_document(out, record), indent=1))
    else:
        _print(out, done, record)


def _attack(text: str, eps: str | float, steps: int | None, norm: str) -> Any:
    """Build the attack; settings in its brackets override the options."""
    from gyrograd.cli.parsing import pixel_radius, radius

    options: Settings = {"eps": pixel_radius(eps) if norm == "linf" else radius(eps), "norm": norm}
    if steps is not None:
        options["steps"] = steps
    return make_from_text("attack", text, **options)


def _attack_images(
    done: AttackProgress, attacker: Any, explainer: Any, target: str, seed: int, out: Path
) -> AttackProgress:
    """Attack the images in parts and write their pictures; the record is also written after an early end."""
    from gyrograd import records
    from gyrograd.numerics import random
    from gyrograd.progress import track

    here = done.here
    # One key per image of the run, so that the result does not depend on the size of the parts.
    streams = random.keys(seed, len(here.data), here.data.labels.device)
    starts = range(0, len(here.data), AT_ONCE)
    try:
        for first in track(starts, len(starts), "attacking"):
            hit = _part(here, attacker, explainer, target, first, streams[first : first + AT_ONCE])
            hit.save(out, here.index[first : first + len(hit)])
            done = done.with_part(hit)
    finally:
        if done.parts:
            records.write(out / "record.json", _record(done))
    return done


def _part(
    here: CommandInputs, attacker: Any, explainer: Any, target: str, first: int, streams: Any
) -> AttackResult:
    x, _, chosen = here.part(target, first, AT_ONCE)
    hit = attacker(here.model, explainer, x, chosen, seed=streams)
    if isinstance(hit, tuple):
        raise UserError("The attack was given several eps; give one at a time: --eps 8/255.")
    result: AttackResult = hit
    for row, (before, after) in enumerate(zip(result.map_clean, result.map, strict=True)):
        if not (before.isfinite().all() and after.isfinite().all()):
            raise UserError(
                f"The map of {here.names[first + row]} has NaN or infinite numbers; {WHY_NOT_FINITE}, or leave the "
                "image out."
            )
    return result


def _record(done: AttackProgress) -> Record:
    """One record of all parts, in the order of the images' numbers."""
    from gyrograd.measurement.machine import versions
    from gyrograd.records import merge

    merged = merge(done.parts)
    names = dict(zip(done.here.index, done.here.names, strict=True))
    facts = {
        **versions(),
        "names": [names[index] for index in merged.examples],
        "flags": _flags(done.parts),
        "notes": list(done.here.notes),
        "complete": done.count == len(done.here.data),
    }
    return replace(merged, settings={**merged.settings, **done.settings}, facts=facts)


def _cosines(hit: AttackResult) -> list[float | None]:
    """Cosine of the maps before and after; None if the search could not move, because its gradient was zero."""
    from gyrograd.numerics.similarity import cosine

    values, stuck = cosine(hit.map_clean, hit.map).tolist(), hit.stuck.tolist()
    return [None if still else value for value, still in zip(values, stuck, strict=True)]


def _flags(parts: Sequence[Record]) -> list[str]:
    """The flags of all parts; flags that differ only in their counts are added up."""
    import re

    totals: dict[str, int] = {}
    for flag in (flag for part in parts for flag in part.facts["flags"]):
        found = re.fullmatch(r"(.*): (\d+) of \d+ images", flag)
        key, count = (found[1], int(found[2])) if found else (flag, 0)
        totals[key] = totals.get(key, 0) + count
    whole = sum(len(part.examples) for part in parts)
    return [f"{key}: {count} of {whole} images" if count else key for key, count in totals.items()]


def _write_overview(out: Path, done: AttackProgress) -> None:
    """Write a picture of the first images: before, after, the difference, and both maps on one scale."""
    from gyrograd.audit.pictures import picture_arrays
    from gyrograd.records import write_bytes
    from gyrograd.reporting.pictures import attack_sheet

    hit = done.first
    if hit is None:
        return
    rows = list(range(min(IN_OVERVIEW, len(hit))))
    titles = [printable(Path(name).name[-18:]) for name in done.here.names[: len(rows)]]
    write_bytes(out / "overview.png", attack_sheet(picture_arrays([hit]), rows, titles))


SUMMARY = {
    "start": "objective before",
    "value": "objective after (lower: the attack got further)",
    "prediction_kept": "prediction kept",
    "cosine": "cosine to the map before (1: did not move)",
    "linf": "largest change of a pixel",
    "budget_used": "share of the budget used",
}


def _summary(record: Record) -> dict[str, Stat]:
    """Mean and 95 % bootstrap interval of each column over the images that have a value."""
    from gyrograd.numerics.statistics import bootstrap_interval

    summary: dict[str, Stat] = {}
    for key in SUMMARY:
        present = [value for value in record.values[key] if value is not None and value == value]
        nothing: Stat = {"value": None, "low": None, "high": None, "n": 0}
        summary[key] = bootstrap_interval(present).plain() if present else nothing
    return summary


def _document(out: Path, record: Record) -> JsonObject:
    """The JSON output: the record, its summary, and the paths of the files."""
    written = json_format.loads((out / "record.json").read_text(encoding="utf-8"))
    columns = written["values"]
    return {
        "record": str(out / "record.json"),
        "overview": str(out / "overview.png"),
        "settings": written["settings"],
        "summary": _summary(record),
        "flags": record.facts["flags"],
        "notes": record.facts["notes"],
        "examples": [
            {"index": index, "name": name, **{key: column[row] for key, column in columns.items()}}
            for row, (index, name) in enumerate(zip(record.examples, record.facts["names"], strict=True))
        ],
    }


def _print(out: Path, done: AttackProgress, record: Record) -> None:
    from gyrograd.cli.terminal import print_table, say
    from gyrograd.numerics.wording import eps_text, interval_text
    from gyrograd.reporting.wording import counted_images

    eps = float(record.settings["eps"])
    images = counted_images(done.count)
    title = f"{record.name}, eps {eps:.4g} ({eps_text(eps)}), {images}: mean, 95 % interval"
    aimed = str(record.settings.get("column", "")).replace("top_kept", "top pixels kept").replace("_", " ")
    labels = SUMMARY | ({"start": f"{aimed}, before", "value": f"{aimed}, after"} if aimed else {})
    rows = []
    for key, found in _summary(record).items():
        alone = " (one image, no interval)" if found["n"] == 1 else ""
        interval = interval_text(found, ".4g", unknown="none: no image could be searched")
        rows.append((labels[key], interval + alone))
    print_table(("", ""), rows, title=title)
    for note in (*done.here.notes, *record.facts["flags"]):
        say(f"Note: {note}", wrap=False)
    say(f"{4 * done.count + 1} pictures; the first at a glance:")
    print(printable(out / "overview.png"))
