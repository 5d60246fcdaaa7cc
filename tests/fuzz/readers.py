"""Damaged and hostile files, each opened as the verbs open it: `make fuzz-readers [FILES=20000] [SEED=0] [WORKERS=1]`.

A file of every kind gyrograd reads is made once and then changed at random: bits flipped, cut short, spliced with
another, values of its JSON exchanged for others of another kind, depth or size, members of its zip edited, dropped or
given twice. Opening it must succeed or raise `UserError`. Anything else is a finding: another exception, a crash, more
than ten seconds, a file written elsewhere than in the scratch folder, a process or a connection begun. File number n
of a seed is always the same file, however many workers there are.
"""

from __future__ import annotations

import argparse
import copy
import functools
import io
import json
import multiprocessing
import os
import random
import resource
import shutil
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
import bad_files
import cards

import gyrograd as gg
from gyrograd import records
from gyrograd.data.opening import open_data
from gyrograd.errors import UserError
from gyrograd.models import load_state, save
from gyrograd.models.checksums import digest, signed_bytes
from gyrograd.models.opening import check_model, open_model
from gyrograd.records import Record
from gyrograd.reporting import read_card, write_report
from gyrograd.reporting.pictures import attack_pictures, load_arrays
from gyrograd.reporting.values import read_values
from gyrograd.training import settings_from, snapshots
from gyrograd.training.loop import Average, TrainingProgress
from gyrograd.training.settings import read_tree

SECONDS = 10
PATIENCE = 60
"""Times those ten seconds by the clock, after which a process that does not even work is given up."""
MEMORY = 24 * 2**30
X = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
TORCH_RUN_NOTE = "gyrograd_run"

Change = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Kind:
    """A kind of file: how it is read, the changes that fit it, and its share of the files."""

    read: Callable[[Path], Any]
    changes: tuple[Change, ...]
    share: int
    name: str = "file"
    """What the file is called; the suffix is the seed's own where this ends in a dot."""


# --- changes --------------------------------------------------------------------------------------------


def flipped(content: bytes, draw: random.Random) -> bytes:
    """Some bits, most often one."""
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 8, 64])):
        if changed:
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def spliced(content: bytes, draw: random.Random) -> bytes:
    """A stretch dropped, doubled, filled with one byte or moved elsewhere."""
    start, length = draw.randrange(len(content) + 1), draw.choice([1, 4, 16, 256, 4096])
    piece = content[start : start + length]
    rest = content[:start] + content[start + length :]
    where = draw.randrange(len(rest) + 1)
    return draw.choice(
        [
            rest,
            content[:start] + piece + content[start:],
            content[:start] + bytes([draw.randrange(256)]) * len(piece) + content[start + length :],
            rest[:where] + piece + rest[where:],
            content + draw.randbytes(length),
        ]
    )


ODD_VALUES: tuple[Callable[[random.Random], Any], ...] = (
    lambda draw: None,
    lambda draw: draw.choice([True, False]),
    lambda draw: draw.choice([0, -1, 1, 2, -5, 10**6, 10**12, 2**31, 2**63, -(2**63), 10**30]),
    lambda draw: draw.choice([0.5, -1.5, 1e300, 1e-300, float("inf"), float("nan"), -0.0]),
    lambda draw: draw.choice(["", "a", "../a", "/etc/passwd", "\0", "a" * 5_000, "<b>", "\x1b[31m", "é", "\ud800"]),
    lambda draw: draw.choice(["9**9**9", "__import__('os').system('touch mark')", "torch.ops.aten.from_file.default"]),
    lambda draw: [],
    lambda draw: {},
    lambda draw: [1, "a", None],
    lambda draw: {"a": 1},
    lambda draw: nested(draw.choice([5, 90, 150, 400, 900])),
    lambda draw: list(range(draw.choice([100, 20_000]))),
)  # fmt: skip


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def changed_value(value: Any, draw: random.Random) -> Any:
    """A JSON value with one thing in it exchanged, dropped, renamed or given another's place."""
    value = json.loads(json.dumps(value))
    places = _places(value)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        if not places:
            return draw.choice(ODD_VALUES)(draw)
        holder, key = draw.choice(places)
        action = draw.randrange(10)
        if isinstance(holder, dict) and key not in holder:
            continue
        if isinstance(holder, list) and key >= len(holder):
            continue
        if action == 0:
            del holder[key]
        elif action == 1 and isinstance(holder, dict):
            holder[draw.choice(["a", "", "__class__", key.upper(), key + "_"])] = holder.pop(key)
        elif action == 2:
            holder[key] = draw.choice(
                [inner[name] for inner, name in places if _holds(inner, name)] or [None]
            )
        elif action == 3 and isinstance(holder[key], str):
            holder[key] = flipped(holder[key].encode("utf-8", "replace"), draw).decode("utf-8", "replace")
        else:
            holder[key] = draw.choice(ODD_VALUES)(draw)
    return value


