"""`gyrograd harden`: an existing classifier, its images, a few epochs, and a card of before and after."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyrograd.errors import printable

if TYPE_CHECKING:
    from gyrograd.training.harden import Hardened


def harden(
    model: str,
    data: str,
    out: Path = Path("out/harden"),
    epochs: int = 5,
    max_accuracy_loss: float = 0.01,
    l2: float = 0.1,
    cosine: float = 1.0,
    eps: str | float = "4/255",
    part: float = 1.0,
    lr: float = 1e-4,
    batch_size: int = 64,
    images: int = 100,
    size: int | None = None,
    weights: Path | None = None,
    classes: int | None = None,
    normalize: str | None = None,
    seed: int = 0,
    device: str = "auto",
    resume: str = "auto",
    json: bool = False,
) -> int:
    """Fine-tune a classifier until its explanations hold still; an accuracy loss beyond the limit stops it.

    Exit code 1: no epoch within the limit held stiller, and the model is as it was.

    Args:
        model: a checkpoint, torchvision:NAME, timm:NAME (with :pretrained for trained weights) or FILE.py:FACTORY.
        data: a data set by name, or a folder with a sub-folder for each class (perhaps below train and val); what
            has no test images has a fifth of each class held out.
        out: folder for weights, card, records and checkpoint.
        epochs: at most so many passes over the training images.
        max_accuracy_loss: largest loss of test accuracy; 0.01 is one point.
        l2: weight of the squared distance of the gradients at and near an image.
        cosine: weight of their cosine distance.
        eps: how near, such as 4/255.
        part: share of each batch that is regularised; 0.25 costs a quarter.
        lr: learning rate.
        batch_size: images of one step.
        images: test images that are explained and attacked.
        size: side of the images of a folder, where the model does not tell.
        weights: a state dict for a model that is not a file of its own.
        classes: the class count such a model is built with.
        normalize: cifar10, imagenet or efficientnet_lite, if the model does not normalise its input itself.
        seed: of order, noise, attack and what is held out.
        device: auto, cpu, cuda or cuda:N.
        resume: auto (go on with the folder's run), never, or changed.
        json: print the card as JSON for machines.
    """
    from gyrograd.cli.subject import check_folder
    from gyrograd.training import Stopped
    from gyrograd.training.harden import harden as hardened
    from gyrograd.training.measuring import Measuring

    check_folder(out)
    try:
        done = hardened(
            model,
            data,
            out=out,
            epochs=epochs,
            max_accuracy_loss=max_accuracy_loss,
            measuring=Measuring(images=images, seed=seed),
            size=size,
            weights=weights,
            classes=classes,
            normalize=normalize,
            seed=seed,
            device=device,
            resume=resume,
            says=_say,
            terms={"l2_cosine": {"l2": l2, "cosine": cosine, "eps": _radius(eps)}},
            part=part,
            lr=lr,
            batch_size=batch_size,
        )
    except Stopped as stopped:
        print(f"gyrograd: {printable(stopped)}", file=sys.stderr)
        return stopped.exit_code
    if json:
        print(json_format.dumps(done.card | {"file": str(done.path)}, indent=1))
    else:
        _print(done, out)
    return 0 if done.better else 1


def _say(entry: dict[str, Any]) -> None:
    """A line for each epoch, on stderr: stdout is the card's."""
    numbers = f"accuracy {entry['accuracy']:.3f}, Grad RPS {entry['rps']:.3f}"
    print(f"epoch {entry['epoch']}: {numbers}, {entry['seconds']:.0f} s", file=sys.stderr, flush=True)


def _radius(eps: str | float) -> float:
    from gyrograd.cli.written import radius
    from gyrograd.errors import UserError

    value = radius(eps)
    if value > 1:
        raise UserError(f"eps is '{eps}' and pixels lie in [0, 1]; write {eps}/255 if you mean grey levels.")
    return value


def _print(done: Hardened, out: Path) -> None:
    from gyrograd.cli.sweep import rich_table
    from gyrograd.cli.terminal import Console
    from gyrograd.training.hardened import card_table

    console = Console()
    plain: dict[str, Any] = {"markup": False, "highlight": False}
    console.print(f"Judged on {done.card['images']['judged']:,} images: {done.card['judged_on']}.", **plain)
    console.print(rich_table(card_table(done.card), unbroken=True))
    for sentence in done.card["verdict"]:
        console.print(sentence, **plain)
    for note in done.card["notes"]:
        console.print(note, style="yellow", **plain)
    print(printable(out / "card.md"))
    print(printable(done.path))
