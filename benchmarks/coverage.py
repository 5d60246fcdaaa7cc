"""Every method on foreign architectures, in float64: exact, map only, refused with a sentence, wrong, or crashed.

    PYTHONPATH=src python benchmarks/coverage.py --workers 16 --json coverage.json
    PYTHONPATH=src python benchmarks/coverage.py --only levit,xcit --methods gradient,lrp
    PYTHONPATH=src python benchmarks/coverage.py --shard 1/4 --workers 16 --jsonl one.jsonl
    PYTHONPATH=src python benchmarks/coverage.py --table one.jsonl,two.jsonl

One architecture is one process, so that one that dies takes no other with it. Each cell is a line of `--jsonl`
(out/coverage.jsonl) as soon as it is finished: a second call runs only what is missing or was too late, `--fresh`
starts anew. `--table` prints what several files hold together and runs nothing.

A cell is *exact* if all of its checks hold:
- graph: the map made with create_graph=True is the map made without;
- alone: the map of the first image is the same alone as beside a second one, with and without a graph;
- second: the derivative of <v, map> to x, along a direction, is that of central differences;
- weights: the same to the weights, all of them at once;
- first (gradient): the map along a direction is the central difference of the logit;
- conserved (lrp): the conserving variant's map sums to what was put in;
- total (shap, deep_lift, deep_shap): the values sum to the logit less that of the baseline, or of its mean.
It is *map only* if the map's own checks hold and a derivative is refused with a sentence: of methods that have none
(LIME, SHAP, occlusion, RISE), and of nets that have none.

Differences cross kinks where steps are long and are rounding where they are short, so the best of several lengths
counts: a wrong derivative is wrong at all of them. Weights are random; those that a library starts at one constant
(scales of normalisations, of residual branches) are stirred, and running statistics are those of random images, so
that no branch is asleep.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

import gyrograd as gg
from gyrograd.registry import in_order, lookup

TOLERANCE = 1e-5
"""Relative error of a derivative, and of a total: both are made of quotients of changes."""
ROUNDING = 1e-7
"""Relative error of a value, float64 through some hundred layers."""
LOST = 1e-3
"""Relevance that LRP's conserving variant may lose."""
LENGTHS = (1e-6, 1e-8, 1e-5, 1e-9, 1e-7, 1e-10, 1e-4, 1e-3)
"""Of the steps of central differences: over the whole image, or over all weights together."""
EXTRAPOLATED = (1e-8, 1e-9, 1e-7, 1e-10)
"""Where none of those agrees, Richardson's extrapolation from these: LRP's stabiliser bends a map within 1e-6, and much
shorter steps are rounding."""
OUTCOMES = ("exact", "map only", "refused", "wrong", "crashed", "late")
DERIVATIVES = ("first", "second", "weights")
CLASSES = 10

SMALL: dict[str, dict[str, Any]] = {
    "integrated_gradients": {"steps": 4},
    "smoothgrad": {"draws": 3},
    "unigrad": {"draws": 3},
    "gradient_shap": {"draws": 3},
    "deep_shap": {"draws": 2},
    "lime": {"segments": "grid", "grid": 4, "draws": 40},
    "shap": {"segments": "grid", "grid": 4, "draws": 40},
    "occlusion": {"patch": 16, "stride": 16},
    "rise": {"draws": 20, "grid": 4},
}
"""Settings that say how much work to do; methods that are not named here run with their defaults."""
METHODS = [entry.name for entry in in_order("attribution") if entry.name != "smooth_lrp"]
"""All but one, which is LRP within the mean that SmoothGrad takes."""

