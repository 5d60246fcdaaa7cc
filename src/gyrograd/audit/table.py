"""From records to the card's numbers: columns of each method, curves, the worst an attacker found. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from gyrograd.audit.presets import Preset
from gyrograd.numerics.statistics import bootstrap_interval
from gyrograd.records import Record
from gyrograd.registry import lookup

Column: TypeAlias = dict[int, float | None]
"""Example to value; None where nothing can be said."""
Stat: TypeAlias = dict[str, float | int | None]

NOISE = "noise"
STEADY = "steady_radius"


def column(record: Record, name: str) -> Column:
    """One column by example."""
    return dict(zip(record.examples, record.values[name], strict=True))


def points(record: Record, name: str) -> list[Column]:
    """The columns name[0], name[1], ... of a curve."""
    found: list[Column] = []
    while f"{name}[{len(found)}]" in record.values:
        found.append(column(record, f"{name}[{len(found)}]"))
    return found


def mean_over(columns: Sequence[Column]) -> Column:
    """The mean of several columns, example by example; None where one misses."""
    return {example: _mean([c[example] for c in columns]) for example in columns[0]}


def stat(values: Mapping[int, float | None] | None) -> Stat | None:
    """Mean, 95 % bootstrap interval and number of examples; None where there is no value."""
    present = [] if values is None else [v for v in values.values() if v is not None]
    if not present:
        return None
    interval = bootstrap_interval(present)
    ends = (interval.low, interval.high) if interval.n > 1 else (None, None)
    return {"value": interval.value, "low": ends[0], "high": ends[1], "n": interval.n}


def worst(found: Iterable[Column], noise: Column | None = None, noise_kept: Column | None = None) -> Column:
    """The lowest value any attack found for each example.

    Noise counts as an attack where it left the prediction alone: an attacker could have drawn it too. Where no
    attack had a derivative to follow, nothing is said.
    """
    attacks = list(found)
    lowest: Column = {}
    for example in attacks[0]:
        values = [a[example] for a in attacks if a.get(example) is not None]
        if values and noise is not None and (noise_kept or {}).get(example) == 1.0:
            values.append(noise.get(example))
        lowest[example] = min((v for v in values if v is not None), default=None)
    return lowest


def method_columns(records: Mapping[str, Record], method: str, preset: Preset) -> dict[str, Column]:
    """Every number of a method by its key on the card."""
    clean, noise = records[method], records[f"{method} under {NOISE}"]
    attacks = [records[f"{method} under {name}"] for name in preset.searches]
    noise_at = noise.settings["eps"].index(preset.eps)
    noise_kept = column(noise, f"prediction_kept[{noise_at}]")

    def lowest(key: str) -> Column:
        return worst(_within(attacks, key, preset.eps), column(noise, f"{key}[{noise_at}]"), noise_kept)

    further = [lookup("metric", name).name for name in preset.metrics]
    own = {name: column(clean, name) for name in further if name in clean.values}
    moved = [name for name in further if name not in clean.values]
    highest = {name: _highest(_within(attacks, name, preset.eps)) for name in moved if not _higher(name)}
    return {
        "rps": mean_over(points(clean, "rps")),
        "noise_kept": column(noise, f"kept[{noise_at}]"),
        "attack_cosine": lowest("cosine"),
        "top_k_kept": lowest("kept"),
        "prediction_kept": worst(_within(attacks, "prediction_kept", preset.eps)),
        "insertion": mean_over(points(clean, "insertion")),
        "deletion": mean_over(points(clean, "deletion")),
        "adversarial_insertion": lowest("adversarial_insertion"),
        **own,
        **{name: lowest(name) for name in moved if _higher(name)},
        **highest,
    }


def _within(attacks: Sequence[Record], key: str, eps: float) -> list[Column]:
    """What each attack found at eps or at a smaller radius: whoever may go far may also stay near."""
    return [
        column(record, f"{key}[{at}]")
        for record in attacks
        for at, radius in enumerate(record.settings["attack"]["eps"])
        if radius <= eps
    ]


def attacked_only(records: Mapping[str, Record], method: str, preset: Preset, key: str) -> Column:
    """The lowest value the attacks alone found, noise left out: for the question whether they beat it."""
    found = [records[f"{method} under {name}"] for name in preset.searches]
    return worst(column(r, f"{key}[{r.settings['attack']['eps'].index(preset.eps)}]") for r in found)


def card_columns(preset: Preset) -> list[dict[str, Any]]:
    """What each column of the card is."""
    eps, noise = _of_255(preset.eps), _of_255(preset.noise_eps)
    top, unit = f"{preset.kept:.0%} of the pixels", [0.0, 1.0]
    attacker = f"the worst of {', '.join(preset.attacks)} and noise, {eps}, {searched(preset)}"
    radii = ", ".join(_of_255(radius) for radius in preset.radii)
    rows = [
        (
            "rps",
            "Steady under noise",
            f"cosine to the clean map, uniform noise {noise}, {preset.draws} draws",
            "noise",
        ),
        ("noise_kept", "Top pixels kept, noise", f"of the top {top}, random noise of {eps}", "noise"),
        ("attack_cosine", "Steady under attack", f"cosine to the clean map, {attacker}", "attack"),
        ("top_k_kept", "Top pixels kept, attack", f"of the top {top}, {attacker}", "attack"),
        (
            "prediction_kept",
            "Prediction kept",
            "share of attacked images with the same predicted class",
            "attack",
        ),
        ("insertion", "Insertion", "mean probability as the top pixels are put in", "faithfulness"),
        ("deletion", "Deletion", "mean probability as the top pixels are taken out", "faithfulness"),
        (
            "adversarial_insertion",
            "Insertion after attack",
            f"pixels in the order of the attacked map, {attacker}",
            "faithfulness",
        ),
    ]
    if "auto" in preset.attacks:
        far = f"largest eps, of 255, at which at least half of the top {top} stays, auto at {radii}, {searched(preset)}"
        rows.insert(2, (STEADY, "Steady radius", far, "attack"))
    known = [
        _column(
            key,
            label,
            detail,
            group,
            "lower" if key == "deletion" else "higher",
            None if key == STEADY else unit,
        )
        for key, label, detail, group in rows
    ]
    return known + [_further(name) for name in preset.metrics]


def searched(preset: Preset) -> str:
    """How long the attacks search: audits that searched more or less are no rivals."""
    drawn = preset.drawn_steps
    through = "" if drawn is None else f", of means over draws {drawn} through {preset.search_draws} draws"
    return f"{preset.steps} step{'s' if preset.steps > 1 else ''}{through}"


def kept_over_eps(
    records: Mapping[str, Record], method: str, preset: Preset
) -> tuple[list[float], list[Column], list[Column]]:
    """The radii a method was attacked at, and the share of its top pixels kept there: under attack, and under noise.

    Noise may have been drawn at fewer radii; there is no column of it then.
    """
    noise = records[f"{method} under {NOISE}"]
    attacks = [records[f"{method} under {name}"] for name in preset.searches]
    radii: list[float] = list(attacks[0].settings["attack"]["eps"])
    drawn = {eps: at for at, eps in enumerate(noise.settings["eps"]) if eps in radii}
    kept = {eps: column(noise, f"kept[{at}]") for eps, at in drawn.items()}
    same = {eps: column(noise, f"prediction_kept[{at}]") for eps, at in drawn.items()}
    lowest = [worst(_within(attacks, "kept", eps), kept.get(eps), same.get(eps)) for eps in radii]
    return radii, lowest, list(kept.values())


def eps_curves(records: Mapping[str, Record], methods: Sequence[str], preset: Preset) -> dict[str, Any]:
    """Share of the top pixels kept over eps, under attack and under noise; a method attacked at one eps has no line."""
    lines = []
    for method in methods:
        radii, lowest, under_noise = kept_over_eps(records, method, preset)
        if len(radii) < 2:
            continue
        x = [eps * 255 for eps in radii]
        lines.append({"method": method, "label": "attack", "x": x, "y": [stat(c) for c in lowest]})
        if len(under_noise) == len(radii):
            lines.append({"method": method, "label": "noise", "x": x, "y": [stat(c) for c in under_noise]})
    return {"label": "share of the top pixels kept", "x_label": "eps (of 255)", "lines": lines}


def pixel_curves(
    records: Mapping[str, Record], methods: Sequence[str], game: str, preset: Preset
) -> dict[str, Any]:
    """Insertion or deletion over the share of pixels, mean and interval."""
    lines = []
    for method in methods:
        stats = [stat(c) or {} for c in points(records[method], game)]
        ends = {key: [s.get(key) for s in stats] for key in ("value", "low", "high")}
        line = {"method": method, "x": list(preset.ratios), "y": ends["value"], "low": ends["low"]}
        lines.append({**line, "high": ends["high"]})
    return {"label": "probability of the class", "x_label": "share of pixels", "lines": lines}


def _highest(columns: Sequence[Column]) -> Column:
    """The worst of a measure that is better low; noise is left out."""
    negated = [{e: None if v is None else -v for e, v in c.items()} for c in columns]
    return {e: None if v is None else -v for e, v in worst(negated).items()}


def _further(name: str) -> dict[str, Any]:
    entry = lookup("metric", name)
    group, direction = entry.group or "other", "higher" if _higher(name) else "lower"
    return _column(entry.name, entry.label, entry.summary, group, direction, None)


def _higher(name: str) -> bool:
    return lookup("metric", name).direction != "lower is better"


def _column(
    key: str, label: str, detail: str, group: str, direction: str, range: list[float] | None
) -> dict[str, Any]:
    return {
        "key": key,
        "label": label,
        "detail": detail,
        "group": group,
        "direction": direction,
        "range": range,
    }


def _mean(values: Sequence[float | None]) -> float | None:
    present = [v for v in values if v is not None]
    return sum(present) / len(present) if len(present) == len(values) else None


def _of_255(eps: float) -> str:
    return f"{eps * 255:.3g}/255"
