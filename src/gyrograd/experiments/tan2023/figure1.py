"""tan2023 Figure 1: maps of an image and of the same image with noise."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gyrograd.attributions import Gradient, predict
from gyrograd.experiments.engine import ExperimentOutput, MeasuredNets
from gyrograd.experiments.pictures import BAR, Arrays, Shown, colours, grey, with_pictures
from gyrograd.experiments.results import Results
from gyrograd.experiments.tan2023.explainers import QUANTITY, sigmas_of, smooth
from gyrograd.experiments.tan2023.measures import beside, faithfulness, of_smoothgrad
from gyrograd.experiments.trained_nets import Columns, Part, TrainedNet
from gyrograd.metrics.noise import GaussianNoise
from gyrograd.numerics.maps import reduce
from gyrograd.numerics.similarity import l2_distance
from gyrograd.reporting import Figure, Section, map_grid
from gyrograd.types import Attribution, Inputs, Labels, Model

WHERE = ("resnet18", "resnet18-zoo")
NOISE = GaussianNoise(0.1)
"""The caption's N(0, 0.1 I), read as a deviation of 0.1."""


def distances(trained_net: TrainedNet) -> list[Part]:
    """Distance between the maps of an image and of a noisy copy; on the natural net also SmoothGrad's faithfulness."""
    parts = [_moved(trained_net, row, explain) for row, explain in _explainers(trained_net).items()]
    return parts + (list(of_smoothgrad(faithfulness)(trained_net)) if trained_net.way == "natural" else [])


def _moved(trained_net: TrainedNet, row: str, explain: Attribution) -> Part:
    """The l2 distance between the maps of the image and of the noisy image."""

    def columns(model: Model, x: Inputs, y: Labels, keys: Tensor) -> Columns:  # noqa: ARG001
        target = predict(model, x)
        maps = [explain(model, image, target).detach() for image in (x, NOISE(x, keys, 0))]
        return {"distance": l2_distance(*maps)}

    return trained_net.part(
        row, f"{row} distance", {"noise": repr(NOISE), "explainer": repr(explain)}, columns
    )


def jogged(measured: MeasuredNets) -> ExperimentOutput:
    """Add maps of a few images and of the same images with noise, for the nets of the first setting."""
    nets = measured.trained_nets
    shown = replace(measured, trained_nets=[net for net in nets if net.setting == nets[0].setting])
    return replace(beside("sigma 0.03")(measured), pictures=with_pictures(_maps)(shown).pictures)


def _maps(each: Shown) -> Arrays:
    both = torch.stack([each.x, NOISE(each.x, each.keys, 0)], 1).flatten(0, 1)
    target = predict(each.model, each.x).repeat_interleave(2)
    maps = {
        f"{row}{BAR}map": grey(reduce(explain(each.model, both, target).detach()))
        for row, explain in _explainers(each.trained_net).items()
    }
    return {"image": colours(both.clamp(0, 1)), **maps}


def _explainers(trained_net: TrainedNet) -> dict[str, Attribution]:
    """By row: Grad; on the natural net also SmoothGrad with several widths."""
    found: dict[str, Attribution] = {f"{trained_net.way} grad": Gradient(QUANTITY)}
    if trained_net.way == "natural":
        found |= {f"sigma {sigma:g}": smooth(sigma) for sigma in sigmas_of(trained_net.sizes)}
    return found


def drawn(results: Results) -> tuple[Section, ...]:
    """Draw image and noisy image, one column per map."""
    if "image" not in results.pictures:
        return ()
    maps = {key.removesuffix(f"{BAR}map"): array for key, array in results.pictures.items() if BAR in key}
    image = results.pictures["image"]
    png = map_grid({"image": image}, maps, ["image", "jogged"] * (len(image) // 2))
    return (Section("Maps of an image and of the jogged image", (), None, (Figure(png, _CAPTION),)),)


_CAPTION = "Sizes over channels; each map over its own largest value. sigma: SmoothGrad of the natural net."
