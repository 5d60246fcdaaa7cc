"""A plain PyTorch loop, with three lines more: the net's explanations hold under attack.

Run it: python examples/plain_pytorch.py
"""

import torch
import torch.nn.functional as F
from torch import nn

import gyrograd as gg
from gyrograd.training import Steady


def small_net() -> nn.Module:
    """Any module from images in [0, 1] to logits."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.SiLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.SiLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def measure(model, x, y) -> tuple[float, float]:
    """Accuracy, and how much of the gradient map's top tenth stays under an attack of 4/255."""
    model.eval()
    accuracy = gg.metric("accuracy")(model, None, x, y).mean()
    gradient = gg.attribution("gradient")
    hit = gg.attack("auto", eps=4 / 255, steps=4)(model, gradient, x[:32], y[:32])
    kept = gg.metric("top_k_intersection", k=102)(model, gradient, x[:32], y[:32], perturbed=hit.x).mean()
    return float(accuracy), float(kept)


def train(model, x, y, epochs, steady=None) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            if steady is not None:
                loss = steady(x[rows], y[rows])  # the second line: in place of cross-entropy
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if steady is not None:
        steady.finish()  # the third: the model takes the averaged weights


def main(images: int = 1500, test_images: int = 300, epochs: int = 6) -> dict[str, tuple[float, float]]:
    learnt, unseen = gg.dataset("shapes", n=images), gg.dataset("shapes", split="test", n=test_images)
    found = {}
    for when in ("before", "after"):
        torch.manual_seed(0)
        model = small_net()
        steady = Steady(model, eps=4 / 255) if when == "after" else None  # the first line
        train(model, learnt.pixels(), learnt.labels, epochs, steady)
        found[when] = measure(model, unseen.pixels(), unseen.labels)
        print(f"{when:>6} adding the lines: accuracy {found[when][0]:.3f}, top kept {found[when][1]:.3f}")
    return found


if __name__ == "__main__":
    main()
