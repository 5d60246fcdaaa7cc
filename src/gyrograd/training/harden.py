"""Make the explanations of an existing classifier hold still: a few epochs of fine-tuning, and a card of the change."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gyrograd import records
from gyrograd.data import Dataset
from gyrograd.errors import UserError
from gyrograd.models import Normalized, save, spec_of
from gyrograd.models.checksums import signed_bytes
from gyrograd.models.opening import checked, image_size, notes, opened, place_of
from gyrograd.models.scripts import Scripted
from gyrograd.models.weights import read_tensors
from gyrograd.occupancy import sole_writer
from gyrograd.records import Record
from gyrograd.training import snapshots
from gyrograd.training.building import check_resume
from gyrograd.training.cookbook import merged
from gyrograd.training.hardened import CARD, card_of, card_text
from gyrograd.training.loop import fit, predictions
from gyrograd.training.measuring import Columns, Measuring, mean, record, weights_digest
from gyrograd.training.objective import objective_of
from gyrograd.training.settings import TrainSettings, as_tree, settings_from
from gyrograd.training.splits import Split, held_out, split_of
from gyrograd.types import Model

Says = Callable[[dict[str, Any]], None]
FILE = "hardened.safetensors"
LOOKED_AT = 8
"""Images a model is tried on before anything else is done."""
ROUNDING = 1e-9
"""A loss of exactly the limit is within it."""

DEFAULTS: dict[str, Any] = {
    "terms": {"l2_cosine": {"l2": 0.1, "cosine": 1.0, "eps": 4 / 255}},
    "optimizer": "adam",
    "lr": 1e-4,
    "schedule": "cosine",
    "schedule_every": "step",
    "batch_size": 64,
    "clip": 0.5,
}
"""joo2023's weights of LeNet and ResNet18 on CIFAR-10, and a rate for weights that are trained already."""


@dataclass(frozen=True, eq=False)
class Hardened:
    """The model with the weights of the chosen epoch, its records before and after, its file, and the card."""

    model: Model
    before: Record
    after: Record
    path: Path
    card: dict[str, Any]

    @property
    def better(self) -> bool:
        """Whether some epoch within the limit held stiller than the model as it came."""
        return bool(self.card["chosen_epoch"])


def harden(
    model: Model | str,
    data: Dataset | Path | str,
    *,
    out: Path | str,
    test: Dataset | None = None,
    epochs: int = 5,
    max_accuracy_loss: float = 0.01,
    measuring: Measuring | None = None,
    size: int | None = None,
    weights: Path | None = None,
    classes: int | None = None,
    normalize: str | None = None,
    seed: int = 0,
    device: str = "auto",
    resume: str = "auto",
    says: Says | None = None,
    **changes: Any,
) -> Hardened:
    """Fine-tune a classifier with l2 + cosine (joo2023, Eq. 5) and keep the epoch whose explanations hold stillest.

    After each epoch accuracy and Grad RPS are measured. An epoch that loses more accuracy than the limit ends the
    run; of the others, and of the model as it came, the one with the highest RPS is kept. A ReLU net will do: the
    penalty compares two gradients and needs their derivative to the weights alone, which is not zero though the
    second derivative to the input is (joo2023, Second order derivatives). Killed or interrupted, the same call
    goes on. The given module is left as it was.

    Args:
        model: a module, or what `models.opening.opened` takes: a checkpoint, torchvision:NAME, FILE.py:FACTORY, ...
        data: a data set, the name of one, or a folder of images. What has no test images has some held out.
        out: folder for weights, card, records and checkpoint.
        test: images to judge on, for a data set that is given.
        epochs: at most so many.
        max_accuracy_loss: largest loss of test accuracy, as a share of 1.
        measuring: on how many images, with which noise and attack.
        size: side of the images of a folder, where the model does not tell.
        weights, classes, normalize: of a model given by name, as in `opened`.
        seed: of order, noise and what is held out.
        device: auto, cpu, cuda, cuda:N.
        resume: auto, never or changed, as in `train`.
        says: told each epoch's log entry, with its accuracy and rps.
        changes: further settings of training: lr, batch_size, terms, part, ...
    """
    _check_limits(max_accuracy_loss, seed)
    place = place_of(device)
    given, source = _model(model, weights, classes, normalize, place)
    split = _split(data, test, size or image_size(given), seed)
    net = checked(given, split.test.to(place).pixels(torch.arange(min(LOOKED_AT, len(split.test)))))
    _check_classes(net, split, place)
    _check_trained(net, split, place)
    measuring = Measuring(seed=seed) if measuring is None else measuring
    tree = merged(merged(DEFAULTS, changes), {"epochs": epochs, "seed": seed, "device": place})
    settings = settings_from(tree)
    objective_of(settings)  # a term that does not exist is found before anything is measured
    settings = _identified(settings, given, source, split, measuring, max_accuracy_loss)
    job = Job(net, given, source, split, settings, measuring, max_accuracy_loss, Path(out), place, says)
    return job.run(resume)


