"""Measurements of tan2023: local Lipschitz constants, faithfulness, and rank correlations over nets.

A row is a net and an explainer ("robust ig"); the net itself has the row "robust model".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.attributions import Lime, Shap, predict
from gyrograd.attributions.segments import over_groups, segment
from gyrograd.experiments.engine import ExperimentOutput, Finish, MeasuredNets, RowRecord
from gyrograd.experiments.results import MEDIAN
from gyrograd.experiments.tan2023.explainers import (
    NAMES,
    QUANTITY,
    SIGMA,
    explainers,
    segmented,
    sigmas_of,
    smooth,
)
from gyrograd.experiments.tan2023.variants import BACKBONES, WAYS
from gyrograd.experiments.trained_nets import Columns, Maker, Measurement, Part, TrainedNet
from gyrograd.metrics import Accuracy, Faithfulness, LocalLipschitz, ModelLipschitz
from gyrograd.metrics.faithfulness import AGREEMENTS
from gyrograd.numerics.similarity import spearman
from gyrograd.records import Record
from gyrograd.types import Attribution, Inputs, Labels, Model

DRAWS = 50
GRID = 10
"""Groups of pixels per side, about 100 in all; the paper does not say how it forms groups."""
SIMILARITIES = {"faithfulness": "inverse_l2", "pearson": "pearson", "spearman": "spearman"}
"""Columns for Eq. 5 and its two variants in Appendix B.5."""
GROUPS = 10
"""Parts of the images, each with its own rank correlation, for the interval."""
MODEL = "model"
RATIO = f"faithfulness ratio{MEDIAN}"
TOGETHER = "backbones"
"""The setting of numbers about all backbones together."""


ExplainerMaker = Callable[[TrainedNet, str, str, Attribution], Part]
"""A measurement of an explainer: takes the net, the row, and the explainer with its name."""


def of_explainer(measure: ExplainerMaker, name: str) -> Maker:
    """A measurement of one of the paper's explainers; its row is the way to train and the explainer."""
    return lambda trained_net: [
        measure(trained_net, f"{trained_net.way} {name}", name, explainers(trained_net.sizes)[name])
    ]


def of_smoothgrad(measure: ExplainerMaker) -> Maker:
    """A measurement of SmoothGrad; one row per noise level."""
    return lambda trained_net: [
        measure(trained_net, f"sigma {s:g}", f"sg {s:g}", smooth(s)) for s in sigmas_of(trained_net.sizes)
    ]


def lipschitz(trained_net: TrainedNet, row: str, name: str, explain: Attribution) -> Part:
    """The local Lipschitz constant of an explainer (Eq. 4)."""
    draws = int(trained_net.sizes.get("draws", DRAWS))

    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:  # noqa: ARG001
        steepest = LocalLipschitz(SIGMA, draws)(model, explain, x, predict(model, x), seed=keys)
        return {"lipschitz": steepest}

    return trained_net.part(row, f"{name} lipschitz", {"draws": draws, "explainer": repr(explain)}, columns)


def by_segments(trained_net: TrainedNet) -> list[Part]:
    """Local Lipschitz constants and faithfulness of LIME and SHAP with three kinds of features."""
    parts = []
    for name, (explain, held) in segmented(trained_net.sizes).items():
        row = f"{trained_net.way} {name}"
        constant = lipschitz(trained_net, row, name, explain)
        if held:
            settings = {**constant.settings, "segments": "held"}
            constant = replace(constant, settings=settings, columns=_with_held_segments(trained_net, explain))
        parts += [constant, faithfulness(trained_net, row, name, explain)]
    return parts


def _with_held_segments(trained_net: TrainedNet, explain: Lime | Shap) -> Measurement:
    draws = int(trained_net.sizes.get("draws", DRAWS))

    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:  # noqa: ARG001
        target = predict(model, x)
        own = segment(x, "quickshift")
        # One image at a time, because all its neighbours use its segments.
        found = []
        for i in range(len(x)):
            one, held = slice(i, i + 1), replace(explain, segments=own[i])
            found.append(LocalLipschitz(SIGMA, draws)(model, held, x[one], target[one], seed=keys[one]))
        return {"lipschitz": torch.cat(found)}

    return columns


def model_lipschitz(trained_net: TrainedNet) -> list[Part]:
    """The local Lipschitz constant of the net's probability (Definition 3.2), and the net's accuracy."""
    draws = int(trained_net.sizes.get("draws", DRAWS))

    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:
        slope = ModelLipschitz(SIGMA, draws, QUANTITY)(model, None, x, predict(model, x), seed=keys)
        return {"lipschitz": slope, "accuracy": 100 * Accuracy()(model, None, x, y)}

    settings = {"draws": draws, "quantity": QUANTITY}
    return [trained_net.part(f"{trained_net.way} {MODEL}", "model lipschitz", settings, columns)]


