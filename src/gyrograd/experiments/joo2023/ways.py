"""The ways to train of joo2023, as data: the recipes, every weight of its tables, and those it selected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from gyrograd.experiments.nets import Net
from gyrograd.experiments.scales import CHANGES, picked

Terms: TypeAlias = dict[str, dict[str, Any]]
"""Regularisers by name: their weight and their settings."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "cifar10-lenet-fast": ("cifar10-lenet", {"fast": True, "precision": "tf32", "part": 3 / 16, "every": 3}),
}
"""Openly cheaper training of a setting of the paper, for all rows alike: the paper's setting, and the changes."""
SETTINGS = ("cifar10-lenet", "cifar10-resnet18", "imagenet100-resnet18", "imagenette-resnet18", *VARIANTS)
"""The paper's three, an openly named stand-in for its third, whose images are not free to pass on, and variants."""
IMAGENETS = SETTINGS[2:4]
TRAIN_EPS = 4 / 255
"""Of l2 and cosine, in every run of the released scripts; the paper does not state it."""
BETA, IGA_BETA = 3, 50

RECIPES: dict[str, dict[str, Any]] = {
    "lenet": {"optimizer": "adam", "lr": 1e-3, "weight_decay": 4e-5, "milestones": (0.5, 0.75)},
    "resnet18": {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 1e-2, "milestones": (0.5, 0.75)},
    "imagenet": {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 1e-2, "milestones": (4 / 9, 6 / 9, 8 / 9)},
    "iga": {
        "optimizer": "sgd",
        "lr": 0.1,
        "momentum": 0.9,
        "nesterov": True,
        "weight_decay": 2e-4,
        "milestones": (0.25, 0.4, 0.75),
    },
}
"""Appendix A. Milestones are shares of the epochs (100 and 150 of 200; 40, 60 and 80 of 90; 50, 80 and 150 of 200)."""
SHARED = {"clip": 0.5, "batch_size": 128, "flip": True}
"""The released code clips the global norm in every run; the paper does not say so."""
CUTS: dict[str, dict[str, Any]] = {"imagenet": {"zoom": 0.08}}
"""Random resized crops on ImageNet; elsewhere a crop that moves up to 4 pixels."""
RECIPE_OF = {"cifar10-lenet": "lenet", "cifar10-resnet18": "resnet18", **dict.fromkeys(IMAGENETS, "imagenet")}

HESSIAN = {
    "cifar10-lenet": (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1),
    "cifar10-resnet18": (1e-6, 1e-5, 1e-4, 1e-3),
    **dict.fromkeys(IMAGENETS, (1e-5, 1e-4, 1e-3)),
}
L2 = {
    "cifar10-lenet": (0.01, 0.1, 1.0),
    "cifar10-resnet18": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
    **dict.fromkeys(IMAGENETS, (0.01, 0.03, 0.1, 0.3, 1.0)),
}
L2_OF_PAIR, COSINE_OF_PAIR = (0.0, 0.01, 0.1, 1.0), (0.01, 0.1, 1.0)
ATEX_WEIGHTS, ATEX_EPS = (0.1, 0.3, 1.0, 3.0), (2.0, 4.0)
IGA_WEIGHTS, IGA_EPS = (0.1, 0.5, 1.0), (0.4, 1.0)
COSINE_ALONE = (0.1, 1.0, 10.0, 100.0)
"""Appendix Figure 6 names 10 and 100; the smaller ones are those of the tables."""

SELECTED: dict[str, dict[str, tuple[float, ...]]] = {
    "cifar10-lenet": {
        "ce": (),
        "atex": (3.0, 2.0),
        "iga": (1.0, 1.0),
        "hessian": (1e-3,),
        "l2": (0.1,),
        "l2_cosine": (0.1, 1.0),
    },
    "cifar10-resnet18": {"ce": (), "hessian": (1e-5,), "l2": (1.0,), "l2_cosine": (0.1, 1.0)},
    **{s: {"ce": (), "hessian": (1e-4,), "l2": (0.3,), "l2_cosine": (1.0, 1.0)} for s in IMAGENETS},
}
"""The weights behind Table 1: highest RPS of the gradient within one point of accuracy (matched value by value)."""
ATTACK_EPS = {"cifar10-lenet": 4, "cifar10-resnet18": 2, **dict.fromkeys(IMAGENETS, 2)}
"""Of 255, in the main text."""


