"""A Hugging Face Trainer whose loss has one line more: the net's explanations hold still.

Run it: python examples/huggingface_trainer.py
"""

import tempfile

import torch.nn.functional as F
from torch import nn
from transformers import (
    PrinterCallback,
    ResNetConfig,
    ResNetForImageClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

import gyrograd as gg


class Logits(nn.Module):
    """Images to logits, which is what gyrograd calls a model. Hugging Face's return them among other things."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, x):
        return self.core(pixel_values=x).logits


class SteadyTrainer(Trainer):
    """A Trainer whose loss is cross-entropy and, if it has one, a regulariser."""

    regularizer = None

    def compute_loss(self, model, inputs, return_outputs=False, **_):
        x, y = inputs["pixel_values"], inputs["labels"]
        outputs = model(pixel_values=x)
        loss = F.cross_entropy(outputs.logits, y)
        if self.regularizer is not None:
            loss = loss + self.regularizer(Logits(model), x, y).mean()  # the one line
        return (loss, outputs) if return_outputs else loss


def small_net() -> nn.Module:
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
    return ResNetForImageClassification(ResNetConfig(**sizes, hidden_act="gelu", num_labels=10))


def measure(model, x, y) -> tuple[float, float]:
    """Accuracy, and Grad RPS: how alike the gradient maps of an image and of its noisy copies are (1: the same)."""
    accuracy = gg.metric("accuracy")(model, None, x, y).mean()
    rps = gg.metric("rps", draws=5)(model, gg.attribution("gradient"), x, y).mean()
    return float(accuracy), float(rps)


def arguments(folder: str, epochs: int) -> TrainingArguments:
    quiet = {"save_strategy": "no", "logging_strategy": "no", "report_to": [], "disable_tqdm": True}
    return TrainingArguments(
        folder,
        num_train_epochs=epochs,
        per_device_train_batch_size=64,
        learning_rate=6e-3,
        remove_unused_columns=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        **quiet,
    )


def main(images: int = 1500, test_images: int = 300, epochs: int = 5) -> dict[str, tuple[float, float]]:
    learnt, unseen = gg.dataset("shapes", n=images), gg.dataset("shapes", split="test", n=test_images)
    rows = [{"pixel_values": x, "labels": y} for x, y in zip(learnt.pixels(), learnt.labels, strict=True)]
    steady = gg.regularizer("l2_cosine", l2=0.1, cosine=1.0, eps=16 / 255)
    found = {}
    for when, regularizer in (("before", None), ("after", steady)):
        set_seed(0)
        model = small_net()
        with tempfile.TemporaryDirectory() as folder:
            trainer = SteadyTrainer(model, arguments(folder, epochs), train_dataset=rows)
            trainer.remove_callback(PrinterCallback)
            trainer.regularizer = regularizer
            trainer.train()
        found[when] = measure(Logits(model), unseen.pixels(), unseen.labels)
        print(f"{when:>6} adding the line: accuracy {found[when][0]:.3f}, RPS {found[when][1]:.3f}")
    return found


if __name__ == "__main__":
    main()
