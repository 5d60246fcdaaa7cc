"""Checks of a model's output, and wrappers that turn it into logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gyrograd.errors import UserError
from gyrograd.models.wrappers import logits_of
from gyrograd.numerics.checks import check_images, check_inputs, check_not_compiled, run_model, try_model
from gyrograd.numerics.modes import eval_mode
from gyrograd.types import Inputs, Logits, Model

SUM_TOLERANCE = 1e-3
"""Rows of half-precision probabilities add up to 1 within this; rows of logits do not."""


class PickedLogits(nn.Module):
    """Returns the logits of a model that returns several outputs."""

    def __init__(self, core: nn.Module, key: str | int | None = None) -> None:
        """Without `key` the logits are searched at each call, and the output may be logits already."""
        super().__init__()
        self.core = core
        self.key = key
        self.training = core.training

    def extra_repr(self) -> str:
        return "" if self.key is None else f"key={self.key!r}"

    @property
    def note(self) -> str:
        if self.key is None:
            return ""
        return f"The model returns several outputs; its logits are taken to be '{self.key}', the only ones that fit."

    def forward(self, x: Inputs) -> Logits:
        out = self.core(x)
        if self.key is None and isinstance(out, Tensor):
            return out
        logits: Logits = _parts(out)[_logits_key(out, len(x)) if self.key is None else self.key]
        return logits


class LogProbabilities(nn.Module):
    """Returns the logarithm of a model's probabilities as its logits.

    Treating probabilities as logits would apply softmax twice and flatten them. A logit is then a log-probability,
    which differs from the model's hidden logit by one constant per image.
    """

    note = (
        "The model returns probabilities; their logarithm is used as logits, so a 'logit' that is explained is a "
        "log-probability. Return logits to explain those."
    )

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core
        self.training = core.training

    def forward(self, x: Inputs) -> Logits:
        """Log-probabilities; a probability of zero counts as the smallest positive number."""
        probabilities: Logits = self.core(x)
        return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


def check_model(model: Model, x: Inputs) -> Model:
    """Check a model on a few examples and wrap it if it does not return logits.

    Logits are picked out of a tuple, dict or ModelOutput if only one part can be logits; probabilities (rows of numbers
    >= 0 that add up to 1) become their logarithms. `notes` tells what was done.

    Raises:
        UserError: if the model is compiled, if weights are not finite or not on the device of x, if the output is not
            one row of finite numbers per example for at least two classes, or if the model changes the examples.
    """
    (check_images if x.dim() == 4 else check_inputs)(x)
    check_not_compiled(model)
    _check_weights(model, x.device)
    with eval_mode(model), torch.no_grad():
        # A clone: the model may write into its input, which is only checked below.
        out = run_model(model, x.clone())
        if not isinstance(out, Tensor):
            model = PickedLogits(model, _logits_key(out, len(x)))
        try_model(model, x)
        logits = logits_of(model, x)
        if logits.shape[1] < 2:
            raise UserError(
                "The model returns one number per example; explanations ask which class was chosen, so return a logit "
                "for each class (two for yes and no)."
            )
        # Logits of all images being non-negative and adding up to one by chance is as good as impossible.
        near_one = (logits.sum(1) - 1).abs() < SUM_TOLERANCE
        if bool((logits >= 0).all() and near_one.all()):
            model = LogProbabilities(model)
    return model


def notes(model: Model) -> tuple[str, ...]:
    """What `check_model` and `open_model` changed about a model, one sentence each, outermost first."""
    found = []
    layer: Any = model
    while isinstance(layer, nn.Module):
        found.append(getattr(layer, "note", ""))
        layer = getattr(layer, "core", None)
    return tuple(note for note in found if isinstance(note, str) and note)


def _check_weights(model: nn.Module, device: torch.device) -> None:
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.device.type != device.type or (device.index or 0) != (tensor.device.index or 0):
            raise UserError(
                f"The model's '{name}' is on {tensor.device} and the images are on {device}; "
                f"move the model: model.to('{device}')."
            )
        if tensor.layout is not torch.strided:
            raise UserError(f"The model's '{name}' is a sparse tensor; make it dense: .to_dense().")
        if tensor.is_complex():
            raise UserError(f"The model's '{name}' holds complex numbers; give it real weights.")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise UserError(
                f"The model's '{name}' holds NaN or infinite weights; its training diverged or the file is damaged, "
                "so give other weights."
            )


def _parts(out: Any) -> dict[str | int, Any]:
    """The outputs by name, or by position if they have none."""
    if isinstance(out, Mapping):
        return dict(out.items())
    if isinstance(out, tuple) and hasattr(out, "_asdict"):
        return dict(out._asdict())
    if isinstance(out, tuple | list):
        return dict(enumerate(out))
    fields = vars(out) if hasattr(out, "__dict__") else {}
    return {name: value for name, value in fields.items() if not name.startswith("_")}


def _logits_key(out: Any, b: int) -> str | int:
    """The key of the logits: "logits", or the only output with one row of numbers per image."""
    parts = _parts(out)
    fitting = [
        key
        for key, value in parts.items()
        if isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 2 and len(value) == b
    ]
    if "logits" in fitting:
        return "logits"
    if len(fitting) != 1:
        found = ", ".join(f"'{key}'" for key in parts) or "nothing"
        raise UserError(
            f"The model returned a {type(out).__name__} of {found}, in which {len(fitting)} could be the logits; "
            "wrap it to return the logits only."
        )
    return fitting[0]
