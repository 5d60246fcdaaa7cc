"""Inputs that must be refused in one sentence, and odd ones that must be taken: for every verb of MODEL and DATA.

`BAD[name]` is (make, words of the sentence): `make(kit, folder)` writes what it needs below `folder` and returns the
words after the verb: MODEL, DATA and perhaps options. `COMMON` names those that need no options, for verbs that have
others. `GOOD[name]` makes words in the same way.
"""

from __future__ import annotations

import io
import json
import pickle
import shutil
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import gyrograd as gg

SIDE = 8
CLASSES = 3


@dataclass(frozen=True)
class Kit:
    """Things that are sound, made once: a checkpoint, a folder of three classes, programs, a file of factories."""

    model: str
    data: str
    script: Path
    export: Path
    factories: Path
    weights: Path


Make = Callable[[Kit, Path], list[str]]
BAD: dict[str, tuple[Make, str]] = {}
GOOD: dict[str, tuple[Make, str]] = {}
COMMON: set[str] = set()


def net(classes: int = CLASSES) -> nn.Module:
    """The smallest net with an activation that takes any size."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes)
    ).eval()


FACTORIES = '''
import torch
from torch import nn


def net(num_classes=3):
    """A net with its size written on it."""
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, num_classes)
    model = nn.Sequential(*layers)
    model.image_size = 8
    return model


class Around(nn.Module):
    def __init__(self, answer):
        super().__init__()
        self.core, self.answer, self.image_size = net(), answer, 8

    def forward(self, x):
        return self.answer(self.core(x))


def sizeless():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))


def one_channel():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    model.image_size = 8
    return model


def two_logits(): return Around(lambda z: (z, z + 1))
def detector(): return Around(lambda z: [{"boxes": z} for _ in z])
def nothing(): return Around(lambda z: None)
def one_number(): return Around(lambda z: z[:, :1])
def feature_maps(): return Around(lambda z: z[:, :, None, None])
def infinite(): return Around(lambda z: z / 0)
def picky(): return Around(lambda z: z.view(7, 7, 7))
def tuple_of_one(): return Around(lambda z: (z, z.mean()))
def dictionary(): return Around(lambda z: {"hidden": z * 2, "logits": z})
def probabilities(): return Around(lambda z: z.softmax(1))
def no_module(): return 3
def demanding(depth): return net()
def failing(): raise OSError("the disk is away")


def diverged():
    model = net()
    model[4].weight.data[0, 0] = float("nan")
    return model


def elsewhere():
    return net().to("meta")


a_number = 3
'''


def kit(folder: Path) -> Kit:
    """Write the sound things below a folder."""
    from gyrograd.models import save

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = net()
    save(folder / "lenet.safetensors", gg.model("lenet", image_size=SIDE, num_classes=CLASSES, seed=0))
    save_file(plain.state_dict(), folder / "weights.safetensors")
    (folder / "nets.py").write_text(FACTORIES)
    x = torch.rand(2, 3, SIDE, SIDE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(plain), str(folder / "script.pt"))
        export(plain, folder / "program.pt2", x)
    for label in ("ant", "bee", "cat"):
        picture(folder / "photos" / label / "1.png")
        picture(folder / "photos" / label / "2.png")
    return Kit(
        model=str(folder / "lenet.safetensors"),
        data=str(folder / "photos"),
        script=folder / "script.pt",
        export=folder / "program.pt2",
        factories=folder / "nets.py",
        weights=folder / "weights.safetensors",
    )


def export(model: nn.Module, path: Path, x: torch.Tensor, *, fixed: bool = False) -> None:
    """A torch.export file, for any number of images unless it is fixed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shapes = None if fixed else ({0: torch.export.Dim("batch")},)
        torch.export.save(torch.export.export(model, (x,), dynamic_shapes=shapes), path)


