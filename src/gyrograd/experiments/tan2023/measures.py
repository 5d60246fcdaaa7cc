"""What tan2023 measures: local Lipschitz constants, faithfulness, and the rank correlation between nets.

A row is a net and an explainer ("robust ig"); the net itself has the row "robust model".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.attributions import Lime, Shap, predict
from gyrograd.attributions.segments import segment
from gyrograd.experiments.results import MEDIAN
from gyrograd.experiments.runs import Finish, Found, Measured, Run
from gyrograd.experiments.subjects import Columns, Maker, Measurement, Part, Subject
from gyrograd.experiments.tan2023.explainers import (
    NAMES,
    QUANTITY,
    SIGMA,
    explainers,
    segmented,
    sigmas_of,
    smooth,
)
from gyrograd.experiments.tan2023.ways import BACKBONES, WAYS
from gyrograd.metrics import Accuracy, Faithfulness, LocalLipschitz, ModelLipschitz
from gyrograd.metrics.faithfulness import AGREEMENTS, over_groups
from gyrograd.numerics.similarity import spearman
from gyrograd.records import Record
from gyrograd.types import Attribution, Inputs, Labels, Model

DRAWS = 50
GRID = 10
"""About 100 groups of pixels; how the paper forms them is not stated."""
SIMILARITIES = {"faithfulness": "inverse_l2", "pearson": "pearson", "spearman": "spearman"}
"""Columns of Eq. 5 and of its two variants in Appendix B.5."""
GROUPS = 10
"""Parts of the images, each with a rank correlation of its own, for the interval."""
MODEL = "model"
RATIO = f"faithfulness ratio{MEDIAN}"
TOGETHER = "backbones"
"""The setting of what is said of all backbones together."""


def lipschitz(name: str) -> Maker:
    """The local Lipschitz constant of an explainer (Eq. 4)."""
    return lambda subject: [
        _lipschitz(subject, f"{subject.way} {name}", name, explainers(subject.sizes)[name])
    ]


def smooth_lipschitz(subject: Subject) -> list[Part]:
    """The local Lipschitz constant of SmoothGrad over its noise; one row a noise level."""
    return [_lipschitz(subject, f"sigma {s:g}", f"sg {s:g}", smooth(s)) for s in sigmas_of(subject.sizes)]


def _lipschitz(subject: Subject, row: str, name: str, explain: Attribution) -> Part:
    draws = int(subject.sizes.get("draws", DRAWS))

    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:  # noqa: ARG001
        steepest = LocalLipschitz(SIGMA, draws)(model, explain, x, predict(model, x), seed=keys)
        return {"lipschitz": steepest}

    return subject.part(row, f"{name} lipschitz", {"draws": draws, "explainer": repr(explain)}, columns)


def by_segments(subject: Subject) -> list[Part]:
    """The constants of LIME and SHAP with their three kinds of features, and the faithfulness of their maps."""
    parts = []
    for name, (explain, held) in segmented(subject.sizes).items():
        row, constant = f"{subject.way} {name}", _lipschitz(subject, f"{subject.way} {name}", name, explain)
        if held:
            settings = {**constant.settings, "segments": "held"}
            constant = replace(constant, settings=settings, columns=_with_held_segments(subject, explain))
        parts += [constant, _faithfulness(subject, row, name, explain)]
    return parts


def _with_held_segments(subject: Subject, explain: Lime | Shap) -> Measurement:
    draws = int(subject.sizes.get("draws", DRAWS))

    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:  # noqa: ARG001
        target = predict(model, x)
        own = segment(x, "quickshift")
        # One image at a time: all its neighbours have its segments.
        found = [
            LocalLipschitz(SIGMA, draws)(
                model,
                replace(explain, segments=own[i]),
                x[i : i + 1],
                target[i : i + 1],
                seed=keys[i : i + 1],
            )
            for i in range(len(x))
        ]
        return {"lipschitz": torch.cat(found)}

    return columns


def model_lipschitz(subject: Subject) -> list[Part]:
    """The local Lipschitz constant of the net's own probability (Definition 3.2), and whether it is right."""
    draws = int(subject.sizes.get("draws", DRAWS))

    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:
        slope = ModelLipschitz(SIGMA, draws, QUANTITY)(model, None, x, predict(model, x), seed=keys)
        return {"lipschitz": slope, "accuracy": 100 * Accuracy()(model, None, x, y)}

    settings = {"draws": draws, "quantity": QUANTITY}
    return [subject.part(f"{subject.way} {MODEL}", "model lipschitz", settings, columns)]


def faithfulness(name: str) -> Maker:
    """Agreement of an explainer with what the removal of groups of pixels does (Eq. 1, Eq. 5, B.5)."""
    return lambda subject: [
        _faithfulness(subject, f"{subject.way} {name}", name, explainers(subject.sizes)[name])
    ]