@dataclass(frozen=True, eq=False)
class Job:
    """All that a run needs. `net` is `given` as logits: the same weights, perhaps behind a wrapper."""

    net: Model
    given: Model
    source: str
    split: Split
    settings: TrainSettings
    measuring: Measuring
    limit: float
    out: Path
    place: str
    says: Says | None = None

    def run(self, resume: str) -> Hardened:
        """Measure, train, choose, measure again, and write the card last."""
        check_resume(resume, self.out)
        with sole_writer(self.out, ranks=True):
            return self._run(resume)

    def _run(self, resume: str) -> Hardened:
        self._check_folder(resume)
        start = {key: value.detach().clone() for key, value in self.given.state_dict().items()}
        before, remarks = self._measured("before")
        floor = mean(before.values, "accuracy") - self.limit - ROUNDING
        watch = Watch(self, before.values, floor)
        done = fit(self.net, self.split.train, self.settings, out=self.out, resume=resume, on_epoch=watch)
        chosen = watch.best(len(done.history))
        self.given.load_state_dict(start if chosen == 0 else read_tensors(self.weights_path(chosen)))
        self.net.to(self.place)
        after, more = (before, remarks) if chosen == 0 else self._measured("after")
        remarks = [*notes(self.net), *_told_apart(remarks, more)]
        card = card_of(
            self.source,
            self.split,
            as_tree(self.settings),
            before,
            after,
            done.history,
            chosen,
            self.limit,
            remarks,
        )
        return self._written(before, after, card)

    def _written(self, before: Record, after: Record, card: dict[str, Any]) -> Hardened:
        """Weights, record, card."""
        path = self.out / FILE
        facts = {"hardened": self.source, "epoch": card["chosen_epoch"]}
        if spec_of(self.given) is not None:
            save(path, self.given, facts=facts)
        else:
            records.write_bytes(
                path, signed_bytes("gyrograd_hardened", facts, _plain_state(_own(self.given)))
            )
        records.write(self.out / "after.json", after)
        records.write_text(self.out / "card.md", card_text(card))
        records.write_text(self.out / CARD, json.dumps(card, indent=1) + "\n")
        return Hardened(self.given.eval(), before, after, path, card)

    def _measured(self, when: str) -> tuple[Record, list[str]]:
        """The record of the model as it is now; one of the same weights and images is not measured twice."""
        settings = {**self.judged_by, "weights": weights_digest(self.given)}
        path = self.out / f"{when}.json"
        if path.exists() and (known := records.read(path)).settings == settings:
            return known, list(known.facts["remarks"])
        columns, remarks = self.measuring.full(self.net.eval(), self.split.test.to(self.place))
        found = record(f"harden {when}", columns, settings, {"remarks": remarks, "torch": torch.__version__})
        records.write(path, found)
        return found, remarks

    @property
    def judged_by(self) -> dict[str, Any]:
        """What decides a measurement, apart from the weights."""
        own: dict[str, Any] = dict(self.settings.data_settings)
        return {"start": self.settings.start, "test": self.settings.test, **own["measuring"]}

    def weights_path(self, epoch: int) -> Path:
        """Where the weights of an epoch that may be chosen are kept."""
        return self.out / "epochs" / f"{epoch:04d}.safetensors"

    def _check_folder(self, resume: str) -> None:
        """A folder of another run, or one that cannot be written, is found before anything is computed for it."""
        checkpoint = self.out / snapshots.NAME
        found = snapshots.read(checkpoint) if self.out.is_dir() else None
        if found is not None and resume != "changed":
            snapshots.check_same_run(
                checkpoint, found, self.settings, snapshots.fingerprint(self.split.train)
            )
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.out):
                pass
        except OSError as trouble:
            raise UserError(
                f"{self.out} cannot be written ({trouble.strerror}); give another folder."
            ) from None


