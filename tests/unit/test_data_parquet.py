"""Parquet and Arrow files, as Hugging Face `datasets` writes them, hold the images and classes of the folder."""

from __future__ import annotations

import builtins
import io
import json
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from small_audits import SMALL, small_net
from tiny_sweeps import CLASSES, SIDE, write_images

from gyrograd.audit import audit
from gyrograd.data import folder, parquet
from gyrograd.data.opening import Choice, open_data, open_data_with_names
from gyrograd.data.streamed import Streamed
from gyrograd.errors import UserError
from gyrograd.training.building import split_of

FEATURES = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES))})


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"))


def hugging_face(home: Path, split: str = "test") -> datasets.Dataset:
    """The images of a folder as a Hugging Face data set, in the order in which the folder is read."""
    files = sorted((home / split).rglob("*.png"))
    rows = {"image": [str(f) for f in files], "label": [CLASSES.index(f.parent.name) for f in files]}
    return datasets.Dataset.from_dict(rows, features=FEATURES)


def write(path: Path, data: datasets.Dataset) -> str:
    """The data set as a Parquet file of several groups of rows."""
    data.to_parquet(path, batch_size=4)
    assert pyarrow.parquet.ParquetFile(path).num_row_groups > 2
    return str(path)


def png(shade: int = 0) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), (shade, shade, shade)).save(file, "png")
    return file.getvalue()


@pytest.mark.parametrize("form", ["parquet", "images inside", "two files", "saved", "saved splits", "hub"])
def test_every_form_holds_the_images_and_classes_of_the_folder(home: Path, tmp_path: Path, form: str) -> None:
    data, path = hugging_face(home), tmp_path / "set"
    path.mkdir()
    if form == "parquet":
        opened = open_data(write(path / "a.parquet", data), size=SIDE)
    elif form == "images inside":
        content = [
            {"bytes": file.read_bytes(), "path": None} for file in sorted((home / "test").rglob("*.png"))
        ]
        inside = datasets.Dataset.from_dict({"image": content, "label": data["label"]}, features=FEATURES)
        opened = open_data(write(path / "a.parquet", inside), size=SIDE)
    elif form == "two files":
        write(path / "b-1.parquet", data.select(range(9)))
        write(path / "b-2.parquet", data.select(range(9, len(data))))
        opened = open_data(str(path / "b-*.parquet"), size=SIDE)
    elif form == "saved":
        data.save_to_disk(path, num_shards=2)
        opened = open_data(str(path), size=SIDE)
    elif form == "saved splits":
        datasets.DatasetDict(train=hugging_face(home, "train"), test=data).save_to_disk(path)
        opened = open_data(str(path), size=SIDE)
    else:
        (path / "data").mkdir()
        write(path / "data" / "train-00000-of-00001.parquet", hugging_face(home, "train"))
        write(path / "data" / "test-00000-of-00001.parquet", data)
        opened = open_data(str(path), size=SIDE)
    held = folder(home, "test", SIDE)
    assert isinstance(opened.images, Streamed)
    assert torch.equal(opened.labels, held.labels)
    assert opened.classes == held.classes
    backwards = torch.arange(len(held) - 1, -1, -1)  # other groups of rows than the last one, too
    assert torch.equal(opened.pixels(backwards), held.pixels(backwards))
    assert torch.equal(opened.pixels(), held.pixels())
    if form in ("saved splits", "hub"):
        pair = split_of(str(path), size=SIDE)
        assert torch.equal(pair.train.pixels(), folder(home, "train", SIDE).pixels())
        assert torch.equal(pair.test.pixels(), held.pixels())
        assert len(open_data(str(path), size=SIDE, split="train")) == len(folder(home, "train", SIDE))
        with pytest.raises(UserError, match="has the splits test, train; choose one with --split"):
            open_data(str(path), size=SIDE, split="val")


def test_an_audit_of_a_parquet_file_has_the_numbers_of_the_folder(home: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"preset": SMALL, "attacks": ["top_k"], "sweep": {}, "methods": ["gradient"]}
    held = folder(home, "test", 10)
    read = open_data(write(tmp_path / "a.parquet", hugging_face(home)), size=10)
    one, two = (audit(small_net(), data, **settings) for data in (held, read))
    assert {name: r.values for name, r in one.records.items()} == {
        n: r.values for n, r in two.records.items()
    }
    shared = audit(small_net(), read, **settings, workers=2)
    assert {name: r.values for name, r in shared.records.items()} == {
        n: r.values for n, r in two.records.items()
    }


def table(**columns: Any) -> pyarrow.Table:
    return pyarrow.table({"image": [png(i) for i in range(3)], **columns})


