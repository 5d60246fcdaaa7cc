"""Trained nets, stored by a hash of everything that determines their weights, so that experiments share them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypedDict, get_args

from gyrograd.errors import UserError, check_name, did_you_mean
from gyrograd.experiments.samples import images_of
from gyrograd.measurement import fingerprint
from gyrograd.models import build, load, save, zoo
from gyrograd.occupancy import wait_for_lock
from gyrograd.registry import Settings, make
from gyrograd.regularizers.passes import BatchNorm
from gyrograd.renames import with_new_names
from gyrograd.training import Objective, Term, TrainSettings, fit
from gyrograd.training.objective import equal_when_fast, runs_fast
from gyrograd.training.settings import OLD_FIELDS
from gyrograd.types import Model

DECIDED = {
    "model", "model_settings", "start", "data", "data_settings", "test", "terms", "cross_entropy", "seed", "device",
    "milestones",
}  # fmt: skip
"""Settings that the experiment determines and --train cannot change: model, data, objective, seed, device."""
BATCHNORM = "batchnorm"
"""The one setting of a term that `--train` may change: which statistics its extra passes use."""


class WeightedTerm(TypedDict, total=False):
    """A regulariser's weight in the objective (1 if left out), and its own settings."""

    weight: float
    settings: Settings


@dataclass(frozen=True)
class Net:
    """A net and how it is trained, in plain values.

    model: its name and what `gyrograd.model` takes. sizes: data, side, train, epochs, batch_size. recipe: settings
    of `TrainSettings`; its `milestones` are shares of the epochs. terms: regularisers by name. teacher: the net
    ATEX learns from and starts at.
    """

    label: str
    model: Mapping[str, Any]
    sizes: Mapping[str, Any]
    recipe: Mapping[str, Any] = field(default_factory=dict)
    terms: Mapping[str, WeightedTerm] = field(default_factory=dict)
    seed: int = 0
    teacher: Net | None = None


@dataclass(frozen=True)
class PretrainedNet:
    """A net trained elsewhere: a file of weights for a model by name and settings. `label` names it."""

    label: str
    path: Path
    model: Mapping[str, Any]


def net_key(net: Net | PretrainedNet) -> str:
    """A fingerprint of twelve digits; nets whose weights can differ have different ones."""
    if isinstance(net, PretrainedNet):
        if not net.path.is_file():
            raise UserError(
                f"There are no weights at {net.path}; put them there, or set GYROGRAD_DATA to their folder."
            )
        return fingerprint([dict(net.model), hashlib.sha256(net.path.read_bytes()).hexdigest()])
    teacher = net_key(net.teacher) if net.teacher else None
    # Uses the old names of settings, so that nets trained before a rename are found.
    before = {new: old for old, new in OLD_FIELDS.items()}
    plain = [net.model, net.sizes, with_new_names(net.recipe, before), net.terms, net.seed, teacher]
    return fingerprint(json.loads(json.dumps(plain, default=dict)))


def train_or_load(net: Net | PretrainedNet, folder: Path, device: str = "cpu") -> Model:
    """Load the net if it exists, else train it (resuming a stopped run); in evaluation mode on the device.

    If another process is training the net, this one waits and loads it, so experiments can run in parallel.
    """
    if not is_there(net, folder):
        assert isinstance(net, Net)
        path = net_path(net, folder)
        with wait_for_lock(lock_path(net, folder), f"{net.label}, seed {net.seed}"):
            if not path.exists():
                _train(net, path, folder, device)
    return read_net(net, folder, device)


def is_there(net: Net | PretrainedNet, folder: Path) -> bool:
    """Whether the net needs no training: it is pretrained, or an earlier run trained it."""
    return isinstance(net, PretrainedNet) or net_path(net, folder).exists()


def read_net(net: Net | PretrainedNet, folder: Path, device: str = "cpu") -> Model:
    """Load a net that exists, in evaluation mode on the device."""
    if isinstance(net, PretrainedNet):
        settings = dict(net.model)
        given: Model
        if net.path.is_relative_to(zoo.HOME):
            given = zoo.load(net.path.parent.relative_to(zoo.HOME).as_posix())
        else:
            given = build(settings.pop("name"), weights=net.path, **settings)
        return given.to(device).eval()
    return load(net_path(net, folder)).to(device).eval()