ARCHITECTURES: dict[str, tuple[int, dict[str, Any]]] = {
    "torchvision:alexnet": (64, {}),
    "torchvision:vgg11_bn": (64, {}),
    "torchvision:resnet18": (64, {}),
    "torchvision:resnet50": (64, {}),
    "torchvision:densenet121": (64, {}),
    "torchvision:googlenet": (64, {}),
    "torchvision:inception_v3": (96, {}),
    "torchvision:squeezenet1_1": (64, {}),
    "torchvision:shufflenet_v2_x0_5": (64, {}),
    "torchvision:mnasnet0_5": (64, {}),
    "torchvision:mobilenet_v2": (64, {}),
    "torchvision:mobilenet_v3_small": (64, {}),
    "torchvision:efficientnet_b0": (64, {}),
    "torchvision:regnet_x_400mf": (64, {}),
    "torchvision:regnet_y_400mf": (64, {}),
    "torchvision:convnext_tiny": (64, {}),
    "torchvision:vit_b_32": (64, {"image_size": 64}),
    "torchvision:swin_t": (64, {}),
    "torchvision:swin_v2_t": (64, {}),
    "timm:resnet18": (64, {}),
    "timm:resnet26d": (64, {}),
    "timm:resnetv2_50": (64, {}),
    "timm:seresnet18": (64, {}),
    "timm:eca_resnet33ts": (64, {"img_size": 64}),
    "timm:skresnet18": (64, {}),
    "timm:resnest14d": (64, {}),
    "timm:lambda_resnet26t": (64, {"img_size": 64}),
    "timm:nf_resnet26": (64, {}),
    "timm:dla34": (64, {}),
    "timm:hrnet_w18_small": (64, {}),
    "timm:selecsls42b": (64, {}),
    "timm:cspresnet50": (64, {}),
    "timm:cspdarknet53": (64, {}),
    "timm:gernet_s": (64, {"img_size": 64}),
    "timm:repvgg_a0": (64, {"img_size": 64}),
    "timm:mobileone_s0": (64, {"img_size": 64}),
    "timm:xception41": (64, {}),
    "timm:legacy_xception": (64, {}),
    "timm:inception_v4": (96, {}),
    "timm:convmixer_768_32": (32, {}),
    "timm:vovnet39a": (64, {}),
    "timm:ese_vovnet19b_dw": (64, {}),
    "timm:mobilenetv2_100": (64, {}),
    "timm:mobilenetv3_small_050": (64, {}),
    "timm:mobilenetv4_conv_small": (64, {}),
    "timm:efficientnet_lite0": (64, {}),
    "timm:efficientnet_b0": (64, {}),
    "timm:fbnetc_100": (64, {}),
    "timm:semnasnet_075": (64, {}),
    "timm:tinynet_e": (64, {}),
    "timm:lcnet_050": (64, {}),
    "timm:hardcorenas_a": (64, {}),
    "timm:ghostnet_050": (64, {}),
    "timm:rexnet_100": (64, {}),
    "timm:regnetx_002": (64, {}),
    "timm:regnety_002": (64, {}),
    "timm:starnet_s1": (64, {}),
    "timm:fastvit_t8": (64, {}),
    "timm:levit_128s": (64, {"img_size": 64}),
    "timm:xcit_nano_12_p16_224": (64, {"img_size": 64}),
    "timm:visformer_tiny": (64, {"img_size": 64}),
    "timm:convnext_atto": (64, {}),
    "timm:convnextv2_atto": (64, {}),
    "timm:poolformer_s12": (64, {}),
    "timm:edgenext_xx_small": (64, {}),
    "timm:pvt_v2_b0": (64, {}),
    "timm:efficientvit_b0": (64, {}),
    "timm:efficientvit_m0": (64, {"img_size": 64}),
    "timm:coatnet_nano_rw_224": (64, {"img_size": 64}),
    "timm:maxvit_tiny_rw_224": (64, {"img_size": 64}),
    "timm:mixer_s32_224": (64, {"img_size": 64}),
    "timm:gmlp_ti16_224": (64, {"img_size": 64}),
    "timm:resmlp_12_224": (64, {"img_size": 64}),
    "timm:vit_tiny_patch16_224": (64, {"img_size": 64}),
    "timm:deit_tiny_patch16_224": (64, {"img_size": 64}),
    "timm:cait_xxs24_224": (64, {"img_size": 64}),
    "timm:swin_tiny_patch4_window7_224": (64, {"img_size": 64}),
    "timm:swinv2_cr_tiny_224": (64, {"img_size": 64}),
    "timm:tf_efficientnetv2_b0": (64, {}),
    "timm:inception_next_atto": (64, {}),
    "timm:repvit_m0_9": (64, {}),
    "timm:mobilevit_xxs": (64, {}),
    "timm:efficientformerv2_s0": (64, {"img_size": 64}),
    "timm:shvit_s1": (64, {}),
    "timm:eva02_tiny_patch14_224": (56, {"img_size": 56}),
    "timm:nest_tiny": (64, {"img_size": 64}),
    "timm:focalnet_tiny_srf": (64, {}),
    "timm:mvitv2_tiny": (64, {"img_size": 64}),
}
"""Side of the images and settings of each net."""
SLOW = (
    "xception",
    "convmixer",
    "mobileone",
    "convnext_tiny",
    "maxvit",
    "inception",
    "vgg",
    "vit_b_32",
    "swin",
    "densenet",
    "mvit",
    "focalnet",
    "nest",
)
"""Begun first, so that many workers end together."""