def _holds(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _places(value: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        item = todo.pop()
        keys = item.keys() if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
        for key in keys:
            found.append((item, key))
            todo.append(item[key])
    return found


def _dumped(value: Any) -> bytes:
    try:
        return json.dumps(value).encode("utf-8", "replace")
    except (ValueError, RecursionError):
        return b"[" * 2_000


def in_json(content: bytes, draw: random.Random) -> bytes:
    """One value of a JSON file, or its spelling: a number of thousands of digits, brackets without end."""
    odd = draw.randrange(20)
    if odd == 0:
        return b"[" * draw.choice([100, 100_000])
    if odd == 1:
        return content.replace(b"1", b"1" * 5_000, 1)
    return _dumped(changed_value(json.loads(content), draw))


def in_signed_json(content: bytes, draw: random.Random) -> bytes:
    """As `in_json` with a checksum that fits, or without one, as files from before are."""
    document = changed_value(json.loads(content), draw)
    if isinstance(document, dict):
        document.pop("sha256", None)
        if draw.random() < 0.5:
            document["schema"] = records.UNSIGNED
        else:
            try:
                document["sha256"] = records._digest(document)
            except (ValueError, RecursionError):
                return b"{" * 500
    return _dumped(document)


def in_yaml(content: bytes, draw: random.Random) -> bytes:
    odd = draw.randrange(20)
    if odd == 0:
        return b"[" * draw.choice([50, 3_000])
    if odd == 1:
        lines = [b"a0: &a0 [1, 1]"]
        lines += [b"a%d: &a%d [*a%d, *a%d]" % (n, n, n - 1, n - 1) for n in range(1, 40)]
        return b"\n".join(lines)
    if odd == 2:
        odd_lines = [
            b"epochs: " + b"9" * 5_000,
            b"epochs: 2001-01-01",
            b"!!python/name:os.system",
            b"? [1]\n: 2",
        ]
        return draw.choice(odd_lines)
    try:
        return yaml.safe_dump(changed_value(yaml.safe_load(content), draw)).encode("utf-8", "replace")
    except (yaml.YAMLError, RecursionError):
        return b"{" * 500


def in_header(content: bytes, draw: random.Random) -> bytes:
    """One value of a safetensors header: a name, a type, a shape, an offset, the words beside them."""
    (length,) = struct.unpack("<Q", content[:8])
    header = _dumped(changed_value(json.loads(content[8 : 8 + length]), draw))
    return struct.pack("<Q", draw.choice([len(header)] * 8 + [0, 2**40])) + header + content[8 + length :]


def in_note(content: bytes, draw: random.Random) -> bytes:
    """One value of gyrograd's note in a safetensors file, signed again or from before checksums."""
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    (entry,) = [key for key in header["__metadata__"] if key.startswith("gyrograd")]
    note = changed_value(json.loads(header["__metadata__"][entry]), draw)
    if isinstance(note, dict):
        note.pop("sha256", None)
        if entry == TORCH_RUN_NOTE and draw.random() < 0.5:
            note["schema"] = snapshots.UNSIGNED
        else:
            tensors = _tensors_of(content)
            try:
                note["sha256"] = digest(note, tensors)
            except (ValueError, RecursionError):
                note = {}
    try:
        header["__metadata__"][entry] = json.dumps(note)
        text = json.dumps(header).encode()
    except (ValueError, RecursionError):
        return content[:100]
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def _tensors_of(content: bytes) -> dict[str, torch.Tensor]:
    from safetensors.torch import load

    return load(content)


def in_zip(content: bytes, draw: random.Random) -> bytes:
    """One member of a zip edited, dropped, renamed or given twice; all checksums of the zip fit."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        inside = {name: archive.read(name) for name in archive.namelist()}
    name = draw.choice(_telling(list(inside), draw))
    action = draw.randrange(12)
    extra: dict[str, bytes] = {}
    if action == 0:
        del inside[name]
    elif action == 1:
        inside[draw.choice(["a", name.upper(), f"../{name}", f"{name}/a", name.replace("/", "\\")])] = (
            inside.pop(name)
        )
    elif action == 2:
        extra[name] = inside[draw.choice(list(inside))]
    elif action == 3:
        inside[name] = inside[draw.choice(list(inside))]
    elif name.endswith(".json") and action < 10:
        inside[name] = in_json(inside[name], draw)
    else:
        inside[name] = draw.choice([flipped, flipped, cut, spliced])(inside[name], draw)
    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", draw.choice([0, 0, 8])) as archive:
        warnings.simplefilter("ignore")
        for members in (inside, extra):
            for key, value in members.items():
                archive.writestr(key, value)
    return buffer.getvalue()


def _telling(names: list[str], draw: random.Random) -> list[str]:
    """Code, pickles and JSON rather than numbers, three times of four."""
    words = [name for name in names if name.endswith((".json", ".pkl", ".py"))]
    return words if words and draw.random() < 0.75 else names


BYTES = (flipped, cut, spliced)


# --- readers --------------------------------------------------------------------------------------------


def read_model(path: Path) -> None:
    check_model(open_model(str(path)), X)


def read_weights(path: Path) -> None:
    load_state(bad_files.net(), path)


def read_run(path: Path) -> None:
    found = snapshots.read(path)
    model, optimizer = copy.deepcopy(_trained())
    if found is not None:
        snapshots.restore(found, model, optimizer, Average(model, 0.9))


def read_report(path: Path) -> None:
    card = read_card(path)
    # Drawing takes a second or more, so only some of the cards that pass are drawn.
    if path.stat().st_size % 40 == 0:
        write_report(card, path.parent)


def read_record(path: Path) -> None:
    records.read(path)
    folder = path.parent / "records" / "table"
    folder.mkdir(parents=True, exist_ok=True)
    path.replace(folder / "a.json")
    read_values(path.parent)


def read_recipe(path: Path) -> None:
    settings_from(read_tree(path))


def read_pictures(path: Path) -> None:
    arrays = load_arrays(path.name, path.parent)
    if not isinstance(arrays, str):
        for row in (0, 1, 10**6):
            attack_pictures(arrays, row)


def read_picture(path: Path) -> None:
    open_data(str(path), size=8)


KINDS: dict[str, Kind] = {
    "image": Kind(read_picture, BYTES, 26, "file."),
    "checkpoint": Kind(read_model, (*BYTES, in_header, in_note, in_note), 12, "model.safetensors"),
    "run": Kind(read_run, (*BYTES, in_header, in_note, in_note), 12, snapshots.NAME),
    "weights": Kind(read_weights, (*BYTES, in_header), 6, "weights.safetensors"),
    "card": Kind(read_report, (*BYTES, in_json, in_json, in_json), 12, "card.json"),
    "pictures": Kind(read_pictures, (*BYTES, in_zip, in_zip), 4, "pictures.npz"),
    "record": Kind(read_record, (*BYTES, in_json, in_signed_json, in_signed_json), 10, "record.json"),
    "recipe": Kind(read_recipe, (*BYTES, in_yaml, in_yaml, in_yaml), 10, "recipe.yaml"),
    "state dict": Kind(read_weights, (*BYTES, in_zip, in_zip), 5, "weights.pt"),
    "old state dict": Kind(read_weights, BYTES, 3, "weights.pt"),
    "torch.export": Kind(read_model, (*BYTES, in_zip, in_zip, in_zip), 4, "model.pt2"),
    "TorchScript": Kind(read_model, (*BYTES, in_zip, in_zip, in_zip), 4, "model.pt"),
}


# --- the sound files ------------------------------------------------------------------------------------


@functools.cache
def _trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = bad_files.net()
    optimizer = torch.optim.AdamW(model.parameters())
    model(X).sum().backward()
    optimizer.step()
    return model, optimizer


def sound_files(folder: Path) -> dict[str, list[tuple[str, bytes]]]:
    """Suffix and content of sound files, by kind."""
    kit = bad_files.kit(folder)
    model, optimizer = _trained()
    snapshot = snapshots.take(
        model,
        optimizer,
        Average(model, 0.9),
        TrainingProgress(history=[{"loss": 0.5}]),
        settings_from({"epochs": 2}),
        "0" * 16,
    )
    snapshots.write(folder / snapshots.NAME, snapshot)
    save(folder / "mlp.safetensors", gg.model("mlp", seed=0))
    torch.save(model.state_dict(), folder / "state.pt")
    torch.save(model.state_dict(), folder / "old.pt", _use_new_zipfile_serialization=False)
    save_file(model.state_dict(), folder / "foreign.safetensors", {"format": "pt"})
    hardened = signed_bytes("gyrograd_hardened", {"epoch": 1}, model.state_dict())
    records.write(
        folder / "record.json", Record("a", {"method": "a"}, [0, 1], {"b": [0.5, None]}, {"c": [1]})
    )
    (folder / "recipe.yaml").write_text(
        "recipe: joo2023-lenet-l2-cosine\nepochs: 3\nmodel: lenet\nlr: 0.1\nterms:\n  l2: {weight: 3}\n"
    )
    np.savez_compressed(folder / "pictures.npz", **cards.pictures())
    found: dict[str, list[Path]] = {
        "image": _images(folder),
        "checkpoint": [Path(kit.model), folder / "mlp.safetensors"],
        "run": [folder / snapshots.NAME],
        "weights": [folder / "foreign.safetensors"],
        "pictures": [folder / "pictures.npz"],
        "record": [folder / "record.json"],
        "recipe": [folder / "recipe.yaml"],
        "state dict": [folder / "state.pt"],
        "old state dict": [folder / "old.pt"],
        "torch.export": [kit.export],
        "TorchScript": [kit.script],
    }
    files = {kind: [(path.suffix, path.read_bytes()) for path in paths] for kind, paths in found.items()}
    files["card"] = [(".json", json.dumps(cards.card()).encode())]
    files["weights"].append((".safetensors", hardened))
    return files


def _images(folder: Path) -> list[Path]:
    settings = {
        "png": "RGB",
        "jpg": "RGB",
        "gif": "P",
        "bmp": "RGB",
        "webp": "RGB",
        "tiff": "RGBA",
        "tif": "I;16",
    }
    found = [
        bad_files.picture(folder / "all" / f"a.{suffix}", mode, side=24) for suffix, mode in settings.items()
    ]
    grey = Image.fromarray(np.arange(576, dtype=np.uint16).reshape(24, 24) * 100)
    grey.save(folder / "all" / "grey.png")
    return [*found, folder / "all" / "grey.png"]


# --- running --------------------------------------------------------------------------------------------


def one(files: dict[str, list[tuple[str, bytes]]], seed: int, number: int) -> tuple[str, str, str, bytes]:
    """Kind, change, file name and content of file `number`."""
    draw = random.Random(f"{seed} {number}")
    kind = draw.choices(list(KINDS), [kind.share for kind in KINDS.values()])[0]
    suffix, content = draw.choice(files[kind])
    change = draw.choice(KINDS[kind].changes)
    name = KINDS[kind].name
    content = change(content, draw)
    if draw.random() < 0.05:
        content = flipped(content, draw)
    return kind, change.__name__, f"file{suffix}" if name == "file." else name, content


def opened(kind: str, path: Path) -> tuple[str, str]:
    """How opening a file ended ("opened", "refused" or "wrong"), and the words that go with it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            KINDS[kind].read(path)
    except UserError as sentence:
        return "refused", str(sentence)
    except BaseException:
        return "wrong", traceback.format_exc()
    return "opened", ""


class Watch:
    """Python's audit events: files opened for writing, processes and connections, outside a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder.resolve())
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, mode, flags = arguments
            writes = any(letter in str(mode or "") for letter in "wax+")
            if not writes and not (isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
                return
            if not isinstance(path, str | bytes | os.PathLike):
                return
            place = os.path.abspath(os.fsdecode(path))
            if not place.startswith((self.folder, "/dev/")):
                self.seen.append(f"{event} {place}")
        elif event in {
            "os.system",
            "subprocess.Popen",
            "os.exec",
            "os.posix_spawn",
            "socket.connect",
            "os.remove",
        }:
            text = " ".join(str(argument)[:100] for argument in arguments)
            if event != "os.remove" or not os.path.abspath(os.fsdecode(arguments[0])).startswith(self.folder):
                self.seen.append(f"{event} {text}")


def work(files: dict[str, list[tuple[str, bytes]]], seed: int, home: Path, pipe: Connection) -> None:
    """Open the files whose numbers come through the pipe; one answer each."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    shutil.rmtree(home, ignore_errors=True)  # of a process that was ended in the middle
    home.mkdir(parents=True)
    os.chdir(home)
    watch = Watch(home)
    for number in iter(pipe.recv, None):
        kind, change, name, content = one(files, seed, number)
        folder = Path(tempfile.mkdtemp(dir=home))
        (folder / name).write_bytes(content)
        if kind == "card":
            (folder / "pictures.npz").write_bytes(files["pictures"][0][1])
        watch.on = True
        started = time.monotonic()
        result, words = opened(kind, folder / name)
        watch.on = False
        if watch.seen:
            result, words = "wrong", f"written elsewhere or started: {watch.seen}\n{words}"
            watch.seen = []
        shutil.rmtree(folder)
        left = os.listdir(home)
        if left:
            result, words = "wrong", f"left behind: {left}\n{words}"
            for each in left:
                os.unlink(home / each)
        pipe.send((kind, change, result, words, time.monotonic() - started))


Answer = tuple[str, str, str, str, float]
"""Kind, change, result, words and seconds of a file."""


class Worker:
    """A process that opens one file at a time; one that crashes or takes too long is replaced."""

    def __init__(self, files: dict[str, list[tuple[str, bytes]]], seed: int, home: Path) -> None:
        self.setting = (files, seed, home)
        self._start()

    def _start(self) -> None:
        self.pipe, other = multiprocessing.Pipe()
        make = multiprocessing.get_context("fork").Process
        self.process = make(target=work, args=(*self.setting, other), daemon=True)
        self.process.start()
        other.close()

    def _seconds(self) -> float:
        """Processor time the process has used."""
        used = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(int(ticks) for ticks in used) / os.sysconf("SC_CLK_TCK")

    def open(self, number: int) -> None:
        """Begin with file `number`."""
        self.number, self.began, self.before = number, time.monotonic(), self._seconds()
        self.pipe.send(number)

    def answer(self) -> Answer | None:
        """What became of the file; None while it is being opened."""
        try:
            if self.pipe.poll():
                return self.pipe.recv()
            # Seconds of the processor: on a busy machine the clock on the wall runs ahead of the work.
            if max(self._seconds() - self.before, (time.monotonic() - self.began) / PATIENCE) <= SECONDS:
                return None
            why = f"more than {SECONDS} seconds"
        except (EOFError, ConnectionError):
            why = "the process died"
        self.process.kill()
        self.process.join()
        self._start()
        kind, change, *_ = one(self.setting[0], self.setting[1], self.number)
        return kind, change, "wrong", why, float(SECONDS)


def answers(workers: list[Worker], numbers: range) -> Iterator[tuple[int, Answer]]:
    """Every file's number and answer, as they come."""
    waiting, busy = iter(numbers), list[Worker]()
    idle = list(workers)
    while True:
        for worker, number in zip(list(idle), waiting, strict=False):
            worker.open(number)
            idle.remove(worker)
            busy.append(worker)
        if not busy:
            return
        wait([worker.pipe for worker in busy], timeout=1)
        for worker in list(busy):
            answer = worker.answer()
            if answer is not None:
                busy.remove(worker)
                idle.append(worker)
                yield worker.number, answer


def main() -> int:
    """Open the files, say how it went, keep the findings."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", type=int, nargs="?", default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first file")
    parser.add_argument("--workers", type=int, default=1, help="processes, each of one thread")
    parser.add_argument("--out", type=Path, default=Path("out/fuzz-readers"))
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # its driver reserves more memory than a worker may have
    options.out.mkdir(parents=True, exist_ok=True)
    home = options.out.resolve() / "scratch"
    with tempfile.TemporaryDirectory() as folder:
        files = sound_files(Path(folder))
    for kind in KINDS:  # every reader once, so that what it imports is there when processes are made
        first = home / "first" / KINDS[kind].name
        first.parent.mkdir(parents=True, exist_ok=True)
        suffix, content = files[kind][0]
        first = first.with_name(f"file{suffix}") if KINDS[kind].name == "file." else first
        first.write_bytes(content)
        result, words = opened(kind, first)
        if result != "opened":
            print(f"the sound {kind} cannot be opened: {words}")
    write_report(cards.card(), home / "first")
    workers = [Worker(files, options.seed, home / f"work{n}") for n in range(options.workers)]
    found, slowest = Counter(), 0.0
    spent: Counter[str] = Counter()
    with (options.out / "findings.jsonl").open("a") as findings:
        numbers = range(options.first, options.first + options.files)
        for number, (kind, change, result, words, seconds) in answers(workers, numbers):
            found[kind, result] += 1
            slowest = max(slowest, seconds)
            spent[kind] += seconds
            if result == "wrong":
                finding = {
                    "number": number,
                    "seed": options.seed,
                    "kind": kind,
                    "change": change,
                    "words": words,
                }
                findings.write(json.dumps(finding) + "\n")
                findings.flush()
                print(f"file {number} ({kind}, {change}): {words.strip().splitlines()[-1]}", flush=True)
            if found.total() % 1_000 == 0:
                wrong = sum(n for (_, result), n in found.items() if result == "wrong")
                print(f"{found.total()} files, {wrong} findings", flush=True)
    for kind in KINDS:
        line = ", ".join(f"{found[kind, result]} {result}" for result in ("opened", "refused", "wrong"))
        print(f"{kind:>16}: {line}; {spent[kind]:.0f} s")
    wrong = sum(found[kind, "wrong"] for kind in KINDS)
    print(
        f"{found.total()} files, seed {options.seed}: {wrong} findings (findings.jsonl); slowest {slowest:.1f} s"
    )
    return int(any(result == "wrong" for _, result in found))


if __name__ == "__main__":
    sys.exit(main())