def paper_setting(setting: str) -> str:
    """The paper's setting that this one is, or is a variant of."""
    return VARIANTS[setting][0] if setting in VARIANTS else setting


def terms_of(way: str, weights: tuple[float, ...]) -> Terms:
    """What stands beside, or in place of, the cross-entropy. Radii of IGA count in pixels of 255 (not stated)."""
    if way == "ce":
        return {}
    if way == "atex":
        return {"atex": {"weight": 1.0, "settings": {"weight": weights[0], "eps": weights[1]}}}
    if way == "iga":
        return {"iga": {"weight": 1.0, "settings": {"weight": weights[0], "eps": weights[1] / 255}}}
    if way == "hessian":
        return {"hessian": {"weight": weights[0], "settings": {}}}
    l2, cosine = {"l2": (*weights, 0.0), "cosine": (0.0, *weights), "l2_cosine": weights}[way]
    return {"l2_cosine": {"weight": 1.0, "settings": {"l2": l2, "cosine": cosine, "eps": TRAIN_EPS}}}


def net_of(sizes: Mapping[str, Any], setting: str, way: str, weights: tuple[float, ...], seed: int) -> Net:
    """The net trained this way. ATEX learns from the CE net of the same seed, and starts from it."""
    iga = way == "iga"
    kind = RECIPE_OF[paper_setting(setting)]
    _, changes = VARIANTS.get(setting, (setting, {}))
    recipe = {
        **RECIPES["iga" if iga else kind],
        **SHARED,
        **CUTS.get(kind, {"crop": 4}),
        **changes,
        **sizes.get(CHANGES, {}),
    }
    teacher = net_of(sizes, setting, "ce", (), seed) if way == "atex" else None
    return Net(
        label=row_name(way, weights),
        model={**sizes["model"], "activation": "softplus", "beta": IGA_BETA if iga else BETA},
        sizes={key: sizes[key] for key in ("data", "side", "train", "epochs", "batch_size") if key in sizes},
        recipe=recipe,
        terms=terms_of(way, weights),
        seed=seed,
        teacher=teacher,
    )


def row_name(way: str, weights: tuple[float, ...]) -> str:
    """A way with its weights, as the rows of the appendix are named."""
    return " ".join((way, *(f"{weight:g}" for weight in weights)))


Way: TypeAlias = tuple[str, tuple[float, ...]]
"""A way to train and its weights."""


def one_weight(setting: str, grid: int | None = None) -> list[Way]:
    """CE, and Hessian and l2 with every weight."""
    return [way for way in every_way(setting, grid) if way[0] in ("ce", "hessian", "l2")]


def two_weights(setting: str, grid: int | None = None) -> list[Way]:
    """l2 with cosine, every pair."""
    return [way for way in every_way(setting, grid) if way[0] == "l2_cosine"]


def cosine_alone(setting: str, grid: int | None = None) -> list[Way]:  # noqa: ARG001 - the same everywhere
    """CE, and the cosine criterion alone with weights up to those that ruin the maps."""
    return [("ce", ()), *(("cosine", (weight,)) for weight in picked(list(COSINE_ALONE), grid))]


def every_way(setting: str, grid: int | None = None) -> list[Way]:
    """All rows of the appendix' tables for a setting; `grid` picks as many weights of each way."""
    base = paper_setting(setting)
    lists: dict[str, list[tuple[float, ...]]] = {
        "hessian": [(weight,) for weight in HESSIAN[base]],
        "l2": [(weight,) for weight in L2[base]],
        "l2_cosine": [(l2, cosine) for l2 in L2_OF_PAIR for cosine in COSINE_OF_PAIR],
    }
    if base == "cifar10-lenet":
        lists["atex"] = [(weight, eps) for weight in ATEX_WEIGHTS for eps in ATEX_EPS]
        lists["iga"] = [(weight, eps) for weight in IGA_WEIGHTS for eps in IGA_EPS]
    return [
        ("ce", ()),
        *((way, w) for way, all in lists.items() for w in _some(all, grid, SELECTED[base][way])),
    ]


def _some(
    weights: list[tuple[float, ...]], grid: int | None, chosen: tuple[float, ...]
) -> list[tuple[float, ...]]:
    """As many weights as `grid` says, the selected one always among them."""
    if grid is None:
        return weights
    others = picked([w for w in weights if w != chosen], grid - 1) if grid > 1 else []
    return [w for w in weights if w == chosen or w in others]
