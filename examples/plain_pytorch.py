"""A plain PyTorch loop, with one line more: the net's explanations hold still.

Run it: python examples/plain_pytorch.py
"""

import torch
import torch.nn.functional as F
from torch import nn

import gyrograd as gg


def small_net() -> nn.Module:
    """Any module from images in [0, 1] to logits."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def measure(model, x, y) -> tuple[float, float]:
    """Accuracy, and Grad RPS: how alike the gradient maps of an image and of its noisy copies are (1: the same)."""
    accuracy = gg.metric("accuracy")(model, None, x, y).mean()
    rps = gg.metric("rps", draws=5)(model, gg.attribution("gradient"), x, y).mean()
    return float(accuracy), float(rps)


def train(model, x, y, epochs, regularizer=None) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            loss = F.cross_entropy(model(x[rows]), y[rows])
            if regularizer is not None:
                loss = loss + regularizer(model, x[rows], y[rows]).mean()  # the one line
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def main(images: int = 1500, test_images: int = 300, epochs: int = 6) -> dict[str, tuple[float, float]]:
    learnt, unseen = gg.dataset("shapes", n=images), gg.dataset("shapes", split="test", n=test_images)
    steady = gg.regularizer("l2_cosine", l2=0.1, cosine=1.0, eps=16 / 255)
    found = {}
    for when, regularizer in (("before", None), ("after", steady)):
        torch.manual_seed(0)
        model = small_net()
        train(model, learnt.pixels(), learnt.labels, epochs, regularizer)
        found[when] = measure(model, unseen.pixels(), unseen.labels)
        print(f"{when:>6} adding the line: accuracy {found[when][0]:.3f}, RPS {found[when][1]:.3f}")
    return found


if __name__ == "__main__":
    main()
