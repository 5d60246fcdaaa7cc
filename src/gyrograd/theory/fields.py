"""The function of the theorems: one number per example, as a function of the input."""

from collections.abc import Callable

from torch import Tensor, nn

from gyrograd.attributions.gradient import score
from gyrograd.errors import UserError
from gyrograd.types import Labels, ScalarField


def scalar_field(
    f: Callable[[Tensor], Tensor], target: Labels | None, quantity: str = "logit", *, check: bool = True
) -> ScalarField:
    """The quantity of a model's target class as a function of x; with no target, f itself.

    `check` reads the target's values, which makes the host wait for the device.
    """
    if target is None:
        return f
    if not isinstance(f, nn.Module):
        raise UserError("A target belongs to a model (nn.Module); give target=None for a function of x.")
    return score(f, target, quantity, check=check)
