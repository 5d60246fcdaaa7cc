"""`harden`: audit a classifier, fine-tune it at several strengths, audit the results, keep the best, write the card."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, get_args

import torch
from torch import Tensor

from gyrograd import records
from gyrograd.audit import Card, Preset, audit
from gyrograd.data import Dataset
from gyrograd.errors import UserError, check_counts, check_name
from gyrograd.hardening.card import CARD, Outcome, card_of, card_page, card_text, mean
from gyrograd.hardening.scores import audit_preset, best_score
from gyrograd.hardening.search import (
    Terms,
    Try,
    first_strength,
    next_strength,
    objective_settings,
    strength_limit,
    with_strength,
)
from gyrograd.models import Normalized, save, spec_of
from gyrograd.models.checksums import signed_bytes
from gyrograd.models.opening import check_model, image_size, notes, open_model, resolve_device
from gyrograd.models.scripts import Scripted
from gyrograd.models.weights import read_tensors
from gyrograd.numerics.copies import copy_of
from gyrograd.numerics.statistics import MIN_IMAGES_FOR_CI
from gyrograd.numerics.wording import few_images_note
from gyrograd.occupancy import exclusive_folder
from gyrograd.records import JsonObject
from gyrograd.registry import Settings
from gyrograd.training import fit, predictions, snapshots
from gyrograd.training.building import Split, held_out, split_of
from gyrograd.training.loop import EpochEntry, check_fit
from gyrograd.training.objective import equal_when_fast, objective_of
from gyrograd.training.processes import process_group
from gyrograd.training.runs import Resume
from gyrograd.training.settings import (
    TrainSettings,
    as_tree,
    decisive_settings,
    merge_settings,
    settings_from,
)
from gyrograd.training.steady import without_curvature
from gyrograd.training.trials import Columns, record, weights_digest
from gyrograd.types import Model

_Number = TypedDict("_Number", {"try": int})


class TryEpoch(_Number, EpochEntry):
    """An epoch of the `try`-th of at most `tries`; `left` are the seconds of training left, at most."""

    tries: int
    strength: float
    epochs: int
    terms: Terms
    left: float


Says = Callable[[TryEpoch], None]
FILE = "hardened.safetensors"
PLAN = "plan.json"
RESULT = "result.json"
TRIAL_IMAGES = 8
"""Images for a trial forward pass before any work."""
ROUNDING = 1e-9
"""Tolerance, so that a loss of exactly the limit counts as within it."""

DEFAULTS: Settings = {"optimizer": "adam", "lr": 1e-3, "schedule": "one_cycle", "batch_size": 64}
"""One-cycle learning rate: its slow start preserves the trained weights, and it ends at zero."""


@dataclass(frozen=True, eq=False)
class Hardened:
    """Result of `harden`: the hardened model (the original one if nothing was gained), both audits, file and card."""

    model: Model
    before: Card
    after: Card | None
    path: Path
    card: JsonObject

    @property
    def better(self) -> bool:
        """True if the explanations hold significantly further than before, within the limit on lost accuracy."""
        return bool(self.card["better"])


def harden(
    model: Model | str,
    data: Dataset | Path | str,
    *,
    out: Path | str,
    test: Dataset | None = None,
    objective: str | Mapping[str, Any] = "steady",
    epochs: int = 5,
    max_accuracy_loss: float = 0.01,
    tries: int = 4,
    images: int = 32,
    preset: str | Preset = "quick",
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
    """Fine-tune a classifier until its explanations hold further under attack, within a limit of lost accuracy.

    Several strengths of the objective (radii of the signed step) are tried, each for `epochs`, always starting from the
    model's own weights. Tries that lose too much accuracy on held-out images are dropped. Of the rest, the one whose
    best explanation holds furthest in an audit is kept, provided that it beats the original model in the same audit.
    The curvature penalty is dropped for nets without a second derivative (ReLU), and the card says so. After a kill or
    an interrupt the same call resumes. The given module is not changed.

    Args:
        model: a module, or anything `models.open_model` accepts: a checkpoint, torchvision:NAME, FILE.py:FACTORY, ...
        data: a data set, its name, or a folder of images. If it has no test split, some images are held out.
        out: folder for the weights, the card, both audits and the tries.
        test: test images, if `data` is a `Dataset`.
        objective: steady, l2_cosine, or your own training settings with `terms`.
        epochs: epochs per try.
        max_accuracy_loss: largest accepted loss of test accuracy, as a fraction: 0.01 is one point.
        tries: largest number of strengths to try.
        images: number of test images to explain and attack, before and after.
        preset: thoroughness of the audits: quick, standard, thorough or a `Preset`.
        size: image side for a folder of images, if the model does not determine it.
        weights, classes, normalize: for a model given by name, as in `open_model`.
        seed: seed of the batch order, noise, attacks and the held-out split.
        device: auto, cpu, cuda, cuda:N.
        resume: auto, never or changed, as in `train`.
        says: callback for the log entry of each epoch: accuracy, try, and an upper bound of the seconds left.
        changes: further training settings: lr, batch_size, flip, crop, regularized_fraction, ...

    Returns:
        The model, both audits, the path of the weights, and the card.

    Raises:
        UserError: one sentence that names the fix; raised before any computation if possible.

    >>> import gyrograd as gg
    >>> learnt, unseen = gg.dataset("shapes", n=200), gg.dataset("shapes", split="test", n=50)
    >>> untrained = gg.model("lenet", num_classes=10, seed=0)
    >>> try:
    ...     hardened = gg.harden(untrained, learnt, test=unseen, out="hard", max_accuracy_loss=0.02)
    ... except gg.UserError as refused:
    ...     print(refused)
    The model is right on ... of shapes test, no more than chance; give a trained model, ...

    With a trained model: the tutorial "Harden a timm model".
    """
    _check_numbers(max_accuracy_loss, seed, tries, images)
    own = objective_settings(objective) if isinstance(objective, str) else dict(objective)
    place = resolve_device(device)
    given, source = _model(model, weights, classes, normalize, place)
    split = _split_data(data, test, size or image_size(given), seed)
    net = check_model(given, split.test.to(place).pixels(torch.arange(min(TRIAL_IMAGES, len(split.test)))))
    _check_trained(net, split, place)
    tree = merge_settings(
        merge_settings(merge_settings(DEFAULTS, own), changes),
        {"epochs": epochs, "seed": seed, "device": place},
    )
    settings, left_out = _adapt_settings(settings_from(tree), net, split, place)
    if not settings.terms:
        raise UserError(
            "The objective has no term that makes explanations hold; give steady, l2_cosine, or settings with terms."
        )
    check_fit(net, split.train, split.test, settings, objective_of(settings), process_group(settings))
    count = min(images, len(split.test))
    run = HardeningRun(
        net, given, source, weights_digest(given), split, settings, left_out, max_accuracy_loss, tries, count,
        audit_preset(preset, count), Path(out), place, says,
    )  # fmt: skip
    return run.run(resume)


@dataclass(frozen=True, eq=False)
class HardeningRun:
    """The state of one run. `net` returns the logits of `given`: the same weights, perhaps behind a wrapper."""

    net: Model
    given: Model
    source: str
    start: str
    """Digest of the original weights."""
    split: Split
    settings: TrainSettings
    notes: tuple[str, ...]
    limit: float
    tries: int
    images: int
    preset: Preset
    out: Path
    place: str
    says: Says | None = None

    def run(self, resume: str) -> Hardened:
        """Audit, try the strengths one by one, audit those that hold, and write the card last."""
        check_name("resume", resume, get_args(Resume))
        if resume == "never" and (self.out / PLAN).exists():
            raise UserError(
                f"{self.out} holds a run already; give another folder, or resume auto to go on with it."
            )
        with exclusive_folder(self.out):
            return self._run(resume)

    def _run(self, resume: str) -> Hardened:
        start = {key: value.detach().clone() for key, value in self.given.state_dict().items()}
        self._begin(resume)
        before, accuracy = self._audit(self.out / "before", self.source), self._correct_per_image()
        tried = self._search(start, sum(accuracy) / len(accuracy) - self.limit - ROUNDING, resume)
        audits = {}
        for one in (one for one in tried if one.holds):
            self._load(self._weights_of(one))
            audits[one] = self._audit(self._folder(one.strength) / "audit", f"{self.source}, hardened")
        # The strongest try is not always the steadiest: beyond some strength maps move more again.
        chosen = max(audits, key=lambda one: mean(best_score(audits[one], self.preset).kept), default=None)
        after, reached = None, accuracy
        if chosen is not None:
            after = audits[chosen]
            after.save(self.out / "after")
            self._load(self._weights_of(chosen))
            reached = self._correct_per_image()
        results = [records.read(self._folder(one.strength) / RESULT) for one in tried]
        seconds = sum(float(result.facts["seconds"]) for result in results)
        few = [few_images_note(self.images)] if self.images < MIN_IMAGES_FOR_CI else []
        found = Outcome(
            self.source, self.split, as_tree(self.settings), self.preset, self.limit, tried, chosen, before, after,
            (accuracy, reached), seconds, [*self.notes, *few, *notes(self.net)],
            {one.strength: mean(best_score(card, self.preset).kept) for one, card in audits.items()},
        )  # fmt: skip
        if not found.better:
            self._load(start)
        return self._write(found)

    def _search(self, start: dict[str, Tensor], floor: float, resume: str) -> list[Try]:
        """All tries, in order. Results are read from their files, so a restarted run repeats the same decisions."""
        tried: list[Try] = []
        first, limit = first_strength(self.settings.terms), strength_limit(self.settings.terms)
        while (strength := next_strength(tried, first, self.tries, limit)) is not None:
            accuracy = self._fine_tune(strength, len(tried) + 1, start, resume)
            tried.append(Try(strength, accuracy, accuracy >= floor))
        return tried

    def _fine_tune(self, strength: float, number: int, start: dict[str, Tensor], resume: str) -> float:
        """Fine-tune at this strength, unless an earlier run did, and return the accuracy."""
        folder = self._folder(strength)
        settings = replace(self.settings, terms=with_strength(self.settings.terms, strength))
        decided = self._decisive_values(settings)
        path = folder / RESULT
        if not path.exists() or decisive_settings(records.read(path).settings) != decided:
            self._load(start)
            watch = EpochReporter(self, strength, number)
            done = fit(self.net, self.split.train, settings, out=folder, resume=resume, on_epoch=watch)
            facts = {"seconds": sum(entry["seconds"] for entry in done.history), "epochs": done.history}
            records.write_bytes(
                folder / "weights.safetensors", signed_bytes("gyrograd_try", {}, _plain_state(self.given))
            )
            # Written after the weights: a try with a result must have weights to choose.
            columns: Columns = {"accuracy": [*self._correct_per_image()]}
            records.write(path, record(f"harden {strength:g}", columns, decided, facts))
        (folder / snapshots.NAME).unlink(missing_ok=True)
        right = records.read(path).values["accuracy"]
        return sum(value or 0.0 for value in right) / len(right)

    def _weights_of(self, one: Try) -> dict[str, Tensor]:
        return read_tensors(self._folder(one.strength) / "weights.safetensors")

    def _correct_per_image(self) -> list[float]:
        """1.0 per held-out image that is classified correctly, else 0.0."""
        test = self.split.test.to(self.place)
        return (predictions(self.net, test) == test.labels).double().tolist()

    def _audit(self, folder: Path, name: str) -> Card:
        """Audit the net as it is now, resuming what the folder already holds. `name` is the net's name on the card."""
        test, seed = self.split.test, self.settings.seed
        card = audit(
            self.net.eval(),
            test.subset(self.images, seed),
            preset=self.preset,
            out=folder,
            seed=seed,
            names=[f"{test.name} {row}" for row in test.chosen(self.images, seed).tolist()],
            model_name=name,
            data_name=test.name,
        )
        assert isinstance(card, Card)  # a data set holds images
        return card

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        self.given.load_state_dict(dict(weights))
        self.net.to(self.place).eval()

    def _folder(self, strength: float) -> Path:
        return self.out / "tries" / f"{strength:.6g}"

    def _decisive_values(self, settings: TrainSettings) -> JsonObject:
        """Everything that determines the weights and the accuracy of a try, as JSON values."""
        tree = decisive_settings(as_tree(settings))
        own = {
            "model": self.source,
            "start": self.start,
            "data": snapshots.fingerprint(self.split.train),
            "test": self.split.test.digest()[:16],
        }
        return dict(json.loads(json.dumps(tree | own)))

    def _begin(self, resume: str) -> None:
        """Write the plan. A folder that is read-only or holds another run is an error here, before any work."""
        path = self.out / PLAN
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.out):
                pass
        except OSError as trouble:
            raise UserError(
                f"{self.out} cannot be written ({trouble.strerror}); give another folder."
            ) from None
        own = {
            "max_accuracy_loss": self.limit,
            "tries": self.tries,
            "images": self.images,
            "preset": asdict(self.preset),
        }
        plan = self._decisive_values(self.settings) | dict(json.loads(json.dumps(own)))
        if path.exists() and resume != "changed":
            snapshots.check_same_settings(path, plan, _read_plan(path))
        records.write_text(path, json.dumps(plan, indent=1) + "\n")

    def _write(self, found: Outcome) -> Hardened:
        """Write the weights, then the card."""
        path, card = self.out / FILE, card_of(found)
        facts = {"hardened": self.source, "strength": card["chosen"]}
        if spec_of(self.given) is not None:
            save(path, self.given, facts=facts)
        else:
            own = self.given  # without the wrappers that opening it added
            while isinstance(own, Normalized | Scripted):
                own = own.core
            records.write_bytes(path, signed_bytes("gyrograd_hardened", facts, _plain_state(own)))
        records.write_text(self.out / "card.md", card_text(card))
        records.write_text(self.out / "report.html", card_page(card, found))
        records.write_text(self.out / CARD, json.dumps(card, indent=1) + "\n")
        return Hardened(self.given.eval(), found.before, found.after, path, card)


