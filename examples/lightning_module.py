"""A LightningModule whose training step has one line more: the net's explanations hold still.

Run it: python examples/lightning_module.py
"""

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gyrograd as gg


class Classifier(L.LightningModule):
    """Images in [0, 1] to logits; with a regulariser its explanations are trained too."""

    def __init__(self, regularizer=None) -> None:
        super().__init__()
        self.net = nn.Sequential(
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
        self.regularizer = regularizer

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch):
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        if self.regularizer is not None:
            loss = loss + self.regularizer(self, x, y).mean()  # the one line
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def measure(model, x, y) -> tuple[float, float]:
    """Accuracy and Grad RPS. Not in `validation_step`: Lightning switches gradients off there, and maps need them."""
    accuracy = gg.metric("accuracy")(model, None, x, y).mean()
    rps = gg.metric("rps", draws=5)(model, gg.attribution("gradient"), x, y).mean()
    return float(accuracy), float(rps)


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
    steady = gg.regularizer("l2_cosine", l2=0.1, cosine=1.0, eps=16 / 255)
    found = {}
    for when, regularizer in (("before", None), ("after", steady)):
        L.seed_everything(0, verbose=False)
        model = Classifier(regularizer)
        trainer(epochs).fit(model, loader)
        found[when] = measure(model, unseen.pixels(), unseen.labels)
        print(f"{when:>6} adding the line: accuracy {found[when][0]:.3f}, RPS {found[when][1]:.3f}")
    return found


if __name__ == "__main__":
    main()
