"""Images to learn from and images to be judged on: as the set has them, or a part held out here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gyrograd.data import Dataset
from gyrograd.data.folder import SPLITS
from gyrograd.data.opening import is_labelled, is_registered, opened
from gyrograd.errors import UserError
from gyrograd.numerics import random

HELD_OUT = 0.2
"""Share of a class that is judged on where the set has no split of its own."""
_STREAM = 1 << 34  # apart from the order of an epoch and from the choice of a subset


@dataclass(frozen=True, eq=False)
class Split:
    """Two sets of one kind, and a sentence on where the second comes from."""

    train: Dataset
    test: Dataset
    how: str


def split_of(text: str, *, size: int | None = None, share: float = HELD_OUT, seed: int = 0) -> Split:
    """The splits of a registered set or a folder; a folder without any is cut by `held_out`.

    Args:
        text: a name of `gyrograd list dataset`, or a folder with a sub-folder for each class, perhaps below train
            and val (valid, validation, test).
        size: side of the square images; a folder needs it.
        share: of each class, held out where there are no splits.
        seed: which images are held out.
    """
    if is_registered(text):
        pair = [opened(text, split=split, size=size) for split in ("train", "test")]
        return Split(pair[0], pair[1], f"the test split of {text}")
    path = Path(text).expanduser()
    judged = _split_folder(path)
    if judged is None:
        return held_out(opened(text, size=size, labelled=True), share=share, seed=seed)
    pair = [opened(text, split=split, size=size, labelled=True) for split in ("train", judged)]
    return Split(pair[0], pair[1], f"the folder {path / judged}")


def held_out(data: Dataset, *, share: float = HELD_OUT, seed: int = 0) -> Split:
    """Every class cut in two by the seed; a class of one image is learnt from alone."""
    if not 0 < share < 1:
        raise UserError(f"The share held out is {share}; give a number between 0 and 1, such as 0.2.")
    if not is_labelled(data) or len(data.classes) < 2:
        raise UserError(
            f"{data.name} has one class, {data.classes[0]!r}; training needs at least two, a folder for each."
        )
    judged: list[int] = []
    for label in range(len(data.classes)):
        rows = (data.labels == label).nonzero()[:, 0].cpu()
        order = random.permutation(random.keys(seed, 1), len(rows), stream=_STREAM + label)[0]
        judged += rows[order[: _count(len(rows), share)]].tolist()
    if not judged:
        raise UserError(
            f"{data.name} has one image a class, so none can be held out; give more, or test images."
        )
    chosen = torch.zeros(len(data), dtype=torch.bool)
    chosen[judged] = True
    how = f"{len(judged):,} of {len(data):,} images, {share:.0%} of each class, held out by seed {seed}"
    train, test = data.rows((~chosen).nonzero()[:, 0]), data.rows(chosen.nonzero()[:, 0])
    return Split(
        replace(train, name=f"{data.name} (learnt)"), replace(test, name=f"{data.name} (held out)"), how
    )


def _count(n: int, share: float) -> int:
    """At least one image held out and one left, where there are two."""
    return 0 if n < 2 else min(n - 1, max(1, round(share * n)))


def _split_folder(path: Path) -> str | None:
    """The split a folder is judged on: the first it has beside train."""
    if not (path / "train").is_dir():
        return None
    return next((name for name in SPLITS[1:] if (path / name).is_dir()), None)
