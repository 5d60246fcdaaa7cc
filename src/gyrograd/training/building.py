"""A run's model and data out of its settings, and what can be known to go wrong before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import torch

from gyrograd.data import Dataset
from gyrograd.errors import UserError, check_name
from gyrograd.models import build, load
from gyrograd.numerics.modes import evaluating
from gyrograd.registry import make
from gyrograd.training import snapshots
from gyrograd.training.augmentation import check_augmentation
from gyrograd.training.objective import Objective
from gyrograd.training.processes import Group
from gyrograd.training.settings import TrainSettings, plain_values
from gyrograd.types import Model

Resume = Literal["auto", "never", "changed"]


def datasets(settings: TrainSettings) -> tuple[Dataset, Dataset | None]:
    """The training images and, where the settings name some, the test images."""
    with plain_values("data_settings"):
        data: Dataset = make("dataset", settings.data, **settings.data_settings)
        if settings.test is None:
            return data, None
        return data, make("dataset", settings.data, **settings.data_settings | settings.test)


def model_for(settings: TrainSettings, data: Dataset) -> Model:
    """The model, with a logit for each class of the data unless its settings say otherwise."""
    own = dict(settings.model_settings)
    if not own.get("pretrained"):
        own.setdefault("num_classes", len(data.classes))
    with plain_values("model_settings"):
        model = build(settings.model, **{"seed": settings.seed, **own})
    if settings.start is not None:
        _start_from(model, Path(settings.start))
    return model


def check_resume(resume: str, out: Path | None) -> None:
    """Refuse a way to resume that does not exist, and to begin anew over a run."""
    check_name("resume", resume, get_args(Resume))
    if resume == "never" and out is not None and (out / snapshots.NAME).exists():
        raise UserError(f"{out} holds a run already; give another folder, or resume auto to go on with it.")


def check_fit(
    model: Model,
    data: Dataset,
    test: Dataset | None,
    settings: TrainSettings,
    objective: Objective,
    group: Group,
) -> None:
    """Refuse what cannot train: classes that do not fit, bf16 under second derivatives, too many processes."""
    check_augmentation(data, settings)
    _check_classes(model, data, test)
    if settings.precision == "bf16" and objective.second_order and not settings.allow_bf16:
        raise UserError(
            "bf16 keeps eight bits and this objective differentiates a gradient, whose noise then drowns the signal; "
            "give precision tf32, or allow_bf16 true if you have compared the results."
        )
    if settings.precision != "bf16" and settings.precision != "fp32" and group.device.type != "cuda":
        raise UserError(
            f"precision {settings.precision} is of CUDA devices; on {group.device.type} give fp32."
        )
    smallest = len(data) % settings.batch_size or settings.batch_size
    if objective.fewest_rows(smallest) < group.share.of:
        raise UserError(
            f"A batch of {smallest} images leaves some of the {group.share.of} processes without one to train or "
            "regularise; give another batch_size, a larger part, or fewer processes."
        )


def _check_classes(model: Model, data: Dataset, test: Dataset | None) -> None:
    if len(data.classes) < 2:
        raise UserError(f"{data.name} has one class, {data.classes[0]!r}; training needs at least two.")
    if test is not None and test.classes != data.classes:
        raise UserError(
            f"{data.name} and {test.name} have different classes ({len(data.classes)} and {len(test.classes)}); "
            "give test images of the same ones."
        )
    with torch.no_grad(), evaluating(model):
        place = next(model.parameters()).device
        logits = model(data.pixels(torch.arange(1)).to(place))
    if logits.dim() != 2 or logits.shape[1] != len(data.classes):
        raise UserError(
            f"The model gives outputs of shape {tuple(logits.shape)} and {data.name} has {len(data.classes)} "
            f"classes; give the model num_classes={len(data.classes)}."
        )


def _start_from(model: Model, path: Path) -> None:
    there = load(path).state_dict()
    shapes = {key: value.shape for key, value in there.items()}
    if shapes != {key: value.shape for key, value in model.state_dict().items()}:
        raise UserError(
            f"The weights in {path} do not fit this model; give the settings it was trained with."
        )
    model.load_state_dict(there)
