"""Settings of a training run: the same in Python, in YAML and on the command line.

Recipes are named settings, those of the papers and some short ones, in the YAML files of `recipes/`. A file is a tree
whose nodes may have `about`, `settings` and `variants`. A recipe is a leaf: its name is the name of the file and of the
variants joined by dashes, and its settings are those along the path, where deeper ones win.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args

import yaml  # type: ignore[import-untyped]

from gyrograd.errors import UserError, check_name, did_you_mean
from gyrograd.parsing import with_numbers
from gyrograd.records import JsonObject, levels_below
from gyrograd.registry import Settings
from gyrograd.renames import old_fields, with_new_names

Optimizer = Literal["sgd", "adam", "adamw"]
Schedule = Literal["constant", "cosine", "multi_step", "one_cycle"]
Every = Literal["epoch", "step"]
Precision = Literal["fp32", "tf32", "bf16"]

OLD_FIELDS = {"part": "regularized_fraction", "every": "regularize_every"}


@old_fields(**OLD_FIELDS)
@dataclass(frozen=True)
class TrainSettings:
    """Settings of a training run. `train` and `gyrograd train` use all of them, `fit` all but model and data."""

    model: str = "lenet"
    """A name of `gyrograd list model`, `torchvision:NAME` or `timm:NAME`."""
    model_settings: Settings = field(default_factory=dict)
    """What `gyrograd.model` takes: activation, beta, normalize, init, ... The class count comes from the data."""
    start: str | None = None
    """A checkpoint whose weights the model starts from; None: new ones from the seed."""
    data: str = "shapes"
    """A name of `gyrograd list dataset`."""
    data_settings: Settings = field(default_factory=dict)
    """What `gyrograd.dataset` takes: path, split, n, size, ..."""
    test: Settings | None = None
    """Data settings that differ for the test images, such as {split: test}; None: no accuracy is measured."""

    terms: dict[str, Settings] = field(default_factory=dict)
    """Regularisers by name, each with its `weight` (1) and its own settings: {l2_cosine: {weight: 1, l2: 0.1}}."""
    cross_entropy: float | int | None = None
    """Weight of the clean cross-entropy; None: 1, or 0 if a term replaces it (adversarial)."""
    regularized_fraction: float | int = 1.0
    """Fraction of each batch that is regularised, in smaller passes. The order is random, so the mean over it is
    unbiased and the weights of the terms need no change."""
    regularize_every: int = 1
    """Regularise every N steps, with N times the weight: less time, and the same mean gradient unless it is clipped."""
    fast: bool = False
    """On CUDA a step is one graph, and l2 and cosine come in first-order passes: equal results, less time."""
    label_smoothing: float | int = 0.0

    epochs: int = 10
    batch_size: int = 128
    """Images of one step, over all processes together."""
    optimizer: str = "adam"
    """sgd, adam (weight decay is added to the gradient) or adamw (it is not)."""
    lr: float | int = 1e-3
    momentum: float | int = 0.9
    """For sgd."""
    nesterov: bool = True
    """For sgd."""
    weight_decay: float | int = 0.0
    schedule: str = "cosine"
    """constant, cosine (to zero), multi_step (times gamma at each milestone) or one_cycle (up and down)."""
    schedule_every: str = "epoch"
    """epoch or step: how often the rate changes; one_cycle changes every step."""
    milestones: tuple[int, ...] = ()
    """Epochs after which multi_step lowers the rate."""
    gamma: float | int = 0.1
    warmup: float | int = 0.0
    """Epochs in which the rate rises linearly to its scheduled value, step by step."""
    clip: float | int | None = None
    """Largest global norm of the gradient."""
    ema: float | int = 0.0
    """Decay of an average of the weights, such as 0.999; the average is what is measured and saved. 0: none."""

    crop: int = 0
    """Pixels a random crop may move the image each way."""
    flip: bool = False
    """Mirror every second image."""
    zoom: float | int = 1.0
    """Smallest part of the image's area a random resized crop may show (0.08 for ImageNet); 1: no such crop."""
    cutout: int = 0
    """Side of a square, at a random place of each image, that is replaced by the image's mean colour; 0: none."""

    precision: str = "fp32"
    """fp32, tf32 (CUDA: faster, ten bits of mantissa) or bf16 (autocast)."""
    allow_bf16: bool = False
    """Take bf16 although the objective differentiates gradients."""
    seed: int = 0
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps."""

    checkpoint_seconds: float | int = 300.0
    """Most seconds of work that a kill can cost."""
    checkpoint_epochs: int = 1
    """Epochs between checkpoints; more if writing would take over a fiftieth of the time."""
    loss_limit: float | int = 1e4
    """A loss above this counts as exploding and stops the run."""
    tensorboard: bool = False
    """Also write the log for TensorBoard (extra `tensorboard`)."""

    def __post_init__(self) -> None:
        _check_types(vars(self))
        _check_names(self)
        _check_numbers(self)


WITHOUT_EFFECT = (
    "device", "checkpoint_seconds", "checkpoint_epochs", "loss_limit", "tensorboard", "static_graph",
)  # fmt: skip
"""Settings that may change on resume: they do not affect the results. static_graph is in older checkpoints."""
MAX_DEPTH, MAX_VALUES = 50, 10_000
"""Most levels and values of a user's settings file."""

