"""What a model gives back, made into logits: the checks that need images, and the wrappers they may call for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gyrograd.errors import UserError
from gyrograd.models.specs import spec_of
from gyrograd.models.wrappers import logits_of
from gyrograd.numerics.checks import check_images, ran, try_model
from gyrograd.numerics.modes import eval_mode
from gyrograd.types import Images, Inputs, Logits, Model

SUM_TOLERANCE = 1e-3
"""Rows of half-precision probabilities add up to 1 only so far; rows of logits miss it by far more."""


class PickedLogits(nn.Module):
    """A model that returns several things, of which one is the logits: that one."""

    def __init__(self, core: nn.Module, key: str | int | None = None) -> None:
        """`key` None: what comes is looked at each time, and may be logits already."""
        super().__init__()
        self.core = core
        self.key = key
        self.training = core.training

    @property
    def note(self) -> str:
        if self.key is None:
            return ""
        return f"The model returns several outputs; its logits are taken to be '{self.key}', the only ones that fit."

    def forward(self, x: Inputs) -> Logits:
        """The one output that is logits."""
        out = self.core(x)
        if self.key is None and isinstance(out, Tensor):
            return out
        logits: Logits = _parts(out)[_logits_key(out, len(x)) if self.key is None else self.key]
        return logits


def logits_alone(model: nn.Module) -> nn.Module:
    """The model, made to return its logits whatever holds them; one that gyrograd built returns nothing else."""
    return model if spec_of(model) is not None else PickedLogits(model)


class LogProbabilities(nn.Module):
    """A model that returns probabilities, as logits: their logarithm, whose softmax they are.

    Explaining them as if they were logits would apply softmax twice and flatten every probability. A logit is
    then a log-probability, which differs from the model's own hidden logit by one number for each image.
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
        """Log-probabilities; a probability of zero counts as the smallest number there is."""
        probabilities: Logits = self.core(x)
        return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()


def check_model(model: Model, x: Images) -> Model:
    """The model, wrapped where its output calls for it, after one look at these images (a few will do).

    Weights finite and on the device of x; one row of finite logits for each image, at least two classes; the images
    left as they were.
    Of a tuple, dict or ModelOutput the logits are taken where only one part can be them; probabilities (rows of
    numbers >= 0 that add up to 1) become their logarithms. `notes` tells what was done.
    """
    check_images(x)
    _check_weights(model, x.device)
    with eval_mode(model), torch.no_grad():
        out = ran(model, x.clone())
        if not isinstance(out, Tensor):
            model = PickedLogits(model, _logits_key(out, len(x)))
        try_model(model, x)
        logits = logits_of(model, x)
        if logits.shape[1] < 2:
            raise UserError(
                "The model returns one number per image; explanations ask which class was chosen, so return a logit "
                "for each class (two for yes and no)."
            )
        if _are_probabilities(logits):
            model = LogProbabilities(model)
    return model


def notes(model: Model) -> tuple[str, ...]:
    """What `check_model` and `open_model` did to a model, a sentence each, outermost first."""
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
    """The outputs by name, or by place where they have none."""
    if isinstance(out, Mapping):
        return dict(out.items())
    if isinstance(out, tuple) and hasattr(out, "_asdict"):
        return dict(out._asdict())
    if isinstance(out, tuple | list):
        return dict(enumerate(out))
    fields = vars(out) if hasattr(out, "__dict__") else {}
    return {name: value for name, value in fields.items() if not name.startswith("_")}


def _logits_key(out: Any, b: int) -> str | int:
    """Which output is the logits: the one of that name, or the only one with a row of numbers for each image."""
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


def _are_probabilities(logits: Logits) -> bool:
    near_one = (logits.sum(1) - 1).abs() < SUM_TOLERANCE
    return bool((logits >= 0).all() and near_one.all())