def faithfulness(trained_net: TrainedNet, row: str, name: str, explain: Attribution) -> Part:
    """Agreement of an explainer with the effect of removing groups of pixels (Eq. 1, Eq. 5, B.5)."""

    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:  # noqa: ARG001
        return agreements(model, explain, x)

    settings = {"grid": GRID, "quantity": QUANTITY, "explainer": repr(explain)}
    return trained_net.part(row, f"{name} faithfulness", settings, columns)


def agreements(model: Model, explain: Attribution, x: Inputs) -> Columns:
    """`Faithfulness` by its three similarities; the groups are removed once for all of them."""
    measure, target = Faithfulness(grid=GRID, quantity=QUANTITY), predict(model, x)
    groups = segment(x, "grid", grid=GRID)
    importance = over_groups(explain(model, x, target).detach(), groups)
    contribution = measure.contributions(model, x, target, groups)
    return {
        column: AGREEMENTS[similarity](importance, contribution)
        for column, similarity in SIMILARITIES.items()
    }


def ranked_by_level(measured: MeasuredNets) -> ExperimentOutput:
    """Figure 3: rank correlations over the levels of one backbone."""
    found = measured.records
    for where in dict.fromkeys(one.setting for one in measured.trained_nets):
        ways = dict.fromkeys(one.way for one in measured.trained_nets if one.setting == where)
        lines = {"all levels": [(where, way) for way in ways]}
        found += rank_correlations(measured.records, where, lines)
    return ExperimentOutput(found)


def ranked_by_backbone(measured: MeasuredNets) -> ExperimentOutput:
    """Table 1: rank correlations over the paper's backbones.

    Those over some of them have rows of their own, because the paper's are over all five.
    """
    if not measured.run.included((TOGETHER,)):
        return ExperimentOutput(measured.records)
    first = [one for one in measured.trained_nets if one.seed == measured.run.seeds[0]]
    lines = {}
    for way in WAYS:
        nets = [(one.setting, way) for one in first if one.setting in BACKBONES and one.way == way]
        label = way if len(nets) == len(BACKBONES) else f"{way} ({len(nets)} backbones)"
        lines[label] = nets
    return ExperimentOutput(measured.records + rank_correlations(measured.records, TOGETHER, lines))


def beside(row: str) -> Finish:
    """Add the ratio of each image's faithfulness to that of one row; it decides the orders of Figures 5 and 6.

    The inverse of a distance has a heavy tail: one image in a hundred had 86 while the median was 0.5, so a mean over
    images depends on the nearest map. The ratio of two maps of the same image has no such tail.
    """

    def finish(measured: MeasuredNets) -> ExperimentOutput:
        found = {m[:3]: m[3] for m in measured.records if "faithfulness" in m[3].values}
        made: list[RowRecord] = []
        for (setting, own, seed), record in found.items():
            if (setting, row, seed) in found:
                base = found[setting, row, seed].values["faithfulness"]
                pairs = zip(record.values["faithfulness"], base, strict=True)
                ratios = [None if a is None or not b else a / b for a, b in pairs]
                settings = {**record.settings, "beside": row}
                made.append((setting, own, seed, Record(RATIO, settings, record.examples, {RATIO: ratios})))
        return ExperimentOutput(measured.records + tuple(made))

    return finish


def rank_correlations(
    found: Sequence[RowRecord], setting: str, nets: Mapping[str, Sequence[tuple[str, str]]]
) -> tuple[RowRecord, ...]:
    """Spearman's correlation between the nets' constants and those of their explanations (Table 1, Figure 3).

    `nets`: for each line of the table its nets, at least three, as setting and way. The images are split into ten
    parts. Each has a correlation, between means over the part; the interval comes from their spread. The paper has a
    single correlation, between means over all images.
    """
    values = {
        (m[0], m[1], m[2]): [float("nan") if value is None else value for value in m[3].values["lipschitz"]]
        for m in found
        if "lipschitz" in m[3].values
    }
    made: list[RowRecord] = []
    seeds = dict.fromkeys(m[2] for m in found)
    for (label, line), seed, name in product(nets.items(), seeds, NAMES):
        rows = [[values.get((s, f"{way} {what}", seed)) for s, way in line] for what in (MODEL, name)]
        if len(line) > 2 and all(row is not None for row in (*rows[0], *rows[1])):
            correlated = _correlated(np.array(rows, dtype=np.float64))
            made.append((setting, f"{label} {name}", seed, correlated))
    return tuple(made)


def _correlated(table: Float[np.ndarray, "2 nets images"]) -> Record:
    """Correlations of the parts of the images, as a record whose examples are the parts."""
    parts = np.array_split(table, min(GROUPS, table.shape[2]), axis=2)
    means = [np.nanmean(part, axis=2) for part in parts]
    values: list[float | None] = [
        float(spearman(*torch.from_numpy(mean)[:, None].unbind(0))) for mean in means
    ]
    return Record(
        "rank correlation", {"parts": len(parts)}, list(range(len(parts))), {"rank correlation": values}
    )
