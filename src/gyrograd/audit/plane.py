"""The plane of robustness and faithfulness, with methods and smoothing widths as points, and the recommendation."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gyrograd.audit.methods import Method
from gyrograd.audit.plans import SweepPoint, swept_setting
from gyrograd.audit.presets import Preset
from gyrograd.audit.table import stat
from gyrograd.measurement import Column, Table, mean_over
from gyrograd.numerics.statistics import Interval, Stat, bootstrap_interval, paired_difference
from gyrograd.numerics.wording import eps_text
from gyrograd.registry import available, label_of
from gyrograd.reporting.schema import Plane, Recommended
from gyrograd.theory import Point, recommend

Key = tuple[str, float | None]
"""A method's name and width."""


@dataclass(frozen=True)
class Choice:
    """The recommended point.

    gain, price: paired differences of robustness and insertion to the first method. stay: True if it is the first
    method. passes: model passes per map. held: how far it holds under attack: its steady radius in 1/255 or, if it was
    attacked at a single radius (`by_radius` False), the share of its top pixels kept.
    """

    point: Point
    gain: Interval
    price: Interval
    why: str
    stay: bool = False
    passes: int = 1
    held: Stat | None = None
    by_radius: bool = True


def point_in_words(point: Point) -> str:
    """Such as "SmoothGrad with sigma 0.1"."""
    label = label_of("attribution", point.method)
    if point.setting is None:
        return label
    name = swept_setting(point.method)
    return f"{label} with {name} {eps_text(point.setting) if name == 'eps' else f'{point.setting:g}'}"


def plane_points(
    table: Table, methods: Sequence[Method], sweep: Sequence[SweepPoint], preset: Preset
) -> list[Point]:
    """The points: similarity under noise and insertion, on the images of the sweep and with its number of draws.

    A method whose width is also swept appears once: as a point of the sweep if that used other draws, else as the
    method.
    """
    made = []
    shared = list(table.of(method=sweep[0].name, metric="rps")) if sweep else None
    for method in methods:
        own = own_setting(method)
        widths = [point.setting for point in sweep if point.method == method.name]
        if own is not None and any(math.isclose(own, width, rel_tol=1e-6) for width in widths):
            continue
        rps = mean_over(table.curve(method=method.name, metric="rps")[: preset.sweep_noise])
        insertion = mean_over(table.curve(method=method.name, metric="insertion"))
        made.append(_point(method.name, own, rps, insertion, shared))
    for point in sweep:
        rps, insertion = (table.of(method=point.name, metric=metric) for metric in ("rps", "insertion"))
        made.append(_point(point.method, point.setting, rps, insertion, shared))
    return [placed for placed in made if placed is not None]


def own_setting(method: Method) -> float | None:
    """The width of a method that smooths, or None."""
    entry = available("attribution").get(method.name)
    width = getattr(getattr(method.attribution, "kernel", None), entry.width if entry else "", None)
    return None if width is None else float(width)


def _point(
    method: str, setting: float | None, rps: Column, insertion: Column, shared: Sequence[int] | None
) -> Point | None:
    """The point of a method, or None if a value is missing, because points are compared in pairs."""
    shared = list(rps) if shared is None else shared
    rows = [(rps[example], insertion[example]) for example in shared]
    robust = tuple(r for r, _ in rows if r is not None)
    faithful = tuple(f for _, f in rows if f is not None)
    if len(robust) < len(rows) or len(faithful) < len(rows):
        return None
    return Point(method, setting, robust, faithful, bootstrap_interval(robust), bootstrap_interval(faithful))


