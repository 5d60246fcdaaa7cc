"""joo2023 Figure 2b: images put together in the order of the maps."""

from __future__ import annotations

import numpy as np
import torch

from gyrograd.experiments.joo2023.measures import (
    ATTACK_STEPS,
    Subject,
    all_of,
    attacked,
    attacked_game,
    selected,
)
from gyrograd.experiments.joo2023.pictures import BAR, Arrays, colours, first_seed, grey, shown_positions
from gyrograd.experiments.joo2023.ways import ATTACK_EPS, IMAGENETS
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.measurement import streams
from gyrograd.metrics import insertion
from gyrograd.metrics.insertion import positions
from gyrograd.numerics.maps import reduce
from gyrograd.registry import register
from gyrograd.reporting import Figure, Section, map_grid

SHARES = (0.05, 0.2, 0.4, 0.6)
ROWS = ("ce", "l2_cosine")


@register("experiment", "joo2023-figure2b", paper="joo2023", equation="Figure 2b")
def figure2b() -> Experiment:
    """Images with 5, 20, 40 and 60 % of their pixels, put in by the clean and by the attacked map of Grad."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    subjects = selected(run, run.included(IMAGENETS, look=False)[:1], ROWS)
    found = all_of(run, subjects, attacked_game("grad"))
    pictures = {
        key: array for s in first_seed(run, subjects) for key, array in _reconstructions(run, s).items()
    }
    return Found(found.records, pictures)


def _reconstructions(run: Run, subject: Subject) -> Arrays:
    """For the first image: the map and the images put together by it, clean and attacked."""
    rows = torch.tensor(shown_positions(run, subject.setting)[:1])
    here = run.test_images(subject.setting).rows(rows)
    model, x = run.net(subject.net), here.pixels()
    eps, steps = ATTACK_EPS[subject.setting], int(subject.sizes.get("steps", ATTACK_STEPS))
    keys = streams(subject.seed, rows).to(run.device)
    hit = attacked(model, "grad", x, here.labels, eps=eps, steps=steps, seed=keys)
    both = torch.cat([reduce(hit.map_clean), reduce(hit.map)])
    place, empty = positions(both[:, None]), insertion().empty_image(model, x)
    found: Arrays = {f"{subject.row}{BAR}map": grey(both)}
    for share in SHARES:
        inside = place < int(share * both[0].numel())
        found[f"{subject.row}{BAR}{share:g}"] = colours(torch.where(inside, x, empty))
    return found


def _drawn(results: Results) -> tuple[Section, ...]:
    rows = [row for row in ROWS if f"{row}{BAR}map" in results.pictures]
    if not rows:
        return ()

    def stacked(name: str) -> np.ndarray:
        return np.concatenate([results.pictures[f"{row}{BAR}{name}"] for row in rows])

    images = {f"{share:.0%}": stacked(f"{share:g}") for share in SHARES}
    labels = [f"{row}, {state}" for row in rows for state in ("clean", "attacked")]
    png = map_grid(images, {"map": stacked("map")}, labels)
    return (
        Section("Reconstructions", (), None, (Figure(png, "Pixels in the order of the map on the right."),)),
    )