@dataclass(frozen=True)
class Cell:
    """What came of one method on one net. `errors`: each check's relative error; `why` is the sentence or exception."""

    net: str
    method: str
    outcome: str
    why: str
    errors: dict[str, float]
    seconds: float


def main() -> None:
    args = _arguments()
    if args.one:
        for cell in cells_of(args.one, args.methods):
            print(json.dumps(asdict(cell)), flush=True)
        return
    nets = [name for name in ARCHITECTURES if not args.only or any(word in name for word in args.only)]
    nets = nets[args.shard[0] - 1 :: args.shard[1]]
    if args.fresh:
        args.jsonl.unlink(missing_ok=True)
    done = _finished([Path(name) for name in args.table] or [args.jsonl])
    if not args.table:
        missing = {net: [m for m in args.methods if not _is_done(done, net, m)] for net in nets}
        args.jsonl.parent.mkdir(parents=True, exist_ok=True)
        with args.jsonl.open("a") as lines:
            for cell in _run({net: methods for net, methods in missing.items() if methods}, args):
                done[cell.net, cell.method] = cell
                lines.write(json.dumps(asdict(cell)) + "\n")
                lines.flush()
    cells = [done[net, method] for net in nets for method in args.methods if (net, method) in done]
    print(table(cells, args.methods))
    if args.json:
        args.json.write_text(
            json.dumps({"versions": _versions(), "cells": [asdict(c) for c in cells]}, indent=1)
        )


