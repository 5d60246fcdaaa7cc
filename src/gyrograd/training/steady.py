"""The steady preset: training for explanations that hold under attack, as settings or for your own loop.

Cross-entropy after one signed step of a small radius, a curvature penalty on a part of some batches, averaged weights.
Gain and cost of each part: results/frontier.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from gyrograd.errors import UserError, check_counts
from gyrograd.numerics.modes import without_autocast
from gyrograd.registry import Settings
from gyrograd.regularizers import Hessian
from gyrograd.regularizers.passes import auxiliary_pass
from gyrograd.training.loop import Average
from gyrograd.training.objective import objective_of
from gyrograd.training.settings import settings_from
from gyrograd.types import Inputs, Labels, Model

EPS = 1 / 255
CURVATURE = 1e-3
"""A weight that worked for every net tried; LeNet takes 3e-3."""


def steady_settings(eps: float | int = EPS, curvature: float | int = CURVATURE) -> Settings:
    """Training settings that make a net steady; add them to your own.

    >>> from gyrograd.training import TrainSettings
    >>> TrainSettings(epochs=3, **steady_settings(eps=2 / 255)).ema
    0.999

    Args:
        eps: size of the signed step. Larger is steadier and costs accuracy.
        curvature: weight of the Hessian penalty; 0 leaves it out, which ReLU nets need.
    """
    terms: dict[str, dict[str, float | int | str]] = {
        "adversarial": {"eps": eps, "steps": 1, "selection": "last"}
    }
    if curvature:
        terms["hessian"] = {"weight": curvature}
    return {"terms": terms, "regularized_fraction": 0.25, "regularize_every": 4, "ema": 0.999}


class Steady:
    """The preset for your own training loop, in three lines.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Softplus(), nn.Linear(8, 2))
    >>> steady = Steady(model)                                       # 1: before the loop
    >>> x, y = torch.rand(8, 3, 2, 2), torch.arange(8) % 2
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> for _ in range(3):
    ...     loss = steady(x, y)                                      # 2: in place of cross-entropy
    ...     optimizer.zero_grad(); loss.backward(); optimizer.step()
    >>> steady.finish()                                              # 3: the model takes the averaged weights

    The model takes images in [0, 1] to logits. A net without a second derivative (ReLU) trains without the curvature
    penalty, and a warning says so once; `curvature=0` is the same without the warning.

    Args:
        model: the net that is trained, in place.
        eps, curvature: as in `steady_settings`.
        accumulate: calls per optimizer step, if your loop accumulates gradients over several batches.
    """

    def __init__(
        self,
        model: Model,
        *,
        eps: float | int = EPS,
        curvature: float | int = CURVATURE,
        accumulate: int = 1,
    ) -> None:
        check_counts(accumulate=accumulate)
        self.model = model
        self.accumulate = accumulate
        self.settings = settings_from(steady_settings(eps, curvature))
        self.objective = objective_of(self.settings)
        self.steps = 0
        """Calls so far; the optimizer has taken a step after every `accumulate` of them."""
        self.average: Average | None = None

    def __call__(self, x: Inputs, y: Labels) -> Tensor:
        """The loss of this batch; plain cross-entropy if gradients are off, as in a validation loop."""
        if not torch.is_grad_enabled():
            return F.cross_entropy(self.model(x), y)
        number, batch = divmod(self.steps, self.accumulate)
        if self.average is None:
            self._begin(x, y)
        elif batch == 0:
            # The weights after the last step: so the user need not call anything after optimizer.step().
            self.average.update(self.model, number)
        # In half precision the curvature's gradient is noise, or zero; all other steps run as the caller has chosen.
        curved = "hessian" in self.objective.terms and self.objective.due(number)
        with without_autocast(x) if curved else nullcontext():
            loss, _ = self.objective(self.model, x, y, number=number)
        self.steps += 1
        return loss

    def finish(self) -> None:
        """Load the averaged weights into the model; call it once, after the last step."""
        if self.average is None:
            raise UserError("Nothing was trained yet; call steady(x, y) in the loop, and finish() after it.")
        self.average.update(self.model, -(-self.steps // self.accumulate))
        self.average.give_to(self.model)

    def state_dict(self) -> dict[str, Any]:
        """Steps and averaged weights so far; save it with your model and optimizer to resume the loop later."""
        average = None if self.average is None else self.average.values
        return {"steps": self.steps, "curvature": "hessian" in self.objective.terms, "average": average}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from `state_dict()`; call it after the model has its own weights again."""
        if not {"steps", "curvature", "average"} <= state.keys():
            raise UserError("This is not a state of Steady; give what steady.state_dict() returned.")
        if state["average"] is None:
            return
        average = Average(self.model, self.settings.ema)
        shapes, given = (
            {name: value.shape for name, value in values.items()}
            for values in (average.values, state["average"])
        )
        if shapes != given:
            name = next(name for name in (*shapes, *given) if shapes.get(name) != given.get(name))
            raise UserError(
                f"This state is of another model, which differs in '{name}'; give Steady the model it was saved with."
            )
        for name, value in average.values.items():
            value.copy_(state["average"][name])
        self.average, self.steps = average, state["steps"]
        if not state["curvature"]:
            self._leave_out_curvature()

    def _begin(self, x: Inputs, y: Labels) -> None:
        if not any(weight.requires_grad for weight in self.model.parameters()):
            raise UserError(
                "The model has no weights that learn; unfreeze some (requires_grad_) before training."
            )
        rows = self.objective.fewest_rows(len(x))
        why = without_curvature(self.model, x[:rows], y[:rows]) if "hessian" in self.settings.terms else None
        if why is not None:
            words = f"steady: the curvature penalty is left out ({why}); curvature=0 leaves it out without a warning."
            warnings.warn(words, stacklevel=3)
            self._leave_out_curvature()
        self.average = Average(self.model, self.settings.ema)

    def _leave_out_curvature(self) -> None:
        eps = self.settings.terms["adversarial"]["eps"]
        self.objective = objective_of(settings_from(steady_settings(eps, 0.0)))


