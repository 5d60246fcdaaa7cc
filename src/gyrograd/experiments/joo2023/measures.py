"""Measurements of joo2023: accuracy, RPS, Insertion, the attack and Adv-Insertion.

Numbers are on the paper's scales: accuracy and Insertion times 100, similarities as they are. eps counts in 255ths.
"ins" is the mean over the 21 shares of the paper's text, to which the printed numbers belong (docs/papers/joo2023.md);
"ins, 20 shares" is over the 20 of the released code, which leaves out the whole image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gyrograd.attacks import AttackResult, TargetedMap
from gyrograd.attributions import Gradient
from gyrograd.attributions.batching import MAX_BATCH
from gyrograd.attributions.guided_backprop import GuidedBackprop
from gyrograd.attributions.lrp import LRP
from gyrograd.experiments.engine import Nets
from gyrograd.experiments.joo2023.variants import (
    Way,
    attack_eps,
    every_way,
    net_of,
    row_name,
    selected_weights,
)
from gyrograd.experiments.report import POINT
from gyrograd.experiments.trained_nets import Columns, Maker, Part, TrainedNet
from gyrograd.metrics import MapSimilarity, insertion
from gyrograd.metrics.insertion import PROTOCOLS
from gyrograd.metrics.noise import UniformNoise, neighbours
from gyrograd.metrics.passes import explain_variants, in_parts
from gyrograd.metrics.reductions import SIMILARITIES, reduce_map
from gyrograd.models import Normalized
from gyrograd.types import Attribution, Inputs, Labels, Model, Seed

RPS_EPS = (4, 8, 16)
RPS_SIMILARITIES = ("cosine", "pearson", "ssim")
ATTACK_STEPS = 100
SHARES = PROTOCOLS["paper"]
PROTOCOL = "reference"


@dataclass(frozen=True)
class NormalizedInputXGradient:
    """The gradient times the normalized input of the net, as the released code computes xGrad."""

    def __call__(self, model: Model, x: Inputs, target: Labels, *, create_graph: bool = False) -> Inputs:
        map = Gradient()(model, x, target, create_graph=create_graph)
        seen = x if create_graph else x.detach()
        for module in model.modules():
            if isinstance(module, Normalized):
                # the normalized input (x - mean) / std, times the gradient to it, which is std times the one to x
                return (seen - module.mean.to(x).view(-1, 1, 1)) * map
        return seen * map


ATTRIBUTIONS: dict[str, Attribution] = {
    "grad": Gradient(),
    "xgrad": NormalizedInputXGradient(),
    "gbp": GuidedBackprop(),
    "lrp": LRP.variant("reference"),
}


def selected(*settings: str, rows: Sequence[str] = ()) -> Nets:
    """The nets of Table 1, with the names of its rows."""
    return lambda run: run.trained_nets(
        settings,
        lambda setting, sizes: {
            row: partial(net_of, sizes, setting, row, weights)
            for row, weights in selected_weights(setting).items()
            if not rows or row in rows
        },
    )


def every(*settings: str, ways: Callable[[str, int | None], list[Way]] = every_way) -> Nets:
    """The nets of the appendix tables, or of `ways`; a row's name includes its weights."""
    return lambda run: run.trained_nets(
        settings,
        lambda setting, sizes: {
            row_name(*way): partial(net_of, sizes, setting, *way) for way in ways(setting, sizes.get("grid"))
        },
    )


def rps(name: str, eps: int) -> Maker:
    """Random perturbation similarity of an attribution at one eps, by three similarities."""

    def of(trained_net: TrainedNet) -> list[Part]:
        draws = int(trained_net.sizes["draws"])

        def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:
            found = similarities(model, ATTRIBUTIONS[name], x, y, eps=eps / 255, draws=draws, seed=keys)
            return {f"{name} rps {kind} {eps}": values for kind, values in found.items()}

        settings = {"draws": draws, "attribution": repr(ATTRIBUTIONS[name])}
        return [trained_net.part(trained_net.way, f"{name} rps {eps}", settings, columns)]

    return of


