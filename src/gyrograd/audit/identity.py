"""Names of model, data and machine, for a rerun."""

from __future__ import annotations

import sys

from gyrograd.measurement.machine import hardware, versions
from gyrograd.models import spec_of
from gyrograd.models.outputs import LogProbabilities, PickedLogits
from gyrograd.reporting.schema import Rerun
from gyrograd.types import Model


def model_name(model: Model) -> str:
    """The name of the backbone, or of the class."""
    spec = spec_of(model)
    if spec is None and isinstance(model, PickedLogits | LogProbabilities):
        return model_name(model.core)
    return spec.name if spec else type(model).__name__


def model_description(model: Model) -> str:
    """The model's name and the number of parameters."""
    return f"{model_name(model)}, {parameters(model):,} parameters"


def parameters(model: Model) -> int:
    """Number of parameters."""
    return sum(p.numel() for p in model.parameters())


def peak_memory_mb() -> float | None:
    """Peak memory of this process; None if the system does not report it."""
    try:
        import resource
    except ImportError:
        # Windows has no such module; the card then omits the number.
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / (1024 * 1024 if sys.platform == "darwin" else 1024), 1)


def rerun(model: Model, command: str | None, seconds: float, seed: int) -> Rerun:
    """The card's section about running it again."""
    return {
        "command": command or "gyrograd.audit(model, images, labels)",
        "versions": versions(),
        "hardware": hardware(next((p.device for p in model.parameters()), "cpu")),
        "seconds": round(seconds, 1),
        "peak_memory_mb": peak_memory_mb(),
        "seed": seed,
    }
