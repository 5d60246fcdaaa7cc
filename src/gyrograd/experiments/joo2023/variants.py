"""Training variants of joo2023: a row is a recipe of `training/recipes/joo2023.yaml` with weights of its terms.

Everything else about a net (optimizer, clipping, activation, BatchNorm, batch size, ...) is in the recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

from gyrograd.experiments import trained_nets
from gyrograd.experiments.nets import Net
from gyrograd.experiments.scales import pick_evenly
from gyrograd.registry import Settings
from gyrograd.training import recipe
from gyrograd.training.settings import recipe_tree

Terms: TypeAlias = dict[str, Settings]
"""Regularizers by name, with their settings, in the form of a recipe."""

FAST = ("cifar10-lenet-fast", "cifar10-resnet18-fast")
NORMALIZED = "cifar10-lenet-normalized"
VARIANTS = {FAST[0]: "cifar10-lenet", FAST[1]: "cifar10-resnet18", NORMALIZED: "cifar10-lenet"}
"""Settings that train in another way, and the paper's setting each is a variant of.

Those of FAST train all rows more cheaply: the settings in `CHEAPER` come from the recipe l2-cosine-fast of their net.
NORMALIZED reads IGA's radius in normalised pixels, a quarter of the length: the paper does not state the unit.
"""
CHEAPER = ("fast", "precision", "regularized_fraction", "regularize_every")
NORMALIZED_PIXEL = 0.25
"""A normalised pixel of CIFAR-10 in pixels: the mean standard deviation of its three channels."""
SETTINGS = ("cifar10-lenet", "cifar10-resnet18", "imagenet100-resnet18", "imagenette-resnet18", *FAST)
"""The paper's three; Imagenette as a substitute for ImageNet100, which may not be redistributed; cheaper training."""
IMAGENETS = SETTINGS[2:4]
RECIPES = {
    "cifar10-lenet": "joo2023-lenet",
    "cifar10-resnet18": "joo2023-resnet18",
    **dict.fromkeys(IMAGENETS, "joo2023-imagenet100"),
}
"""First part of the names of a setting's recipes; the row's `ENDS` follows."""
ENDS = {
    "ce": "ce",
    "atex": "atex",
    "iga": "iga",
    "hessian": "hessian",
    "l2": "l2-cosine",
    "cosine": "l2-cosine",
    "l2_cosine": "l2-cosine",
}
"""l2 alone and cosine alone are the pair with one weight 0, so that all three use the same neighbours."""

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
"""Appendix Figure 6 names 10 and 100; the smaller weights are those of the tables."""

SELECTED = {
    "cifar10-lenet": ("ce", "atex", "iga", "hessian", "l2", "l2_cosine"),
    **dict.fromkeys(("cifar10-resnet18", *IMAGENETS), ("ce", "hessian", "l2", "l2_cosine")),
    NORMALIZED: ("ce", "iga"),
}
"""The rows of Table 1. A variant has those of its setting, unless it has its own here."""
ATTACK_EPS = {"cifar10-lenet": 4, "cifar10-resnet18": 2, **dict.fromkeys(IMAGENETS, 2)}
"""Of 255, in the main text, by setting of the paper."""


def paper_setting(setting: str) -> str:
    """The setting of the paper that this setting equals or varies."""
    return VARIANTS.get(setting, setting)


def attack_eps(setting: str) -> int:
    """The radius of the main text's attack, of 255."""
    return ATTACK_EPS[paper_setting(setting)]


def terms_of(way: str, weights: tuple[float, ...], iga_unit: float = 1 / 255) -> Terms:
    """The weights of a row as terms of its recipe. `iga_unit`: of IGA's radius; the paper does not state it."""
    if way == "ce":
        return {}
    if way == "hessian":
        return {"hessian": {"weight": weights[0]}}
    if way in ("atex", "iga"):
        return {way: {"weight": weights[0], "eps": weights[1] * (iga_unit if way == "iga" else 1)}}
    l2, cosine = {"l2": (*weights, 0.0), "cosine": (0.0, *weights), "l2_cosine": weights}[way]
    return {"l2_cosine": {"l2": l2, "cosine": cosine}}


@cache
def selected_weights(setting: str) -> dict[str, tuple[float, ...]]:
    """The rows of Table 1 with the weights of their recipes.

    The paper chose the weights with the highest RPS of the gradient within one point of accuracy; the values agree
    with its appendix.
    """
    base = paper_setting(setting)
    rows = SELECTED.get(setting, SELECTED[base])
    return {way: _weights(f"{RECIPES[base]}-{way.replace('_', '-')}", way) for way in rows}


def _weights(recipe_name: str, way: str) -> tuple[float, ...]:
    term = recipe(recipe_name).terms.get(way, {})
    keys = {"ce": (), "l2_cosine": ("l2", "cosine"), "atex": ("weight", "eps"), "iga": ("weight", "eps")}
    found = [float(term[key]) for key in keys.get(way, ("weight",))]
    return (found[0], found[1] * 255) if way == "iga" else tuple(found)


def net_of(sizes: Mapping[str, Any], setting: str, way: str, weights: tuple[float, ...], seed: int) -> Net:
    """The net of a row. ATEX has the CE net of the same seed as its teacher, and starts from it."""
    base = RECIPES[paper_setting(setting)]
    unit = NORMALIZED_PIXEL / 255 if setting == NORMALIZED else 1 / 255
    changes: Settings = {"terms": terms_of(way, weights, unit)}
    if setting in FAST:
        cheaper = recipe_tree(f"{base}-l2-cosine-fast")
        changes |= {key: cheaper[key] for key in CHEAPER}
    teacher = net_of(sizes, setting, "ce", (), seed) if way == "atex" else None
    return trained_nets.net_of(f"{base}-{ENDS[way]}", sizes, row_name(way, weights), seed, changes, teacher)


def row_name(way: str, weights: tuple[float, ...]) -> str:
    """The name of a row with its weights, as in the appendix."""
    return " ".join((way, *(f"{weight:g}" for weight in weights)))


Way: TypeAlias = tuple[str, tuple[float, ...]]
"""A training variant and its weights."""


def one_weight(setting: str, grid: int | None = None) -> list[Way]:
    """CE, and Hessian and l2 with all weights."""
    return [way for way in every_way(setting, grid) if way[0] in ("ce", "hessian", "l2")]


def two_weights(setting: str, grid: int | None = None) -> list[Way]:
    """l2 with cosine, with all pairs of weights."""
    return [way for way in every_way(setting, grid) if way[0] == "l2_cosine"]


def cosine_alone(setting: str, grid: int | None = None) -> list[Way]:  # noqa: ARG001 - the same everywhere
    """CE, and the cosine criterion alone, with weights large enough to ruin the maps."""
    return [("ce", ()), *(("cosine", (weight,)) for weight in pick_evenly(list(COSINE_ALONE), grid))]


def every_way(setting: str, grid: int | None = None) -> list[Way]:
    """All rows of the appendix tables for a setting; `grid` limits the number of weights per way."""
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
        *((way, w) for way, all in lists.items() for w in _some(all, grid, selected_weights(base)[way])),
    ]


def _some(
    weights: list[tuple[float, ...]], grid: int | None, chosen: tuple[float, ...]
) -> list[tuple[float, ...]]:
    """`grid` of the weights, always including the selected one."""
    if grid is None:
        return weights
    others = pick_evenly([w for w in weights if w != chosen], grid - 1) if grid > 1 else []
    return [w for w in weights if w == chosen or w in others]
