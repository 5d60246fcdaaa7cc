"""An attack whose part does not fit into memory goes on with half of it, to the same result."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gyrograd as gg


class Fits(nn.Module):
    """A net that runs out of memory with more than so many images at once."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.inner = gg.model("lenet", activation="softplus", beta=3, image_size=8, seed=0)
        self.most, self.seen = most, []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        if len(x) > self.most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        logits: Tensor = self.inner(x)
        return logits


def batch() -> tuple[Tensor, Tensor]:
    return torch.rand(7, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(7) % 3


@pytest.mark.parametrize("most", [1, 2, 3])
def test_parts_are_halved_until_they_fit(most: int) -> None:
    x, y = batch()
    attack = gg.attack("top_k", k=5, eps=(2 / 255, 8 / 255), steps=3, start="random")
    tight, roomy = Fits(most), Fits(100)
    found, expected = (attack(net, gg.attribution("gradient"), x, y, seed=1) for net in (tight, roomy))
    assert max(tight.seen) > most >= min(tight.seen)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.x, other.x)
        torch.testing.assert_close(one.map, other.map)
        assert len(one.prediction_kept) == len(x)


def test_one_image_that_does_not_fit_is_an_error() -> None:
    x, y = batch()
    with pytest.raises(torch.OutOfMemoryError):
        gg.attack("top_k", k=5, eps=8 / 255, steps=2)(Fits(0), gg.attribution("gradient"), x, y, seed=1)
