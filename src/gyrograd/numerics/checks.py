"""What a public function asks of its tensors and its model, one sentence a mistake.

Called at public boundaries only: looking at values makes the host wait for the device. While a CUDA graph is being
recorded values cannot be looked at; what is recorded ran before, and was looked at then.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from gyrograd.errors import UserError, foreign_code, in_words
from gyrograd.numerics.modes import eval_mode
from gyrograd.types import Inputs, Labels, Logits, Model, Targets

# Resizing and colour conversion leave pixels this far outside [0, 1] by rounding alone.
_ROUNDING = 1e-5

TRIAL_ROWS = 8
"""Examples a new model is tried on, at most: one would not do for a model that normalises by the batch."""

_TRIED: WeakSet[nn.Module] = WeakSet()
"""Models that `try_model` has seen."""


_OF_SHAPES = (RuntimeError, ValueError, TypeError, AssertionError, IndexError, AttributeError)
"""What layers raise of images they were not made for; anything else is the model's own affair."""


def is_being_recorded(x: Tensor) -> bool:
    """Whether a CUDA graph is being made of what happens to x, so that no value can be read."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def check_tensor(x: Any) -> None:
    """One tensor: models of several inputs, and of none that is a tensor, are not explained."""
    if isinstance(x, Mapping):
        named = next((key for key, value in x.items() if isinstance(value, Tensor)), "pixel_values")
        raise UserError(
            f"The inputs are a {type(x).__name__}, as processors return; give its tensor: x['{named}']."
        )
    if not isinstance(x, Tensor):
        raise UserError(
            f"The inputs are a {type(x).__name__}; give one tensor, examples along its first axis."
        )


def check_images(x: Tensor) -> None:
    """Pixels b c h w: floating, at least one, finite, in [0, 1]."""
    check_tensor(x)
    if x.dtype == torch.uint8:
        raise UserError("The images are bytes (uint8); convert them to floating point: x.float() / 255.")
    if x.dim() == 3:
        raise UserError(f"The images have shape {tuple(x.shape)}, without a batch axis; give x[None].")
    if x.dim() != 4:
        raise UserError(f"The images have shape {tuple(x.shape)}; give batch, channels, height and width.")
    check_inputs(x)
    if is_being_recorded(x):
        return
    low, high = (value.item() for value in x.detach().aminmax())
    if low < -_ROUNDING:
        raise UserError(
            f"The images reach from {low:.4g} to {high:.4g}; undo the normalisation: "
            "give pixels in [0, 1] and wrap the model in Normalized."
        )
    if high > 1 + _ROUNDING:
        fix = "divide by 255" if high > 2 else "clip them with x.clamp(0, 1)"
        raise UserError(f"The images reach from {low:.4g} to {high:.4g} and pixels lie in [0, 1]; {fix}.")


def check_inputs(x: Tensor) -> None:
    """At least one example and one feature, floating, finite."""
    check_rows(x)
    # A finite sum has finite terms, and is had in one pass; only an infinite one may be an overflow.
    if not is_being_recorded(x) and not torch.isfinite(x.sum()) and not torch.isfinite(x).all():
        raise UserError(
            "The inputs hold NaN or infinite values; remove those examples or mend the preprocessing."
        )


def check_rows(x: Tensor) -> None:
    """At least one example and one feature, floating: what can be seen without looking at values."""
    check_tensor(x)
    check_untransformed()
    if not x.is_floating_point():
        raise UserError(f"The inputs have dtype {x.dtype}; convert them to floating point: x.float().")
    if x.dim() < 2 or x.numel() == 0:
        raise UserError(
            f"The inputs have shape {tuple(x.shape)}; give a batch axis first and at least one example."
        )


def check_untransformed() -> None:
    """Refuse to run inside torch.func's transforms: maps are made with torch.autograd, which they do not see."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise UserError(
            "Maps and penalties cannot be made inside torch.func (vmap, grad, ...); give the whole batch at once, and "
            "differentiate with torch.autograd.grad or backward()."
        )


def class_indices(target: Targets | None, x: Inputs) -> Labels:
    """The target as int64, one class for each example of x, on its device; values are left to `check_target`.

    Takes integer tensors of any width, numpy arrays, lists, and one number for all examples.
    """
    check_tensor(x)
    if target is None:
        raise UserError(
            "No target is given; name the class to explain, such as target=gyrograd.predict(model, x)."
        )
    if isinstance(target, int | np.integer) and not isinstance(target, bool):
        return torch.full((len(x),), int(target), dtype=torch.int64, device=x.device)
    if not isinstance(target, Tensor):
        target = _tensor_of(target).to(x.device)
    if x.dim() == 3 and target.shape in {(), (1,)} and len(x) != 1:
        raise UserError(
            f"The inputs have shape {tuple(x.shape)}, one image without a batch axis; give x[None]."
        )
    _check_one_each(target, len(x))
    if target.device != x.device:
        raise UserError(
            f"The target is on {target.device} and the inputs are on {x.device}; move it: target.to(x.device)."
        )
    return target.long()


def _tensor_of(target: Any) -> Tensor:
    try:
        return torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(
            f"The target is a {type(target).__name__} that holds other things than class indices; give one integer "
            "for each example."
        ) from None


def check_target(target: Tensor, b: int, k: int) -> None:
    """One class index in 0 ... k-1 for each of b examples."""
    _check_one_each(target, b)
    if b and not is_being_recorded(target) and not (int(target.min()) >= 0 and int(target.max()) < k):
        raise UserError(
            f"The target holds classes {int(target.min())} to {int(target.max())} and the model has {k}; "
            f"give class indices from 0 to {k - 1}."
        )


