"""Build a run's model and data from its settings, and split data sets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gyrograd.data import Dataset, parquet
from gyrograd.data.folder import SPLITS
from gyrograd.data.opening import is_labelled, is_registered, open_data
from gyrograd.errors import UserError, plain_values
from gyrograd.models import build, load
from gyrograd.numerics import random
from gyrograd.registry import make
from gyrograd.training.settings import TrainSettings
from gyrograd.training.snapshots import load_weights
from gyrograd.types import Model

HELD_OUT = 0.2
"""Share of each class that is held out if a set has no splits."""
_STREAM = 1 << 34  # not used by the order of an epoch or the choice of a subset


def datasets(settings: TrainSettings) -> tuple[Dataset, Dataset | None]:
    """The training images and, if the settings name any, the test images."""
    if not is_registered(settings.data) and Path(settings.data).expanduser().exists():
        raise UserError(f"data is a path; give --data folder --data_settings.path {settings.data}.")
    with plain_values("data_settings"):
        data: Dataset = make("dataset", settings.data, **settings.data_settings)
        if settings.test is None:
            return data, None
        different = {key for key, value in settings.test.items() if settings.data_settings.get(key) != value}
        if different <= {"n", "limit"}:
            raise UserError(
                "test has the images of training; name others, such as --test.split test, or leave test out."
            )
        return data, make("dataset", settings.data, **settings.data_settings | settings.test)


def model_for(settings: TrainSettings, data: Dataset) -> Model:
    """The model, with one logit per class of the data unless its settings say otherwise."""
    if ".py:" in settings.model:
        raise UserError(
            f"train builds models by name, and {settings.model} is a file of your own; train it in Python with "
            "gyrograd.training.fit, or give it to gyrograd harden if it is trained."
        )
    own = dict(settings.model_settings)
    if not own.get("pretrained"):
        own.setdefault("num_classes", len(data.classes))
    with plain_values("model_settings"):
        model = build(settings.model, **{"seed": settings.seed, **own})
    if settings.start is not None:
        path = Path(settings.start)
        misfit = f"The weights in {path} do not fit this model; give the settings it was trained with."
        load_weights(model, load(path).state_dict(), misfit)
    return model


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test set, and a sentence on where the test set comes from."""

    train: Dataset
    test: Dataset
    how: str


def split_of(text: str, *, size: int | None = None, share: float = HELD_OUT, seed: int = 0) -> Split:
    """The splits of a registered set or a folder; a folder without splits is divided by `held_out`.

    Args:
        text: a name of `gyrograd list dataset`, or a folder with a sub-folder for each class, perhaps below train
            and val (valid, validation, test).
        size: side of the square images; a folder needs it.
        share: of each class, held out if there are no splits.
        seed: which images are held out.
    """
    if is_registered(text):
        pair = [open_data(text, split=split, size=size) for split in ("train", "test")]
        return Split(pair[0], pair[1], f"the test split of {text}")
    path = Path(text).expanduser()
    tables = path.is_dir() and parquet.holds_tables(path)
    known = set(parquet.files_by_split(path)) if tables else {n for n in SPLITS if (path / n).is_dir()}
    judged = next((name for name in (*SPLITS[1:], "dev") if name in known), None)
    if tables and judged is not None and "train" not in known:
        raise UserError(
            f"{path} has no split train, only {', '.join(sorted(known))}; give a folder that has it."
        )
    if judged is None or "train" not in known:
        # Beside folders of other names "train" is a class.
        beside = {child.name for child in path.iterdir() if child.is_dir()} if path.is_dir() else set()
        split = "train" if beside == {"train"} else None
        return held_out(open_data(text, split=split, size=size, labelled=True), share=share, seed=seed)
    pair = [open_data(text, split=split, size=size, labelled=True) for split in ("train", judged)]
    return Split(
        pair[0], pair[1], f"the split {judged} of {path}" if tables else f"the folder {path / judged}"
    )


def held_out(data: Dataset, *, share: float = HELD_OUT, seed: int = 0) -> Split:
    """Split every class by the seed; a class of one image is only trained on."""
    if not 0 < share < 1:
        raise UserError(f"The fraction held out is {share}; give a number between 0 and 1, such as 0.2.")
    if not is_labelled(data) or len(data.classes) < 2:
        raise UserError(
            f"{data.name} has one class, {data.classes[0]!r}; training needs at least two, a folder for each."
        )
    judged: list[int] = []
    for label in range(len(data.classes)):
        rows = (data.labels == label).nonzero()[:, 0].cpu()
        order = random.permutation(random.keys(seed, 1), len(rows), stream=_STREAM + label)[0]
        # At least one image, and at least one is left, if there are two.
        count = 0 if len(rows) < 2 else min(len(rows) - 1, max(1, round(share * len(rows))))
        judged += rows[order[:count]].tolist()
    if not judged:
        raise UserError(
            f"{data.name} has one image per class, so none can be held out; give more, or test images."
        )
    chosen = torch.zeros(len(data), dtype=torch.bool)
    chosen[judged] = True
    how = f"{len(judged):,} of {len(data):,} images, {share:.0%} of each class, held out by seed {seed}"
    train, test = data.rows((~chosen).nonzero()[:, 0]), data.rows(chosen.nonzero()[:, 0])
    return Split(
        replace(train, name=f"{data.name} (learnt)"), replace(test, name=f"{data.name} (held out)"), how
    )