@dataclass(frozen=True, eq=False)
class EpochReporter:
    """Epoch callback: measures the accuracy and reports an upper bound of the time left."""

    run: HardeningRun
    strength: float
    number: int

    def __call__(self, entry: EpochEntry, model: Model) -> None:  # noqa: ARG002
        run, epochs = self.run, self.run.settings.epochs
        right = run._correct_per_image()
        entry["accuracy"] = sum(right) / len(right)
        if run.says is not None:
            rest = (run.tries - self.number) * epochs + epochs - entry["epoch"]
            run.says(
                {
                    **entry,
                    "try": self.number,
                    "tries": run.tries,
                    "strength": self.strength,
                    "epochs": epochs,
                    "terms": run.settings.terms,
                    "left": rest * entry["seconds"],
                }
            )


def _adapt_settings(
    settings: TrainSettings, net: Model, split: Split, place: str
) -> tuple[TrainSettings, tuple[str, ...]]:
    """The settings that this net and this device support, with a sentence per omission."""
    left_out: tuple[str, ...] = ()
    objective = objective_of(settings)
    if "hessian" in settings.terms:
        rows = torch.arange(min(objective.fewest_rows(settings.batch_size), len(split.train)))
        x, y = split.train.pixels(rows).to(place), split.train.labels[rows].to(place)
        why = without_curvature(net, x, y)
        if why is not None:
            left_out = (f"The curvature penalty is left out: {why}.",)
            terms = {name: term for name, term in settings.terms.items() if name != "hessian"}
            settings = replace(settings, terms=terms)
            objective = objective_of(settings)
    if place.startswith("cuda"):
        settings = replace(settings, precision="tf32", fast=equal_when_fast(objective, net))
    return settings, left_out