@dataclass(frozen=True, eq=False)
class Watch:
    """Called after each epoch: judges it, keeps the weights of the best within the limit, ends a run beyond it."""

    job: Job
    start: Columns
    floor: float

    def __call__(self, entry: dict[str, Any], model: Model) -> bool:
        job, epoch = self.job, int(entry["epoch"])
        columns = job.measuring.calm(model, job.split.test.to(job.place))
        entry["accuracy"], entry["rps"] = mean(columns, "accuracy"), mean(columns, "rps")
        records.write_bytes(
            job.weights_path(epoch), signed_bytes("gyrograd_epoch", {"epoch": epoch}, _plain_state(job.given))
        )
        # The record after the weights: an epoch that has a record can be chosen.
        records.write(
            self._path(epoch), record(f"harden epoch {epoch}", columns, job.judged_by, {"epoch": epoch})
        )
        best = self.best(epoch)
        for other in range(1, epoch + 1):
            if other != best:
                job.weights_path(other).unlink(missing_ok=True)
        if job.says is not None:
            job.says(entry)
        return bool(entry["accuracy"] < self.floor)

    def best(self, last: int) -> int:
        """The epoch up to `last` with the highest mean RPS among those within the limit; 0 is the start."""
        found = {epoch: records.read(self._path(epoch)).values for epoch in range(1, last + 1)}
        within = {epoch: mean(c, "rps") for epoch, c in found.items() if mean(c, "accuracy") >= self.floor}
        # The earliest of equals: the start first of all.
        return max({0: mean(self.start, "rps"), **within}.items(), key=lambda item: (item[1], -item[0]))[0]

    def _path(self, epoch: int) -> Path:
        return self.job.weights_path(epoch).with_suffix(".json")


def _model(
    model: Model | str, weights: Path | None, classes: int | None, normalize: str | None, place: str
) -> tuple[Model, str]:
    """The model to train, on its device, and what to call it."""
    if isinstance(model, str):
        found, source = (
            opened(model, weights=weights, classes=classes, normalize=normalize, device=place),
            model,
        )
    elif weights is not None or classes is not None or normalize is not None:
        raise UserError("weights, classes and normalize belong to a model given by name; leave them out.")
    else:
        spec = spec_of(model)
        found, source = copy.deepcopy(model).to(place).eval(), spec.name if spec else type(model).__name__
    if not any(weight.requires_grad for weight in found.parameters()):
        raise UserError(
            f"{source} has no weights that learn; unfreeze some (requires_grad_) before hardening."
        )
    try:
        found.train()
    except NotImplementedError:
        raise UserError(
            f"{source} is a fixed program without a training mode; harden the model it was made from."
        ) from None
    return found.eval(), source


def _split(data: Dataset | Path | str, test: Dataset | None, size: int | None, seed: int) -> Split:
    if isinstance(data, Dataset):
        return held_out(data, seed=seed) if test is None else Split(data, test, f"{test.name}, as given")
    if test is not None:
        raise UserError(
            "test images belong to a data set that is given; leave them out beside a name or folder."
        )
    return split_of(str(data), size=size, seed=seed)


def _identified(
    settings: TrainSettings, given: Model, source: str, split: Split, measuring: Measuring, limit: float
) -> TrainSettings:
    """The settings with all that tells this run from another: `fit` reads none of it and compares all of it."""
    return replace(
        settings,
        model=source,
        start=f"sha256 {weights_digest(given)}",
        data=split.train.name,
        data_settings={"measuring": measuring.settings, "max_accuracy_loss": limit},
        test={"sha256": split.test.digest()[:16]},
    )


def _check_limits(max_accuracy_loss: float, seed: int) -> None:
    if not 0 <= max_accuracy_loss <= 1:
        raise UserError(f"max_accuracy_loss is {max_accuracy_loss}; give a share from 0 to 1, such as 0.01.")
    if seed < 0:
        raise UserError(f"seed is {seed}; give 0 or more.")


def _check_classes(net: Model, split: Split, place: str) -> None:
    with torch.no_grad():
        k = net(split.test.to(place).pixels(torch.arange(1))).shape[1]
    if k != len(split.train.classes):
        raise UserError(
            f"The model has {k} classes and {split.train.name} has {len(split.train.classes)}; give a model that was "
            "trained on these classes, with --classes where it is made for them."
        )


def _check_trained(net: Model, split: Split, place: str) -> None:
    """A model that is right no more often than chance is untrained, or has its classes in another order."""
    test = split.test.to(place)
    right = float((predictions(net, test) == test.labels).double().mean())
    if right <= 1 / len(test.classes):
        order = ", ".join(test.classes[:3]) + (", ..." if len(test.classes) > 3 else "")
        raise UserError(
            f"The model is right on {right:.1%} of {test.name}, no more than chance; give a trained model, and see "
            f"that its classes stand in the order of the data's ({order}; a folder's go by name)."
        )


def _told_apart(before: list[str], after: list[str]) -> list[str]:
    """What was said of the model as it came, of the hardened one, or of both."""
    both = [remark for remark in before if remark in after]
    first = [f"Before: {remark}" for remark in before if remark not in after]
    return [*both, *first, *(f"After: {remark}" for remark in after if remark not in before)]


def _own(model: Model) -> Model:
    """The module as its author knows it, without what opening it put around it."""
    while isinstance(model, Normalized | Scripted):
        model = model.core
    return model


def _plain_state(model: Model) -> dict[str, Tensor]:
    """The weights as they are saved, under the model's own names."""
    return {key: value.detach().cpu().contiguous().clone() for key, value in model.state_dict().items()}
