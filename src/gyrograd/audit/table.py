"""From the table of an audit to the card's numbers: columns per method, curves, the worst result of all attacks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import cast, get_args

import numpy as np
from numpy.typing import NDArray

from gyrograd.attacks.auto import steps_at
from gyrograd.audit.plans import MODEL, NOISE
from gyrograd.audit.presets import Preset
from gyrograd.errors import UserError
from gyrograd.measurement import Column, Table, mean_over
from gyrograd.numerics.statistics import NORMAL_FROM, Stat, bootstrap_interval, share_interval
from gyrograd.numerics.wording import eps_text
from gyrograd.registry import lookup
from gyrograd.reporting.schema import CardColumn, EpsCurves, EpsLine, Group, PixelCurves, PixelLine

STEADY = "steady_radius"
NOTHING: Stat = {"value": None, "low": None, "high": None, "n": 0}


def stat(values: Mapping[int, float | None] | None) -> Stat | None:
    """Mean, 95 % bootstrap interval and number of examples; None if there is no value."""
    present = [] if values is None else [v for v in values.values() if v is not None]
    return bootstrap_interval(present).plain() if present else None


def accuracy_of(table: Table) -> Stat:
    """The share of images on which the model is right, with its interval."""
    column = table.of(method=MODEL, metric="correct").values()
    return share_interval([right for right in column if right is not None]).plain()


def worst(found: Iterable[Column], noise: Column | None = None, noise_kept: Column | None = None) -> Column:
    """The lowest value per example over all attacks.

    Noise counts as an attack if it keeps the prediction, because an attacker could have drawn it. None if no attack had
    a derivative to follow.
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
    lowest = partial(_lowest, table, method, preset, preset.eps)
    further = {}
    for name in (lookup("metric", name).name for name in preset.metrics):
        if table.has(method=method, metric=name):
            further[name] = table.of(method=method, metric=name)
        elif _higher(name):
            further[name] = lowest(name)
        else:
            further[name] = _highest(_within(table, method, preset, preset.eps, name))
    return {
        "rps": mean_over(table.curve(method=method, metric="rps")),
        "noise_kept": table.of(method=method, condition=NOISE, eps=preset.eps, metric="kept"),
        "attack_cosine": lowest("cosine"),
        "top_k_kept": lowest("kept"),
        "prediction_kept": worst(_within(table, method, preset, preset.eps, "prediction_kept")),
        "insertion": mean_over(table.curve(method=method, metric="insertion")),
        "deletion": mean_over(table.curve(method=method, metric="deletion")),
        "adversarial_insertion": lowest("adversarial_insertion"),
        **further,
    }


def _within(table: Table, method: str, preset: Preset, eps: float, metric: str) -> list[Column]:
    """The results of each attack at eps and at smaller radii, which are also within eps."""
    return [
        table.of(method=method, condition=attack, eps=radius, metric=metric)
        for attack in preset.searches
        for radius in table.radii(method=method, condition=attack)
        if radius <= eps + 1e-9
    ]


def _lowest(table: Table, method: str, preset: Preset, eps: float, metric: str) -> Column:
    """The lowest value within eps, under the attacks and under noise, if noise of that size was measured."""
    noise = [
        table.of(method=method, condition=NOISE, eps=eps, metric=name)
        for name in (metric, "prediction_kept")
        if table.has(method=method, condition=NOISE, eps=eps, metric=metric)
    ]
    return worst(_within(table, method, preset, eps, metric), *noise)


def card_columns(preset: Preset) -> list[CardColumn]:
    """Key, label and description of each column of the card."""
    eps, noise = eps_text(preset.eps), eps_text(preset.noise_eps)
    top, unit = f"{preset.top_fraction:.0%} of the pixels", [0.0, 1.0]
    attacker = f"the worst of {', '.join(preset.attacks)} and noise, {eps}, {_search_settings(preset)}"
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
        steps = _search_settings(preset)
        far = f"largest eps, of 255, at which at least half of the top {top} stays, auto at {radii}, {steps}"
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
    """True if steady radii can be computed, which takes `auto` at more than one radius."""
    return "auto" in preset.attacks and len(preset.radii) > 1


def searched(preset: Preset) -> str:
    """The number of attack steps in words, for the note below a verdict."""
    few = preset.mean_steps
    if few is None:
        return f"{preset.steps} step{'s' if preset.steps > 1 else ''}"
    first = steps_at(few, preset.radii, min(preset.radii))
    more = "" if first == few else f" ({first} at the smallest radius)"
    averaged = (
        f"{few}{more} for averaged maps such as SmoothGrad, through {preset.search_rows} of their passes"
    )
    return f"{preset.steps} step{'s' if preset.steps > 1 else ''}, or {averaged}"