def picture(path: Path, mode: str = "RGB", side: int = SIDE, **settings: object) -> Path:
    """An image of noise in a mode of Pillow's."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0).integers(0, 256, (side, side, 4), dtype=np.uint8)
    if mode == "I;16":
        image = Image.fromarray(noise[..., 0].astype(np.uint16) * 256)
    elif mode == "F":
        image = Image.fromarray(noise[..., 0].astype(np.float32))
    else:
        image = Image.fromarray(noise).convert(mode)
    image.save(path, **settings)
    return path


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def evil(folder: Path) -> bytes:
    """A pickle with code in it: `folder / "ran"` exists once it has run."""
    return pickle.dumps(Evil(folder / "ran"), protocol=2)


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def rezipped(source: Path, path: Path, change: Callable[[str, bytes], bytes]) -> Path:
    """A copy of a zip with some members changed."""
    with zipfile.ZipFile(source) as archive:
        return zipped(path, {name: change(name, archive.read(name)) for name in archive.namelist()})


def program_changed(source: Path, path: Path, change: Callable[[dict[str, object]], None]) -> Path:
    """A torch.export file with another program in it."""

    def edit(name: str, content: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return content
        document = json.loads(content)
        change(document)
        return json.dumps(document).encode()

    return rezipped(source, path, edit)


def bomb(path: Path) -> Path:
    """A PNG of a few bytes that says it is 60,000 pixels wide and high."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    pieces = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"\0" * 10)), chunk(b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(pieces))
    return path


def bad(name: str, sentence: str, *, options: bool = False) -> Callable[[Make], Make]:
    """Put a maker into the list under a name; one that needs options is not for every verb."""

    def add(make: Make) -> Make:
        BAD[name] = (make, sentence)
        if not options:
            COMMON.add(name)
        return make

    return add


def bad_model(name: str, text: str, sentence: str) -> None:
    """A model that is a text alone; FILE stands for the file of factories."""
    bad(name, sentence)(lambda kit, folder: [text.replace("FILE", str(kit.factories)), kit.data])


def bad_data(name: str, text: str, sentence: str) -> None:
    """Data that are a text alone; DATA stands for the sound folder."""
    bad(name, sentence)(lambda kit, folder: [kit.model, text.replace("DATA", kit.data)])


def bad_options(name: str, options: list[str], sentence: str) -> None:
    bad(name, sentence, options=True)(lambda kit, folder: [kit.model, kit.data, *options])


def good(name: str, note: str = "") -> Callable[[Make], Make]:
    """Something odd that is taken; `note` is what must be said about it."""

    def add(make: Make) -> Make:
        GOOD[name] = (make, note)
        return make

    return add


# --- models ---------------------------------------------------------------------------------------------

bad_model("a name that almost exists", "lennet", "did you mean 'lenet'")
bad_model("a torchvision name that almost exists", "torchvision:resnet81", "did you mean 'resnet18'")
bad_model("a timm name that almost exists", "timm:resnet81", "did you mean 'resnet18'")
bad_model("a source that almost exists", "torchvison:resnet18", "did you mean 'torchvision'")
bad_model("a missing model file", "nowhere/model.safetensors", "no file nowhere/model.safetensors")
bad_model("a Python file without a factory", "FILE", "nets.py:FACTORY")
bad_model("a missing Python file", "nowhere.py:net", "no file nowhere.py")
bad_model("a factory that almost exists", "FILE:elsewere", "did you mean 'elsewhere'")
bad_model("a factory that is no function", "FILE:a_number", "name a function that returns the model")
bad_model("a factory of something else", "FILE:no_module", "returned a int; it must return a torch.nn.Module")
bad_model("a factory with arguments", "FILE:demanding", "called without arguments")
bad_model("a factory that fails", "FILE:failing", "OSError: the disk is away")
bad_model("two outputs that could be logits", "FILE:two_logits", "2 could be the logits")
bad_model("a detector", "FILE:detector", "0 could be the logits")
bad_model("a model that returns nothing", "FILE:nothing", "wrap it to return the logits only")
bad_model("a model of one number", "FILE:one_number", "a logit for each class")
bad_model("a model of feature maps", "FILE:feature_maps", "return logits, ")
bad_model("infinite logits", "FILE:infinite", "NaN or infinite logits")
bad_model("NaN weights", "FILE:diverged", "'4.weight' holds NaN or infinite weights")
bad_model("a model on another device", "FILE:elsewhere", "on the device 'meta'")
bad_model("a model of one channel", "FILE:one_channel", "cannot take images of 3 x 8 x 8")
bad_model("a model that fails on images", "FILE:picky", "cannot take images of 3 x 8 x 8")
bad_model("a model whose size is not known", "FILE:sizeless", "say it with --size")


@bad("a Python file that does not run", "ModuleNotFoundError")
def _(kit: Kit, folder: Path) -> list[str]:
    (folder / "broken.py").write_text("import no_such_module_anywhere\n")
    return [f"{folder / 'broken.py'}:net", kit.data]


@bad("a folder as the model", "is a folder")
def _(kit: Kit, folder: Path) -> list[str]:
    return [f"{folder}/", kit.data]