def _model(
    model: Model | str, weights: Path | None, classes: int | None, normalize: str | None, place: str
) -> tuple[Model, str]:
    """The model to train, on its device, and its name."""
    if isinstance(model, str):
        found, source = (
            open_model(model, weights=weights, classes=classes, normalize=normalize, device=place),
            model,
        )
    elif weights is not None or classes is not None or normalize is not None:
        raise UserError("weights, classes and normalize are for a model given by name; leave them out.")
    else:
        spec = spec_of(model)
        found, source = copy_of(model).to(place).eval(), spec.name if spec else type(model).__name__
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


def _split_data(data: Dataset | Path | str, test: Dataset | None, size: int | None, seed: int) -> Split:
    if isinstance(data, Dataset):
        return held_out(data, seed=seed) if test is None else Split(data, test, f"{test.name}, as given")
    if test is not None:
        raise UserError(
            "test goes with a data set in memory; a name or a folder brings its own test images, so leave it out."
        )
    return split_of(str(data), size=size, seed=seed)


def _check_numbers(max_accuracy_loss: float, seed: int, tries: int, images: int) -> None:
    if not 0 <= max_accuracy_loss <= 1:
        raise UserError(
            f"max_accuracy_loss is {max_accuracy_loss}; give a fraction from 0 to 1, such as 0.01."
        )
    if seed < 0:
        raise UserError(f"seed is {seed}; give 0 or more.")
    check_counts(tries=tries, images=images)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("harden runs in one process; start it without torchrun.")


