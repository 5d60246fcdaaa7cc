"""Charts of a card, as PNG and as SVG whose colours follow the page's light or dark theme."""

from __future__ import annotations

import html
import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np

from gyrograd.numerics.wording import Number, eps_text, interval_text, number
from gyrograd.registry import readable
from gyrograd.reporting import schema
from gyrograd.reporting.figures import NO_USUAL_LAYOUT, lay_out
from gyrograd.reporting.palette import DARK, LIGHT, series
from gyrograd.reporting.wording import Stat, is_known, signed_text

Axis = Any
Draw = Callable[[Axis], None]

PANEL = (3.5, 2.7)
"""Size in inches: letters stay readable on a phone, and two or three charts fit side by side on a desktop."""
LEGEND_BELOW = 0.44
"""Inches from the axis to the legend, to leave room for ticks and a label."""
SHEET_COLUMNS = 3
FONT = 9.0
GREY = {"color": LIGHT["dim"], "dash": (0, (4, 2))}
"""Noise, the yardstick."""


@dataclass(frozen=True)
class Chart:
    """A chart: `svg` for the page, `svg_file` and `png` for the folder, and the numbers it shows as a table."""

    name: str
    alt: str
    svg: str
    svg_file: str
    png: bytes
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = field(default=())


def chart(
    name: str,
    alt: str,
    draws: Sequence[Draw],
    *,
    header: tuple[str, ...] = (),
    rows: Sequence[tuple[str, ...]] = (),
    size: tuple[float, float] = PANEL,
    image: bool = True,
) -> Chart:
    """Draw a chart of one or more panels, deterministically. `image=False` skips the PNG and the SVG file."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    with matplotlib.rc_context(_style(name) | NO_USUAL_LAYOUT):
        figure = _figure(draws, size)
        lay_out(figure, FigureCanvasSVG)  # the PNG has the layout of the SVG
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
        svg = _apply_theme(buffer.getvalue().decode("utf-8"), alt)
        raster = io.BytesIO()
        if image:
            paper = LIGHT["paper"]
            figure.savefig(raster, format="png", dpi=160, facecolor=paper, metadata={"Software": None})
    return Chart(name, alt, svg, _standalone(svg), raster.getvalue(), header, tuple(rows))


def eps_charts(card: schema.AuditCard) -> tuple[list[Chart], Chart] | None:
    """Effect of attack and noise over eps: one panel per method, and all panels as one sheet."""
    curve = card["curves"] and card["curves"]["eps"]
    if not curve or not curve["lines"]:
        return None
    limits = _limits([stat for line in curve["lines"] for stat in line["y"]])
    labels = labels_of(card)
    order = _order(card)
    names = [name for name in order if any(line["method"] == name for line in curve["lines"])]
    draws: list[Draw] = []
    panels: list[Chart] = []
    for name in names:
        lines = [line for line in curve["lines"] if line["method"] == name]
        place = order.index(name)
        draw = partial(_eps_panel, label=labels[name], lines=lines, index=place, curve=curve, limits=limits)
        ends = [
            f"{line['label']}: {interval_text(line['y'][-1])} at eps {line['x'][-1]:g}"
            for line in lines
            if line["x"]
        ]
        alt = f"{labels[name]}: {curve.get('label') or 'similarity'} over eps. {'; '.join(ends)}."
        panels.append(chart(f"eps-{len(panels)}", alt, [draw], image=False))
        draws.append(draw)
    eps = sorted({x for line in curve["lines"] for x in line["x"]})
    rows = []
    for line in curve["lines"]:
        at = dict(zip(line["x"], line["y"], strict=True))
        rows.append((labels[line["method"]], line["label"], *(interval_text(at.get(x)) for x in eps)))
    header = ("method", "pushed by", *(f"eps {x:g}" for x in eps))
    alt = f"{curve.get('label') or 'similarity'} over eps, a panel for each of {len(names)} methods."
    return panels, chart("eps", alt, draws, header=header, rows=rows)


def game_chart(card: schema.AuditCard, name: Literal["insertion", "deletion"]) -> Chart | None:
    """Insertion or deletion curves: the probability as pixels are inserted or removed, one line per method."""
    curve = card["curves"] and card["curves"][name]
    if not curve or not curve["lines"]:
        return None
    labels, order = labels_of(card), _order(card)

    def draw(axis: Axis) -> None:
        for line in curve["lines"]:
            _game_line(axis, line, order.index(line["method"]), labels[line["method"]])
        direction = "higher is better" if name == "insertion" else "lower is better"
        x_label, y_label = curve.get("x_label") or "share of pixels", curve.get("label") or "probability"
        _finish(axis, f"{name.capitalize()} ({direction})", x_label, y_label)
        _widen_axes(axis)
        _legend(axis)

    rows = []
    for line in curve["lines"]:
        y = line["y"] or [None]
        rows.append((labels[line["method"]], number(y[0]), number(y[len(y) // 2]), number(y[-1])))
    alt = f"{name.capitalize()} curves of {len(rows)} methods. " + "; ".join(
        f"{row[0]}: halfway {row[2]}" for row in rows
    )
    return chart(name, alt, [draw], header=("method", "start", "halfway", "end"), rows=rows, size=(4.1, 3.7))


def plane_chart(card: schema.AuditCard) -> Chart | None:
    """Robustness against faithfulness: one point per method and setting, the Pareto line, the recommended point."""
    plane = card["plane"]
    if plane is None:
        return None
    points = [p for p in plane["points"] if is_known(p["robustness"]) and is_known(p["faithfulness"])]
    if not points:
        return None
    labels, order = labels_of(card), _order(card)
    chosen = plane.get("recommended")
    grades = {method["name"]: method["grade"] for method in card["methods"]}
    standing = "best here" if chosen and grades.get(chosen["method"]) == "unsafe" else "recommended"

    def draw(axis: Axis) -> None:
        best = sorted(_place(point) for point in points if point.get("pareto"))
        if len(best) > 1:
            dashed = {"linestyle": (0, (4, 2)), "linewidth": 1.2}
            axis.plot(*zip(*best, strict=True), color=LIGHT["dim"], label="Pareto line", zorder=1, **dashed)
        for name in [name for name in order if any(point["method"] == name for point in points)]:
            mine = [point for point in points if point["method"] == name]
            _sweep(axis, mine, order.index(name), labels[name])
        ring = {"marker": "o", "markersize": 15, "markerfacecolor": "none", "markeredgewidth": 1.4}
        ring |= {"markeredgecolor": LIGHT["ink"], "linestyle": "", "zorder": 4}
        for point in points:
            if is_recommended(point, chosen):
                axis.plot(*_place(point), label=standing, **ring)
        _finish(axis, "", plane.get("x_label") or "robustness", plane.get("y_label") or "faithfulness")
        _widen_axes(axis)
        _legend(axis)

    rows = []
    for point in points:
        text = setting_text(point)
        words = f"{point.get('setting_name') or 'setting'} {text}" if text else ""
        values = (interval_text(point["robustness"]), interval_text(point["faithfulness"]))
        mark = standing if is_recommended(point, chosen) else "Pareto" if point.get("pareto") else ""
        rows.append((labels[point["method"]], words, *values, mark))
    found = [f"{labels[p['method']]} {setting_text(p)}".strip() for p in points if is_recommended(p, chosen)]
    advice = f"{standing.capitalize()}: {found[0]}." if found else "No setting is recommended."
    alt = f"Robustness and faithfulness of {len(points)} settings. {advice}"
    header = ("method", "setting", "robustness", "faithfulness", "")
    return chart("plane", alt, [draw], header=header, rows=rows, size=(4.3, 4.0))


def change_chart(name: str, column: schema.CardColumn, points: Sequence[tuple[str, Stat, str]]) -> Chart:
    """The change in one column: a dot with its interval per method, and a line at zero."""
    looks = {"better": (LIGHT["s2"], "^"), "worse": (LIGHT["s1"], "v")}

    def draw(axis: Axis) -> None:
        axis.axvline(0, color=LIGHT["ink"], linewidth=1)
        for row, (_, change, verdict) in enumerate(points):
            colour, marker = looks.get(verdict, (LIGHT["dim"], "o"))
            axis.errorbar(change["value"], row, xerr=_arms(change), color=colour, marker=marker, markersize=6)
        axis.set_ylim(len(points) - 0.5, -0.5)
        axis.set_yticks(range(len(points)), [_drawable(label) for label, _, _ in points])
        axis.locator_params(axis="x", nbins=5)
        _finish(axis, column["label"], f"change ({column['direction']} is better)", "")

    alt = f"Change of {column['label']}. " + "; ".join(
        f"{label} {signed_text(change)}" for label, change, _ in points
    )
    return chart(name, alt, [draw], size=(4.0, 1.0 + 0.26 * len(points)), image=False)


def labels_of(card: schema.AuditCard) -> dict[str, str]:
    """Labels by method name, including methods that only curves have."""
    labels = {name: readable(name) for name in _order(card)}
    points = card["plane"]["points"] if card["plane"] else []
    labels |= {point["method"]: point["label"] for point in points if point["label"]}
    return labels | {m["name"]: m.get("label") or m["name"] for m in card["methods"]}


def setting_text(point: schema.PlanePoint) -> str:
    """A point's setting as text, `0.1` or `8/255`; empty if it has none."""
    setting = point.get("setting")
    if setting is None:
        return ""
    return eps_text(setting) if point.get("setting_name") == "eps" else f"{setting:.3g}"


