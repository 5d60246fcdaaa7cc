"""Checks of the tensors and models that users pass in; each error is one sentence that names the fix.

Called at public boundaries only, because reading values makes the host wait for the device. While a CUDA graph is being
recorded values cannot be read; the same step ran before the recording, and was checked then.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
import torch
from torch import Tensor, nn

from gyrograd.errors import UserError, foreign_code, in_words
from gyrograd.numerics.modes import eval_mode
from gyrograd.types import Inputs, Labels, Logits, Model, Targets

# Rounding in resizing and colour conversion leaves pixels this far outside [0, 1].
_ROUNDING = 1e-5

TRIAL_ROWS = 8
"""Most examples a new model is tried on: more than one, for models that normalise by the batch."""

_TRIED: WeakKeyDictionary[nn.Module, set[tuple[torch.dtype, torch.Size]]] = WeakKeyDictionary()
"""Models that `try_model` has seen, with the kinds of inputs: another size or dtype may not fit."""
_CHANGING: WeakSet[nn.Module] = WeakSet()
"""Those of them that gave two answers to the same images."""


_OF_SHAPES = (RuntimeError, ValueError, TypeError, AssertionError, IndexError, AttributeError)
"""Errors that layers raise for images of the wrong shape; any other comes from the model itself."""


_CHANNELS = (1, 3)
"""Channels of a grey or coloured picture."""


def shape_advice(x: Inputs) -> str:
    """What to do about images without a batch axis or with their channels last; empty for other shapes."""
    if x.dim() == 4 and x.shape[-1] in _CHANNELS and x.shape[1] not in _CHANNELS:
        return "the channels come last, and belong behind the batch axis: give x.permute(0, 3, 1, 2)"
    if x.dim() == 3 and len(x) in _CHANNELS:
        return "that is one image without a batch axis: give x[None]"
    return ""


def is_being_recorded(x: Tensor) -> bool:
    """True if a CUDA graph is being recorded, so that no value of x can be read."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def check_tensor(x: Any) -> None:
    """Refuse anything but one tensor."""
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
    """Refuse anything but floating-point pixels, b c h w, at least one image, finite, in [0, 1]."""
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
    """Refuse anything but floating-point, finite values: at least one example with at least one feature."""
    check_rows(x)
    # A finite sum has finite terms and takes one pass; if it is infinite it may just have overflowed, so look closer.
    if not is_being_recorded(x) and not torch.isfinite(x.sum()) and not torch.isfinite(x).all():
        raise UserError(
            "The inputs hold NaN or infinite values; remove those examples or fix the preprocessing."
        )


def check_rows(x: Tensor) -> None:
    """The part of `check_inputs` that reads no values."""
    check_tensor(x)
    # Inside torch.func's transforms torch.autograd, by which maps are made, sees nothing.
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise UserError(
            "Maps and penalties cannot be made inside torch.func (vmap, grad, ...); give the whole batch at once, and "
            "differentiate with torch.autograd.grad or backward()."
        )
    if not x.is_floating_point():
        scaled = (
            " / 255" if x.dtype == torch.uint8 and x.dim() >= 3 else ""
        )  # bytes of three or four axes are pixels
        raise UserError(
            f"The inputs have dtype {x.dtype}; convert them to floating point: x.float(){scaled}."
        )
    if x.dim() < 2 or x.numel() == 0:
        raise UserError(
            f"The inputs have shape {tuple(x.shape)}; give a batch axis first and at least one example."
        )


def class_indices(target: Targets | None, x: Inputs) -> Labels:
    """The target as int64, one class per example of x, on its device; `check_target` checks the values.

    Accepts integer tensors, numpy arrays, lists, and one number for all examples.
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
    if x.dim() == 3 and target.shape != (len(x),) and (target.numel() == 1 or len(x) in _CHANNELS):
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
    """Refuse a target that is not one class index from 0 to k-1 per example."""
    _check_one_each(target, b)
    if b and not is_being_recorded(target) and not (int(target.min()) >= 0 and int(target.max()) < k):
        raise UserError(
            f"The target holds classes {int(target.min())} to {int(target.max())} and the model has {k}; "
            f"give class indices from 0 to {k - 1}."
        )


def _check_one_each(target: Any, b: int) -> None:
    if not isinstance(target, Tensor):
        raise UserError(
            f"The target is a {type(target).__name__}; give class indices as a tensor: torch.tensor(target)."
        )
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
    """The model's output, if it is one row of floating-point numbers per input; any other is an error."""
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
            f"The model returned shape {tuple(out.shape)} for {len(x)} inputs; return logits, {len(x)} x classes."
        )
    return out


def in_grey_levels(name: str, value: float) -> UserError:
    """The error for a size of pixels that was given in grey levels, such as 8 for 8 / 255."""
    return UserError(f"{name} is {value:g} and pixels lie in [0, 1]; write {name}={value:g} / 255.")


def check_is_module(model: object) -> None:
    """Refuse functions and what else is no module: passes need its mode, its weights and its layers."""
    if not isinstance(model, nn.Module):
        raise UserError(
            f"The model is a {type(model).__name__}; give an nn.Module, such as gyrograd.load(NAME) returns."
        )