def without_curvature(model: Model, x: Inputs, y: Labels) -> str | None:
    """Why the curvature penalty cannot train this model, or None if it can.

    It is tried on these rows as in training: with gradients to every weight, in training mode, outside of autocast.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    devices = [x.device] if x.device.type == "cuda" else []
    # Layer by layer: a user may have frozen some, such as batch normalisation, in evaluation mode.
    flags = [(module, module.training) for module in model.modules()]
    kinds: set[torch.dtype] = set()

    def note_kind(saved: Tensor) -> Tensor:
        kinds.add(saved.dtype)
        return saved.detach()

    try:
        with torch.random.fork_rng(devices=devices), torch.enable_grad(), without_autocast(x):
            penalty = Hessian()(model.train(), x, y, seed=0).sum()
            torch.autograd.grad(penalty, weights, allow_unused=True)
            # A model may turn autocast on by itself (Hugging Face's bf16); its output does not show it.
            with auxiliary_pass(model, "frozen"), saved_tensors_hooks(note_kind, lambda saved: saved):
                model(x)
    except torch.OutOfMemoryError:
        return "it does not fit into the device's memory; a smaller batch_size may"
    except UserError as wrong:
        if "piecewise linear" not in str(wrong):
            raise  # of the images, the labels or the model
        return "the net is piecewise linear, as with ReLU"
    except (RuntimeError, NotImplementedError) as wrong:
        return f"the net has no second derivative: {str(wrong).partition(chr(10))[0]}"
    finally:
        for module, training in flags:
            module.training = training
    if kinds & {torch.float16, torch.bfloat16}:
        return "the net computes in half precision, in which the penalty's gradient is noise"
    return None