@bad("text in a .safetensors file", "not a gyrograd checkpoint")
def _(kit: Kit, folder: Path) -> list[str]:
    (folder / "a.safetensors").write_text("these are no tensors")
    return [str(folder / "a.safetensors"), kit.data]


@bad("an image as the model", "is not a model that gyrograd can open")
def _(kit: Kit, folder: Path) -> list[str]:
    return [str(picture(folder / "a.png")), kit.data]


@bad("a checkpoint cut short", "is damaged")
def _(kit: Kit, folder: Path) -> list[str]:
    (folder / "a.safetensors").write_bytes(Path(kit.model).read_bytes()[:-100])
    return [str(folder / "a.safetensors"), kit.data]


@bad("a checkpoint with a flipped bit", "do not match its checksum")
def _(kit: Kit, folder: Path) -> list[str]:
    content = bytearray(Path(kit.model).read_bytes())
    content[-50] ^= 1
    (folder / "a.safetensors").write_bytes(content)
    return [str(folder / "a.safetensors"), kit.data]


@bad("weights without a model", "give the file with --weights")
def _(kit: Kit, folder: Path) -> list[str]:
    return [str(kit.weights), kit.data]


@bad("a state dict without a model", "give the file with --weights")
def _(kit: Kit, folder: Path) -> list[str]:
    torch.save(net().state_dict(), folder / "a.pt")
    return [str(folder / "a.pt"), kit.data]


@bad("a pickle with code in it", "which could run code")
def _(kit: Kit, folder: Path) -> list[str]:
    (folder / "a.pt").write_bytes(evil(folder))
    return [str(folder / "a.pt"), kit.data]


@bad("a pickle with code in a zip", "which could run code")
def _(kit: Kit, folder: Path) -> list[str]:
    zipped(folder / "a.pt", {"a/data.pkl": evil(folder), "a/version": b"3"})
    return [str(folder / "a.pt"), kit.data]


@bad("a pickle with code in TorchScript", "TorchScript")
def _(kit: Kit, folder: Path) -> list[str]:
    swap = {"data.pkl", "constants.pkl"}
    path = folder / "a.pt"
    rezipped(kit.script, path, lambda name, old: evil(folder) if name.rpartition("/")[2] in swap else old)
    return [str(path), kit.data]


@bad("a pickle with code in torch.export", "more than tensors")
def _(kit: Kit, folder: Path) -> list[str]:
    inner = io.BytesIO()
    torch.save(Evil(folder / "ran"), inner)
    path = folder / "a.pt2"
    rezipped(kit.export, path, lambda name, old: inner.getvalue() if "sample_inputs" in name else old)
    return [str(path), kit.data]


@bad("a pickled object in torch.export", "compiled code or Python objects")
def _(kit: Kit, folder: Path) -> list[str]:
    path = folder / "a.pt2"
    shutil.copy(kit.export, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("program/data/constants/opaque_obj_0", evil(folder))
    return [str(path), kit.data]


@bad("a guard of torch.export that is code", "more than arithmetic")
def _(kit: Kit, folder: Path) -> list[str]:
    code = f"__import__('pathlib').Path({str(folder / 'ran')!r}).touch() is None"
    path = program_changed(kit.export, folder / "a.pt2", lambda d: d.update(guards_code=[code]))
    return [str(path), kit.data]


@bad("a size of torch.export that is code", "more than arithmetic")
def _(kit: Kit, folder: Path) -> list[str]:
    code = f"__import__('pathlib').Path({str(folder / 'ran')!r}).touch() or 3"

    def spoil(document: dict[str, object]) -> None:
        text = (
            json.dumps(document)
            .replace("Symbol('", "Symbol(' ")
            .replace("\"Symbol(' ", json.dumps(code)[:-1] + " # ", 1)
        )
        document.clear()
        document.update(json.loads(text))

    return [str(program_changed(kit.export, folder / "a.pt2", spoil)), kit.data]


@bad("an operation of torch.export that is not torch's", "not an operation that a model needs")
def _(kit: Kit, folder: Path) -> list[str]:
    def spoil(document: dict[str, object]) -> None:
        text = json.dumps(document).replace("torch.ops.aten.relu.default", "torch.serialization.os.system")
        document.clear()
        document.update(json.loads(text))

    return [str(program_changed(kit.export, folder / "a.pt2", spoil)), kit.data]


@bad("an export for one batch size", "for batches of exactly 2")
def _(kit: Kit, folder: Path) -> list[str]:
    export(net(), folder / "a.pt2", torch.rand(2, 3, SIDE, SIDE), fixed=True)
    return [str(folder / "a.pt2"), kit.data]


@bad("an export in train mode", "exported in train mode")
def _(kit: Kit, folder: Path) -> list[str]:
    training = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(3 * SIDE * SIDE, CLASSES)).train()
    export(training, folder / "a.pt2", torch.rand(2, 3, SIDE, SIDE))
    return [str(folder / "a.pt2"), kit.data]


