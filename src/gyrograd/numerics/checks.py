"""What a public function asks of its tensors, one sentence a mistake.

Called at public boundaries only: looking at values makes the host wait for the device. While a CUDA graph is being
recorded values cannot be looked at; what is recorded ran before, and was looked at then.
"""

import torch
from torch import Tensor

from gyrograd.errors import UserError

# Resizing and colour conversion leave pixels this far outside [0, 1] by rounding alone.
_ROUNDING = 1e-5


def is_being_recorded(x: Tensor) -> bool:
    """Whether a CUDA graph is being made of what happens to x, so that no value can be read."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def check_images(x: Tensor) -> None:
    """Pixels b c h w: floating, at least one, finite, in [0, 1]."""
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
    if not x.is_floating_point():
        raise UserError(f"The inputs have dtype {x.dtype}; convert them to floating point: x.float().")
    if x.dim() < 2 or x.numel() == 0:
        raise UserError(
            f"The inputs have shape {tuple(x.shape)}; give a batch axis first and at least one example."
        )
    # A finite sum has finite terms, and is had in one pass; only an infinite one may be an overflow.
    if not is_being_recorded(x) and not torch.isfinite(x.sum()) and not torch.isfinite(x).all():
        raise UserError(
            "The inputs hold NaN or infinite values; remove those examples or mend the preprocessing."
        )


def check_target(target: Tensor, b: int, k: int) -> None:
    """One class index in 0 ... k-1 for each of b examples."""
    if target.shape != (b,):
        raise UserError(
            f"The target has shape {tuple(target.shape)} for {b} examples; give one class index for each, "
            f"shape ({b},)."
        )
    if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
        raise UserError(
            f"The target has dtype {target.dtype}; give class indices as integers: target.long()."
        )
    if b and not is_being_recorded(target) and not (int(target.min()) >= 0 and int(target.max()) < k):
        raise UserError(
            f"The target holds classes {int(target.min())} to {int(target.max())} and the model has {k}; "
            f"give class indices from 0 to {k - 1}."
        )