def _check_one_each(target: Tensor, b: int) -> None:
    if target.shape != (b,):
        raise UserError(
            f"The target has shape {tuple(target.shape)} for {b} examples; give one class index for each, "
            f"shape ({b},)."
        )
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise UserError(
            f"The target has dtype {target.dtype}; give class indices as integers: target.long()."
        )


def check_logits(out: Any, x: Inputs) -> Logits:
    """What a model returned, if it is one row of floating numbers for each input; else a sentence says what it is."""
    if not isinstance(out, Tensor):
        raise UserError(
            f"The model returned a {type(out).__name__}, not a tensor of logits; "
            "let gyrograd.model(model) pick the logits, or wrap it to return them only."
        )
    if out.layout != torch.strided or not out.is_floating_point():
        kind = str(out.dtype).removeprefix("torch.") if out.layout == torch.strided else "sparse"
        raise UserError(
            f"The model returned {kind} numbers, which have no gradient to explain; let it return logits as dense "
            "floating-point numbers."
        )
    if out.ndim != 2 or len(out) != len(x):
        raise UserError(
            f"The model returned shape {tuple(out.shape)} for {len(x)} inputs; logits are {len(x)} x classes."
        )
    return out


def try_model(model: Model, x: Inputs) -> None:
    """Run a model that was not seen before on a few examples: it must leave its input alone and return logits.

    A model that writes into its input would be explained at another point than x, and would change the caller's
    tensor; `x.data` hides that from autograd, so that bytes are compared. What the model raises is the cause of the
    sentence. One pass without a graph, once for each model.
    """
    innermost = _innermost(model)
    if innermost in _TRIED or is_being_recorded(x):
        return
    few = x[:TRIAL_ROWS].detach().clone()
    seen = [(few, few.clone())]

    def note(_: nn.Module, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], Tensor):
            seen.append((given[0], given[0].clone()))

    # A scripted module takes no hook; what it is given by a wrapper of ours is then the images themselves.
    hooked = not isinstance(innermost, torch.jit.ScriptModule)
    with ExitStack() as stack, torch.no_grad(), eval_mode(model):
        if hooked:
            stack.callback(innermost.register_forward_pre_hook(note).remove)
        try:
            out, fits = ran(model, few), True
        except torch.OutOfMemoryError:
            if len(few) == 1:
                raise
            out, fits = None, False
    if not fits:
        # Not in the handler, whose traceback holds the memory. The work itself goes on in smaller parts, too.
        try_model(model, x[: len(few) // 2])
        return
    if not all(_same_bytes(now, before) for now, before in seen):
        raise UserError(
            "The model writes into the images it is given (x.sub_(m), x.data.mul_(s) or the like), so that its maps "
            "would belong to other images; compute a new tensor there: x = (x - m) / s."
        )
    check_logits(out, few)
    _TRIED.add(innermost)


def check_fits(model: Model, x: Inputs) -> None:
    """That the model takes inputs that are no images, each time: one image without a batch axis looks like a series."""
    with torch.no_grad(), eval_mode(model):
        try:
            check_logits(ran(model, x[:1]), x[:1])
        except UserError:
            if x.dim() == 3 and _takes(model, x[None]):
                raise UserError(
                    f"The inputs have shape {tuple(x.shape)}, one image without a batch axis; give x[None]."
                ) from None
            raise


def _takes(model: Model, x: Inputs) -> bool:
    try:
        check_logits(ran(model, x), x)
    except UserError:
        return False
    return True


def ran(model: Model, x: Inputs) -> Any:
    """What the model returns; what it raises becomes the cause of one sentence."""
    try:
        return model(x)
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as wrong:
        place = foreign_code(wrong)
        reason = f"{in_words(wrong)}, {place}" if place else in_words(wrong)
        if type(wrong) not in _OF_SHAPES:
            raise UserError(f"The model raised {reason}; mend it there, or see --debug.") from wrong
        if "dtype" in str(wrong) or _is_of_other_precision(model, x):
            kind = str(x.dtype).removeprefix("torch.")
            raise UserError(
                f"The model cannot take {kind} images ({reason}); give it weights of {kind}, or images of its own kind."
            ) from wrong
        size = " x ".join(str(side) for side in x.shape[1:])
        if x.dim() != 4:
            raise UserError(
                f"The model cannot take inputs of {size} ({reason}); give the shape it was made for: for images that "
                "is batch, channels, height and width."
            ) from wrong
        raise UserError(
            f"The model cannot take images of {size} ({reason}); give images of the size it was made for (--size), or "
            "mend the model."
        ) from wrong


def _is_of_other_precision(model: Model, x: Inputs) -> bool:
    kinds = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    return bool(kinds) and x.dtype not in kinds


def _innermost(model: Model) -> Model:
    """What gyrograd's own wrappers, some of them made anew for each call, pass their input on to."""
    core = getattr(model, "core", None)
    while isinstance(core, nn.Module) and type(model).__module__.startswith("gyrograd."):
        model, core = core, getattr(core, "core", None)
    return model


def _same_bytes(one: Tensor, other: Tensor) -> bool:
    """Equal bit by bit, so that NaN equals itself."""
    return torch.equal(*(t.detach().contiguous().view(torch.uint8) for t in (one, other)))
