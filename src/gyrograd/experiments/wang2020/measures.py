"""Measurements of wang2020: how far an attack moves a map at eps 2, 4, 8 and 16 of 255, and the area over eps.

The area is a sum of trapezoids of width 1, so a share that stays 1 has area 3. A row is a net and a map ("ssr ig"), a
column an attack and a metric ("top_k k-in"). An image has no value if the attack had no gradient to follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from gyrograd.attacks import AttackResult, Manipulate, MassCenter, TopK, transfer
from gyrograd.experiments.engine import ExperimentOutput, MeasuredNets
from gyrograd.experiments.report import POINT
from gyrograd.experiments.results import of_prefix
from gyrograd.experiments.samples import images_of
from gyrograd.experiments.scales import pick_evenly
from gyrograd.experiments.trained_nets import Columns, Maker, Part, TrainedNet, accuracy_of
from gyrograd.experiments.wang2020.maps import NAMES, maps_of
from gyrograd.metrics.response import (
    CenterDislocation,
    CosineDistance,
    Measure,
    RankCorrelation,
    TopKIntersection,
)
from gyrograd.numerics.statistics import area_over_eps
from gyrograd.records import JsonObject
from gyrograd.types import Images, Inputs, Labels, Model

EPS = (2, 4, 8, 16)
STEPS = 50
TWIN_BETA = 20.0
"""Beta of the Softplus twin that guides the search. The released code has 1, with which 30 % of a public ResNet-20's
top pixels stay, and 1 % with 20 (eps 8, 50 steps, 10 images); the supplement does not state it."""
TWINS: dict[str, float | None] = {"cifar10-released": 1.0, "cifar10-zoo": None}
"""Settings with another beta, that of the released code; or with none, since the zoo's nets have Softplus themselves: a
twin of beta 20 leads the search astray (at eps 8, 81 % of the robust ResNet-20's top pixels stay with it and 3.5 %
without; 50 and 100 images)."""
ATTACKS = ("top_k", "manipulate")
METRICS = ("k-in", "cor", "cdl", "cosd")
MISTAKEN_K = 1000 / 32**2
"""The released UniGrad attack has k = 1000 for all images, which is 98 % of CIFAR-10's pixels."""


def top_share(setting: str) -> float:
    """k over the number of pixels: 20 of 32 x 32 and 80 of 64 x 64; 1000 of 224 x 224."""
    return 1000 / 224**2 if setting.startswith("imagenet") else 20 / 32**2


def metrics_of(setting: str, map_name: str, pixels: int) -> dict[str, Measure]:
    """The four metrics as in the released code; for UniGrad on CIFAR-10 also the published k-in."""
    k = max(1, round(top_share(setting) * pixels))
    measures = (TopKIntersection(k), RankCorrelation(), CenterDislocation(), CosineDistance())
    found: dict[str, Measure] = dict(zip(METRICS, measures, strict=True))
    if map_name == "ug" and setting.startswith("cifar10"):
        found["k-in of k=1000"] = TopKIntersection(round(MISTAKEN_K * pixels))
    return found


def attacked(attack: str, map_name: str) -> Maker:
    """An attack on a map: the areas, and each eps as a point of a curve."""

    def of(trained_net: TrainedNet) -> list[Part]:
        settings = _attack_settings(trained_net)
        map = maps_of(trained_net.setting, trained_net.sizes)[map_name]

        def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:
            search = _search(attack, settings, x, trained_net)
            hits = search(model, map, x, y, seed=keys)
            measures = metrics_of(trained_net.setting, map_name, x[0, 0].numel())
            # 100 where the attack found a better image than x at the largest eps, else 0.
            moved = 100.0 * (~hits[-1].unmoved).double()
            return {**_areas(attack, settings["eps"], measures, hits), f"{attack} moved": moved}

        about = {**settings, "map": repr(map), "goal": attack == "manipulate"}
        return [trained_net.part(f"{trained_net.way} {map_name}", f"{map_name} {attack}", about, columns)]

    return of


def _attack_settings(trained_net: TrainedNet) -> JsonObject:
    """Settings of the attack for the record, as JSON."""
    return {
        "eps": pick_evenly(list(EPS), trained_net.sizes.get("levels")),
        "steps": int(trained_net.sizes.get("steps", STEPS)),
        "protocol": "paper",
        "twin_beta": TWINS.get(trained_net.setting, TWIN_BETA),
    }


def _search(
    attack: str, settings: Mapping[str, Any], x: Images, trained_net: TrainedNet
) -> Callable[..., tuple[AttackResult, ...]]:
    shared = {**settings, "eps": tuple(eps / 255 for eps in settings["eps"])}
    if attack == "manipulate":
        # The goal is the map of the last image of the measuring order. The released code reads its goal for CIFAR-10
        # from a file that it does not include; for ImageNet it is the last image.
        data = images_of(trained_net.sizes, "test")
        goal = data.rows(data.chosen(len(data))[-1:]).pixels().to(x.device)
        return Manipulate(goal=goal, **shared)  # type: ignore[return-value]
    k = max(1, round(top_share(trained_net.setting) * x[0, 0].numel()))
    return TopK(k=k, **shared)  # type: ignore[return-value]


def _areas(
    attack: str, eps: Sequence[int], measures: Mapping[str, Measure], hits: Sequence[AttackResult]
) -> Columns:
    found: Columns = {}
    for name, measure in measures.items():
        # No number if the search could not move, since that is no sign of robustness.
        values = [torch.where(hit.stuck, torch.nan, measure(hit.map_clean, hit.map)) for hit in hits]
        curve = torch.stack(values, 1)
        found[f"{attack} {name}"] = area(curve)
        found |= {
            f"{attack} {name} {POINT}{e}": values for e, values in zip(eps, curve.unbind(1), strict=True)
        }
    return found


def area(curve: Float[Tensor, "b e"]) -> Float[Tensor, " b"]:
    """The area over eps of each image, with steps of width 1."""
    return torch.from_numpy(area_over_eps(curve.detach().cpu().double().numpy())).to(curve.device)


accuracy = accuracy_of("test accuracy")
train_accuracy = accuracy_of("train accuracy", what="train accuracy", split="train")
"""The accuracy that the paper prints, on training images."""


def transferred(trained_net: TrainedNet) -> list[Part]:
    """The mass-centre attack on the saliency map, and its effect on all four maps (Table 6)."""
    settings = _attack_settings(trained_net)
    maps = maps_of(trained_net.setting, trained_net.sizes)

    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:
        hits = [
            transfer(model, MassCenter(**{**settings, "eps": eps / 255}), maps["sm"], maps, x, y, seed=keys)
            for eps in settings["eps"]
        ]
        measures = metrics_of(trained_net.setting, "sm", x[0, 0].numel())
        found: Columns = {}
        for name in NAMES:
            own = _areas("mass_center", settings["eps"], measures, [hit[name] for hit in hits])
            found |= {f"{name}{OF}{key}": values for key, values in own.items()}
        return found

    about = {**settings, "maps": {name: repr(map) for name, map in maps.items()}}
    return [trained_net.part(trained_net.way, "sm mass_center transfer", about, columns)]


def rows_by_map(measured: MeasuredNets) -> ExperimentOutput:
    """One row per map under the transferred attack."""
    found = [
        (setting, f"{way} {name}", seed, of_prefix(record, f"{name}{OF}"))
        for setting, way, seed, record in measured.records
        for name in NAMES
    ]
    return ExperimentOutput(tuple(found))


OF = " : "
"""Separates map and column in records of several maps."""