def _arguments() -> argparse.Namespace:
    def names(text: str) -> list[str]:
        return [word.strip() for word in text.split(",") if word.strip()]

    def part(text: str) -> tuple[int, int]:
        number, _, of = text.partition("/")
        if not 1 <= int(number) <= int(of):
            raise ValueError(text)
        return int(number), int(of)

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=1, help="processes at once")
    parser.add_argument("--only", type=names, default=[], help="nets whose name holds one of these words")
    parser.add_argument("--methods", type=names, default=METHODS, help="methods, apart by commas")
    parser.add_argument("--jsonl", type=Path, default=Path("out/coverage.jsonl"), help="finished cells")
    parser.add_argument("--json", type=Path, help="write all cells and versions here at the end")
    parser.add_argument("--fresh", action="store_true", help="forget what was finished")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds a cell may take")
    parser.add_argument("--shard", type=part, default=(1, 1), help="this part of the nets, such as 2/4")
    parser.add_argument(
        "--table", type=names, default=[], help="only print the table of these files of cells"
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


# --- running --------------------------------------------------------------------------------------------------


def _run(missing: dict[str, list[str]], args: argparse.Namespace) -> Iterator[Cell]:
    """The cells as they are finished, each net in a process of its own."""
    order = sorted(missing, key=lambda net: not any(word in net for word in SLOW))
    total, count = sum(map(len, missing.values())), 0
    cells: Queue[Cell | Exception] = Queue()

    def work(net: str) -> None:
        try:
            for cell in _in_process(net, missing[net], args.timeout):
                cells.put(cell)
        except Exception as wrong:
            cells.put(wrong)

    with ThreadPoolExecutor(args.workers) as pool:
        for net in order:
            pool.submit(work, net)
        while count < total:
            cell = cells.get()
            if isinstance(cell, Exception):
                pool.shutdown(cancel_futures=True)
                raise cell
            count += 1
            print(
                f"{count}/{total} {cell.net} {cell.method}: {cell.outcome} {cell.why[:100]} ({cell.seconds:.0f} s)",
                file=sys.stderr,
                flush=True,
            )
            yield cell


def _in_process(net: str, methods: list[str], timeout: float) -> Iterator[Cell]:
    """The cells of one net. If its process dies or is late, the cell it was at has, and a new one does the rest."""
    left = list(methods)
    while left:
        command = [sys.executable, __file__, "--one", net, "--methods", ",".join(left)]
        started = time.monotonic()
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            outcome = "crashed"
            try:
                for cell in _lines_of(process, timeout):
                    left.remove(cell.method)
                    started = time.monotonic()
                    yield cell
            except TimeoutError:
                outcome = "late"
            finally:
                process.kill()
                process.wait()
            if left:
                errors.seek(0)
                end = f"the process ended with {process.returncode}: {errors.read()[-300:]}"
                why = end if outcome == "crashed" else f"not done after {timeout:.0f} s"
                yield Cell(net, left.pop(0), outcome, why, {}, round(time.monotonic() - started, 2))


def _lines_of(process: subprocess.Popen[str], timeout: float) -> Iterator[Cell]:
    """The cells a process prints; TimeoutError if one takes too long."""
    lines: Queue[str | None] = Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=timeout)
        except Empty:
            raise TimeoutError from None
        if line is None:
            return
        if line.startswith("{"):
            yield Cell(**json.loads(line))


def _finished(files: list[Path]) -> dict[tuple[str, str], Cell]:
    lines = [line for file in files if file.is_file() for line in file.read_text().splitlines()]
    cells = [
        Cell(**json.loads(line)) for line in lines if line.endswith("}")
    ]  # a killed run may leave half a line
    return {(cell.net, cell.method): cell for cell in cells}


def _is_done(done: dict[tuple[str, str], Cell], net: str, method: str) -> bool:
    return (net, method) in done and done[net, method].outcome != "late"


# --- one net --------------------------------------------------------------------------------------------------


def cells_of(net: str, methods: Iterable[str]) -> Iterator[Cell]:
    """The cells of one net, as they are finished."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    side, settings = ARCHITECTURES[net]
    model = stirred(gg.model(net, num_classes=CLASSES, seed=0, **settings), side).double()
    # EfficientViT casts to single inside: differences of its maps would be rounding.
    to_single = torch.Tensor.float
    torch.Tensor.float = lambda z: z if z.dtype == torch.float64 else to_single(z)  # type: ignore[method-assign]
    x = torch.rand(2, 3, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    target = torch.tensor([3, 7])
    for method in methods:
        started = time.monotonic()
        outcome, why, errors = outcome_of(method, model, x, target)
        yield Cell(net, method, outcome, why, errors, round(time.monotonic() - started, 2))


def stirred(model: nn.Module, side: int, seed: int = 0) -> nn.Module:
    """The model with noise on every weight that is one constant, and with running statistics of random images."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.numel() > 1 and bool((weight == weight.flatten()[0]).all()):
                # Layer scales start at 1e-6 and normalisations before a sum at 0: both would silence their branch.
                centre = weight.flatten()[0] if weight.abs().max() >= 0.1 else weight.new_tensor(0.0)
                weight.copy_(centre + 0.2 * torch.randn(weight.shape, generator=draw))
        for module in model.eval().modules():
            if isinstance(module, _BatchNorm):
                module.train()
                module.momentum = None  # the mean over all batches seen, here one
        model(torch.rand(8, 3, side, side, generator=draw))
    return model.eval()


