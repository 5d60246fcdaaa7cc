"""tan2023 Figure 5: SmoothGrad is most faithful with some noise, not with much."""

from __future__ import annotations

from gyrograd.experiments.panels import figures_of
from gyrograd.experiments.report import shown
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.experiments.tan2023.measures import SIMILARITIES, smooth_faithfulness
from gyrograd.experiments.tan2023.sweeps import SIGMAS, over_sigma, sigmas_of
from gyrograd.experiments.tan2023.ways import trained
from gyrograd.registry import register
from gyrograd.reporting import Section, Table


@register("experiment", "tan2023-figure5", paper="tan2023", equation="Figure 5")
def figure5() -> Experiment:
    """Faithfulness of SmoothGrad over its noise, on naturally trained backbones, in three similarities."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    subjects = trained(run, ("natural",))
    return Found(
        run.measured([smooth_faithfulness(s)(net) for net in subjects for s in sigmas_of(net.sizes)])
    )


def _drawn(results: Results) -> tuple[Section, ...]:
    panels = {column: over_sigma(results, column, relative=True) for column in SIMILARITIES}
    caption = "Each line over its largest value, as in the paper. Bands: 95 % intervals."
    figures = figures_of(panels, "sigma", "over the backbone's largest value", caption, across=3)
    return (Section("Faithfulness over noise", (), _best(results), figures),) if figures else ()


def _best(results: Results) -> Table:
    """The most faithful of the noise levels tried, and whether it is the first or the last of them."""
    rows = []
    for backbone in results.measured_in:
        for column in SIMILARITIES:
            found = [(s, results.column_of(backbone, f"sigma {s:g}", column)) for s in SIGMAS]
            points = [(point.value, s, point) for s, point in found if point is not None]
            _, sigma, best = max(points, key=lambda point: point[0])
            edge = sigma in (points[0][1], points[-1][1])
            rows.append((backbone, column, f"{sigma:g}", shown(best), "at the edge" if edge else "inside"))
    return Table(("", "similarity", "best sigma", "faithfulness", "where"), tuple(rows))
