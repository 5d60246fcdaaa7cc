"""Open any model by one text: a checkpoint, a zoo name, a library's model, the user's own file, a saved program."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gyrograd.errors import UserError, check_name, did_you_mean
from gyrograd.models import checkpoints, hugging_face, zoo
from gyrograd.models.archives import content_of
from gyrograd.models.assembly import build, rebuild
from gyrograd.models.exported import open_export
from gyrograd.models.factories import model_from_file
from gyrograd.models.outputs import check_model, notes
from gyrograd.models.scripts import open_script
from gyrograd.models.specs import spec_of
from gyrograd.models.weights import OtherClassCountError, load_state
from gyrograd.models.wrappers import Normalized, find_statistics
from gyrograd.registry import available, lookup

__all__ = ["check_model", "image_size", "load", "match_classes", "notes", "open_model", "resolve_device"]

SOURCES = ("torchvision", "timm", "hf")
ENDINGS = (".safetensors", ".pt", ".pth", ".pt2", ".ts", ".bin", ".ckpt", ".pkl", ".zip")
UNTRAINED = "The model has no trained weights (none were given), so its explanations are meaningless."
_NAME_THE_MODEL = (
    "name its model (torchvision:resnet18, FILE.py:FACTORY, ...) and give the file with --weights"
)


def resolve_device(device: str) -> str:
    """The device for a setting: auto is the first GPU, or the CPU if there is none. A missing device is an error."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    _device(device)
    return device


