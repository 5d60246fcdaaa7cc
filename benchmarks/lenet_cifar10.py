"""A LeNet on CIFAR-10, trained with cross-entropy or l2 + cosine, and what its gradient maps are worth.

    python benchmarks/lenet_cifar10.py train --objective l2_cosine --epochs 40 --device cuda --out lenet.safetensors
    python benchmarks/lenet_cifar10.py evaluate lenet.safetensors --images 200

joo2023's settings (Softplus(3), Adam 1e-3, weight decay 4e-5, clipping at 0.5, crop and flip), but for a cosine
schedule and fewer epochs. RPS, Insertion and Adv-Insertion are those of the gradient of the label's logit.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

import gyrograd as gg
from gyrograd.numerics.statistics import bootstrap_interval
from gyrograd.training import TrainSettings, fit, predictions


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    learn, judge = verbs.add_parser("train"), verbs.add_parser("evaluate")
    learn.add_argument("--objective", choices=["cross_entropy", "l2_cosine"], required=True)
    learn.add_argument("--epochs", type=int, default=40)
    learn.add_argument("--out", type=Path, required=True)
    judge.add_argument("checkpoint", type=Path)
    judge.add_argument("--images", type=int, default=1000)
    for verb in (learn, judge):
        verb.add_argument("--data", type=Path, default=None)
        verb.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_flush_denormal(True)
    trained(options) if options.verb == "train" else evaluated(options)


def trained(options: argparse.Namespace) -> None:
    data = gg.dataset("cifar10", split="train", root=options.data).to(options.device)
    model = gg.model("lenet", activation="softplus", beta=3, normalize="cifar10", seed=0).to(options.device)
    terms = {} if options.objective == "cross_entropy" else {"l2_cosine": {}}
    started = time.monotonic()
    settings = TrainSettings(
        epochs=options.epochs,
        weight_decay=4e-5,
        clip=0.5,
        crop=4,
        flip=True,
        terms=terms,
        device=options.device,
    )
    fit(model, data, settings)
    facts = {"objective": options.objective, "epochs": options.epochs, "seconds": time.monotonic() - started}
    gg.save(options.out, model.to("cpu"), facts=facts)
    print(options.out, facts)


def evaluated(options: argparse.Namespace) -> None:
    model = gg.load(options.checkpoint).to(options.device)
    test = gg.dataset("cifar10", split="test", root=options.data).to(options.device)
    accuracy = float((predictions(model, test) == test.labels).double().mean())
    some = test.subset(options.images, seed=0)
    x, y, gradient = some.pixels(), some.labels, gg.attribution("gradient")
    hit = gg.attack("targeted_map", eps=4 / 255, protocol="reference")(model, gradient, x, y, seed=0)
    values = {
        "RPS (cosine, 16/255)": gg.metric("rps")(model, gradient, x, y, seed=0),
        "Insertion": gg.metric("insertion")(model, gradient, x, y),
        "Adv-Insertion (4/255)": gg.metric("adversarial_insertion")(model, gradient, x, y, perturbed=hit.x),
        "prediction kept": hit.prediction_kept,
    }
    print(f"accuracy {accuracy:.4f} on {len(test)} images; the rest on {options.images}:")
    for name, column in values.items():
        interval = bootstrap_interval(column.double().cpu().tolist())
        print(f"{name}: {interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]")


if __name__ == "__main__":
    main()