@pytest.mark.parametrize(
    ("label", "labels", "classes"),
    [
        ({"label": ["dog", "cat", "dog"]}, [1, 0, 1], ("cat", "dog")),
        ({"cls": [2, 0, 1]}, [2, 0, 1], ("0", "1", "2")),
        ({"label": [2.0, 0.0, 1.0]}, [2, 0, 1], ("0", "1", "2")),
        ({"label": [0.5, 0.0, 1.0]}, [0, 0, 0], ("unlabelled",)),
        ({"label": [-1, -1, -1]}, [0, 0, 0], ("unlabelled",)),
        ({"label": [None, 1, 0]}, [0, 0, 0], ("unlabelled",)),
        ({}, [0, 0, 0], ("unlabelled",)),
    ],
)
@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_files_of_others_have_names_numbers_or_no_classes(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    label: dict[str, list[Any]],
    labels: list[int],
    classes: tuple[str, ...],
    ending: str,
) -> None:
    path = tmp_path / f"a.{ending}"
    if ending == "parquet":
        pyarrow.parquet.write_table(table(**label), path)
    else:
        with pyarrow.ipc.new_file(path, table(**label).schema) as file:
            file.write_table(table(**label))
    data = open_data(str(path), size=SIDE)
    assert (data.labels.tolist(), data.classes) == (labels, classes)
    some_are_missing = {None, 0.5} & set(label.get("label", ()))
    assert ("1 of 3 images" in capsys.readouterr().err) == bool(some_are_missing)
    assert data.images[:].float().mean((1, 2, 3)).tolist() == [0, 1, 2]
    if classes == ("unlabelled",):
        with pytest.raises(UserError, match="no class .*--unlabelled"):
            open_data(str(path), size=SIDE, labelled=True)
    some = open_data_with_names(str(path), Choice(images=2, size=SIDE, seed=1))
    assert some.names == tuple(f"{path}:{i}" for i in some.index)


def test_a_file_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    means = []
    for shade in (10, 200):
        pyarrow.parquet.write_table(pyarrow.table({"image": [png(shade)]}), path)
        means.append(open_data(str(path), size=SIDE).images[:].float().mean().item())
    assert means == [10, 200]


def test_a_group_of_rows_is_read_once_in_random_order_and_few_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    original = pyarrow.parquet.ParquetFile.read_row_group

    def counted(self: Any, number: int, **more: Any) -> Any:
        read.append(number)
        return original(self, number, **more)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "read_row_group", counted)
    for name in "ab":
        rows = pyarrow.table({"image": [png(i) for i in range(20)]})
        pyarrow.parquet.write_table(rows, tmp_path / f"{name}.parquet", row_group_size=5)
    images = open_data(str(tmp_path / "*.parquet"), size=SIDE).images
    scattered = torch.arange(40).reshape(8, 5).T.flatten()
    want = (scattered % 20).tolist()
    assert images[scattered].float().mean((1, 2, 3)).tolist() == want
    assert len(read) == 8
    kept = parquet._Groups()
    monkeypatch.setattr(parquet, "_groups", kept)
    monkeypatch.setattr(parquet, "KEPT_BYTES", 1000)
    assert images[scattered].float().mean((1, 2, 3)).tolist() == want
    assert 1 <= len(kept.kept) < 8
    assert kept.size == sum(group.nbytes for group in kept.kept.values()) <= 1000


def test_the_column_of_images_is_the_one_of_that_name(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"depth": [png(200)], "image": [png(1)]}), path)
    assert open_data(str(path), size=SIDE).images[:].unique().tolist() == [1]


@pytest.mark.parametrize(
    ("names", "features", "sentence"),
    [
        (("depth", "photo"), {}, "2 columns that could be the image: depth, photo; rename"),
        (("image", "image"), {}, "2 columns that could be the image: image, image"),
        (
            ("image", "age", "race"),
            {"age": {"_type": "ClassLabel"}, "race": {"_type": "ClassLabel"}},
            "2 columns that could be the label: age, race; rename",
        ),
    ],
)
def test_of_several_columns_that_could_be_meant_none_is_chosen(
    tmp_path: Path, names: tuple[str, ...], features: dict[str, Any], sentence: str
) -> None:
    path = tmp_path / "a.parquet"
    columns = [pyarrow.array([0] if name in features else [png(1)]) for name in names]
    about = {"huggingface": json.dumps({"info": {"features": features}})}
    pyarrow.parquet.write_table(
        pyarrow.Table.from_arrays(columns, names).replace_schema_metadata(about), path
    )
    with pytest.raises(UserError, match=sentence):
        open_data(str(path), size=SIDE)


@pytest.mark.parametrize("form", ["saved", "hub"])
def test_a_class_whose_name_is_missing_in_one_split_does_not_shift_the_labels(
    tmp_path: Path, form: str
) -> None:
    both = {
        name: datasets.Dataset.from_dict({"image": [png()] * len(words), "label": words})
        for name, words in (("train", ["ant", "bee", "cat"]), ("test", ["bee", "cat"]))
    }
    if form == "saved":
        datasets.DatasetDict(both).save_to_disk(tmp_path)
    else:
        for name, data in both.items():
            data.to_parquet(tmp_path / f"{name}-00000-of-00001.parquet")
    data = open_data(str(tmp_path), size=SIDE)
    assert (data.labels.tolist(), data.classes) == ([1, 2], ("ant", "bee", "cat"))