LARGEST_LR = 1000
"""Above it the first step throws the weights so far that the run diverges before a loss is read."""


def settings_from(tree: Mapping[str, Any]) -> TrainSettings:
    """Settings from a YAML tree or the command line; for an unknown key the error suggests the nearest one."""
    known = {f.name for f in fields(TrainSettings)}
    tree = with_new_names(tree, OLD_FIELDS, warn=True)
    for key in tree:
        if key not in known:
            raise UserError(f"Training has no setting '{key}': {did_you_mean(str(key), known)}")
    plain = {key: with_numbers(value) for key, value in tree.items()}
    if isinstance(plain.get("terms"), Mapping):
        # `l2_cosine: null` removes a term of the recipe
        plain["terms"] = {name: term for name, term in plain["terms"].items() if term is not None}
    if isinstance(plain.get("milestones"), list):
        plain["milestones"] = tuple(plain["milestones"])
    return TrainSettings(**plain)


def as_tree(settings: TrainSettings) -> JsonObject:
    """The settings as JSON values, from which `settings_from` builds equal settings."""
    return {**asdict(settings), "milestones": list(settings.milestones)}


def decisive_settings(tree: Mapping[str, Any]) -> JsonObject:
    """The settings a resumed run must share with its checkpoint, under their names of today."""
    # A checkpoint knows nothing of settings that came after it. Their defaults are what it was trained with.
    whole = as_tree(TrainSettings()) | with_new_names(tree, OLD_FIELDS)
    return {key: value for key, value in whole.items() if key not in WITHOUT_EFFECT}


@dataclass(frozen=True)
class Recipe:
    """A named tree of settings, and a line about it."""

    name: str
    about: str
    tree: Mapping[str, Any]


def recipe(name: str, **changes: Any) -> TrainSettings:
    """The settings of a recipe with these changes: `recipe("joo2023-lenet-l2-cosine", epochs=20)`."""
    return settings_from(merge_settings(recipe_tree(name), changes))


def recipe_tree(name: str) -> Mapping[str, Any]:
    """The settings of a recipe as they stand in its file; a near miss is suggested."""
    known = recipes()
    check_name("recipe", name, known)
    return known[name].tree


@cache
def recipes() -> dict[str, Recipe]:
    """Every recipe by name."""
    found: dict[str, Recipe] = {}
    folder = files("gyrograd.training") / "recipes"
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".yaml"):
            stem, tree = file.name.removesuffix(".yaml"), yaml.safe_load(file.read_text("utf-8"))
            found |= {leaf.name: leaf for leaf in _leaves(stem, "", {}, tree)}
    return found


def read_tree(path: Path) -> Settings:
    """The settings of a user's YAML file, on top of its `recipe`, if it names one."""
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as wrong:
        raise UserError(f"{path} cannot be read ({wrong.strerror}); give a YAML file of settings.") from None
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError) as wrong:
        reason = " ".join(str(wrong).split())[:200]
        raise UserError(f"{path} is not valid YAML ({reason}); correct it.") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path} holds no settings; write `key: value` lines, such as `epochs: 5`.")
    _check_extent(path, tree)
    name = tree.pop("recipe", None)
    return tree if name is None else merge_settings(recipe_tree(str(name)), tree)


def _check_extent(path: Path, tree: Any) -> None:
    """Refuse a tree that is too deep or, by repeating parts of itself, too large for settings."""
    count = 0
    for depth, level in enumerate(levels_below(tree), 1):
        count += len(level)
        if depth == MAX_DEPTH or count > MAX_VALUES:
            raise UserError(
                f"{path} is nested too deep, or repeats itself too often, for settings; simplify it."
            )