def similarities(
    model: Model, attribution: Attribution, x: Inputs, target: Labels, *, eps: float, draws: int, seed: Seed
) -> Columns:
    """`RandomPerturbationSimilarity` by all three similarities; the maps are computed once."""
    from gyrograd.numerics import random

    keys, noise = random.keys(seed, len(x), x.device), UniformNoise(eps, clip=True)
    clean = reduce_map(attribution(model, x, target).detach(), "abs_sum", "max")

    def alike(examples: slice, these: slice) -> Tensor:
        near = neighbours(noise, x[examples], keys[examples], these)
        n = near.shape[1]
        moved = reduce_map(
            explain_variants(attribution, model, near, target[examples]).flatten(0, 1), "abs_sum", "max"
        )
        before = clean[examples].repeat_interleave(n, 0)
        values = [SIMILARITIES[kind](before, moved).view(-1, n) for kind in RPS_SIMILARITIES]
        return torch.stack(values, 2)

    means = in_parts(alike, x, draws, MAX_BATCH).mean(1)
    return dict(zip(RPS_SIMILARITIES, means.unbind(1), strict=True))


def insertion_game(name: str) -> Maker:
    """Insertion of an attribution: the two means, and the curve."""

    def of(trained_net: TrainedNet) -> list[Part]:
        def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:  # noqa: ARG001
            map = ATTRIBUTIONS[name](model, x, y).detach()
            return game_columns(f"{name} ins", model, map, x, y)

        settings = {"attribution": repr(ATTRIBUTIONS[name])}
        return [trained_net.part(trained_net.way, f"{name} insertion", settings, columns)]

    return of


def attacked_game(name: str, eps: int | None = None) -> Maker:
    """The targeted attack on an attribution: similarity of the maps, kept labels, and Adv-Insertion.

    The default eps is that of the main text for the setting.
    """

    def of(trained_net: TrainedNet) -> list[Part]:
        radius = attack_eps(trained_net.setting) if eps is None else eps
        steps = int(trained_net.sizes.get("steps", ATTACK_STEPS))

        def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:
            hit = attacked(model, name, x, y, eps=radius, steps=steps, seed=keys)
            game = game_columns(f"{name} a-ins {radius}", model, hit.map, x, y)
            alike = MapSimilarity("cosine")(hit.map_clean, hit.map)
            kept = 100 * hit.prediction_kept.to(x.dtype)
            return {**game, f"{name} attacked cosine {radius}": alike, f"{name} label kept {radius}": kept}

        settings = {"steps": steps, "protocol": PROTOCOL, "attribution": repr(ATTRIBUTIONS[name])}
        return [trained_net.part(trained_net.way, f"{name} attack {radius}", settings, columns)]

    return of


def attacked(
    model: Model, name: str, x: Inputs, y: Labels, *, eps: int, steps: int, seed: Seed
) -> AttackResult:
    """joo2023's targeted attack as in its code: Adam, last iterate, no constraint on the label."""
    attack = TargetedMap(eps=eps / 255, steps=steps, protocol=PROTOCOL)
    hit = attack(model, ATTRIBUTIONS[name], x, y, seed=seed)
    assert isinstance(hit, AttackResult)
    return hit


def game_columns(name: str, model: Model, map: Tensor, x: Inputs, y: Labels) -> Columns:
    """Mean probability over 21 and over 20 shares, and each share as a point of a curve; in per cent."""
    curve = 100 * insertion().curve_of_map(model, map, x, y)
    points = {f"{name} {POINT}{share:g}": curve[:, i] for i, share in enumerate(SHARES)}
    return {f"{name}": curve.mean(1), f"{name}, 20 shares": curve[:, :-1].mean(1), **points}