def _search_settings(preset: Preset) -> str:
    """The same in the descriptions of columns. Columns with different texts are not compared: do not reword it."""
    through = ""
    if (few := preset.mean_steps) is not None:
        first = steps_at(few, preset.radii, min(preset.radii))
        more = "" if first == few else f", {first} at the smallest radius,"
        through = f" ({few}{more} for maps averaged over passes, at most {preset.search_rows} of them)"
    return f"{preset.steps} step{'s' if preset.steps > 1 else ''}{through}"


def kept_over_eps(table: Table, method: str, preset: Preset) -> tuple[tuple[float, ...], list[Column]]:
    """The attacked radii of a method, and the share of its top pixels kept at each."""
    radii = table.radii(method=method, condition=preset.searches[0])
    return radii, [_lowest(table, method, preset, eps, "kept") for eps in radii]


def eps_curves(table: Table, methods: Sequence[str], preset: Preset) -> EpsCurves:
    """Share of top pixels kept over eps, under attack and under noise, for methods attacked at several eps."""
    lines: list[EpsLine] = []
    for method in methods:
        radii, lowest = kept_over_eps(table, method, preset)
        if len(radii) < 2:
            continue
        x = [eps * 255 for eps in radii]
        under_noise = [
            table.of(method=method, condition=NOISE, eps=eps, metric="kept")
            for eps in radii
            if table.has(method=method, condition=NOISE, eps=eps, metric="kept")
        ]
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
    """As `worst`, for a metric where lower is better; without noise."""
    negated = [{e: None if v is None else -v for e, v in c.items()} for c in columns]
    return {e: None if v is None else -v for e, v in worst(negated).items()}


def _higher(name: str) -> bool:
    return lookup("metric", name).direction != "lower is better"


SHARE = 0.5
"""Share of the top pixels that must stay: more stay than move."""
RESAMPLES = 2000


def steady_radius(kept: Sequence[Column], radii: Sequence[float], share: float = SHARE) -> Stat | None:
    """The largest radius, in units of 1/255, at which at least `share` of the top pixels stays, with its interval.

    `kept` has the share kept per image at each of the rising `radii`; at radius 0 all stay. Between the radii the
    square root of the mean is taken as a straight line. If the mean is above `share` at the largest radius, the result
    is that radius: the map holds at least that far. The interval is a bootstrap over images. None if no image has a
    value at every radius.

    >>> steady_radius([{0: 0.64, 1: 0.64}, {0: 0.36, 1: 0.36}], [4 / 255, 8 / 255], share=0.49)["value"]
    6.0
    """
    if len(kept) != len(radii) or list(radii) != sorted(set(radii)) or not all(eps > 0 for eps in radii):
        raise UserError(
            f"There are {len(kept)} columns for the radii {list(radii)}; give one for each, rising."
        )
    images = [e for e in kept[0] if all(column.get(e) is not None for column in kept)]
    if not images:
        return None
    curves = np.array([[column[e] for column in kept] for e in images], dtype=np.float64)
    value = float(_crossing(curves.mean(0)[None], radii, share)[0])
    if len(images) == 1:
        return {"value": value, "low": None, "high": None, "n": 1}
    low, high = np.quantile(_crossing(_resampled_means(curves), radii, share), [0.025, 0.975])
    return {"value": value, "low": float(low), "high": float(high), "n": len(images)}


def _resampled_means(curves: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean curve of each bootstrap resample; for many images drawn from its normal approximation."""
    generator, n = np.random.default_rng(0), len(curves)
    if n >= NORMAL_FROM:
        spread = np.atleast_2d(np.cov(curves.T)) / n
        return generator.multivariate_normal(curves.mean(0), spread, size=RESAMPLES, method="svd")
    rows = generator.integers(n, size=(RESAMPLES, n))
    return np.concatenate([curves[part].mean(1) for part in np.array_split(rows, max(1, rows.size >> 22))])


def _crossing(means: NDArray[np.float64], radii: Sequence[float], share: float) -> NDArray[np.float64]:
    """The radius, in 1/255, at which each row of means first falls below `share`."""
    levels: NDArray[np.float64] = np.array([0.0, *(255 * eps for eps in radii)])
    # Shares fall steeply and then flatten out, so that a straight line between far radii lies above them: of a map that
    # keeps 31 % at 1/255 and 7 % at 2/255 it says 1.08. Their square roots fall more evenly (results/audit.md).
    curve = np.sqrt(np.concatenate([np.ones((len(means), 1)), means.clip(0)], axis=1))
    share = math.sqrt(share)
    below = curve < share
    first = np.where(below.any(1), below.argmax(1), len(levels) - 1)
    row = np.arange(len(curve))
    high, low = curve[row, first - 1], curve[row, first]
    # Position within the last segment; its end if the curve does not fall below.
    part = np.where(below.any(1), (high - share) / np.where(high > low, high - low, 1), 1.0)
    crossed: NDArray[np.float64] = levels[first - 1] + part * (levels[first] - levels[first - 1])
    return crossed
