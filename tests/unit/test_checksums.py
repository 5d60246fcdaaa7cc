"""A flipped bit or an edited number is found when a file is read; files without a checksum are read as before."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import gyrograd as gg
from gyrograd import records
from gyrograd.errors import UserError
from gyrograd.models import load, load_state, save, zoo
from gyrograd.models.checksums import signed_bytes
from gyrograd.models.weights import read_tensors
from gyrograd.records import Record
from gyrograd.training import snapshots
from gyrograd.training.snapshots import Snapshot

NOTE = {
    "schema": snapshots.SCHEMA,
    "settings": {"epochs": 2},
    "data": "0123456789abcdef",
    "optimizer": {"optimizer.0.step": 3},
    "epoch": 1,
    "batch": 0,
    "names": [],
    "seen": 0,
    "history": [{"loss": 0.25}],
    "best": None,
    "ended": False,
}
TENSORS = {"model.weight": torch.arange(12.0).view(3, 4), "sums": torch.ones(2, dtype=torch.float64)}


def flips(content: bytes, times: int) -> list[bytes]:
    """Copies with one bit flipped, drawn over the whole file, its last byte among them."""
    draw = random.Random(0)
    bits = [len(content) * 8 - 1, *(draw.randrange(len(content) * 8) for _ in range(times - 1))]
    return [
        content[: bit // 8] + bytes([content[bit // 8] ^ (1 << bit % 8)]) + content[bit // 8 + 1 :]
        for bit in bits
    ]


def test_a_flipped_bit_in_a_runs_checkpoint_is_found(tmp_path):
    path = tmp_path / snapshots.NAME
    snapshots.write(path, Snapshot(NOTE, TENSORS))
    found = 0
    for content in flips(path.read_bytes(), 300):
        path.write_bytes(content)
        try:
            read = snapshots.read(path)
        except UserError:
            found += 1
            continue
        # What is left without effect: spaces that fill the header up.
        assert read is not None
        assert read.note == NOTE
        assert all(torch.equal(read.tensors[key], TENSORS[key]) for key in TENSORS)
    assert found > 250


def test_a_checkpoint_from_before_checksums_still_opens(tmp_path):
    path = tmp_path / snapshots.NAME
    note = {**NOTE, "schema": snapshots.UNSIGNED}
    save_file(TENSORS, path, {"gyrograd_run": json.dumps(note)})
    read = snapshots.read(path)
    assert read is not None
    assert read.note == note
    unsigned = {"gyrograd_run": json.dumps(NOTE)}
    save_file(TENSORS, path, unsigned)
    with pytest.raises(UserError, match="do not match its checksum"):
        snapshots.read(path)


@pytest.mark.parametrize("key", [key for key in NOTE if key != "schema"])
@pytest.mark.parametrize("value", [[1], 3.5, ...])
def test_a_checkpoint_with_a_missing_or_odd_entry_is_one_sentence(key, value, tmp_path):
    if isinstance(value, list) and isinstance(NOTE[key], list):
        value = "text"
    note = {**NOTE, "schema": 1, key: value}
    if value is ...:
        del note[key]
    path = tmp_path / snapshots.NAME
    save_file(TENSORS, path, {"gyrograd_run": json.dumps(note)})
    with pytest.raises(UserError, match=f"'{key}' is missing or of the wrong type"):
        snapshots.read(path)


@pytest.mark.parametrize("text", ["", "[]", "3", "{", "[" * 100_000, '{"schema": ' + "9" * 5_000 + "}"])
def test_a_note_that_is_no_object_is_one_sentence(text, tmp_path):
    path = tmp_path / "a.safetensors"
    for entry, read in (("gyrograd_run", snapshots.read), ("gyrograd", load)):
        save_file(TENSORS, path, {entry: text})
        with pytest.raises(UserError, match="is damaged"):
            read(path)


def test_a_flipped_bit_in_weights_that_gyrograd_wrote_is_found(tmp_path):
    model = nn.Linear(3, 2)
    path = tmp_path / "a.safetensors"
    content = signed_bytes("gyrograd_hardened", {"epoch": 1}, model.state_dict())
    path.write_bytes(content)
    load_state(nn.Linear(3, 2), path)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="do not match its checksum"):
        load_state(nn.Linear(3, 2), path)
    save_file(model.state_dict(), path, {"format": "pt"})
    load_state(nn.Linear(3, 2), path)


def test_models_of_the_zoo_and_checkpoints_verify(tmp_path):
    for name in zoo.names()[:2]:
        zoo.load(name)
    save(tmp_path / "a.safetensors", gg.model("lenet", image_size=8, seed=0))
    assert read_tensors(tmp_path / "a.safetensors")
    load(tmp_path / "a.safetensors")


def test_an_edited_number_in_a_record_is_refused(tmp_path):
    path = tmp_path / "a.json"
    records.write(path, Record("rps", {"eps": 0.1}, [0, 1], {"cosine": [0.5, None]}, {"seconds": 1.0}))
    path.write_text(path.read_text().replace("0.5", "1e300"))
    with pytest.raises(UserError, match="damaged or edited .* do not match its checksum"):
        records.read(path)


def test_a_record_from_before_checksums_is_read_and_its_numbers_are_finite(tmp_path):
    path = tmp_path / "a.json"
    old = {
        "schema": 1,
        "name": "rps",
        "settings": {},
        "examples": [0],
        "values": {"cosine": [0.5]},
        "facts": {},
    }
    path.write_text(json.dumps(old))
    assert records.read(path).values == {"cosine": [0.5]}
    for values in ('{"cosine": [1e999]}', '{"cosine": ["a"]}', '{"cosine": 1}', "[]", '{"cosine": [[1]]}'):
        path.write_text(json.dumps(old).replace('{"cosine": [0.5]}', values))
        with pytest.raises(UserError, match="is not a record"):
            records.read(path)


@pytest.mark.parametrize("schema", ["0", "-5", "true", "1.0", '"1"', "null"])
def test_a_record_of_an_impossible_schema_is_refused(schema, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(f'{{"schema": {schema}, "name": "x"}}')
    with pytest.raises(UserError, match="names no schema"):
        records.read(path)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 500 + "1" + "}" * 500, '{"schema": ' + "9" * 5_000 + "}"]
)
def test_a_deep_or_huge_record_is_one_sentence(text, tmp_path):
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UserError, match="no valid JSON in it"):
        records.read(path)


def test_every_record_kept_with_the_project_is_read():
    folder = Path(__file__).parents[2] / "results"
    found = sorted(folder.glob("*/results.json"))
    assert found
    for path in found:
        assert records.read(path).name
