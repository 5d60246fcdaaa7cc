"""tan2023 Figure 1: the paper in three pictures."""

from __future__ import annotations

import torch
from torch import Tensor

from gyrograd.attributions import Gradient, predicted
from gyrograd.experiments.joo2023.pictures import BAR, Arrays, colours, grey, shown_positions
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Columns, Experiment, Found, Part, Run
from gyrograd.experiments.subjects import Subject
from gyrograd.experiments.tan2023.explainers import QUANTITY, smooth
from gyrograd.experiments.tan2023.measures import smooth_faithfulness
from gyrograd.experiments.tan2023.sweeps import sigmas_of
from gyrograd.experiments.tan2023.ways import trained
from gyrograd.measurement import streams
from gyrograd.metrics.noise import GaussianNoise
from gyrograd.numerics.maps import reduce
from gyrograd.numerics.similarity import l2_distance
from gyrograd.registry import register
from gyrograd.reporting import Figure, Section, map_grid
from gyrograd.types import Attribution, Inputs, Labels, Model

WHERE = "resnet18"
NOISE = GaussianNoise(0.1)
"""The caption's N(0, 0.1 I), read as a deviation of 0.1."""


@register("experiment", "tan2023-figure1", paper="tan2023", equation="Figure 1")
def figure1() -> Experiment:
    """How far maps of a jogged image move: of a natural and a robust ResNet18, and of SmoothGrad over its noise."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    subjects = [s for s in trained(run) if s.setting == WHERE]
    parts = [_moved(s, f"{s.way} grad", Gradient(QUANTITY)) for s in subjects]
    for subject in subjects:
        if subject.way == "natural":
            for sigma in sigmas_of(subject.sizes):
                parts += [
                    _moved(subject, f"sigma {sigma:g}", smooth(sigma)),
                    smooth_faithfulness(sigma)(subject),
                ]
    return Found(run.measured(parts), _pictures(run, subjects))


def _moved(subject: Subject, row: str, explain: Attribution) -> Part:
    """The l2 distance of the maps at the image and at the jogged image."""

    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:  # noqa: ARG001
        target = predicted(model, x)
        maps = [explain(model, image, target).detach() for image in (x, NOISE(x, keys, 0))]
        return {"distance": l2_distance(*maps)}

    return subject.part(row, f"{row} distance", {"noise": repr(NOISE), "explainer": repr(explain)}, columns)


def _pictures(run: Run, subjects: list[Subject]) -> Arrays:
    found: Arrays = {}
    for subject in subjects:
        if subject.seed != run.seeds[0]:
            continue
        positions = torch.tensor(shown_positions(run, subject.setting))
        x = run.test_images(subject.setting).rows(positions).pixels()
        jogged = NOISE(x, streams(subject.seed, positions).to(run.device), 0)
        both = torch.stack([x, jogged], 1).flatten(0, 1)
        found["image"] = colours(both.clamp(0, 1))
        model = run.net(subject.net)
        target = predicted(model, x).repeat_interleave(2)
        explained: dict[str, Attribution] = {f"{subject.way} grad": Gradient(QUANTITY)}
        if subject.way == "natural":
            explained |= {f"sigma {sigma:g}": smooth(sigma) for sigma in sigmas_of(subject.sizes)}
        for name, explain in explained.items():
            found[f"{name}{BAR}map"] = grey(reduce(explain(model, both, target).detach()))
    return found


def _drawn(results: Results) -> tuple[Section, ...]:
    if "image" not in results.pictures:
        return ()
    maps = {key.removesuffix(f"{BAR}map"): array for key, array in results.pictures.items() if BAR in key}
    image = results.pictures["image"]
    png = map_grid({"image": image}, maps, ["image", "jogged"] * (len(image) // 2))
    return (Section("Maps of an image and of the jogged image", (), None, (Figure(png, _CAPTION),)),)


_CAPTION = "Sizes over channels; each map over its own largest value. sigma: SmoothGrad of the natural net."
