"""A Hugging Face Trainer with three lines more: the net's explanations hold under attack.

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
from gyrograd.training import Steady


class Logits(nn.Module):
    """Images to logits, which is what gyrograd calls a model. Hugging Face's return them among other things."""

    def __init__(self, core: nn.Module) -> None:
        super().__init__()
        self.core = core

    def forward(self, x):
        return self.core(pixel_values=x).logits


class SteadyTrainer(Trainer):
    """A Trainer whose loss is cross-entropy or, if it has one, the steady loss."""

    steady = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        x, y = inputs["pixel_values"], inputs["labels"]
        # If gradients are accumulated, the Trainer wants a part of the mean over all images of the optimizer's step.
        part = 1 if num_items_in_batch is None else len(y) / num_items_in_batch
        if self.steady is not None and not return_outputs:
            return part * self.steady(x, y)  # the second line: in place of cross-entropy
        outputs = model(pixel_values=x)
        loss = part * F.cross_entropy(outputs.logits, y)
        return (loss, outputs) if return_outputs else loss


def small_net() -> nn.Module:
    sizes = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic"}
    return ResNetForImageClassification(ResNetConfig(**sizes, hidden_act="gelu", num_labels=10))


def measure(model, x, y) -> tuple[float, float]:
    """Accuracy, and how much of the gradient map's top tenth stays under an attack of 4/255."""
    model.eval()
    accuracy = gg.metric("accuracy")(model, None, x, y).mean()
    gradient = gg.attribution("gradient")
    hit = gg.attack("auto", eps=4 / 255, steps=4)(model, gradient, x[:32], y[:32])
    kept = gg.metric("top_k_intersection", k=102)(model, gradient, x[:32], y[:32], perturbed=hit.x).mean()
    return float(accuracy), float(kept)


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
    found = {}
    for when in ("before", "after"):
        set_seed(0)
        model = small_net()
        with tempfile.TemporaryDirectory() as folder:
            trainer = SteadyTrainer(model, arguments(folder, epochs), train_dataset=rows)
            trainer.remove_callback(PrinterCallback)
            if when == "after":
                trainer.steady = Steady(Logits(model), eps=4 / 255)  # the first line
            trainer.train()
            if trainer.steady is not None:
                trainer.steady.finish()  # the third: the model takes the averaged weights
        found[when] = measure(Logits(model), unseen.pixels(), unseen.labels)
        print(f"{when:>6} adding the lines: accuracy {found[when][0]:.3f}, top kept {found[when][1]:.3f}")
    return found


if __name__ == "__main__":
    main()