def outcome_of(method: str, model: nn.Module, x: Tensor, target: Tensor) -> tuple[str, str, dict[str, float]]:
    """The outcome, the sentence, exception or failed checks behind it, and all errors."""
    errors: dict[str, float] = {}
    good, why = "exact", ""
    try:
        explain = gg.attribution(method, **SMALL.get(method, {}))
        map = explain(model, x, target).detach()
        errors |= errors_of_map(method, explain, model, x, target, map)
        try:
            errors |= errors_of_derivatives(explain, model, x, target, map)
        except gg.UserError as sentence:
            good, why = "map only", str(sentence)
        else:
            if not lookup("attribution", method).differentiable:
                raise RuntimeError("create_graph=True was not refused")
    except gg.UserError as sentence:
        return "refused", str(sentence), {}
    except Exception as wrong:  # whatever it is: it is what the table is about
        return "crashed", f"{type(wrong).__name__}: {' '.join(str(wrong).split())[:300]}", {}
    limits = dict.fromkeys(("alone", "alone with graph", "graph"), ROUNDING) | {"conserved": LOST}
    failed = [name for name, error in errors.items() if not error <= limits.get(name, TOLERANCE)]
    if failed:
        return "wrong", ", ".join(f"{name} off by {errors[name]:.1e}" for name in failed), errors
    return good, why, errors


def errors_of_map(
    method: str, explain: Any, model: nn.Module, x: Tensor, target: Tensor, map: Tensor
) -> dict[str, float]:
    """The relative error of each check of the map itself."""
    errors = {"alone": _relative(explain(model, x[:1], target[:1]).detach(), map[:1])}
    if method == "lrp":
        arrived = gg.attribution("lrp", variant="conserving").conserved(model, x, target)
        errors["conserved"] = float((arrived - 1).abs().max())
    if method == "gradient":
        errors["first"] = _first(model, x, target, map)
    if method in {"shap", "deep_lift", "deep_shap"}:
        total = map.flatten(1).sum(1)
        if method == "shap":  # each segment's value is on all of its pixels
            total = map[:, 0].sum((1, 2)) * SMALL[method]["grid"] ** 2 / map[0, 0].numel()
        starts = explain.baselines(x) if method == "deep_shap" else torch.zeros_like(x[:1])
        with torch.no_grad():
            empty = torch.stack([_logit(model, start.expand_as(x), target) for start in starts]).mean(0)
            errors["total"] = _relative(total, _logit(model, x, target) - empty)
    return errors


def errors_of_derivatives(
    explain: Any, model: nn.Module, x: Tensor, target: Tensor, map: Tensor
) -> dict[str, float]:
    """The relative error of each check of the map with its graph."""
    with_graph = explain(model, x, target, create_graph=True).detach()
    alone = explain(model, x[:1], target[:1], create_graph=True).detach()
    errors = {"graph": _relative(with_graph, map), "alone with graph": _relative(alone, map[:1])}
    return errors | _second(explain, model, x, target, map)


def _first(model: nn.Module, x: Tensor, target: Tensor, map: Tensor) -> float:
    """The gradient along a direction, against differences of the logit."""
    along = _unit(_unit(map) + _unit(_normal(x, 2)))
    with torch.no_grad():
        return _against_differences(
            _dot(map, along), lambda h: _logit(model, x + h * along, target), _size(map) * 0
        )


