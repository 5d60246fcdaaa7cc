"""Class activation maps beside pytorch-grad-cam, in one run: how far apart the values are, and the seconds of a batch.

`python benchmarks/cam.py --peer FOLDER [--device cuda] [--out FILE]`. FOLDER is where `pip install --target FOLDER
--no-deps grad-cam ttach` has put it: it is no dependency of the tests. Both get the same net, images, classes and
layer. pytorch-grad-cam scales each map to 0 ... 1 (twice); ours is scaled so before it is compared. Repeats are in
turns, so that a busy machine slows both; medians are printed, beside a forward pass alone, which bounds every ratio.
Weights are random; normalisations have seen a batch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
import torchvision
from timing import seconds
from torch import Tensor, nn

import gyrograd as gg

METHODS = {
    "grad_cam": ("GradCAM", {}),
    "grad_cam_plus_plus": ("GradCAMPlusPlus", {"eps": 1e-6}),
    "layer_cam": ("LayerCAM", {}),
    "hires_cam": ("HiResCAM", {}),
}
"""Name here, name there, and the settings with which the definitions meet."""


@dataclass(frozen=True)
class Subject:
    """A net, the module pytorch-grad-cam is told to look at, and how it is told to fold its output."""

    make: Callable[[], nn.Module]
    layer: str
    fold: Callable[[Tensor], Tensor] | None = None


def tokens(value: Tensor) -> Tensor:
    side = int((value.shape[1] - 1) ** 0.5)
    return value[:, 1:].reshape(len(value), side, side, -1).permute(0, 3, 1, 2)


def channels_last(value: Tensor) -> Tensor:
    return value.permute(0, 3, 1, 2)


SUBJECTS = {
    "torchvision resnet18": Subject(torchvision.models.resnet18, "layer4.1"),
    "torchvision resnet50": Subject(torchvision.models.resnet50, "layer4.2"),
    "torchvision regnet_y_400mf": Subject(torchvision.models.regnet_y_400mf, "trunk_output.block4"),
    "torchvision vgg11_bn": Subject(torchvision.models.vgg11_bn, "features.27"),
    "torchvision convnext_tiny": Subject(torchvision.models.convnext_tiny, "features.7.2"),
    "torchvision mobilenet_v3_large": Subject(torchvision.models.mobilenet_v3_large, "features.16"),
    "timm efficientnet_b0": Subject(lambda: timm.create_model("efficientnet_b0"), "bn2"),
    "timm vit_tiny_patch16_224": Subject(
        lambda: timm.create_model("vit_tiny_patch16_224"), "blocks.11.norm1", tokens
    ),
    "torchvision swin_t": Subject(torchvision.models.swin_t, "norm", channels_last),
}


def prepared(subject: Subject, side: int, device: torch.device) -> nn.Module:
    """Random weights, statistics of a batch, and no in-place activation: pytorch-grad-cam reads overwritten values."""
    torch.manual_seed(0)
    model = subject.make().to(device).train()
    for module in model.modules():
        if hasattr(module, "inplace"):
            module.inplace = False
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    with torch.no_grad():
        for _ in range(2):
            model(torch.rand(8, 3, side, side, device=device))
    return model.eval()


def peer_map(method: str, model: nn.Module, subject: Subject, x: Tensor, target: Tensor) -> Tensor:
    import pytorch_grad_cam
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    made = getattr(pytorch_grad_cam, METHODS[method][0])
    targets = [ClassifierOutputTarget(int(c)) for c in target]
    with made(
        model=model, target_layers=[model.get_submodule(subject.layer)], reshape_transform=subject.fold
    ) as cam:
        return torch.from_numpy(cam(input_tensor=x, targets=targets))


@torch.no_grad()
def one_pass(model: nn.Module, x: Tensor) -> Tensor:
    """What nobody can do without: the pass itself."""
    logits: Tensor = model(x)
    return logits


def own_map(method: str, model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    return gg.attribution(method, **METHODS[method][1])(model, x, target).sum(1)


def scaled(map: Tensor) -> Tensor:
    for _ in range(2):
        map = map - map.amin((1, 2), keepdim=True)
        map = map / (1e-7 + map.amax((1, 2), keepdim=True))
    return map


def done(way: Callable[[], Any], device: torch.device) -> None:
    way()
    if device.type == "cuda":
        torch.cuda.synchronize()


def compared(name: str, args: argparse.Namespace, device: torch.device) -> list[str]:
    subject = SUBJECTS[name]
    model = prepared(subject, args.side, device)
    lines = []
    for method in METHODS:
        x = torch.rand(4, 3, args.side, args.side, device=device, dtype=torch.float64)
        target = torch.arange(4, device=device) * 7
        double = model.double()
        theirs = peer_map(method, double, subject, x, target).double()
        apart = (scaled(own_map(method, double, x, target)).cpu() - theirs).abs().max().item()
        largest = theirs.max().item()
        model = double.float()
        many = torch.rand(args.images, 3, args.side, args.side, device=device)
        classes = torch.arange(args.images, device=device)
        ways = {
            "ours": partial(own_map, method, model, many, classes),
            "theirs": partial(peer_map, method, model, subject, many, classes),
            "pass": partial(one_pass, model, many),
        }
        taken: dict[str, list[tuple[float, float]]] = {key: [] for key in ways}
        for repeat in range(args.repeats + 1):
            for key, way in ways.items():
                spent = seconds(partial(done, way, device))
                if repeat:  # the first warms up
                    taken[key].append(spent)
        (ours, own_cpu), (peers, peer_cpu), (alone, _) = (
            [statistics.median(column) for column in zip(*taken[key], strict=True)] for key in ways
        )
        lines.append(
            f"| {name} | {method} | {apart:.0e} | {largest:.2f} | {ours:.4f} | {peers:.4f} | {peers / ours:.1f} "
            f"| {peer_cpu / own_cpu:.1f} | {alone:.4f} | {peers / alone:.1f} |"
        )
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", default="", help="folder that holds pytorch_grad_cam")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--nets", nargs="*", default=list(SUBJECTS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sys.path += [args.peer] if args.peer else []
    device = torch.device(args.device)
    where = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} thread(s)"
    )
    lines = [
        f"torch {torch.__version__}, {where}; {args.images} images of {args.side} px, medians of {args.repeats}.",
        "",
        "| net | method | apart (float64) | largest | ours s | pytorch-grad-cam s | ratio | ratio of processor s "
        "| a forward pass alone s | largest ratio it allows |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines))
    for name in args.nets:
        lines += compared(name, args, device)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
