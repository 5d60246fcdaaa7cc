"""The page of an audit of tables, time series or volumes: bars per feature, lines per time step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gyrograd.numerics.wording import interval_text
from gyrograd.reporting.figures import Array, figure_png
from gyrograd.reporting.page import Figure, Section, Table, page
from gyrograd.reporting.palette import LIGHT
from gyrograd.reporting.wording import duration

MOST_BARS = 20
"""Most features of a bar chart; if there are more, the most important ones are shown."""
PLACES = {"series": "time step", "volume": "slice along the first axis"}
COLUMNS = {
    "noise_cosine": "cosine under noise",
    "noise_kept": "top kept under noise",
    "attack_cosine": "cosine under attack",
    "top_k_kept": "top kept under attack",
    "steady_radius": "steady up to, sd",
    "insertion": "insertion",
    "deletion": "deletion",
}
"""Labels of a method's numbers by key, in the order of the table."""


def feature_page(card: Mapping[str, Any], examples: Sequence[Mapping[str, Any]]) -> str:
    """The page as one file. `examples`: the most damaging attacks, with the values of their maps."""
    settings, data = card["settings"], card["data"]
    top = settings["top"]
    sections = [
        Section(
            "Methods",
            (
                f"Everything is in standard deviations (sd) of the features: noise and attacks move each number by at "
                f"most {settings['eps']:g} sd. The top are the {top} most important "
                f"{'numbers' if card['form'] != 'table' else 'features'} of a map. Cosines and shares of 1 mean that "
                "nothing moved. Insertion is the mean probability of the class as features are put in, the most "
                "important first (higher is better); deletion, as they are replaced by their mean (lower is better). "
                "Brackets are 95 % intervals over examples.",
            ),
            _methods(card),
        ),
        Section("What the model looks at, before and under attack", (), None, tuple(_importance(card))),
    ]
    if examples:
        drawn = tuple(_example(card, one) for one in examples)
        sections.append(Section("The most damaging attacks found", (), None, drawn))
    left_out = [f"Left out: {name} ({why})" for name, why in settings["left_out"].items()]
    remarks = [*settings["notes"], *left_out]
    remarks += [f"{method['label']}: {note}." for method in card["methods"] for note in method["notes"]]
    sections.append(Section("Notes", tuple(remarks)))
    rerun = card["rerun"]
    versions = ", ".join(f"{name} {version}" for name, version in rerun["versions"].items())
    footer = (f"{rerun['hardware']}; {duration(rerun['seconds'])}; seed {rerun['seed']}; {versions}.",)
    about = f"{card['model']['description']}; {data['examples']} examples of shape {tuple(data['shape'])}"
    accuracy = f", accuracy {interval_text(card['accuracy'], '.3f')}" if card["accuracy"] else ""
    return page(
        card["title"], (*card["verdict"]["sentences"], f"{about}{accuracy}."), tuple(sections), footer
    )


def cells(columns: Mapping[str, Any], eps: float) -> list[str]:
    """A method's numbers as text; "at least" if the map holds at the largest attacked radius."""
    texts = {key: interval_text(columns.get(key)) for key in COLUMNS}
    radius = columns.get("steady_radius")
    if radius and radius["value"] is not None and radius["value"] >= eps:
        texts["steady_radius"] = f"at least {eps:g}"
    return list(texts.values())


def _methods(card: Mapping[str, Any]) -> Table:
    eps = card["settings"]["eps"]
    rows = [
        (method["label"], *cells(method["columns"], eps), method["grade"] or "unknown")
        for method in card["methods"]
    ]
    colours = {"steady": "good", "unsafe": "bad"}
    return Table(("method", *COLUMNS.values(), "grade"), tuple(rows), names=("grade",), colours=colours)


def _importance(card: Mapping[str, Any]) -> list[Figure]:
    """Per method, the mean share of each feature or step in the map's magnitude, clean and attacked."""
    draw = _bars if card["form"] == "table" else _lines
    where = "feature" if card["form"] == "table" else PLACES[card["form"]]
    return [
        Figure(
            draw(card, np.asarray(method["share"]), np.asarray(method["share_attacked"])),
            f"{method['label']}: share of each {where} in the size of the map, mean over {method['attacked']} "
            f"examples; full before and light under an attack of {card['settings']['eps']:g} sd.",
        )
        for method in card["methods"]
    ]