def net_path(net: Net, folder: Path) -> Path:
    """The path of a net's weights."""
    slug = re.sub(r"[^a-z0-9]+", "-", f"{net.model['name']} {net.label} {net.seed}".lower()).strip("-")
    return folder / f"{slug}-{net_key(net)}.safetensors"


def lock_path(net: Net, folder: Path) -> Path:
    """The lock file held by the process that trains the net."""
    path = net_path(net, folder)
    return path.with_name(f".{path.stem}.writer")


def _train(net: Net, path: Path, folder: Path, device: str) -> None:
    data = images_of(net.sizes, "train")
    start = train_or_load(net.teacher, folder, device) if net.teacher else None
    model = built(net, len(data.classes))
    if start is not None:
        model.load_state_dict(start.state_dict())
    objective = objective_of(net, start)
    if device.startswith("cuda") and equal_when_fast(objective, model):
        objective = replace(objective, fast=True)
    fit(
        model.to(device),
        data.to(device),
        replace(train_settings(net, device), fast=objective.fast),
        objective=objective,
        out=path.with_suffix(""),
    )
    save(path, model.cpu(), facts={"label": net.label, "seed": net.seed, "data": data.name})
    # Keep the log of the finished run, but not its checkpoint, which is three times as large as the net.
    run = path.with_suffix("")
    if (run / "log.jsonl").exists():
        (run / "log.jsonl").replace(path.with_suffix(".jsonl"))
    shutil.rmtree(run)


def built(net: Net, classes: int) -> Model:
    """The net before training."""
    settings = {"num_classes": classes, **net.model}
    model: Model = build(settings.pop("name"), seed=net.seed, **settings)
    return model


def objective_of(net: Net, teacher: Model | None = None) -> Objective:
    """The training objective of a net."""
    terms = {}
    for name, term in net.terms.items():
        own = {**term.get("settings", {}), **({"teacher": teacher} if teacher is not None else {})}
        terms[name] = Term(make("regularizer", name, **own), float(term.get("weight", 1.0)))
    names = ("label_smoothing", "regularized_fraction", "regularize_every")
    shape = {key: net.recipe[key] for key in names if key in net.recipe}
    # `fast` changes how cross-entropy and a penalty are computed; it has no version for terms that search (iga, ...).
    fast = bool(net.recipe.get("fast")) and runs_fast(terms.values())
    return Objective(terms, net.recipe.get("cross_entropy"), **shape, fast=fast)


def checked_changes(changes: Mapping[str, Any]) -> Settings:
    """The changes given by --train, if `TrainSettings` has them and the experiment does not determine them itself."""
    known = {f.name for f in fields(TrainSettings)} - DECIDED | {BATCHNORM}
    changes = with_new_names(changes, OLD_FIELDS, warn=True)
    for key in changes:
        if key not in known:
            raise UserError(f"train has no setting '{key}' to change: {did_you_mean(key, known)}")
    if BATCHNORM in changes:
        check_name(BATCHNORM, str(changes[BATCHNORM]), get_args(BatchNorm))
    # raises for invalid values
    TrainSettings(**{key: value for key, value in changes.items() if key != BATCHNORM})
    return changes


def train_settings(net: Net, device: str = "cpu") -> TrainSettings:
    """Training settings of a net; milestones are converted from shares of the training to epochs."""
    recipe = {**net.recipe, **{key: net.sizes[key] for key in ("epochs", "batch_size") if key in net.sizes}}
    shares = recipe.pop("milestones", ())
    epochs = [max(1, round(share * recipe["epochs"])) for share in shares]
    within = tuple(dict.fromkeys(epoch for epoch in epochs if epoch < recipe["epochs"]))
    schedule = {"schedule": "multi_step", "milestones": within} if within else {"schedule": "constant"}
    return TrainSettings(
        **{**({} if "schedule" in recipe else schedule), **recipe}, seed=net.seed, device=device
    )