def _second(explain: Any, model: nn.Module, x: Tensor, target: Tensor, map: Tensor) -> dict[str, float]:
    """The derivative of <v, map>, against differences of maps."""
    v = _unit(_normal(x, 3))
    weights = [w for w in model.parameters() if w.is_floating_point()]
    leaf = x.clone().requires_grad_()
    value = _dot(explain(model, leaf, target, create_graph=True), v)
    slopes = torch.autograd.grad(value.sum(), [leaf, *weights], allow_unused=True)
    to_x = torch.zeros_like(x) if slopes[0] is None else slopes[0]
    to_weights = [torch.zeros_like(w) if s is None else s for w, s in zip(weights, slopes[1:], strict=True)]
    # Half of the direction is the slope's own, so that there is something to see; half is random, so that what the
    # slope misses is seen as well.
    along = _unit(_unit(to_x) + _unit(_normal(x, 4)))
    floor = _size(map) / (_size(x) * x[0].numel() ** 0.5)

    def moved(h: float) -> Tensor:
        return _dot(explain(model, x + h * along, target).detach(), v)

    errors = {"second": _against_differences(_dot(to_x, along), moved, floor)}
    directions = _directions(weights, to_weights)
    exact = sum(float((s * d).sum()) for s, d in zip(to_weights, directions, strict=True))
    floor = _size(map).sum().reshape(1) / (_length(weights) * x[0].numel() ** 0.5)
    errors["weights"] = _against_differences(
        x.new_tensor([exact]),
        lambda h: (
            _dot(_at_moved_weights(explain, model, x, target, weights, directions, h), v).sum().reshape(1)
        ),
        floor,
    )
    return errors


def _directions(weights: list[Tensor], slopes: list[Tensor]) -> list[Tensor]:
    """One direction for all weights together: half the slope's own, half random.

    In proportion to each weight, so that none changes its sign: LRP's rules have a kink there.
    """
    draw = torch.Generator().manual_seed(5)
    sizes = [w.detach().abs() for w in weights]
    random = [size * torch.randn(size.shape, generator=draw, dtype=size.dtype) for size in sizes]
    slopes = [size * slope for size, slope in zip(sizes, slopes, strict=True)]
    own, other = _length(slopes), _length(random)
    return [s / (own or 1.0) + r / other for s, r in zip(slopes, random, strict=True)]


def _length(parts: list[Tensor]) -> float:
    return float(torch.stack([part.detach().square().sum() for part in parts]).sum().sqrt())


def _at_moved_weights(
    explain: Any,
    model: nn.Module,
    x: Tensor,
    target: Tensor,
    weights: list[Tensor],
    along: list[Tensor],
    h: float,
) -> Tensor:
    kept = [w.detach().clone() for w in weights]
    with torch.no_grad():
        for w, d in zip(weights, along, strict=True):
            w.add_(h * d)
    try:
        map: Tensor = explain(model, x, target).detach()
    finally:
        with torch.no_grad():
            for w, old in zip(weights, kept, strict=True):
                w.copy_(old)
    return map


def _against_differences(exact: Tensor, value: Callable[[float], Tensor], floor: Tensor) -> float:
    """Of each row the best of several lengths; of the rows the worst."""

    def central(h: float) -> Tensor:
        return (value(h) - value(-h)) / (2 * h)

    best = torch.full_like(exact, torch.inf)
    for h, extrapolate in [*((h, False) for h in LENGTHS), *((h, True) for h in EXTRAPOLATED)]:
        difference = (4 * central(h / 2) - central(h)) / 3 if extrapolate else central(h)
        scale = torch.maximum(torch.maximum(exact.abs(), difference.abs()), floor).clamp_min(1e-300)
        best = torch.minimum(best, ((exact - difference).abs() / scale).nan_to_num(torch.inf))
        if float(best.max()) <= TOLERANCE / 10:
            break
    return float(best.max())


