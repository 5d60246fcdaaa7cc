"""A LightningModule with three lines more: the net's explanations hold under attack.

Run it: python examples/lightning_module.py
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gyrograd as gg
from gyrograd.training import Steady


class Classifier(L.LightningModule):
    """Images in [0, 1] to logits; with a radius its explanations are trained to hold."""

    def __init__(self, eps: float | None = None) -> None:
        super().__init__()
        self.net = nn.Sequential(
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
        self.steady = Steady(self.net, eps=eps) if eps else None  # the first line

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        x, y = batch
        if self.steady is not None:
            return self.steady(x, y)  # the second line: in place of cross-entropy
        return F.cross_entropy(self(x), y)

    def on_train_end(self):
        if self.steady is not None:
            self.steady.finish()  # the third: the net takes the averaged weights

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def measure(model, x, y) -> tuple[float, float]:
    """Accuracy, and how much of the gradient map's top tenth stays under an attack of 4/255.

    Not in `validation_step`: Lightning switches gradients off there, and maps need them.
    """
    model.eval()
    accuracy = gg.metric("accuracy")(model, None, x, y).mean()
    gradient = gg.attribution("gradient")
    hit = gg.attack("auto", eps=4 / 255, steps=4)(model, gradient, x[:32], y[:32])
    kept = gg.metric("top_k_intersection", k=102)(model, gradient, x[:32], y[:32], perturbed=hit.x).mean()
    return float(accuracy), float(kept)


def trainer(epochs: int) -> L.Trainer:
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return L.Trainer(max_epochs=epochs, accelerator="cpu", **quiet)


def main(images: int = 1500, test_images: int = 300, epochs: int = 6) -> dict[str, tuple[float, float]]:
    learnt, unseen = gg.dataset("shapes", n=images), gg.dataset("shapes", split="test", n=test_images)
    loader = DataLoader(TensorDataset(learnt.pixels(), learnt.labels), batch_size=64, shuffle=True)
    found = {}
    for when, eps in (("before", None), ("after", 4 / 255)):
        L.seed_everything(0, verbose=False)
        model = Classifier(eps)
        trainer(epochs).fit(model, loader)
        found[when] = measure(model, unseen.pixels(), unseen.labels)
        print(f"{when:>6} adding the lines: accuracy {found[when][0]:.3f}, top kept {found[when][1]:.3f}")
    return found


if __name__ == "__main__":
    main()
