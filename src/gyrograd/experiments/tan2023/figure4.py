"""tan2023 Figure 4: SmoothGrad moves less with more noise."""

from __future__ import annotations

from gyrograd.experiments.panels import figures_of
from gyrograd.experiments.results import Results
from gyrograd.experiments.runs import Experiment, Found, Run
from gyrograd.experiments.tan2023.measures import smooth_lipschitz
from gyrograd.experiments.tan2023.sweeps import over_sigma, sigmas_of
from gyrograd.experiments.tan2023.ways import trained
from gyrograd.registry import register
from gyrograd.reporting import Section


@register("experiment", "tan2023-figure4", paper="tan2023", equation="Figure 4")
def figure4() -> Experiment:
    """Local Lipschitz constant of SmoothGrad over its noise, on naturally trained backbones."""
    return Experiment(_measured, _drawn)


def _measured(run: Run) -> Found:
    subjects = trained(run, ("natural",))
    return Found(run.measured([smooth_lipschitz(s)(net) for net in subjects for s in sigmas_of(net.sizes)]))


def _drawn(results: Results) -> tuple[Section, ...]:
    panels = {"local Lipschitz constant": over_sigma(results, "lipschitz")}
    figures = figures_of(panels, "sigma", "local Lipschitz constant", "Bands: 95 % intervals.")
    return (Section("SmoothGrad over its noise", (), None, figures),) if figures else ()
