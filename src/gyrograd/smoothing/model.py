"""A model composed with a kernel, which is a model again: f_mu(x) = E[f(x + z)], z ~ mu (tan2023 Theorem 4.3).

The draws are fixed by the seed and shared by all examples. So the smoothed model is a deterministic function of x: the
same for any batch split, differentiable as often as the core is, and a fixed target for attacks.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gyrograd.errors import UserError
from gyrograd.numerics.quantities import with_full_precision
from gyrograd.numerics.recomputation import recomputed_in_backward
from gyrograd.types import Inputs, Kernel, Logits

MOST_SHARED = 1 << 23
"""Most numbers of draws that models share: 32 MB, some 50 images of 224 pixels."""
_LAST_DRAWS: deque[tuple[object, Tensor]] = deque(maxlen=2)
"""The last draws of any model: SmoothGrad makes a model per call, and to draw for images of 224 pixels takes a CPU as
long as a GPU takes for their passes."""


class Smoothed(nn.Module):
    """The mean of the core's outputs over fixed draws of the kernel."""

    def __init__(
        self, core: nn.Module, kernel: Kernel, draws: int = 50, seed: int = 0, max_batch: int = 512
    ) -> None:
        super().__init__()
        if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
            raise UserError(
                f"A smoothed model needs at least one draw, a whole number, not {draws}; 50 is usual."
            )
        if max_batch < 1:
            raise UserError(f"max_batch is {max_batch}; give the number of images in one pass, at least 1.")
        self.core = core
        self.kernel = kernel
        self.draws = draws
        self.seed = seed
        self.max_batch = max_batch
        self._noise: tuple[object, Tensor | None] = (None, None)

    @property
    def rows_per_example(self) -> int:
        """Images that pass through the innermost core per example."""
        return self.draws * int(getattr(self.core, "rows_per_example", 1))

    def forward(self, x: Inputs) -> Logits:
        noise = self._noise_for(x)
        draws_at_once = max(1, self.max_batch // max(1, len(x)))
        # Parts are summed and divided once at the end: the last one may be smaller than the others.
        parts = noise.split(draws_at_once)
        if len(parts) == 1:
            return self._sum(x, noise) / self.draws
        total = recomputed_in_backward(self._sum, self, x, parts[0])
        for part in parts[1:]:
            total = total + recomputed_in_backward(self._sum, self, x, part)
        return total / self.draws

    def _sum(self, x: Tensor, noise: Tensor) -> Tensor:
        """Outputs summed over these draws, in one pass of the core."""
        # Draws on the first axis: LRP recognises the sum over them by that axis.
        rows = (x.unsqueeze(0) + noise.unsqueeze(1)).flatten(0, 1)
        outputs = with_full_precision(self.core(rows))
        total: Tensor = outputs.unflatten(0, (len(noise), len(x))).sum(0)
        return total

    def _noise_for(self, x: Tensor) -> Tensor:
        """The draws, cached while settings, shape, type and device stay the same."""
        wanted = self.kernel, self.draws, self.seed, x.shape[1:], x.dtype, x.device
        for known, noise in (self._noise, *_LAST_DRAWS):
            if noise is not None and known == wanted:
                self._noise = known, noise
                return noise
        # Later calls may be differentiated, which tensors made in inference mode do not allow.
        with torch.inference_mode(False):
            # Drawn on the CPU: normal numbers drawn on a GPU may differ in the last digit.
            noise = self.kernel.sample((self.draws, *x.shape[1:]), self.seed, x.dtype).to(x.device)
        self._noise = wanted, noise
        if noise.numel() <= MOST_SHARED:
            _LAST_DRAWS.appendleft(self._noise)
        return noise

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}, draws={self.draws}, seed={self.seed}"


@contextmanager
def in_one_pass(model: nn.Module) -> Iterator[None]:
    """Let smoothed models run all draws at once, for the block: for methods that read a layer's values."""
    parts = [(module, module.max_batch) for module in model.modules() if isinstance(module, Smoothed)]
    try:
        for module, _ in parts:
            module.max_batch = sys.maxsize
        yield
    finally:
        for module, max_batch in parts:
            module.max_batch = max_batch


def smoothed(
    model: nn.Module, kernel: Kernel, draws: int = 50, seed: int = 0, max_batch: int = 512
) -> Smoothed:
    """The model averaged over noisy copies of its input; again a model, for every attribution and attack.

    >>> import gyrograd as gg
    >>> model, x = gg.load("cifar10/lenet-ce"), gg.dataset("shapes", n=2).pixels()
    >>> calm = gg.smoothed(model, gg.kernel("gaussian", sigma=0.1), draws=4)
    >>> calm(x).shape
    torch.Size([2, 10])
    >>> gg.attribution("lrp")(calm, x, target=3).shape
    torch.Size([2, 3, 32, 32])
    """
    return Smoothed(model, kernel, draws, seed, max_batch).train(model.training)
