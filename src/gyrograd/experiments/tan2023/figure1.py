"""tan2023 Figure 1: the paper in three pictures."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gyrograd.attributions import Gradient, predict
from gyrograd.experiments.pictures import BAR, Arrays, colours, grey, shown_by
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Found, Measured, Run
from gyrograd.experiments.subjects import Columns, Part, Subject
from gyrograd.experiments.tan2023.explainers import QUANTITY, sigmas_of, smooth
from gyrograd.experiments.tan2023.measures import beside, smooth_faithfulness
from gyrograd.metrics.noise import GaussianNoise
from gyrograd.numerics.maps import reduce
from gyrograd.numerics.similarity import l2_distance
from gyrograd.reporting import Figure, Section, map_grid
from gyrograd.types import Attribution, Inputs, Labels, Model

WHERE = "resnet18"
NOISE = GaussianNoise(0.1)
"""The caption's N(0, 0.1 I), read as a deviation of 0.1."""


def distances(subject: Subject) -> list[Part]:
    """How far the map moves with a jogged image: Grad, and of the natural net SmoothGrad over its noise."""
    parts = [_moved(subject, f"{subject.way} grad", Gradient(QUANTITY))]
    if subject.way == "natural":
        parts += [_moved(subject, f"sigma {s:g}", smooth(s)) for s in sigmas_of(subject.sizes)]
        parts += smooth_faithfulness(subject)
    return parts


def _moved(subject: Subject, row: str, explain: Attribution) -> Part:
    """The l2 distance of the maps at the image and at the jogged image."""

    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:  # noqa: ARG001
        target = predict(model, x)
        maps = [explain(model, image, target).detach() for image in (x, NOISE(x, keys, 0))]
        return {"distance": l2_distance(*maps)}

    return subject.part(row, f"{row} distance", {"noise": repr(NOISE), "explainer": repr(explain)}, columns)


def jogged(run: Run, subjects: Sequence[Subject], records: tuple[Measured, ...]) -> Found:
    """Maps of a few images and of the same images jogged."""
    found: Arrays = {}
    for each in shown_by(run, subjects):
        subject, model = each.subject, each.model
        both = torch.stack([each.x, NOISE(each.x, each.keys, 0)], 1).flatten(0, 1)
        found["image"] = colours(both.clamp(0, 1))
        target = predict(model, each.x).repeat_interleave(2)
        explained: dict[str, Attribution] = {f"{subject.way} grad": Gradient(QUANTITY)}
        if subject.way == "natural":
            explained |= {f"sigma {sigma:g}": smooth(sigma) for sigma in sigmas_of(subject.sizes)}
        for name, explain in explained.items():
            found[f"{name}{BAR}map"] = grey(reduce(explain(model, both, target).detach()))
    return Found(beside("sigma 0.03")(run, subjects, records).records, found)


def drawn(results: Results) -> tuple[Section, ...]:
    """Image and jogged image, a column per map."""
    if "image" not in results.pictures:
        return ()
    maps = {key.removesuffix(f"{BAR}map"): array for key, array in results.pictures.items() if BAR in key}
    image = results.pictures["image"]
    png = map_grid({"image": image}, maps, ["image", "jogged"] * (len(image) // 2))
    return (Section("Maps of an image and of the jogged image", (), None, (Figure(png, _CAPTION),)),)


_CAPTION = "Sizes over channels; each map over its own largest value. sigma: SmoothGrad of the natural net."
