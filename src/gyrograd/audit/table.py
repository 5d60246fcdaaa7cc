"""From the table of an audit to the card's numbers: columns of each method, curves, the worst an attacker found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import cast, get_args

from gyrograd.audit.plans import NOISE
from gyrograd.audit.presets import Preset
from gyrograd.measurement import Column, Table, mean_over
from gyrograd.numerics.statistics import Stat, bootstrap_interval
from gyrograd.numerics.wording import eps_text
from gyrograd.registry import lookup
from gyrograd.reporting.schema import CardColumn, EpsCurves, EpsLine, Group, PixelCurves, PixelLine

STEADY = "steady_radius"
NOTHING: Stat = {"value": None, "low": None, "high": None, "n": 0}


def stat(values: Mapping[int, float | None] | None) -> Stat | None:
    """Mean, 95 % bootstrap interval and number of examples; None where there is no value."""
    present = [] if values is None else [v for v in values.values() if v is not None]
    return bootstrap_interval(present).plain() if present else None


def worst(found: Iterable[Column], noise: Column | None = None, noise_kept: Column | None = None) -> Column:
    """The lowest value any attack found for each example.

    Noise counts as an attack where it left the prediction alone: an attacker could have drawn it too. Where no
    attack had a derivative to follow, nothing is said.
    """
    attacks = list(found)
    lowest: Column = {}
    for example in dict.fromkeys(example for column in attacks for example in column):
        values = [a[example] for a in attacks if a.get(example) is not None]
        if values and noise is not None and (noise_kept or {}).get(example) == 1.0:
            values.append(noise.get(example))
        lowest[example] = min((v for v in values if v is not None), default=None)
    return lowest


def method_columns(table: Table, method: str, preset: Preset) -> dict[str, Column]:
    """Every number of a method by its key on the card."""

    def noisy(metric: str) -> Column:
        return table.of(method=method, condition=NOISE, eps=preset.eps, metric=metric)

    def attacked(metric: str) -> list[Column]:
        return _within(table, method, metric, preset, preset.eps)

    def lowest(metric: str) -> Column:
        return worst(attacked(metric), noisy(metric), noisy("prediction_kept"))

    further = {}
    for name in (lookup("metric", name).name for name in preset.metrics):
        if table.has(method=method, metric=name):
            further[name] = table.of(method=method, metric=name)
        else:
            further[name] = lowest(name) if _higher(name) else _highest(attacked(name))
    return {
        "rps": mean_over(table.curve(method=method, metric="rps")),
        "noise_kept": noisy("kept"),
        "attack_cosine": lowest("cosine"),
        "top_k_kept": lowest("kept"),
        "prediction_kept": worst(attacked("prediction_kept")),
        "insertion": mean_over(table.curve(method=method, metric="insertion")),
        "deletion": mean_over(table.curve(method=method, metric="deletion")),
        "adversarial_insertion": lowest("adversarial_insertion"),
        **further,
    }


def _within(table: Table, method: str, metric: str, preset: Preset, eps: float) -> list[Column]:
    """What each attack found at eps or at a smaller radius: whoever may go far may also stay near."""
    return [
        table.of(method=method, condition=attack, eps=radius, metric=metric)
        for attack in preset.searches
        for radius in table.radii(method=method, condition=attack)
        if radius <= eps + 1e-9
    ]


def card_columns(preset: Preset) -> list[CardColumn]:
    """What each column of the card is."""
    eps, noise = eps_text(preset.eps), eps_text(preset.noise_eps)
    top, unit = f"{preset.top_fraction:.0%} of the pixels", [0.0, 1.0]
    attacker = f"the worst of {', '.join(preset.attacks)} and noise, {eps}, {searched(preset)}"
    radii = ", ".join(eps_text(radius) for radius in preset.radii)
    rows: list[tuple[str, str, str, Group]] = [
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
    if has_radius(preset):
        far = f"largest eps, of 255, at which at least half of the top {top} stays, auto at {radii}, {searched(preset)}"
        rows.insert(2, (STEADY, "Steady radius", far, "attack"))
    columns: list[CardColumn] = [
        {
            "key": key,
            "label": label,
            "detail": detail,
            "group": group,
            "direction": "lower" if key == "deletion" else "higher",
            "range": None if key == STEADY else unit,
        }
        for key, label, detail, group in rows
    ]
    further: list[CardColumn] = [
        {
            "key": entry.name,
            "label": entry.label,
            "detail": entry.summary,
            "group": cast(Group, entry.group if entry.group in get_args(Group) else "other"),
            "direction": "higher" if _higher(entry.name) else "lower",
            "range": None,
        }
        for entry in (lookup("metric", name) for name in preset.metrics)
    ]
    return columns + further


def has_radius(preset: Preset) -> bool:
    """Whether steady radii are measured: of a single radius nobody knows what lies between it and the clean map."""
    return "auto" in preset.attacks and len(preset.radii) > 1


def searched(preset: Preset) -> str:
    """How long the attacks search: audits that searched more or less are no rivals."""
    few = preset.mean_steps
    through = (
        "" if few is None else f" ({few} for maps averaged over passes, at most {preset.search_rows} of them)"
    )
    return f"{preset.steps} step{'s' if preset.steps > 1 else ''}{through}"


def kept_over_eps(
    table: Table, method: str, preset: Preset
) -> tuple[tuple[float, ...], list[Column], list[Column]]:
    """The radii a method was attacked at, and the share of its top pixels kept there: under attack, and under noise.

    Noise may have been drawn at fewer radii; there is no column of it then.
    """
    radii = table.radii(method=method, condition=preset.searches[0])
    lowest, under_noise = [], []
    for eps in radii:
        found = _within(table, method, "kept", preset, eps)
        if table.has(method=method, condition=NOISE, eps=eps, metric="kept"):
            kept, same = (
                table.of(method=method, condition=NOISE, eps=eps, metric=m)
                for m in ("kept", "prediction_kept")
            )
            under_noise.append(kept)
            lowest.append(worst(found, kept, same))
        else:
            lowest.append(worst(found))
    return radii, lowest, under_noise


def eps_curves(table: Table, methods: Sequence[str], preset: Preset) -> EpsCurves:
    """Share of the top pixels kept over eps, under attack and under noise; a method attacked at one eps has no line."""
    lines: list[EpsLine] = []
    for method in methods:
        radii, lowest, under_noise = kept_over_eps(table, method, preset)
        if len(radii) < 2:
            continue
        x = [eps * 255 for eps in radii]
        lines.append({"method": method, "label": "attack", "x": x, "y": [stat(c) for c in lowest]})
        if len(under_noise) == len(radii):
            lines.append({"method": method, "label": "noise", "x": x, "y": [stat(c) for c in under_noise]})
    return {"label": "share of the top pixels kept", "x_label": "eps (of 255)", "lines": lines}


def pixel_curves(table: Table, methods: Sequence[str], game: str, preset: Preset) -> PixelCurves:
    """Insertion or deletion over the share of pixels, mean and interval."""
    lines: list[PixelLine] = []
    for method in methods:
        stats = [stat(column) or NOTHING for column in table.curve(method=method, metric=game)]
        lines.append(
            {
                "method": method,
                "x": list(preset.ratios),
                "y": [s["value"] for s in stats],
                "low": [s["low"] for s in stats],
                "high": [s["high"] for s in stats],
            }
        )
    return {"label": "probability of the class", "x_label": "share of pixels", "lines": lines}


def _highest(columns: Sequence[Column]) -> Column:
    """The worst of a measure that is better low; noise is left out."""
    negated = [{e: None if v is None else -v for e, v in c.items()} for c in columns]
    return {e: None if v is None else -v for e, v in worst(negated).items()}


def _higher(name: str) -> bool:
    return lookup("metric", name).direction != "lower is better"