def smooth_faithfulness(subject: Subject) -> list[Part]:
    """The same of SmoothGrad over its noise; one row a noise level."""
    return [_faithfulness(subject, f"sigma {s:g}", f"sg {s:g}", smooth(s)) for s in sigmas_of(subject.sizes)]


def _faithfulness(subject: Subject, row: str, name: str, explain: Attribution) -> Part:
    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:  # noqa: ARG001
        return agreements(model, explain, x)

    settings = {"grid": GRID, "quantity": QUANTITY, "explainer": repr(explain)}
    return subject.part(row, f"{name} faithfulness", settings, columns)


def agreements(model: Model, explain: Attribution, x: Inputs) -> Columns:
    """`Faithfulness` in its three similarities; the groups are removed once for all of them."""
    measure, target = Faithfulness(grid=GRID, quantity=QUANTITY), predict(model, x)
    groups = segment(x, "grid", grid=GRID)
    importance = over_groups(explain(model, x, target).detach(), groups)
    contribution = measure.contributions(model, x, target, groups)
    return {
        column: AGREEMENTS[similarity](importance, contribution)
        for column, similarity in SIMILARITIES.items()
    }


def ranked_by_level(run: Run, subjects: Sequence[Subject], records: tuple[Measured, ...]) -> Found:  # noqa: ARG001
    """Figure 3: rank correlations over the levels of one backbone."""
    ranks: tuple[Measured, ...] = ()
    for where in dict.fromkeys(subject.setting for subject in subjects):
        ways = dict.fromkeys(subject.way for subject in subjects if subject.setting == where)
        ranks += rank_correlations(records, where, {"all levels": [(where, way) for way in ways]})
    return Found(records + ranks)


def ranked_by_backbone(run: Run, subjects: Sequence[Subject], records: tuple[Measured, ...]) -> Found:
    """Table 1: rank correlations over the paper's backbones."""
    lines = {
        way: [
            (s.setting, way)
            for s in subjects
            if s.setting in BACKBONES and (s.way, s.seed) == (way, run.seeds[0])
        ]
        for way in WAYS
    }
    ranks = rank_correlations(records, TOGETHER, lines) if run.included((TOGETHER,)) else ()
    return Found(records + ranks)


def beside(row: str) -> Finish:
    """Faithfulness image by image over that of one row: what the orders of Figures 5 and 6 are judged by.

    The inverse of a distance has a heavy tail: one image in a hundred had 86 where the median was 0.5, and a mean over
    images says how near the nearest map came. The ratio of two maps of the same image has none.
    """

    def finish(run: Run, subjects: Sequence[Subject], records: tuple[Measured, ...]) -> Found:  # noqa: ARG001
        found = {m[:3]: m[3] for m in records if "faithfulness" in m[3].values}
        made: list[Measured] = []
        for (setting, own, seed), record in found.items():
            if (setting, row, seed) in found:
                base = found[setting, row, seed].values["faithfulness"]
                pairs = zip(record.values["faithfulness"], base, strict=True)
                ratios = [None if a is None or not b else a / b for a, b in pairs]
                settings = {**record.settings, "beside": row}
                made.append((setting, own, seed, Record(RATIO, settings, record.examples, {RATIO: ratios})))
        return Found(records + tuple(made))

    return finish


def rank_correlations(
    found: Sequence[Measured], setting: str, nets: Mapping[str, Sequence[tuple[str, str]]]
) -> tuple[Measured, ...]:
    """Spearman's correlation between the nets' constants and those of their explanations (Table 1, Figure 3).

    `nets`: for each line of the table, its nets as setting and way, three at least. The images are cut into ten parts
    with a correlation each, between means over the part: their spread gives the interval. The paper has one, between
    means over all images.
    """
    values = {(m[0], m[1], m[2]): _column(m[3], "lipschitz") for m in found if "lipschitz" in m[3].values}
    made: list[Measured] = []
    for label, line in nets.items():
        for seed in dict.fromkeys(m[2] for m in found):
            for name in NAMES:
                rows = [[values.get((s, f"{way} {what}", seed)) for s, way in line] for what in (MODEL, name)]
                if len(line) > 2 and all(row is not None for row in (*rows[0], *rows[1])):
                    made.append(
                        (setting, f"{label} {name}", seed, _correlated(np.array(rows, dtype=np.float64)))
                    )
    return tuple(made)


def _column(record: Record, name: str) -> list[float]:
    return [float("nan") if value is None else value for value in record.values[name]]


def _correlated(table: Float[np.ndarray, "2 nets images"]) -> Record:
    """The correlation of each part of the images, as a record whose examples are the parts."""
    parts = np.array_split(table, min(GROUPS, table.shape[2]), axis=2)
    means = [np.nanmean(part, axis=2) for part in parts]
    values: list[float | None] = [
        float(spearman(*torch.from_numpy(mean)[:, None].unbind(0))) for mean in means
    ]
    return Record(
        "rank correlation", {"parts": len(parts)}, list(range(len(parts))), {"rank correlation": values}
    )
