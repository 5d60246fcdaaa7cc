"""Make the explanations of an existing classifier hold still: a few epochs of fine-tuning, and a card of the change."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from gyrograd import records
from gyrograd.audit import Card, Preset
from gyrograd.data import Dataset
from gyrograd.errors import UserError, check_counts, check_name
from gyrograd.hardening.card import CARD, Outcome, card_of, card_page, card_text, mean
from gyrograd.hardening.judging import best_held, judged, yardstick
from gyrograd.hardening.search import Try, first_strength, next_strength, objective_settings, with_strength
from gyrograd.models import Normalized, save, spec_of
from gyrograd.models.checksums import signed_bytes
from gyrograd.models.opening import check_model, image_size, notes, open_model, place_of
from gyrograd.models.scripts import Scripted
from gyrograd.models.weights import read_tensors
from gyrograd.occupancy import exclusive_folder
from gyrograd.training import fit, predictions, snapshots
from gyrograd.training.building import Resume, Split, check_fit, held_out, split_of
from gyrograd.training.objective import equal_when_fast, objective_of
from gyrograd.training.processes import process_group
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

Says = Callable[[dict[str, Any]], None]
FILE = "hardened.safetensors"
PLAN = "plan.json"
LOOKED_AT = 8
"""Images a model is tried on before anything else is done."""
ROUNDING = 1e-9
"""A loss of exactly the limit is within it."""

DEFAULTS: dict[str, Any] = {
    "optimizer": "adam",
    "lr": 1e-3,
    "schedule": "one_cycle",
    "batch_size": 64,
}
"""A rate that rises first, so that trained weights are not thrown away, and falls to zero for the last steps."""


@dataclass(frozen=True, eq=False)
class Hardened:
    """The hardened model (or the one that came, if nothing was gained), both audits, its file, and the card."""

    model: Model
    before: Card
    after: Card | None
    path: Path
    card: dict[str, Any]

    @property
    def better(self) -> bool:
        """Whether its explanations hold further than those of the model that came, within the limit."""
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

    The model is trained from its own weights at one strength of the objective after another (the radius of the signed
    step), each for `epochs`. Of those whose accuracy on the held-out images is within the limit, the one whose best
    explanation holds furthest is kept, if it holds further than that of the model as it came: the same audit tells.
    The curvature penalty is left out where a net has no second derivative (ReLU), and the card says so. Killed or
    interrupted, the same call goes on. The given module is left as it was.

    Args:
        model: a module, or what `models.open_model` takes: a checkpoint, torchvision:NAME, FILE.py:FACTORY, ...
        data: a data set, the name of one, or a folder of images. What has no test images has some held out.
        out: folder for the weights, the card, both audits and the tries.
        test: images to judge on, for a data set that is given.
        objective: steady, l2_cosine, or settings of training of your own with `terms`.
        epochs: of each try.
        max_accuracy_loss: largest loss of test accuracy, as a share of 1.
        tries: largest number of strengths to try.
        images: test images that are explained and attacked, before and after.
        preset: how thoroughly they are audited: quick, standard, thorough or a `Preset`.
        size: side of the images of a folder, where the model does not tell.
        weights, classes, normalize: of a model given by name, as in `open_model`.
        seed: of order, noise, attacks and what is held out.
        device: auto, cpu, cuda, cuda:N.
        resume: auto, never or changed, as in `train`.
        says: told each epoch's log entry, with its accuracy, its try and the seconds left at most.
        changes: further settings of training: lr, batch_size, flip, crop, regularized_fraction, ...

    Returns:
        The model, both audits, the file of the weights and the card.

    Raises:
        UserError: one sentence that names the fix, before anything is computed wherever that can be known.

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
    place = place_of(device)
    given, source = _model(model, weights, classes, normalize, place)
    split = _split(data, test, size or image_size(given), seed)
    net = check_model(given, split.test.to(place).pixels(torch.arange(min(LOOKED_AT, len(split.test)))))
    _check_classes(net, split, place)
    _check_trained(net, split, place)
    tree = merge_settings(
        merge_settings(merge_settings(DEFAULTS, own), changes),
        {"epochs": epochs, "seed": seed, "device": place},
    )
    settings, left_out = _fitting(settings_from(tree), net, split, place)
    check_fit(net, split.train, None, settings, objective_of(settings), process_group(settings))
    count = min(images, len(split.test))
    run = Hardening(
        net, given, source, weights_digest(given), split, settings, left_out, max_accuracy_loss, tries, count,
        yardstick(preset, count), Path(out), place, says,
    )  # fmt: skip
    return run.run(resume)


@dataclass(frozen=True, eq=False)
class Hardening:
    """All that a run needs. `net` is `given` as logits: the same weights, perhaps behind a wrapper."""

    net: Model
    given: Model
    source: str
    start: str
    """Digest of the weights it came with."""
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
        """Audit, try one strength after another, audit the best, and write the card last."""
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
        before, accuracy = self._audited(self.out / "before", self.source), self._right()
        tried = self._search(start, sum(accuracy) / len(accuracy) - self.limit - ROUNDING, resume)
        audits = {}
        for one in (one for one in tried if one.holds):
            self._load(self._weights_of(one))
            folder, name = self._folder(one.strength) / "audit", f"{self.source}, hardened"
            audits[one] = self._audited(folder, name)
        # Strength alone does not decide: far beyond what the images bear, maps move more again.
        chosen = max(audits, key=lambda one: mean(best_held(audits[one], self.preset).kept), default=None)
        after, reached = None, accuracy
        if chosen is not None:
            after = audits[chosen]
            after.save(self.out / "after")
            self._load(self._weights_of(chosen))
            reached = self._right()
        found = Outcome(
            self.source, self.split, as_tree(self.settings), self.preset, self.limit, tried, chosen, before, after,
            (accuracy, reached), sum(self._seconds(one) for one in tried), [*self.notes, *notes(self.net)],
            {one.strength: mean(best_held(card, self.preset).kept) for one, card in audits.items()},
        )  # fmt: skip
        if not found.better:
            self._load(start)
        return self._written(found)

    def _search(self, start: dict[str, Tensor], floor: float, resume: str) -> list[Try]:
        """Every strength that is tried, in order. Its results are in files, so a killed run retraces its steps."""
        tried: list[Try] = []
        first = first_strength(self.settings.terms)
        while (strength := next_strength(tried, first, self.tries)) is not None:
            accuracy = self._tried(strength, len(tried) + 1, start, resume)
            tried.append(Try(strength, accuracy, accuracy >= floor))
        return tried

    def _tried(self, strength: float, number: int, start: dict[str, Tensor], resume: str) -> float:
        """The accuracy of the net fine-tuned at this strength; what is finished already is read."""
        folder = self._folder(strength)
        settings = replace(self.settings, terms=with_strength(self.settings.terms, strength))
        decided = self._decided(settings)
        path = folder / "result.json"
        if not path.exists() or decisive_settings(records.read(path).settings) != decided:
            self._load(start)
            watch = Watch(self, strength, number)
            done = fit(self.net, self.split.train, settings, out=folder, resume=resume, on_epoch=watch)
            facts = {"seconds": sum(entry["seconds"] for entry in done.history), "epochs": done.history}
            records.write_bytes(
                folder / "weights.safetensors", signed_bytes("gyrograd_try", {}, _plain_state(self.given))
            )
            # The result after the weights: a try that has a result can be chosen.
            columns: Columns = {"accuracy": [*self._right()]}
            records.write(path, record(f"harden {strength:g}", columns, decided, facts))
        (folder / snapshots.NAME).unlink(missing_ok=True)
        right = records.read(path).values["accuracy"]
        return sum(value or 0.0 for value in right) / len(right)

    def _seconds(self, one: Try) -> float:
        return float(records.read(self._folder(one.strength) / "result.json").facts["seconds"])

    def _weights_of(self, one: Try) -> dict[str, Tensor]:
        return read_tensors(self._folder(one.strength) / "weights.safetensors")

    def _right(self) -> list[float]:
        """For each held-out image 1 if its class is found, else 0."""
        test = self.split.test.to(self.place)
        return (predictions(self.net, test) == test.labels).double().tolist()

    def _audited(self, folder: Path, name: str) -> Card:
        data = self.split.test.subset(self.images, self.settings.seed)
        return judged(self.net.eval(), data, self.preset, folder, seed=self.settings.seed, name=name)

    def _load(self, weights: Mapping[str, Tensor]) -> None:
        self.given.load_state_dict(dict(weights))
        self.net.to(self.place).eval()

    def _folder(self, strength: float) -> Path:
        return self.out / "tries" / f"{strength:.6g}"

    def _decided(self, settings: TrainSettings) -> dict[str, Any]:
        """What decides the weights and the accuracy of a try, in plain values."""
        tree = decisive_settings(as_tree(settings))
        own = {
            "model": self.source,
            "start": self.start,
            "data": snapshots.fingerprint(self.split.train),
            "test": self.split.test.digest()[:16],
        }
        return dict(json.loads(json.dumps(tree | own)))

    def _begin(self, resume: str) -> None:
        """Write the plan; a folder of another run, or one that cannot be written, is found before any work."""
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
        plan = self._decided(self.settings) | dict(json.loads(json.dumps(own)))
        if path.exists() and resume != "changed":
            snapshots.check_same_settings(path, plan, _read_plan(path))
        records.write_text(path, json.dumps(plan, indent=1) + "\n")

    def _written(self, found: Outcome) -> Hardened:
        """Weights, then the card."""
        path, card = self.out / FILE, card_of(found)
        facts = {"hardened": self.source, "strength": card["chosen"]}
        if spec_of(self.given) is not None:
            save(path, self.given, facts=facts)
        else:
            own = self.given  # the module as its author knows it, without what opening it put around it
            while isinstance(own, Normalized | Scripted):
                own = own.core
            records.write_bytes(path, signed_bytes("gyrograd_hardened", facts, _plain_state(own)))
        records.write_text(self.out / "card.md", card_text(card))
        records.write_text(self.out / "report.html", card_page(card, found))
        records.write_text(self.out / CARD, json.dumps(card, indent=1) + "\n")
        return Hardened(self.given.eval(), found.before, found.after, path, card)


@dataclass(frozen=True, eq=False)
class Watch:
    """Called after each epoch: measures the accuracy and says how long the rest takes at most."""

    run: Hardening
    strength: float
    number: int

    def __call__(self, entry: dict[str, Any], model: Model) -> None:  # noqa: ARG002
        run, epochs = self.run, self.run.settings.epochs
        right = run._right()
        entry["accuracy"] = sum(right) / len(right)
        if run.says is not None:
            rest = (run.tries - self.number) * epochs + epochs - entry["epoch"]
            told = {"try": self.number, "tries": run.tries, "strength": self.strength, "epochs": epochs}
            run.says({**entry, **told, "terms": run.settings.terms, "left": rest * entry["seconds"]})


def _fitting(
    settings: TrainSettings, net: Model, split: Split, place: str
) -> tuple[TrainSettings, tuple[str, ...]]:
    """The settings as this net and this machine allow them, and what was left out."""
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
    """The model to train, on its device, and what to call it."""
    if isinstance(model, str):
        found, source = (
            open_model(model, weights=weights, classes=classes, normalize=normalize, device=place),
            model,
        )
    elif weights is not None or classes is not None or normalize is not None:
        raise UserError("weights, classes and normalize are for a model given by name; leave them out.")
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


def _read_plan(path: Path) -> dict[str, Any]:
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        plan = None
    if not isinstance(plan, dict):
        raise UserError(f"{path} is damaged; delete the folder, or give another one (--out).")
    return decisive_settings(plan)


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
            f"The model is right on {right:.1%} of {test.name}, no more than chance; give a trained model, and check "
            f"that its classes are in the order of the data's ({order}; folders are sorted by name)."
        )


def _plain_state(model: Model) -> dict[str, Tensor]:
    """The weights as they are saved, under the model's own names."""
    return {key: value.detach().cpu().contiguous().clone() for key, value in model.state_dict().items()}