def try_model(model: Model, x: Inputs) -> None:
    """Run a new model on a few examples, twice: it must return logits and leave its input alone.

    A model that writes into its input would be explained at another point than x, and would change the caller's
    tensor. One that gives two answers is noted for `answers_change`.
    """
    check_is_module(model)
    innermost, kind = _innermost(model), (x.dtype, x.shape[1:])
    if kind in _TRIED.get(innermost, ()) or is_being_recorded(x):
        return
    few = x[:TRIAL_ROWS].detach().clone()  # a copy, because the model may write into it
    seen = [(few, few.clone())]

    def note(_: nn.Module, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], Tensor):
            seen.append((given[0], given[0].clone()))

    # A scripted module takes no hook; our wrappers hand it the images themselves, which are in `seen` already.
    hooked = not isinstance(innermost, torch.jit.ScriptModule)
    with ExitStack() as stack, torch.no_grad(), eval_mode(model):
        if hooked:
            stack.callback(innermost.register_forward_pre_hook(note).remove)
        try:
            out, again, fits = run_model(model, few), run_model(model, few), True
        except torch.OutOfMemoryError:
            if len(few) == 1:
                raise
            out, again, fits = None, None, False
    if not fits:
        # Not in the handler, whose traceback holds the memory. The actual work is done in smaller parts, too.
        try_model(model, x[: len(few) // 2])
        return
    # Bytes, because `x.data` hides writes from autograd and NaN is not equal to itself.
    if not all(torch.equal(*(t.detach().contiguous().view(torch.uint8) for t in pair)) for pair in seen):
        raise UserError(
            "The model writes into the images it is given (x.sub_(m), x.data.mul_(s) or the like), so that its maps "
            "would belong to other images; compute a new tensor there: x = (x - m) / s."
        )
    logits = check_logits(out, few)
    if change_of(logits, check_logits(again, few)) > rounding_of_calls(logits):
        _CHANGING.add(innermost)
    _TRIED.setdefault(innermost, set()).add(kind)


def answers_change(model: Model) -> bool:
    """True if `try_model` got two answers to the same images: dropout or noise is active in eval mode."""
    return _innermost(model) in _CHANGING


def rounding_of_calls(logits: Logits) -> float:
    """Largest relative change between two calls on the same batch that rounding explains; it can differ on a GPU."""
    return 100 * torch.finfo(logits.dtype).eps


def change_of(one: Logits, other: Logits) -> float:
    """Largest difference relative to the largest value, over the rows that are finite in both."""
    one, other = one.detach(), other.detach()
    finite = one.isfinite().all(1) & other.isfinite().all(1)
    if not finite.any():
        return 0.0
    return float(
        (one - other)[finite].abs().max() / one[finite].abs().max().clamp_min(torch.finfo(one.dtype).tiny)
    )


def _innermost(model: Model) -> nn.Module:
    """The model inside gyrograd's wrappers, some of which are new objects at each call."""
    innermost, core = model, getattr(model, "core", None)
    while isinstance(core, nn.Module) and type(innermost).__module__.startswith("gyrograd."):
        innermost, core = core, getattr(core, "core", None)
    return innermost


def check_not_compiled(model: Model) -> None:
    """Refuse a compiled model.

    torch differentiates it once only (a second derivative fails, or is silently zero), and a recorder does not see its
    operations.
    """
    check_is_module(model)
    if any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    ):
        raise UserError(
            "A compiled model (torch.compile) has no second derivatives and hides its operations; give the module that "
            "was compiled, which has the same weights."
        )


def check_fits(model: Model, x: Inputs) -> None:
    """Refuse inputs that the model cannot take, including an image without a batch axis, which looks like a series."""
    with torch.no_grad(), eval_mode(model):
        try:
            check_logits(run_model(model, x[:1]), x[:1])
        except UserError:
            if x.dim() == 3 and _takes(model, x[None]):
                raise UserError(
                    f"The inputs have shape {tuple(x.shape)}, one image without a batch axis; give x[None]."
                ) from None
            raise


def _takes(model: Model, x: Inputs) -> bool:
    try:
        check_logits(run_model(model, x), x)
    except UserError:
        return False
    return True


def run_model(model: Model, x: Inputs) -> Any:
    """The model's output; an exception becomes the cause of a one-sentence error."""
    try:
        return model(x)
    except (UserError, torch.OutOfMemoryError):
        raise
    except Exception as wrong:
        place = foreign_code(wrong)
        reason = f"{in_words(wrong)}, {place}" if place else in_words(wrong)
        if type(wrong) not in _OF_SHAPES:
            raise UserError(f"The model raised {reason}; fix it there, or see --debug.") from wrong
        if "dtype" in str(wrong) or _is_of_other_precision(model, x):
            kind = str(x.dtype).removeprefix("torch.")
            raise UserError(
                f"The model cannot take {kind} images ({reason}); give it weights of {kind}, or images of its dtype."
            ) from wrong
        size = " x ".join(str(side) for side in x.shape[1:])
        if x.dim() == 4 and (advice := shape_advice(x)):
            raise UserError(f"The model cannot take images of {size}; {advice}.") from wrong
        if x.dim() != 4:
            raise UserError(
                f"The model cannot take inputs of {size} ({reason}); give the shape it was made for: for images that "
                "is batch, channels, height and width."
            ) from wrong
        raise UserError(
            f"The model cannot take images of {size} ({reason}); give images of the size it was made for (--size), or "
            "fix the model."
        ) from wrong


def _is_of_other_precision(model: Model, x: Inputs) -> bool:
    kinds = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    return bool(kinds) and x.dtype not in kinds