def _logit(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    logits: Tensor = model(x).gather(1, target[:, None])[:, 0]
    return logits


def _normal(x: Tensor, seed: int) -> Tensor:
    return torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(seed))


def _size(t: Tensor) -> Tensor:
    return t.flatten(1).norm(dim=1)


def _unit(t: Tensor) -> Tensor:
    size = _size(t).reshape(-1, *[1] * (t.dim() - 1))
    return t / torch.where(size > 0, size, 1)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)


def _relative(a: Tensor, b: Tensor) -> float:
    """The largest difference over the largest value; NaN is never equal."""
    error = float((a - b).abs().max() / b.abs().max().clamp_min(1e-300))
    return error if error == error else float("inf")


# --- the table ------------------------------------------------------------------------------------------------

_SIGNS = {
    "exact": "+",
    "map only": "map",
    "refused": "-",
    "wrong": "WRONG",
    "crashed": "CRASH",
    "late": "LATE",
}


def table(cells: list[Cell], methods: list[str]) -> str:
    """One row per net and one per method, why cells are refused, every cell that breaks the promise, and the totals."""
    nets = list(dict.fromkeys(cell.net for cell in cells))
    by_place = {(cell.net, cell.method): cell for cell in cells}
    rows = [["net", *methods, "value", "derivative", "seconds"]]
    for net in nets:
        own = [by_place[net, method] for method in methods if (net, method) in by_place]
        signs = [_SIGNS[by_place[net, m].outcome] if (net, m) in by_place else "" for m in methods]
        rows.append([net, *signs, *_worst(own), f"{sum(cell.seconds for cell in own):.0f}"])
    per_method = [["method", *OUTCOMES, "value", "derivative", "seconds"]]
    for method in methods:
        own = [cell for cell in cells if cell.method == method]
        counts = Counter(cell.outcome for cell in own)
        seconds = f"{sum(cell.seconds for cell in own):.0f}"
        per_method.append([method, *(str(counts[outcome]) for outcome in OUTCOMES), *_worst(own), seconds])
    parts = [
        _markdown(rows),
        "`+` exact, `map` the map alone, `-` refused with a sentence. Value, derivative: the largest relative error "
        "of a map's own checks and of its derivatives to x and to the weights, over the cells that hold.",
        _markdown(per_method),
    ]
    # One sentence names each net's own layer and shape: without numbers and quotations they fall together.
    reasons: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.outcome == "refused" or (
            cell.outcome == "map only" and lookup("attribution", cell.method).differentiable
        ):
            reasons.setdefault((cell.method, re.sub(r"'[^']*'|\d+", "", cell.why)), []).append(cell)
    parts += [
        f"- {method}, {len(some)} nets ({', '.join(cell.net for cell in some)}): {some[0].why}"
        for (method, _), some in reasons.items()
    ]
    broken = [cell for cell in cells if cell.outcome in {"wrong", "crashed", "late"}]
    parts += [f"{cell.outcome}: {cell.net} {cell.method}: {cell.why}" for cell in broken]
    parts += [f"{len(nets)} nets, {len(methods)} methods, {len(cells)} cells: {_totals(cells)}."]
    return "\n\n".join(parts)


def _worst(cells: list[Cell]) -> list[str]:
    """The largest error of values and of derivatives, over the cells that hold; empty where there is none."""
    holding = [cell for cell in cells if cell.outcome in {"exact", "map only"}]
    slopes = [error for cell in holding for name, error in cell.errors.items() if name in DERIVATIVES]
    values = [error for cell in holding for name, error in cell.errors.items() if name not in DERIVATIVES]
    return [f"{max(errors):.0e}" if errors else "" for errors in (values, slopes)]


def _markdown(rows: list[list[str]]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def _totals(cells: list[Cell]) -> str:
    counts = Counter(cell.outcome for cell in cells)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])


def _versions() -> dict[str, str]:
    import timm
    import torchvision

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "timm": timm.__version__,
    }


if __name__ == "__main__":
    main()