@bad("a corrupt zip", "is a damaged zip")
def _(kit: Kit, folder: Path) -> list[str]:
    (folder / "a.pt").write_bytes(kit.script.read_bytes()[:-200])
    return [str(folder / "a.pt"), kit.data]


@bad("a zip with a broken member", "is a damaged zip")
def _(kit: Kit, folder: Path) -> list[str]:
    content = bytearray(zipped(folder / "a.pt", {"a/data.pkl": b"0" * 64, "a/version": b"3"}).read_bytes())
    content[60] ^= 255
    (folder / "a.pt").write_bytes(content)
    return [str(folder / "a.pt"), kit.data]


@bad("a zip of something else", "is not a model that gyrograd can open")
def _(kit: Kit, folder: Path) -> list[str]:
    return [str(zipped(folder / "a.zip", {"letter.txt": b"hello"})), kit.data]


@bad("weights of another model", "build the model these weights belong to", options=True)
def _(kit: Kit, folder: Path) -> list[str]:
    return ["lenet", kit.data, "--weights", str(kit.weights)]


@bad("weights of other classes", "has 3 classes", options=True)
def _(kit: Kit, folder: Path) -> list[str]:
    return [f"{kit.factories}:net", kit.data, "--weights", str(kit.weights), "--classes", "5"]


@bad("weights with code in them", "runs no code from files", options=True)
def _(kit: Kit, folder: Path) -> list[str]:
    (folder / "a.pt").write_bytes(evil(folder))
    return [f"{kit.factories}:net", kit.data, "--weights", str(folder / "a.pt")]


@bad("weights for a whole model", "leave out --weights", options=True)
def _(kit: Kit, folder: Path) -> list[str]:
    return [kit.model, kit.data, "--weights", str(kit.weights)]


@bad("a checkpoint fed another size", "was built for 8 x 8 images and got 16 x 16", options=True)
def _(kit: Kit, folder: Path) -> list[str]:
    return [kit.model, kit.data, "--size", "16"]


# --- data -----------------------------------------------------------------------------------------------

bad_data("a data set that almost exists", "shaeps", "did you mean 'shapes'")
bad_data("a missing folder", "nowhere/photos", "there is no folder nowhere")
bad_data("a file that almost exists", "DATA/ant/1.pgn", "did you mean '1.png'")
bad_data("a pattern without a match", "DATA/ant/*.jpg", "no file, folder or data set")
bad_data("points instead of images", "toy2d", "holds points, not images")
bad_data("the name of the folder set", "folder", "give the path of the folder itself")


@bad("more classes than the model has", "5 classes and the model 3")
def _(kit: Kit, folder: Path) -> list[str]:
    for label in "abcde":
        picture(folder / "photos" / label / "1.png")
    return [kit.model, str(folder / "photos")]


@bad("an empty folder", "There are no images")
def _(kit: Kit, folder: Path) -> list[str]:
    (folder / "photos").mkdir()
    return [kit.model, str(folder / "photos")]


@bad("a folder of other files", "There are no images")
def _(kit: Kit, folder: Path) -> list[str]:
    (folder / "photos").mkdir()
    (folder / "photos" / "notes.txt").write_text("no image")
    return [kit.model, str(folder / "photos")]


@bad("images beside class folders", "holds both images and folders")
def _(kit: Kit, folder: Path) -> list[str]:
    picture(folder / "photos" / "ant" / "1.png")
    picture(folder / "photos" / "2.png")
    return [kit.model, str(folder / "photos")]


@bad("split folders without a split", "holds the splits test, train")
def _(kit: Kit, folder: Path) -> list[str]:
    for split in ("train", "test"):
        picture(folder / "photos" / split / "ant" / "1.png")
    return [kit.model, str(folder / "photos")]


