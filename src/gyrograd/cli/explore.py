"""gyrograd explore: the web page."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gyrograd.cli.inputs import USUAL, Opening
from gyrograd.cli.options import Syntax

if TYPE_CHECKING:
    from gyrograd.explorer import Stage
    from gyrograd.types import Model

PAIR = ("cifar10/lenet-ce", "cifar10/lenet-l2-cosine")
"""The default models of the page: the same net trained in two ways."""
EPOCHS = 6
TRAIN = 1500
"""Training images and epochs of the nets for embedded data, as in `gyrograd demo`."""


@Syntax(words={"models": "*"})
def explore(
    models: list[str],
    data: str | None = None,
    port: int = 7860,
    host: str = "127.0.0.1",
    open: bool = False,
    trusted_host: str | None = None,
    opening: Opening = USUAL,
) -> None:
    """Open a page in the browser: explain, attack, compare models.

    Args:
        models: one or more, each a checkpoint, a zoo or registry name, torchvision:NAME or timm:NAME (with
            :pretrained for trained weights), FILE.py:FACTORY (this runs the file), or a TorchScript or torch.export
            file. Default: the two LeNets of the zoo if CIFAR-10 is on disk, else two that are trained on embedded data.
        data: a registered set such as shapes, a folder, an image or a pattern; default: embedded drawings.
        port: port of the page.
        host: address to listen on; 0.0.0.0 lets other machines see the page.
        open: also open the browser.
        trusted_host: a further name under which the page may be opened, such as mybox.lan; separated by commas.
            The page answers to 127.0.0.1, localhost and the address it listens on; other names are refused.
        images: number of images at most; default: all of a registered set, or 200 files.
        size: side of the images in pixels; default: that of the first model, if known.
        classes: class count of models built by name; default: that of the weights, else of the labelled data, else the
            architecture's own.
        normalize: cifar10, imagenet or efficientnet_lite, the statistics of models that do not normalise by themselves.
        seed: for the attacks and the choice of images.
    """
    from gyrograd.explorer import open_stage
    from gyrograd.explorer.page import gradio
    from gyrograd.explorer.server import check_free, serve
    from gyrograd.models.opening import resolve_device

    # Report a taken port or a missing library before spending minutes on models.
    check_free(host, port)
    gradio()
    opening = replace(opening, device=resolve_device(opening.device))
    if not models and data is None and not _cifar10_is_here():
        stage = _stage_of_drawings(opening.device, opening.seed)
    else:
        # The data set that the models were trained on is known for the zoo only.
        own = "cifar10" if all(name.startswith("cifar10/") for name in models) else None
        stage = open_stage(models or list(PAIR), data or own, **vars(opening))
    trusted = [name.strip() for name in (trusted_host or "").split(",") if name.strip()]
    serve(stage, host=host, port=port, open=open, trusted=trusted, ready=_say)


def _say(address: str) -> None:
    from gyrograd.cli.terminal import say

    say("The page is open; Ctrl-C ends it.", stderr=True)
    print(address, flush=True)


def _cifar10_is_here() -> bool:
    from gyrograd.data.cifar10 import BINARY, PICKLED, data_root

    return any((data_root() / name).is_dir() for name in (BINARY, PICKLED))


def _stage_of_drawings(device: str, seed: int) -> Stage:
    """Embedded images and two nets trained on them as in the demo, once; later calls load them."""
    from gyrograd.data.opening import Choice, open_data_with_names
    from gyrograd.explorer import make_stage

    nets = {name: _cached_net(name, seed).to(device) for name in ("cross-entropy", "steady")}
    return make_stage(nets, open_data_with_names("shapes", Choice()), device=device, seed=seed)


def _cached_net(name: str, seed: int) -> Model:
    """The cached net, or a newly trained one."""
    import gyrograd as gg
    from gyrograd.cli.demo import train_net
    from gyrograd.cli.terminal import say
    from gyrograd.data.cifar10 import data_root
    from gyrograd.models import load, save

    words = f"{name}-{TRAIN}x{EPOCHS}-seed{seed}-{gg.__version__}"
    path = data_root() / "explore" / f"{words}.safetensors"
    if not path.is_file():
        say(f"Training a LeNet on embedded data with {name}, {EPOCHS} epochs, once ...", stderr=True)
        net, _ = train_net(name, gg.dataset("shapes", split="train", n=TRAIN), EPOCHS, seed)
        save(path, net, facts={"data": "shapes", "objective": name})
    return load(path)
