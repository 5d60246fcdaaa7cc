"""Model to model: normalisation, a probability head, and the check that an output is logits."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gyrograd.errors import UserError
from gyrograd.models.specs import attach_spec, spec_of
from gyrograd.types import Inputs, Logits

NORMALIZATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "efficientnet_lite": ((127 / 255,) * 3, (128 / 255,) * 3),
}
"""Channel means and standard deviations of pixels in [0, 1]; cifar10 are joo2023's, efficientnet_lite is the
(x - 127) / 128 of bytes that these nets were trained with."""


class Normalized(nn.Module):
    """A model of images in [0, 1]: subtracts the channel means, divides by the deviations, runs the core."""

    mean: Tensor
    std: Tensor

    def __init__(self, core: nn.Module, mean: Sequence[float | int], std: Sequence[float | int]) -> None:
        super().__init__()
        _check_statistics(mean, std)
        self.core = core
        # Settings, not weights: the spec holds them, so they stay out of the state dict.
        self.register_buffer("mean", torch.tensor([float(m) for m in mean]), persistent=False)
        self.register_buffer("std", torch.tensor([float(s) for s in std]), persistent=False)
        spec = spec_of(core)
        attach_spec(self, spec and spec.wrapped("normalized", mean=list(mean), std=list(std)))

    def forward(self, x: Inputs) -> Logits:
        """Logits of the core at the normalised images."""
        if x.ndim < 2 or x.shape[1] != len(self.mean):
            raise UserError(
                f"The normalisation has {len(self.mean)} channels and the input is {tuple(x.shape)}; "
                "give mean and std one number for each channel of b c h w images."
            )
        # In the precision of x, which is the core's: these two are single where a core alone was made half.
        mean, std = (t.to(x.dtype).reshape(1, -1, *(1 for _ in x.shape[2:])) for t in (self.mean, self.std))
        logits: Logits = self.core((x - mean) / std)
        return logits


class Probability(nn.Module):
    """The core followed by softmax, for explaining a probability instead of a logit."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core
        spec = spec_of(core)
        attach_spec(self, spec and spec.wrapped("probability"))

    def forward(self, x: Inputs) -> Logits:
        """One probability for each class; rows sum to 1."""
        logits: Logits = self.core(x)
        return logits.softmax(dim=1)


def logits_of(model: nn.Module, x: Inputs) -> Logits:
    """`model(x)`, after checking that it is one row of finite numbers for each input.

    Looks at the values, so on an accelerator it waits for them: for the start of a run, not for inner loops.
    """
    out = model(x)
    if not isinstance(out, Tensor):
        raise UserError(
            f"The model returned a {type(out).__name__}, not a tensor of logits; "
            "switch its auxiliary outputs off or wrap it to return the logits only."
        )
    if not out.is_floating_point() or out.layout is not torch.strided:
        kind = "sparse" if out.layout is not torch.strided else str(out.dtype).removeprefix("torch.")
        raise UserError(f"The model returned {kind} numbers; logits are dense real ones, such as float32.")
    if out.ndim != 2 or len(out) != len(x):
        raise UserError(
            f"The model returned shape {tuple(out.shape)} for {len(x)} inputs; logits are {len(x)} x classes."
        )
    if not out.isfinite().all():
        raise UserError(
            "The model returned NaN or infinite logits; check its weights and that the images are in [0, 1]."
        )
    return out


def _check_statistics(mean: Sequence[float | int], std: Sequence[float | int]) -> None:
    if len(mean) != len(std) or not mean:
        raise UserError(
            f"mean has {len(mean)} numbers and std {len(std)}; give both one number for each channel."
        )
    if not all(math.isfinite(m) for m in mean):
        raise UserError(f"Every mean must be a finite number, not {list(mean)}.")
    if not all(math.isfinite(s) and s > 0 for s in std):
        raise UserError(f"Every std must be a finite number above 0, not {list(std)}.")