@bad("a truncated PNG", "cannot be read as an image")
def _(kit: Kit, folder: Path) -> list[str]:
    path = picture(folder / "a.png", side=64)
    path.write_bytes(path.read_bytes()[:2000])
    return [kit.model, str(path)]


@bad("one truncated PNG among good ones", "cannot be read as an image")
def _(kit: Kit, folder: Path) -> list[str]:
    path = picture(folder / "photos" / "b.png", side=64)
    picture(folder / "photos" / "a.png")
    path.write_bytes(path.read_bytes()[:2000])
    return [kit.model, str(folder / "photos")]


@bad("text in a .png file", "cannot be read as an image")
def _(kit: Kit, folder: Path) -> list[str]:
    (folder / "a.png").write_text("no image")
    return [kit.model, str(folder / "a.png")]


@bad("an empty image file", "cannot be read as an image")
def _(kit: Kit, folder: Path) -> list[str]:
    (folder / "a.png").touch()
    return [kit.model, str(folder / "a.png")]


@bad("a huge image", "cannot be read as an image")
def _(kit: Kit, folder: Path) -> list[str]:
    return [kit.model, str(bomb(folder / "a.png"))]


@bad("an image of floats", "floats, whose range is unknown")
def _(kit: Kit, folder: Path) -> list[str]:
    return [kit.model, str(picture(folder / "a.tif", "F"))]


bad_options("no images", ["--images", "0"], "give at least 1")
bad_options("half an image", ["--images", "0.5"], "images")
bad_options("a size of zero", ["--size", "0"], "the side of the images in pixels")
bad_options("a split that is not there", ["--split", "test"], "has no split 'test'")
bad_options("a device that is not here", ["--device", "cuda:77"], "no device 'cuda:77'")
bad_options("a device that is none", ["--device", "gpu"], "no device 'gpu'")
bad_options("an option that is not there", ["--metod", "gradient"], "did you mean '--methods'")


@bad("a normalisation that almost exists", "did you mean 'imagenet'", options=True)
def _(kit: Kit, folder: Path) -> list[str]:
    return [f"{kit.factories}:net", kit.data, "--normalize", "imagnet"]


# --- odd and good ---------------------------------------------------------------------------------------

for mode in ("L", "RGBA", "P", "1", "LA", "CMYK", "I;16"):

    @good(f"an image of mode {mode}")
    def _(kit: Kit, folder: Path, mode: str = mode) -> list[str]:
        suffix = "tif" if mode == "CMYK" else "png"
        return [kit.model, str(picture(folder / f"a.{suffix}", mode, side=13))]


@good("a folder without labels")
def _(kit: Kit, folder: Path) -> list[str]:
    picture(folder / "photos" / "a.png")
    picture(folder / "photos" / "b.jpg")
    return [kit.model, str(folder / "photos")]


@good("a pattern")
def _(kit: Kit, folder: Path) -> list[str]:
    return [kit.model, f"{kit.data}/*/1.png"]


@good("a name with markup and formulas")
def _(kit: Kit, folder: Path) -> list[str]:
    return [kit.model, str(picture(folder / "[red]$x$[_ %d.png"))]


@good("fewer classes than the model has", "has 1 classes and the model 3")
def _(kit: Kit, folder: Path) -> list[str]:
    picture(folder / "photos" / "ant" / "1.png")
    return [kit.model, str(folder / "photos")]


@good("TorchScript")
def _(kit: Kit, folder: Path) -> list[str]:
    return [str(kit.script), kit.data, "--size", str(SIDE)]


@good("torch.export")
def _(kit: Kit, folder: Path) -> list[str]:
    return [str(kit.export), kit.data]


@good("a tuple with one output that is logits", "logits are taken to be '0'")
def _(kit: Kit, folder: Path) -> list[str]:
    return [f"{kit.factories}:tuple_of_one", kit.data]


@good("a dictionary of outputs", "logits are taken to be 'logits'")
def _(kit: Kit, folder: Path) -> list[str]:
    return [f"{kit.factories}:dictionary", kit.data]


@good("probabilities", "The model returns probabilities")
def _(kit: Kit, folder: Path) -> list[str]:
    return [f"{kit.factories}:probabilities", kit.data]


@good("a factory with its weights")
def _(kit: Kit, folder: Path) -> list[str]:
    return [f"{kit.factories}:net", kit.data, "--weights", str(kit.weights)]


@good("a model without weights", "no trained weights")
def _(kit: Kit, folder: Path) -> list[str]:
    return ["resnet20", kit.data, "--size", "8", "--classes", "3"]
