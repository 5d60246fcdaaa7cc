"""joo2023 Figure 2: insertion curves, and images with pixels inserted in the order of the maps."""

from __future__ import annotations

import numpy as np
import torch

from gyrograd.experiments.joo2023.measures import ATTACK_STEPS, SHARES, attacked
from gyrograd.experiments.joo2023.variants import attack_eps
from gyrograd.experiments.pictures import BAR, Arrays, Shown, colours, grey
from gyrograd.experiments.plots import Line, curves, line
from gyrograd.experiments.report import POINT
from gyrograd.experiments.results import Results
from gyrograd.metrics import insertion
from gyrograd.metrics.insertion import positions
from gyrograd.numerics.maps import reduce
from gyrograd.reporting import Figure, Section, map_grid

SHOWN = (0.05, 0.2, 0.4, 0.6)
ROWS = ("ce", "l2_cosine")


def curves_drawn(results: Results) -> tuple[Section, ...]:
    """Plot one panel per setting with one colour per row."""
    panels = {setting: _lines(results, setting) for setting in results.measured_in}
    caption = "Solid: Insertion. Dashed: Adv-Insertion. Bands: 95 % intervals."
    figure = Figure(curves(panels, "share of pixels", "probability of the label (%)"), caption)
    return (Section("Insertion curves", (), None, (figure,)),)


def _lines(results: Results, setting: str) -> list[Line]:
    games = ("grad ins", f"grad a-ins {attack_eps(setting)}")
    lines = []
    for group, row in enumerate(results.rows(setting)):
        for style, game in enumerate(games):
            points = [(s, results.column_of(setting, row, f"{game} {POINT}{s:g}")) for s in SHARES]
            lines.append(line(row if style == 0 else f"{row}, attacked", points, group, style))
    return lines


def reconstructions(shown: Shown) -> Arrays:
    """The map of the first image, and the image with its first pixels inserted; clean and attacked."""
    trained_net, model, x = shown.trained_net, shown.model, shown.x
    eps, steps = attack_eps(trained_net.setting), int(trained_net.sizes.get("steps", ATTACK_STEPS))
    hit = attacked(model, "grad", x, shown.labels, eps=eps, steps=steps, seed=shown.keys)
    both = torch.cat([reduce(hit.map_clean), reduce(hit.map)])
    place, empty = positions(both[:, None]), insertion().empty_image(model, x)
    found: Arrays = {f"{trained_net.way}{BAR}map": grey(both)}
    for share in SHOWN:
        inside = place < int(share * both[0].numel())
        found[f"{trained_net.way}{BAR}{share:g}"] = colours(torch.where(inside, x, empty))
    return found


def images_drawn(results: Results) -> tuple[Section, ...]:
    """Draw clean images above attacked ones, one column per share of pixels."""
    rows = [row for row in ROWS if f"{row}{BAR}map" in results.pictures]
    if not rows:
        return ()

    def stacked(name: str) -> np.ndarray:
        return np.concatenate([results.pictures[f"{row}{BAR}{name}"] for row in rows])

    images = {f"{share:.0%}": stacked(f"{share:g}") for share in SHOWN}
    labels = [f"{row}, {state}" for row in rows for state in ("clean", "attacked")]
    png = map_grid(images, {"map": stacked("map")}, labels)
    return (
        Section("Reconstructions", (), None, (Figure(png, "Pixels in the order of the map on the right."),)),
    )