def is_recommended(point: schema.PlanePoint, chosen: schema.Recommended | None) -> bool:
    """True if a point of the plane is the recommended one."""
    wanted = None if chosen is None else (chosen["method"], chosen.get("setting"))
    return wanted == (point["method"], point.get("setting"))


def _order(card: schema.AuditCard) -> list[str]:
    """All methods of the charts, in the table's order, so that each keeps its colour."""
    curves: Mapping[str, Any] = card["curves"] or {}
    drawn = [curves[name] for name in ("eps", "insertion", "deletion") if curves.get(name)]
    met = [line["method"] for curve in drawn for line in curve["lines"]]
    met += [point["method"] for point in card["plane"]["points"]] if card["plane"] else []
    return list(dict.fromkeys([*(method["name"] for method in card["methods"]), *met]))


def _eps_panel(
    axis: Axis,
    *,
    label: str,
    lines: list[schema.EpsLine],
    index: int,
    curve: schema.EpsCurves,
    limits: tuple[Number, Number],
) -> None:
    look = series(index)
    for line in lines:
        noise = line["label"].startswith("noise")
        colour, dash = (GREY["color"], GREY["dash"]) if noise else (look.colour, "-")
        kept = [(x, stat) for x, stat in zip(line["x"], line["y"], strict=True) if is_known(stat)]
        xs, values = [x for x, _ in kept], [stat["value"] for _, stat in kept]
        low, high = (  # an unknown interval is drawn without width
            [stat["value"] if stat.get(end) is None else stat[end] for _, stat in kept]
            for end in ("low", "high")
        )
        axis.fill_between(xs, low, high, color=colour, alpha=0.18, linewidth=0)
        marker = "" if noise else look.marker
        axis.plot(xs, values, color=colour, linestyle=dash, marker=marker, label=_drawable(line["label"]))
    ticks = sorted({x for line in lines for x in line["x"]})
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_ylim(*limits)
    _finish(axis, label, curve.get("x_label") or "eps", curve.get("label") or "similarity")
    _legend(axis)