def merge_settings(under: Mapping[str, Any], over: Mapping[str, Any]) -> Settings:
    """Both trees of training settings merged: dicts recursively, other values from `over`."""
    # New names first: an old name in one tree and the new one in the other are the same setting.
    return _merge(*(with_new_names(tree, OLD_FIELDS, warn=True) for tree in (under, over)))


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> Settings:
    both = dict(under)
    for key, value in over.items():
        old = both.get(key)
        both[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return both


def _leaves(name: str, about: str, tree: Mapping[str, Any], node: Mapping[str, Any]) -> Iterator[Recipe]:
    about = f"{about} {node.get('about', '')}".strip()
    tree = merge_settings(tree, node.get("settings", {}))
    if not node.get("variants"):
        yield Recipe(name, about, tree)
        return
    for variant, below in node["variants"].items():
        yield from _leaves(f"{name}-{variant}", about, tree, below or {})


def first_difference(here: Any, there: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """The first difference of two trees: dotted key and both values, or None."""
    if isinstance(here, Mapping) and isinstance(there, Mapping):
        for key in [*here, *(key for key in there if key not in here)]:
            found = first_difference(here.get(key), there.get(key), f"{path}.{key}" if path else str(key))
            if found:
                return found
        return None
    return None if here == there else (path, here, there)


_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a word"),
    "str | None": ((str, type(None)), "a path or null"),
    "int": ((int,), "a whole number"),
    "float | int": ((int, float), "a number"),
    "float | int | None": ((int, float, type(None)), "a number or null"),
    "bool": ((bool,), "true or false"),
    "tuple[int, ...]": ((tuple,), "a list of whole numbers"),
    "Settings": ((dict,), "settings by name"),
    "Settings | None": ((dict, type(None)), "settings by name, or null"),
    "dict[str, Settings]": ((dict,), "settings by name"),
}


def _check_types(tree: Mapping[str, Any]) -> None:
    kinds = {f.name: str(f.type) for f in fields(TrainSettings)}
    for key, value in tree.items():
        types, words = _KINDS[kinds[key]]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise UserError(f"{key} is {value!r}; give {words}.")
    for name, term in tree.get("terms", {}).items():
        if not isinstance(term, dict):
            raise UserError(f"terms.{name} is {term!r}; give its settings, such as terms.{name}.weight 1.")
    milestones = list(tree.get("milestones", ()))
    if not all(isinstance(epoch, int) and epoch > 0 for epoch in milestones):
        raise UserError(f"milestones is {milestones}; give epochs, such as [100, 150].")


def _check_names(settings: TrainSettings) -> None:
    choices = {"optimizer": Optimizer, "schedule": Schedule, "schedule_every": Every, "precision": Precision}
    for key, literal in choices.items():
        check_name(key, getattr(settings, key), get_args(literal))
    if settings.schedule == "multi_step" and not settings.milestones:
        raise UserError("schedule multi_step needs milestones, such as [100, 150].")
    if settings.milestones and settings.schedule != "multi_step":
        raise UserError(
            f"milestones belong to schedule multi_step, not to {settings.schedule}; leave one out."
        )


def _check_numbers(settings: TrainSettings) -> None:
    # Per key: is the value valid, and what would be. NaN fails every comparison.
    s = settings
    rules = {
        "epochs": (s.epochs >= 1, "at least one epoch"),
        "batch_size": (s.batch_size >= 1, "at least 1"),
        "lr": (0 < s.lr <= LARGEST_LR, f"a rate above 0, up to {LARGEST_LR}"),
        "momentum": (0 <= s.momentum < 1, "a number from 0 to below 1"),
        "weight_decay": (0 <= s.weight_decay < math.inf, "0 or more"),
        "gamma": (0 < s.gamma <= 1, "a factor above 0, up to 1"),
        "warmup": (0 <= s.warmup < math.inf, "a number of epochs, 0 or more"),
        "clip": (s.clip is None or 0 < s.clip < math.inf, "a norm above 0, or null for no clipping"),
        "ema": (0 <= s.ema < 1, "a decay from 0 (none) to below 1"),
        "regularize_every": (s.regularize_every >= 1, "at least 1"),
        "regularized_fraction": (0 < s.regularized_fraction <= 1, "a fraction above 0, up to 1"),
        "label_smoothing": (0 <= s.label_smoothing < 1, "a number from 0 to below 1"),
        "cross_entropy": (
            s.cross_entropy is None or 0 <= s.cross_entropy < math.inf,
            "a weight of 0 or more",
        ),
        "crop": (s.crop >= 0, "0 (no crop) or more pixels"),
        "zoom": (0 < s.zoom <= 1, "a part of the area above 0, up to 1"),
        "cutout": (s.cutout >= 0, "the side of a square in pixels, or 0 for none"),
        "seed": (0 <= s.seed < 1 << 63, "a whole number from 0 to 2**63 - 1"),
        "checkpoint_seconds": (s.checkpoint_seconds >= 0, "0 (after every step) or more"),
        "checkpoint_epochs": (s.checkpoint_epochs >= 1, "at least 1"),
        "loss_limit": (s.loss_limit > 0, "a limit above 0"),
    }
    for key, (right, words) in rules.items():
        if not right:
            raise UserError(f"{key} is {getattr(s, key)}; give {words}.")
    if s.optimizer == "sgd" and s.nesterov and s.momentum == 0:
        raise UserError("nesterov needs a momentum above 0; give one, or nesterov false.")