@pytest.mark.parametrize("names", [("mnist_train", "mnist_test"), ("train_0", "test_0"), ("Train", "Test")])
def test_splits_in_other_places_of_the_names_are_not_parts_of_one_set(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    for name, shade in zip(names, (10, 20), strict=True):
        pyarrow.parquet.write_table(pyarrow.table({"image": [png(shade)]}), tmp_path / f"{name}.parquet")
    (tmp_path / "._Test.parquet").write_bytes(b"left by macOS")
    assert open_data(str(tmp_path), size=SIDE).images[:].unique().tolist() == [20]
    assert open_data(str(tmp_path), size=SIDE, split="train").images[:].unique().tolist() == [10]


def test_a_folder_of_tables_without_a_split_to_train_on_is_refused(tmp_path: Path) -> None:
    for name in ("validation", "test"):
        pyarrow.parquet.write_table(table(label=[0, 1, 1]), tmp_path / f"{name}-00000-of-00001.parquet")
    with pytest.raises(UserError, match="no split train, only test, validation"):
        split_of(str(tmp_path), size=SIDE)


def test_labels_that_are_no_classes_are_refused_and_true_is_one(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table(label=[1, 2, 1_000_000]), path)
    with pytest.raises(UserError, match="the label 1000000, and a class is a number below .*--unlabelled"):
        open_data(str(path), size=SIDE)
    assert len(open_data(str(path), size=SIDE, labelled=False)) == 3
    pyarrow.parquet.write_table(table(label=[True, True, True]), path)
    assert open_data(str(path), size=SIDE).labels.tolist() == [1, 1, 1]


def test_what_cannot_be_read_is_one_sentence(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ending, kind in (("parquet", "a Parquet"), ("arrow", "an Arrow")):
        path = tmp_path / f"bad.{ending}"
        path.write_bytes(b"no table" * 20)
        with pytest.raises(UserError, match=f"bad.{ending} cannot be read as {kind} file"):
            open_data(str(path), size=SIDE)
    path = tmp_path / "numbers.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"x": [1.0], "y": [2]}), path)
    with pytest.raises(UserError, match="no column of images, only x, y"):
        open_data(str(path), size=SIDE)
    pyarrow.parquet.write_table(pyarrow.table({"image": [{"bytes": None, "path": "a.png"}]}), path)
    with pytest.raises(UserError, match="no column of images"):  # a null column has no type
        open_data(str(path), size=SIDE)
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    for content, sentence in (
        ({"path": "a.png"}, "names a.png, which cannot be read"),
        (None, "holds no image"),
    ):
        image = pyarrow.array([content], kind)
        pyarrow.parquet.write_table(pyarrow.table({"image": image}), path)
        with pytest.raises(UserError, match=sentence):
            open_data(str(path), size=SIDE).pixels()
    pyarrow.parquet.write_table(pyarrow.table({"image": [b"junk"]}), path)
    with pytest.raises(UserError, match=r"numbers.parquet:0 cannot be read as an image \(not in a format"):
        open_data(str(path), size=SIDE).pixels()
    hugging_face(home).select([]).save_to_disk(tmp_path / "empty")
    with pytest.raises(UserError, match="no rows in .*empty"):
        open_data(str(tmp_path / "empty"), size=SIDE)
    good = write(tmp_path / "good.parquet", hugging_face(home))
    with pytest.raises(UserError, match="names other classes"):
        open_data([good, str(path)], size=SIDE)
    with pytest.raises(UserError, match="Single files have no splits"):
        open_data(good, size=SIDE, split="test")
    data = open_data(good, size=SIDE)
    Path(good).unlink()
    with pytest.raises(UserError, match="good.parquet cannot be read"):
        data.pixels()
    original = builtins.__import__

    def without_pyarrow(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    with pytest.raises(UserError, match=r"pip install 'gyrograd\[parquet\]'"):
        open_data(str(path), size=SIDE)


def test_a_folder_of_images_with_a_table_beside_them_is_a_folder(home: Path, tmp_path: Path) -> None:
    beside = write_images(tmp_path / "images")
    pyarrow.parquet.write_table(pyarrow.table({"x": [1]}), beside / "test" / "notes.parquet")
    assert torch.equal(
        open_data(str(beside / "test"), size=SIDE).pixels(), folder(home, "test", SIDE).pixels()
    )


def test_folders_in_which_it_is_not_clear_what_to_read_are_one_sentence(tmp_path: Path) -> None:
    flat, below = tmp_path / "flat", tmp_path / "hub" / "plain_text"
    for place in (flat, below):
        place.mkdir(parents=True)
        pyarrow.parquet.write_table(table(), place / "test-00000-of-00001.parquet")
    (flat / "a.PNG").write_bytes(png())
    with pytest.raises(UserError, match=r"both images and Parquet files; give .*/\*.parquet' or .*/\*.PNG'"):
        open_data(str(flat), size=SIDE)
    assert len(open_data(str(flat / "*.PNG"), size=SIDE)) == 1
    with pytest.raises(UserError, match="but Parquet files in .*plain_text; give that folder"):
        open_data(str(below.parent), size=SIDE)