def _example(card: Mapping[str, Any], one: Mapping[str, Any]) -> Figure:
    clean, attacked = (np.abs(np.asarray(one[name])) for name in ("map", "map_attacked"))
    if card["form"] == "table":
        png = _bars(card, *(_share(m) for m in (clean, attacked)))
    elif card["form"] == "series":
        png = _series(np.asarray(one["values"]), np.asarray(one["values_attacked"]), clean, attacked)
    else:
        png = _lines(card, *(_share(m.sum((0, 2, 3)) if m.ndim == 4 else m) for m in (clean, attacked)))
    return Figure(
        png,
        f"Example {one['example']}, {one['method']}, class {one['target']}: the cosine of the two maps is "
        f"{one['cosine']:.2f}, and the prediction is the same.",
    )


def _share(sizes: Array) -> Array:
    return sizes / (sizes.sum() or 1.0)


def _bars(card: Mapping[str, Any], clean: Array, attacked: Array) -> bytes:
    order = np.argsort(-clean, kind="stable")[:MOST_BARS][::-1]
    figure = _canvas(0.9 + 0.26 * len(order))
    axis = figure.subplots()
    places = np.arange(len(order))
    axis.barh(places + 0.2, clean[order], 0.38, color=LIGHT["s1"], label="clean")
    axis.barh(places - 0.2, attacked[order], 0.38, color=LIGHT["s1"], alpha=0.4, label="attacked")
    names = [str(card["data"]["features"][i])[:28] for i in order]
    axis.set_yticks(places, names, fontsize=8, parse_math=False)
    _plain(axis, "share of the map" + ("" if len(order) == len(clean) else f", largest {len(order)}"), "")
    return figure_png(figure)


def _lines(card: Mapping[str, Any], clean: Array, attacked: Array) -> bytes:
    figure = _canvas(2.4)
    axis = figure.subplots()
    axis.plot(clean, color=LIGHT["s1"], label="clean", linewidth=1.6)
    axis.plot(attacked, color=LIGHT["s1"], alpha=0.5, linestyle="--", label="attacked", linewidth=1.4)
    _plain(axis, PLACES[card["form"]], "share of the map")
    return figure_png(figure)


def _series(values: Array, moved: Array, clean: Array, attacked: Array) -> bytes:
    """The signal of each channel, and below it the share of each step in both maps."""
    figure = _canvas(3.8)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for channel, (before, after) in enumerate(zip(values, moved, strict=True)):
        colour = LIGHT[f"s{1 + channel % 7}"]
        above.plot(before, color=colour, linewidth=1.6, label=f"channel {channel}")
        above.plot(after, color=colour, linewidth=1.0, linestyle="--")
    _plain(above, "", "signal, sd", legend=len(values) <= 8)
    below.plot(_share(clean.sum(0)), color=LIGHT["s1"], linewidth=1.6, label="clean")
    below.plot(_share(attacked.sum(0)), color=LIGHT["s1"], alpha=0.5, linestyle="--", label="attacked")
    _plain(below, "time step (dashed: attacked)", "share of the map")
    return figure_png(figure)


def _canvas(height: float) -> Any:
    from matplotlib.figure import Figure as Drawing

    return Drawing(figsize=(6.4, height), dpi=130, layout="constrained")


def _plain(axis: Any, x_label: str, y_label: str, *, legend: bool = True) -> None:
    axis.set_xlabel(x_label, fontsize=8)
    axis.set_ylabel(y_label, fontsize=8)
    axis.tick_params(labelsize=8)
    if "step" in x_label or "slice" in x_label:
        axis.xaxis.get_major_locator().set_params(integer=True)
    axis.spines[["top", "right"]].set_visible(False)
    if legend:
        axis.legend(fontsize=8, frameon=False)