def _game_line(axis: Axis, line: schema.PixelLine, index: int, label: str) -> None:
    look = series(index)
    x, y = np.asarray(line["x"], float), _floats(line["y"])
    if (low := line["low"]) is not None and (high := line["high"]) is not None:
        band = _floats(low), _floats(high)
        axis.fill_between(x, *band, color=look.colour, alpha=0.10, linewidth=0)
    # Markers at some points only, at different positions for each line.
    marks = {"marker": look.marker, "markevery": (index % 4, max(1, len(x) // 5))}
    axis.plot(x, y, color=look.colour, linestyle=look.dash, label=_drawable(label), **marks)


def _sweep(axis: Axis, points: list[schema.PlanePoint], index: int, label: str) -> None:
    """One method's points with their intervals; the points of a sweep are connected and labelled with their setting."""
    look = series(index)
    thin = {"color": look.colour, "linewidth": 0.8, "zorder": 2}
    swept = sorted(points, key=lambda point: point.get("setting") or 0.0)
    x, y = zip(*(_place(point) for point in swept), strict=True)
    axis.plot(x, y, alpha=0.6, **thin)
    for point in swept:
        axis.errorbar(
            *_place(point), xerr=_arms(point["robustness"]), yerr=_arms(point["faithfulness"]), **thin
        )
    marks = {"color": look.colour, "linestyle": "", "marker": look.marker, "markersize": 6}
    axis.plot(x, y, zorder=3, label=_drawable(label), **marks)
    words = {"textcoords": "offset points", "fontsize": FONT - 1.5, "color": LIGHT["dim"]}
    beside = (5, 5 if index % 2 else -11)  # labels of neighbouring methods on different sides
    for point in swept:
        if point.get("setting") is not None:
            axis.annotate(setting_text(point), _place(point), xytext=beside, **words)


def _place(point: schema.PlanePoint) -> tuple[Number, Number]:
    x, y = point["robustness"], point["faithfulness"]
    assert is_known(x), "`plane_chart` leaves unknown points out"
    assert is_known(y)
    return x["value"], y["value"]


def _arms(stat: Stat | None) -> list[list[Number]]:
    low, high = (None, None) if stat is None else (stat.get("low"), stat.get("high"))
    if stat is None or low is None or high is None:
        return [[0.0], [0.0]]
    # Rounding may put a bound slightly on the wrong side of the mean.
    return [[max(0.0, stat["value"] - low)], [max(0.0, high - stat["value"])]]


def _limits(stats: Sequence[Stat | None]) -> tuple[Number, Number]:
    """Limits of the y axis for all panels: 0 to 1, or wider if the numbers are."""
    seen = [
        stat[key]
        for stat in stats
        if stat is not None
        for key in ("value", "low", "high")
        if stat.get(key) is not None
    ]
    low, high = min([0.0, *seen]), max([1.0, *seen])
    room = 0.03 * (high - low)
    return low - room, high + room


def _floats(values: Sequence[Number | None]) -> Any:
    return np.asarray([np.nan if value is None else value for value in values], float)


def _figure(draws: Sequence[Draw], size: tuple[float, float]) -> Any:
    from matplotlib.figure import Figure

    columns = min(SHEET_COLUMNS, len(draws))
    rows = -(-len(draws) // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flat
    for axis, draw in zip(axes, draws, strict=False):
        draw(axis)
    for axis in list(axes)[len(draws) :]:
        axis.set_axis_off()
    return figure


LEAST_SPAN = 0.02
"""A chart of shares spans at least this: differences in the sixth digit are not worth an axis of their own."""


def _widen_axes(axis: Axis) -> None:
    """Both axes at least `LEAST_SPAN` long, around what they show, with plain numbers at the ticks."""
    for limits, set_limits in ((axis.get_xlim(), axis.set_xlim), (axis.get_ylim(), axis.set_ylim)):
        lacking = LEAST_SPAN - (limits[1] - limits[0])
        if lacking > 0:
            set_limits(limits[0] - lacking / 2, limits[1] + lacking / 2)
    axis.ticklabel_format(useOffset=False)


def _finish(axis: Axis, title: str, x_label: str, y_label: str) -> None:
    axis.set_title(_drawable(title, 36), fontsize=FONT + 1, loc="left", fontweight="bold")
    axis.set_xlabel(textwrap.fill(_drawable(x_label, 90), 46))
    axis.set_ylabel(textwrap.fill(_drawable(y_label, 70), 36))
    axis.spines[["top", "right"]].set_visible(False)


def _legend(axis: Axis) -> None:
    from matplotlib.transforms import ScaledTranslation

    handles, labels = axis.get_legend_handles_labels()
    lines = axis.get_xlabel().count("\n")
    below = axis.transAxes + ScaledTranslation(0, -LEGEND_BELOW - lines * 0.15, axis.figure.dpi_scale_trans)
    place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": below}
    axis.legend(handles, labels, ncols=min(2, max(1, len(labels))), frameon=False, **place)


def _drawable(text: str, longest: int = 28) -> str:
    """The text shortened to printable characters, without a leading underscore, which would hide a legend entry."""
    letters = "".join(letter if letter.isprintable() and ord(letter) < 256 else "?" for letter in text)
    letters = letters if len(letters) <= longest else f"{letters[: longest - 2]}.."
    return f" {letters}" if letters.startswith("_") else letters


def _style(name: str) -> Any:
    ink, dim, line = LIGHT["ink"], LIGHT["dim"], LIGHT["line"]
    return {
        # A dollar sign in a name must not start a formula.
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.size": FONT,
        "font.family": "DejaVu Sans",
        "text.color": ink,
        "axes.labelcolor": dim,
        "axes.edgecolor": dim,
        "axes.linewidth": 0.8,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": line,
        "grid.linewidth": 0.6,
        "xtick.color": dim,
        "ytick.color": dim,
        "legend.fontsize": FONT - 1,
        "lines.linewidth": 1.8,
        "lines.markersize": 4.5,
    }


def _apply_theme(svg: str, alt: str) -> str:
    """The SVG for embedding: without prologue and unused ids, with the page's colour variables and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    used = set(re.findall(r"(?:url\(|href=\")#([\w.-]+)", svg))
    svg = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", svg)
    svg = re.sub(r"font-family: [^;\"]+", "font-family: system-ui, sans-serif", svg)
    for name, value in LIGHT.items():
        svg = svg.replace(value, f"var(--{name})")
    box = re.search(r'viewBox="([^"]+)"', svg)
    opening = (
        f'<svg class="chart" role="img" aria-label="{html.escape(alt)}" viewBox="{box[1] if box else ""}"'
    )
    names = ' xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return re.sub(r"<svg[^>]*>", lambda _: opening + names, svg, count=1)


def _standalone(svg: str) -> str:
    """The SVG as a file, with the colours that it needs."""
    light, dark = (";".join(f"--{name}:{value}" for name, value in each.items()) for each in (LIGHT, DARK))
    style = (
        f"<style>svg{{{light};background:var(--paper)}}"
        f"@media (prefers-color-scheme: dark){{svg{{{dark}}}}}</style>"
    )
    return '<?xml version="1.0" encoding="utf-8"?>\n' + re.sub(
        r"(<svg[^>]*>)", lambda found: found[1] + style, svg, count=1
    )