def choice(
    placed: Sequence[Point],
    first: Method,
    suspects: Collection[str],
    passes: Mapping[str, int] | None = None,
    held: Mapping[Key, Stat | None] | None = None,
    faithful: Mapping[Key, Column] | None = None,
    *,
    by_radius: bool = True,
) -> Choice | None:
    """The steadiest point among those not significantly less faithful than the most faithful one, nor than the first.

    If `held` gives how far attacked methods (name and width) hold, the one that holds furthest is chosen, among those
    not significantly less faithful than the first; else similarity under noise decides. `faithful` has the insertion of
    methods on all images, as in the card's table; the plane may use fewer.

    Within a method the most faithful width is the choice of tan2023 Theorem 5.2; across methods it is in the Pareto
    set. `suspects` (methods whose maps ignore the model or the image, or were not checked) are never recommended.
    """
    known = [point for point in placed if point.method not in suspects]
    own = (first.name, own_setting(first))
    start = next((point for point in placed if (point.method, point.setting) == own), None)
    if not known or start is None:
        return None
    advice = recommend(known, robust="higher is better")
    peak = max(advice.best.values(), key=lambda point: point.faithfulness_mean.value)
    attacked = {key: found for key, found in (held or {}).items() if found is not None}

    def price(point: Point) -> Interval:
        """Insertion of this point minus that of the first method, over the images that both have."""
        columns = [(faithful or {}).get((p.method, p.setting)) for p in (point, start)]
        if columns[0] is None or columns[1] is None:
            return paired_difference(point.faithfulness, start.faithfulness)
        shared = [example for example in columns[0] if example in columns[1]]
        return paired_difference(*([column[example] for example in shared] for column in columns if column))

    rivals = [p for p in known if (p.method, p.setting) in attacked and not price(p).high < 0]
    if rivals:
        best = max(rivals, key=lambda p: (attacked[p.method, p.setting]["value"], p.faithfulness_mean.value))
    else:
        above = [
            [paired_difference(q.faithfulness, p.faithfulness).low > 0 for q in (peak, start)] for p in known
        ]
        equal = [p for p, less_faithful in zip(known, above, strict=True) if not any(less_faithful)]
        best = max(equal or [peak], key=lambda point: point.robustness_mean.value)
    gain = paired_difference(best.robustness, start.robustness)
    times = (passes or {}).get(best.method, 1)
    far = attacked.get((best.method, best.setting))
    why = _why(best, peak, advice.at_edge, far, by_radius)
    return Choice(best, gain, price(best), why, best is start, times, far, by_radius)


def _why(best: Point, peak: Point, at_edge: Sequence[str], held: Stat | None, by_radius: bool) -> str:
    """The reason in a sentence: how far the point holds under attack or, if unknown, its steadiness under noise."""
    if held is not None:
        value = held["value"] or 0.0
        far = f"half of its top pixels stay up to {value:.1f}/255 under attack, the furthest"
        if not by_radius:
            far = f"{value * 100:.0f} % of its top pixels stay under attack, the most"
        return (
            f"{point_in_words(best)}: {far} of what was attacked and is not measurably less faithful than the first "
            "method."
        )
    reason = f"it has the highest insertion on the {len(peak.faithfulness)} images of this chart"
    if best is not peak:
        reason = (
            f"it is the steadiest whose insertion is not measurably below that of {point_in_words(peak)}, the highest "
            f"on the {len(peak.faithfulness)} images of this chart"
        )
    edge = best.method in at_edge and best.setting is not None
    hint = "; its best width lies at the edge of the sweep, so a wider sweep may find better" if edge else ""
    return f"{point_in_words(best)}: {reason}{hint}."


def plane(placed: Sequence[Point], chosen: Choice | None, preset: Preset) -> Plane:
    """The plane for the card."""
    front = recommend(placed, robust="higher is better").pareto if placed else ()
    recommended: Recommended | None = None
    if chosen is not None:
        recommended = {"method": chosen.point.method, "setting": chosen.point.setting, "why": chosen.why}
    return {
        "x_label": f"robustness: cosine to the clean map under noise of {eps_text(preset.noise_eps)}",
        "y_label": "faithfulness: insertion",
        "points": [
            {
                "method": point.method,
                "label": label_of("attribution", point.method),
                "setting": point.setting,
                "setting_name": None if point.setting is None else swept_setting(point.method),
                "robustness": stat(dict(enumerate(point.robustness))),
                "faithfulness": stat(dict(enumerate(point.faithfulness))),
                "pareto": any(point is other for other in front),
            }
            for point in placed
        ],
        "recommended": recommended,
    }
