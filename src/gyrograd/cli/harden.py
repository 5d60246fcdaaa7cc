"""`gyrograd harden`: fine-tune a classifier for steady explanations, with a card of before and after."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gyrograd.cli.options import Syntax
from gyrograd.errors import printable

if TYPE_CHECKING:
    from gyrograd.hardening import Hardened
    from gyrograd.hardening.pipeline import TryEpoch


@Syntax(renamed={"part": "regularized_fraction"})
def harden(
    model: str,
    data: str,
    out: Path = Path("out/harden"),
    epochs: int = 5,
    max_accuracy_loss: float = 0.01,
    objective: str = "steady",
    eps: str | float | None = None,
    curvature: float | None = None,
    tries: int = 4,
    l2: float | None = None,
    cosine: float | None = None,
    regularized_fraction: float | None = None,
    lr: float = 1e-3,
    optimizer: str = "adam",
    batch_size: int = 64,
    flip: bool = False,
    crop: int = 0,
    zoom: float = 1.0,
    images: int = 32,
    preset: str = "quick",
    size: int | None = None,
    weights: Path | None = None,
    classes: int | None = None,
    normalize: str | None = None,
    seed: int = 0,
    device: str = "auto",
    resume: str = "auto",
    json: bool = False,
) -> int:
    """Fine-tune a classifier until its explanations hold under attack.

    Accuracy may fall by --max_accuracy_loss. The radius of the objective is searched: it grows while accuracy holds
    and shrinks if it does not. The same audit measures the model before and after. Exit code 1: nothing was gained,
    and the model is unchanged.

    Args:
        model: a checkpoint, torchvision:NAME, timm:NAME (with :pretrained for trained weights) or FILE.py:FACTORY.
        data: a data set by name, or a folder with a sub-folder per class (or train and val folders with them); without
            test images a fifth of each class is held out.
        out: folder for weights, card, both audits and the tries.
        epochs: passes over the training images, per try.
        max_accuracy_loss: largest loss of accuracy on the held-out images; 0.01 is one point.
        objective: steady (adversarial loss at a small radius, curvature, averaged weights) or l2_cosine (joo2023).
        eps: first radius, such as 1/255; for l2_cosine the size of its noise (4/255).
        curvature: weight of steady's Hessian penalty (0.001); 0 leaves it out.
        tries: number of radii to try, at most.
        l2: for l2_cosine: weight of the squared distance of the gradients at and near an image (0.1).
        cosine: for l2_cosine: weight of their cosine distance (1).
        regularized_fraction: for l2_cosine: fraction of each batch that is regularised (1).
        lr: peak learning rate; the rate rises to it and then falls to zero.
        optimizer: adam, adamw or sgd.
        batch_size: images per step.
        flip: mirror every second training image.
        crop: largest shift of a training image by a random crop, in pixels.
        zoom: smallest fraction of a training image that a random resized crop shows; 1 for no cropping.
        images: held-out images that are explained and attacked, before and after.
        preset: preset of both audits: quick, standard or thorough.
        size: side of the images of a folder; default: that of the model, if known.
        weights: a state dict for a model that is not a file of its own.
        classes: number of classes of such a model.
        normalize: cifar10, imagenet or efficientnet_lite, if the model does not normalise its input itself.
        seed: for order, noise, attacks and the held-out images.
        device: auto, cpu, cuda or cuda:N.
        resume: auto (continue the run in the folder), never, or changed (continue with other settings).
        json: print the card as JSON.
    """
    from gyrograd.cli.inputs import check_folder
    from gyrograd.cli.parsing import pixel_radius
    from gyrograd.hardening import harden as hardened
    from gyrograd.hardening.search import objective_settings

    check_folder(out)
    size_of_step = None if eps is None else pixel_radius(eps)
    aligning = {"l2": l2, "cosine": cosine, "regularized_fraction": regularized_fraction}
    chosen = objective_settings(objective, eps=size_of_step, curvature=curvature, **aligning)
    done = hardened(
        model, data, out=out, objective=chosen, epochs=epochs, max_accuracy_loss=max_accuracy_loss, tries=tries,
        images=images, preset=preset, size=size, weights=weights, classes=classes, normalize=normalize, seed=seed,
        device=device, resume=resume, says=_say, lr=lr, optimizer=optimizer, batch_size=batch_size, flip=flip,
        crop=crop, zoom=zoom,
    )  # fmt: skip
    if json:
        print(json_format.dumps(done.card | {"file": str(done.path)}, indent=1))
    else:
        _print(done, out)
    return 0 if done.better else 1


def _say(entry: TryEpoch) -> None:
    """Print a line per epoch on stderr; stdout is for the card."""
    from gyrograd.hardening.search import strength_in_words
    from gyrograd.progress import duration_in_words

    place = f"try {entry['try']} of at most {entry['tries']}, {strength_in_words(entry['terms'], entry['strength'])}"
    left = f"; at most {duration_in_words(entry['left'])} of training left" if entry["left"] else ""
    print(
        f"{place}: epoch {entry['epoch']} of {entry['epochs']}, accuracy {entry['accuracy']:.1%}{left}",
        file=sys.stderr,
        flush=True,
    )


def _print(done: Hardened, out: Path) -> None:
    from gyrograd.cli.terminal import print_table, say
    from gyrograd.hardening.card import card_table

    counts, table = done.card["images"], card_table(done.card)
    for sentence in done.card["verdict"]:
        say(sentence)
    print_table(table.header, table.rows, unbroken=True)
    say(
        f"Accuracy of {counts['judged']:,} images ({done.card['judged_on']}), {counts['attacked']:,} of them attacked. "
        "*: the explanation to use."
    )
    for note in done.card["notes"]:
        say(note, style="yellow")
    print(printable(out / "report.html"))
    print(printable(done.path))