def _read_plan(path: Path) -> JsonObject:
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        plan = None
    if not isinstance(plan, dict):
        raise UserError(f"{path} is damaged; delete the folder, or give another one (--out).")
    return decisive_settings(plan)


def _check_trained(net: Model, split: Split, place: str) -> None:
    """Refuse a model of other classes, or one no better than chance: untrained, or its classes in another order."""
    test = split.test.to(place)
    with torch.no_grad():
        k = net(test.pixels(torch.arange(1))).shape[1]
    if k != len(split.train.classes):
        raise UserError(
            f"The model has {k} classes and {split.train.name} has {len(split.train.classes)}; give a model that was "
            "trained on these classes, or set the number of classes (--classes) if the model is built by name."
        )
    right = float((predictions(net, test) == test.labels).double().mean())
    if right <= 1 / len(test.classes):
        order = ", ".join(test.classes[:3]) + (", ..." if len(test.classes) > 3 else "")
        raise UserError(
            f"The model is right on {right:.1%} of {test.name}, no more than chance; give a trained model, and check "
            f"that its classes are in the order of the data's ({order}; folders are sorted by name)."
        )


def _plain_state(model: Model) -> dict[str, Tensor]:
    """The state dict as contiguous CPU copies, ready to save."""
    return {key: value.detach().cpu().contiguous().clone() for key, value in model.state_dict().items()}