def open_model(
    text: str,
    *,
    weights: Path | None = None,
    classes: int | None = None,
    normalize: str | None = None,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """Open the model that `text` names, in eval mode on the device: images in [0, 1] to logits.

    Args:
        text: a gyrograd checkpoint; a name of the zoo (`cifar10/lenet-ce`) or the registry (`resnet20`);
            `torchvision:NAME` or `timm:NAME`, followed by `:pretrained` for trained weights; `hf:KIND` of Hugging Face
            transformers (`hf:vit`), a folder that `save_pretrained` wrote, or `hf:OWNER/NAME` of the hub;
            `FILE.py:FACTORY`, which runs that file; a TorchScript or torch.export file. Write `./` before a path that
            could be a name.
        weights: a state dict, for a model that is not a file of its own.
        classes: its number of classes; default: that of the weights, else the architecture's own. `match_classes` makes
            it that of labelled data.
        normalize: the channel statistics it was trained with ("cifar10", "imagenet", "efficientnet_lite"), if the
            model does not normalise by itself.
        device: where to put it.
    """
    try:
        return _open(text, weights, classes, normalize, _device(device))
    except OtherClassCountError as found:
        if weights is None:
            raise  # the checkpoint contradicts itself
        if classes is not None:
            raise UserError(
                f"{weights} has {found.classes} classes ('{found.key}') and --classes is {classes}; leave out "
                f"--classes, or give --classes {found.classes}."
            ) from None
        try:
            return _open(text, weights, found.classes, normalize, _device(device))
        except UserError:
            # A model of the user's own may have no such setting; the difference is then the error to report.
            raise UserError(
                f"{weights} has {found.classes} classes ('{found.key}') and {text} {found.own}; give a model of "
                f"{found.classes} classes."
            ) from None


def match_classes(model: nn.Module, count: int) -> nn.Module:
    """The model; if it has no trained weights, with `count` classes, those of the labelled data it is opened with.

    A model of the user's own file keeps its number, and so does any model if there is only one class.
    """
    spec = spec_of(model)
    if spec is None or UNTRAINED not in notes(model) or count in (1, spec.settings.get("num_classes")):
        return model
    fitting = rebuild(replace(spec, settings={**spec.settings, "num_classes": count}))
    fitting.__dict__["note"] = UNTRAINED
    return fitting.to(next(model.parameters()).device).eval()


def _open(
    text: str, weights: Path | None, classes: int | None, normalize: str | None, place: torch.device
) -> nn.Module:
    file = _own_file(text)
    if file is not None:
        model = model_from_file(*file, classes)
        if weights is not None:
            load_state(model, weights)
    elif (trained := _folder_or_hub_name(text)) is not None:
        _refuse_settings(text, weights=weights, classes=classes)
        return _move(hugging_face.open_trained(trained, find_statistics(normalize)), place, text)
    elif text.partition(":")[0] in SOURCES and ":" in text:
        return _move(_by_name(text, weights, classes, normalize), place, text)
    elif _is_path(text):
        model = _from_file(Path(text).expanduser(), weights, classes, normalize, place)
    elif text in zoo.names():
        _refuse_settings(text, weights=weights, classes=classes, normalize=normalize)
        model = zoo.load(text)
    else:
        _check_registered(text)
        return _move(_by_name(text, weights, classes, normalize), place, text)
    statistics = find_statistics(normalize)
    return _move(model if statistics is None else Normalized(model, *statistics), place, text)


def load(text: Path | str) -> nn.Module:
    """Load a trained model, on the CPU and in eval mode: the path of a checkpoint, or a name of the zoo.

    >>> import gyrograd as gg
    >>> model = gg.load("cifar10/lenet-steady")
    >>> model(gg.dataset("shapes", n=2).pixels()).shape
    torch.Size([2, 10])
    """
    path = Path(text).expanduser()
    if not path.is_file() and str(text) in zoo.names():
        return zoo.load(str(text))
    if not path.exists() and isinstance(text, str) and not path.suffix and zoo.names():
        raise UserError(
            f"There is no checkpoint and no zoo model '{text}': {did_you_mean(text, zoo.names())}"
        )
    return checkpoints.load(path)


def image_size(model: nn.Module) -> int | None:
    """Side of the square images a model was made for, or None if it does not say."""
    spec = spec_of(model)
    if spec is not None and isinstance(spec.settings.get("image_size"), int):
        return int(spec.settings["image_size"])
    entry = available("model").get(spec.name) if spec is not None else None
    if entry is not None and entry.image_size is not None:
        return entry.image_size
    if spec is not None and spec.name.startswith("torchvision:"):
        from torchvision.models import get_model_weights

        # That of the library's own weights, which are not downloaded.
        preset = get_model_weights(spec.name.partition(":")[2]).DEFAULT.transforms()
        sides = getattr(preset, "crop_size", [None])
        return int(sides[0]) if sides[0] else None
    for module in model.modules():
        size = vars(module).get("image_size")
        if isinstance(size, int):
            return size
        trained: Any = vars(module).get("default_cfg") or vars(module).get("pretrained_cfg")
        if isinstance(trained, dict) and "input_size" in trained:
            return int(trained["input_size"][-1])
    return None


def _own_file(text: str) -> tuple[Path, str] | None:
    """`FILE.py:FACTORY`, split into the file and the name of the factory."""
    if text.endswith(".py"):
        raise UserError(f"{text} is a Python file; say which function of it makes the model: {text}:FACTORY.")
    found = re.fullmatch(r"(.+\.py):(\w+)", text)
    return (Path(found[1]).expanduser(), found[2]) if found else None


def _folder_or_hub_name(text: str) -> str | None:
    """The folder or hub name of a trained transformers classifier, or None."""
    source, colon, name = text.partition(":")
    if colon and source == "hf":
        return name if "/" in name or Path(name).expanduser().is_dir() else None
    path = Path(text).expanduser()
    return text if path.is_dir() and hugging_face.is_folder_of_transformers(path) else None


def _by_name(text: str, weights: Path | None, classes: int | None, normalize: str | None) -> nn.Module:
    """A model of a library or of the registry; without trained weights it has a note for `notes`."""
    name = text.removesuffix(":pretrained")
    if name.endswith(":pretrained"):
        raise UserError(f"{text} says ':pretrained' twice; say it once.")
    pretrained = name != text
    if pretrained and weights is not None:
        raise UserError(f"{text} brings its own weights; leave out --weights, or ':pretrained'.")
    if pretrained:
        return build(name, num_classes=classes, pretrained=True, normalize=normalize)
    model = build(name, num_classes=classes, weights=weights, normalize=normalize, seed=0)
    if weights is None:
        model.__dict__["note"] = UNTRAINED
    return model


def _from_file(
    path: Path, weights: Path | None, classes: int | None, normalize: str | None, device: torch.device
) -> nn.Module:
    """A model that is a file of its own, opened according to its content."""
    if path.is_dir():
        raise UserError(
            f"{path} is a folder without a classifier that transformers' save_pretrained wrote; give the file of the "
            "model in it."
        )
    if not path.is_file():
        raise UserError(f"There is no file {path}; check the path.")
    content = content_of(path)
    if content == "pickle":
        raise UserError(f"{path} holds weights or a pickled model, which could run code; {_NAME_THE_MODEL}.")
    if content == "safetensors":
        raise UserError(f"{path} holds weights without a model; {_NAME_THE_MODEL}.")
    if content == "other" and path.suffix != ".safetensors":
        raise UserError(
            f"{path} is not a model that gyrograd can open; give a checkpoint, a TorchScript or torch.export file, or "
            "FILE.py:FACTORY."
        )
    if content == "torchscript":
        _refuse_settings(str(path), weights=weights, classes=classes)
        return open_script(path, device)
    if content == "export":
        _refuse_settings(str(path), weights=weights, classes=classes)
        return open_export(path, device)
    _refuse_settings(str(path), weights=weights, classes=classes, normalize=normalize)
    return checkpoints.load(path)


def _refuse_settings(text: str, **settings: Any) -> None:
    for name, value in settings.items():
        if value is not None:
            raise UserError(f"{text} is a whole model with its own {name}; leave out --{name}.")


def _is_path(text: str) -> bool:
    """True for an existing file, or a text that can only be a path."""
    path = Path(text).expanduser()
    written = text.startswith(("/", "./", "../", "~")) or path.suffix.lower() in ENDINGS
    return written or (path.exists() and text not in available("model") and text not in zoo.names())


def _check_registered(text: str) -> None:
    """Refuse a name that is not registered, and suggest the nearest one."""
    known = {key for entry in available("model").values() for key in (entry.name, *entry.aliases)}
    if text in known:
        lookup("model", text)
        return
    source, colon, _ = text.partition(":")
    if colon:
        check_name("model source", source, SOURCES)
    hint = did_you_mean(text, {*known, *zoo.names()})
    raise UserError(f"There is no file and no model '{text}': {hint}")


def _device(name: torch.device | str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as wrong:
        reason = str(wrong).partition("\n")[0].rstrip(".")
        raise UserError(
            f"There is no device '{name}' here ({reason}); give cpu, cuda or cuda:INDEX."
        ) from None
    if device.type == "meta":
        raise UserError("Tensors on the device 'meta' hold no numbers; give cpu, cuda or cuda:INDEX.")
    return device


def _move(model: nn.Module, device: torch.device, text: str) -> nn.Module:
    """The model on the device and in eval mode; weights on the meta device, without values, are refused."""
    bare = [name for name, tensor in model.named_parameters() if tensor.is_meta]
    if bare:
        raise UserError(
            f"The weights of {text} are on the device 'meta' ('{bare[0]}'), where they have no values; "
            "build it on the CPU or load its state dict with --weights."
        )
    return model.to(device).eval()
