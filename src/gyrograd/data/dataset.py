"""A data set as tensors; images stay bytes until they are used, so that CIFAR-10 fits on any device."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from gyrograd.data.streamed import Streamed
from gyrograd.errors import UserError
from gyrograd.numerics import random
from gyrograd.types import Bytes, Inputs, Labels

SUBSET_STREAM = 1 << 32  # keeps the choice of examples apart from the order of an epoch (streams 0, 1, ...)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Examples, their labels and, if known, the pixels of the object.

    Images are uint8 `b c h w`; other inputs (the 2-D toy) are floats. A set that does not fit memory holds the places
    of its images (`Streamed`), and `pixels` reads them when asked.
    """

    images: Bytes | Inputs | Streamed
    labels: Labels
    classes: tuple[str, ...]
    name: str
    masks: Bool[Tensor, "b h w"] | None = None

    def __post_init__(self) -> None:
        _check_lengths(self)
        _check_labels(self)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        shape = " x ".join(str(side) for side in self.images.shape[1:])
        return f"Dataset({self.name}: {len(self)} examples of {shape}, {len(self.classes)} classes)"

    def to(self, device: torch.device | str) -> Dataset:
        masks = None if self.masks is None else self.masks.to(device)
        return replace(self, images=self.images.to(device), labels=self.labels.to(device), masks=masks)

    def rows(self, index: Int[Tensor, " n"]) -> Dataset:
        """These examples, in this order."""
        index = index.to(self.labels.device)
        masks = None if self.masks is None else self.masks[index]
        images = self.images.rows(index) if isinstance(self.images, Streamed) else self.images[index]
        return replace(self, images=images, labels=self.labels[index], masks=masks)

    def subset(self, n: int, seed: int = 0) -> Dataset:
        """The first n examples of a permutation by the seed; a larger n extends a smaller one.

        It is not stratified. The permutation is drawn on the CPU, so every device gets the same examples.
        """
        return self.rows(self.chosen(n, seed))

    def chosen(self, n: int, seed: int = 0) -> Int[Tensor, " n"]:
        """Indices of the examples that `subset(n, seed)` takes."""
        if not 1 <= n <= len(self):
            raise UserError(f"A subset of {n} cannot be taken from {self.name}: give 1 to {len(self)}.")
        return random.permutation(random.keys(seed, 1), len(self), stream=SUBSET_STREAM)[0, :n]

    def pixels(self, index: Int[Tensor, " n"] | None = None) -> Inputs:
        """Examples as float32 with pixels in [0, 1]; all of them if no index is given."""
        every = slice(None) if isinstance(self.images, Streamed) else ...
        images: Tensor = self.images[every if index is None else index.to(self.labels.device)]  # type: ignore[index]
        return images.to(torch.float32) / 255 if images.dtype == torch.uint8 else images

    def digest(self) -> str:
        """The sha256 of images, labels and masks: equal digests, equal data."""
        total = hashlib.sha256()
        if isinstance(self.images, Streamed):
            total.update(self.images.digest().encode())
            parts = [self.labels]
        else:
            parts = [self.images, self.labels]
        parts += [] if self.masks is None else [self.masks]
        for part in parts:
            total.update(part.cpu().contiguous().numpy().tobytes())
        return total.hexdigest()


def _check_lengths(data: Dataset) -> None:
    if len(data.labels) == 0:
        raise UserError(f"{data.name} holds no examples; give at least one.")
    if len(data.images) != len(data.labels):
        raise UserError(
            f"{data.name} has {len(data.images)} images and {len(data.labels)} labels; give a label to each."
        )
    seen = None if data.masks is None else tuple(data.masks.shape)
    expected = (len(data.images), *data.images.shape[2:])
    if seen not in (None, expected):
        raise UserError(f"{data.name} has masks of shape {seen}; give one mask per image, {expected}.")


def _check_labels(data: Dataset) -> None:
    if data.labels.is_floating_point() or data.labels.dtype == torch.bool:
        raise UserError(f"{data.name} has labels of type {data.labels.dtype}; give whole numbers (int64).")
    low, high = int(data.labels.min()), int(data.labels.max())
    if low < 0 or high >= len(data.classes):
        raise UserError(
            f"{data.name} has labels from {low} to {high} and {len(data.classes)} classes; "
            f"labels count from 0 to {len(data.classes) - 1}."
        )
