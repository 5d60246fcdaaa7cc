"""Thousands of command lines through every verb: `make fuzz-cli [N=5000] [SEED=0] [WORKERS=1]`.

Lines are drawn from the verbs' own options, with values that fit, that do not, and that are meant to do harm, on inputs
so small that no honest run takes long. Each must end within 10 seconds of processor time with an exit code that is
documented, no traceback, and no file written outside `--out`. A worker runs them in one process; one that hangs is
killed and another takes its place. Line number n of a seed is always the same line, however many workers there are.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CPU_S, WALL_S = 10, 90
"""A command may take this much of the processor, and this much time in all: the machine may have other work."""
HONEST = {0, 1, 2}
"""Exit codes of a command that was understood; 70 is a defect."""

NUMBERS = ["0", "-1", "1", "2", "1.5", "1e400", "nan", "-inf", "1000000000000", "9" * 5000, "0x10", "1_0", "½", "8/255",
           "1/0", "true", "null"]  # fmt: skip
HOSTILE = [
    "", " ", "-", "--", "-h", "\x1b[2J\x07", "a\0b", "x" * 500, "../../escaped", "/dev/null/x", "/proc/self/mem",
    "/dev/zero", "http://evil.example/x.png", "$(touch escaped)", "`touch escaped`", "{a: 1}", "[1, 2", "(((", "]",
    "%s%n", "\udcff", "名前", "~", "~nobody/x", ".", "..", "*", "[a-", "a=b=c", "!!python/name:os.system",
    "&a [*a]", "- - -", "gradient,", "gradient(steps=", ":pretrained", "x.py:y", "timm:", "torchvision::", "a\nb",
]  # fmt: skip
WORDS = ["gradient", "lrp", "smoothgrad(draws=2)", "lime(draws=4)", "random", "pgd", "linf", "l2", "cpu", "cuda:7",
         "quick", "test", "train", "imagenet", "label", "predicted", "3", "never", "changed", "bash"]  # fmt: skip
METHODS = [
    "gradient",
    "smoothgrad",
    "integrated_gradients",
    "lime",
    "shap",
    "lrp",
    "guided_backprop",
    "unigrad",
]
SETTINGS = [
    "sigma",
    "draws",
    "steps",
    "samples",
    "segments",
    "rule",
    "baseline",
    "quantity",
    "kernel",
    "seed",
    "k",
]


@dataclass(frozen=True)
class Kit:
    """Small real inputs, and files that are not what they seem."""

    home: Path

    def __truediv__(self, name: str) -> str:
        return str(self.home / name)

    @property
    def files(self) -> list[str]:
        """All of them, and some that are not there."""
        return [*map(str, sorted(self.home.iterdir())), self / "missing", self / "missing.png"]


MAKING = threading.Lock()
"""Threads share torch's generator."""


def made_kit(home: Path) -> Kit:
    """Write the inputs."""
    import numpy as np
    from PIL import Image

    import gyrograd as gg
    from gyrograd.models import save

    home.mkdir(parents=True)
    with MAKING:
        save(home / "net.safetensors", gg.model("lenet", activation="softplus", beta=10, seed=0))
    drawn = np.random.default_rng(0).integers(0, 255, (4, 32, 32, 3), dtype=np.uint8)
    for number, image in enumerate(drawn):
        place = home / "photos" / f"class{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.png")
    Image.fromarray(drawn[0]).save(home / "one.png")
    Image.fromarray(drawn[0]).save(home / "one\x1b[2J.png")
    (home / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    (home / "empty").write_bytes(b"")
    (home / "empty_folder").mkdir()
    (home / "net.py").write_text(NET)
    train = {"model": "lenet", "data": "shapes", "data_settings": {"n": 2}, "epochs": 1, "batch_size": 8,
             "test": {"split": "test", "n": 2}}  # fmt: skip
    (home / "train.yaml").write_text(json.dumps(train))
    (home / "sweep.yaml").write_text(json.dumps(train | {"grid": {"terms.l2.weight": [0.1]}}))
    (home / "twice.yaml").write_text(json.dumps(train | {"grid": {"lr": [0.1, 1e-1]}}))
    (home / "odd.yaml").write_text("images: [1\n  - ]: {")
    (home / "list.yaml").write_text("- 1\n- 2\n")
    (home / "more.yaml").write_text("images: many\nseed: -3\nzzz: 1\n")
    os.mkfifo(home / "fifo.png")
    os.symlink("loop", home / "loop")
    (home / "card").mkdir()
    (home / "card" / "card.json").write_text('{"schema": 1}')
    with MAKING:
        (home / "submission").mkdir()
        for name, held in submission(home).items():
            place = home / "submission" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(held)
    return Kit(home)


SUBMITTED: dict[str, bytes] = {}


def submission(home: Path) -> dict[str, bytes]:
    """The files of a small submission, made once: it takes seconds, and every worker needs one."""
    if not SUBMITTED:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "made"
            words = [
                "submit",
                str(home / "net.safetensors"),
                str(home / "one.png"),
                "--images",
                "1",
                "--size",
                "32",
            ]
            words += ["--methods", "gradient", "--steps", "1", "--device", "cpu", "--out", str(out)]
            made = subprocess.run(
                [sys.executable, "-W", "ignore", "-m", "gyrograd", *words],
                check=False,
                capture_output=True,
                text=True,
                env=os.environ | {"PYTHONPATH": module_paths()},
            )
            assert made.returncode == 0, made.stderr
            SUBMITTED.update(
                {str(one.relative_to(out)): one.read_bytes() for one in out.rglob("*") if one.is_file()}
            )
    return SUBMITTED


NET = """
import torch
from torch import nn
def good(num_classes=10): return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, num_classes))
class Raises(nn.Module):
    def forward(self, x): raise KeyError("mine")
def raises(): return Raises()
class Nan(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = good()
    def forward(self, x): return self.core(x) + 0 * torch.sqrt(0 * x.flatten(1).sum(1, keepdim=True))
def nan(): return Nan()
class Whole(nn.Module):
    def forward(self, x): return x.flatten(1)[:, :5].long()
def whole(): return Whole()
def nothing(): return None
broken = 3
"""


def numbered_line(seed: int, number: int, kit: Kit) -> list[str]:
    """Line `number` of a seed."""
    return command_line(random.Random(f"{seed} {number}"), kit)


def command_line(rng: random.Random, kit: Kit) -> list[str]:
    """One line: an honest one, with none to three things changed."""
    path = rng.choice(PATHS)
    words = honest(path, rng, kit)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        words = CHANGES[rng.choice(list(CHANGES))](words, path, rng, kit)
    return [*path.split(), *words]


PATHS = ["audit", "explain", "explain", "attack", "attack", "explore", "train", "train", "harden", "sweep", "reproduce",
         "report", "compare", "leaderboard", "submit", "verify", "list", "data fetch", "data check", "data show",
         "doctor", "completion", "demo", "bench"]  # fmt: skip


def honest(path: str, rng: random.Random, kit: Kit) -> list[str]:
    """Words of a small run of the verb that succeeds, or nearly."""
    model = rng.choice([kit / "net.safetensors", "lenet", f"{kit / 'net.py'}:good"])
    data = "shapes" if rng.random() < 0.05 else rng.choice([kit / "one.png", kit / "photos"])
    opened = [model, data, "--images", "1", "--size", "32", "--device", "cpu", "--out", "out/here"]
    return {
        "audit": [*opened, "--methods", "gradient", "--attacks", "random", "--steps", "1"],
        "explain": [*opened, "--method", rng.choice(METHODS)],
        "attack": [
            *opened,
            "--steps",
            "1",
            "--attack",
            rng.choice(["targeted_map", "top_k", "random", "pgd"]),
        ],
        "explore": [model, "--data", data, "--images", "1", "--size", "32", "--device", "cpu"],
        "train": ["--config", kit / "train.yaml", "--out", "out/here"],
        "harden": [
            model,
            kit / "photos",
            "--images",
            "1",
            "--epochs",
            "1",
            "--size",
            "32",
            "--out",
            "out/here",
        ],
        "sweep": [kit / "sweep.yaml", "--out", "out/here", "--images", "1"],
        "reproduce": ["joo2023-table1", "--rows", "no such row", "--out", "out/here"],
        "report": [kit / "card"],
        "compare": [kit / "card", kit / "card", "--out", "out/here.html"],
        "leaderboard": [str(kit.home), "--out", "out/here.html"],
        "submit": [*opened, "--methods", "gradient", "--steps", "1"],
        "verify": [rng.choice([kit / "submission", kit / "card"]), "--images", "1", "--device", "cpu"],
        "list": ["attribution"],
        "data fetch": ["cifar10", "--root", "out/here", "--source", kit / "empty"],
        "data check": ["folder", "--path", kit / "photos"],
        "data show": ["folder", "--path", kit / "photos", "--out", "out/here.png"],
        "doctor": [],
        "completion": ["bash"],
        # refused twice over: two nets are more than a moment's work
        "demo": ["--images", "0", "--train", "0", "--out", "out/here"],
        "bench": ["--batch", "1", "--side", "32", "--repeats", "1", "--device", "cpu"],
    }[path]


def value(rng: random.Random, kit: Kit) -> str:
    """What an option might be given."""
    pool = rng.choice(
        [NUMBERS, HOSTILE, WORDS, kit.files, [method(rng), kit / "net.py:" + rng.choice(FACTORIES)]]
    )
    return rng.choice(pool)


FACTORIES = ["raises", "nan", "whole", "nothing", "broken", "missing"]


def method(rng: random.Random) -> str:
    given = [
        f"{rng.choice(SETTINGS)}={rng.choice(NUMBERS + WORDS[:4])}" for _ in range(rng.choice((1, 1, 2)))
    ]
    return f"{rng.choice(METHODS)}({', '.join(given)})"


def with_option(words: list[str], path: str, rng: random.Random, kit: Kit) -> list[str]:
    """One of the verb's own options, with any value; its last value counts."""
    from gyrograd.cli import verbs
    from gyrograd.cli.options import is_word, options

    verb: Any = verbs()
    for word in path.split():
        verb = verb[word]
    own = [name for name in options(verb) if not is_word(verb, name)] + ["config", "debug_", "print_config"]
    if path == "train":
        own += [
            "lr",
            "epochs",
            "terms.l2.weight",
            "data_settings.n",
            "model",
            "model_settings.beta",
            "schedule",
        ]
    name = rng.choice(own or ["json"])
    given = value(rng, kit)
    if name in {"out", "root"} and not given.startswith(("/proc", "/dev", "\x1b", "a\0")):
        given = "out/" + given.replace("..", "up").strip("/~")  # what is written there was asked for
    if path == "reproduce" and name in {"rows", "name"}:
        return words  # every other row is an honest run of a minute
    return [*words, f"--{name}", given] if rng.random() < 0.8 else [*words, f"--{name}={given}"]


def with_word_changed(words: list[str], path: str, rng: random.Random, kit: Kit) -> list[str]:
    """A word or a value is another."""
    place = rng.randrange(len(words)) if words else 0
    if not words or words[place].startswith("--") or "--out" in words[max(0, place - 1) : place]:
        return [*words, value(rng, kit)]
    if words[max(0, place - 1) : place] in (["--root"], ["--rows"]):
        return words
    return [*words[:place], value(rng, kit), *words[place + 1 :]]


def with_word_left_out(words: list[str], path: str, rng: random.Random, kit: Kit) -> list[str]:
    """A word is missing."""
    if not words or path in {"demo", "bench", "reproduce"}:
        return words  # their own defaults take minutes
    place = rng.randrange(len(words))
    return [*words[:place], *words[place + 1 :]]


def with_method(words: list[str], path: str, rng: random.Random, kit: Kit) -> list[str]:
    """A method with settings that may not fit."""
    name = {"audit": "methods", "submit": "methods", "explain": "method", "attack": "method"}.get(path)
    return [*words, f"--{name}", method(rng)] if name else words


def with_debug(words: list[str], path: str, rng: random.Random, kit: Kit) -> list[str]:
    """An option nobody has, or a flag."""
    return [*words, rng.choice(["--zzz", "--json", "--help", "--fresh", "--unlabelled", "---", "--out"])]


CHANGES = {
    "option": with_option,
    "changed": with_word_changed,
    "left out": with_word_left_out,
    "method": with_method,
    "flag": with_debug,
}


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    words: list[str]
    code: int | str
    seconds: float
    said: str
    escaped: list[str]

    @property
    def fault(self) -> str | None:
        """What is wrong with that, if anything."""
        if self.code not in HONEST:
            return f"exit code {self.code}"
        if "Traceback (most recent call last)" in self.said:
            return "traceback"
        if self.code == 2 and "gyrograd: " not in self.said:
            return "no sentence"
        if any(ord(letter) < 32 and letter not in "\n\t\b" for letter in self.said):
            return "control character"
        return f"written outside: {self.escaped[:3]}" if self.escaped else None


def run_lines(numbers: queue.SimpleQueue[int], seed: int, home: Path) -> Iterator[tuple[int, Ended]]:
    """Lines until none is left, in one worker with inputs and a folder of its own."""
    kit, work = made_kit(home / "kit"), home / "work"
    worker = Worker(kit, work)
    try:
        while True:
            try:
                number = numbers.get_nowait()
            except queue.Empty:
                return
            words, before = numbered_line(seed, number, kit), (listing(kit.home), listing(work))
            ended = worker.run(words)
            new = escaped(words, before[0] | before[1], kit, work)
            found = Ended(words, ended["code"], ended["seconds"], ended["said"], new)
            # The next line finds everything as it was.
            if listing(kit.home) != before[0]:
                shutil.rmtree(kit.home)
                kit = made_kit(kit.home)
            if listing(work) != before[1]:
                worker.stop()
                shutil.rmtree(work)
                worker = Worker(kit, work)
            yield number, found
    finally:
        worker.stop()


def places_asked_for(words: list[str], work: Path) -> list[Path]:
    """Where the line itself says that something is to be written."""
    given = [one for before, one in itertools.pairwise(words) if before in {"--out", "--root"}]
    given += [word.partition("=")[2] for word in words if word.startswith(("--out=", "--root="))]
    given += words[1:2] if words[0] in {"report", "leaderboard"} else []
    return [work / one for one in given if one]


def listing(*homes: Path) -> set[tuple[str, int]]:
    """Every file that is not below the folder `out` with the time it was last written, and every folder."""
    found = set()
    for home in homes:
        for folder, inner, files in os.walk(home):
            inner[:] = [name for name in inner if name not in {"out", "tmp", "__pycache__"}]
            found |= {(os.path.join(folder, name), 0) for name in inner}
            paths = [os.path.join(folder, name) for name in files]
            found |= {(path, os.lstat(path).st_mtime_ns) for path in paths}
    return found


def escaped(words: list[str], before: set[tuple[str, int]], kit: Kit, work: Path) -> list[str]:
    """What was written since then where the line did not ask for it: not below such a place, nor a folder above it."""
    asked = places_asked_for(words, work)
    new = {Path(path) for path, _ in listing(kit.home, work) - before}
    return sorted(
        str(path)
        for path in new
        if not any(path.is_relative_to(one) or Path(one).is_relative_to(path) for one in asked)
    )


def module_paths() -> str:
    """Where modules are looked for, from any folder."""
    return os.pathsep.join(os.path.abspath(path) for path in sys.path if path)


class Worker:
    """A process that runs command lines; killed where one takes too long, and started again."""

    def __init__(self, kit: Kit, work: Path) -> None:
        self.kit, self.work = kit, work
        self.process: subprocess.Popen[str] | None = None
        (work / "tmp").mkdir(parents=True, exist_ok=True)

    def start(self) -> subprocess.Popen[str]:
        """With a home, a data folder and a folder for temporary files of its own."""
        temporary = str(self.work / "tmp")
        data = str(self.work / "out" / "data")
        own = {"HOME": str(self.work), "GYROGRAD_DATA": data, "TMPDIR": temporary, "MPLCONFIGDIR": temporary}
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # No accelerator: its driver reserves more memory than a worker may have.
            env=os.environ
            | own
            | {
                "PYTHONPATH": module_paths(),
                "OMP_NUM_THREADS": "1",
                "COLUMNS": "100",
                "CUDA_VISIBLE_DEVICES": "",
            },
            cwd=self.work,
        )
        self.answers: queue.Queue[str] = queue.Queue()
        out = process.stdout
        assert out is not None
        threading.Thread(target=lambda: [self.answers.put(line) for line in out], daemon=True).start()
        assert self.answers.get(timeout=300).strip() == "ready"
        return process

    def run(self, words: list[str]) -> dict[str, Any]:
        """The outcome of one line."""
        self.process = self.process or self.start()
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        began, cpu = time.monotonic(), cpu_seconds(self.process.pid)
        while True:
            try:
                return dict(json.loads(self.answers.get(timeout=0.5)))
            except queue.Empty:
                used, waited = cpu_seconds(self.process.pid) - cpu, time.monotonic() - began
                ended = self.process.poll()
                if ended is None and used < CPU_S and waited < WALL_S:
                    continue
                self.stop()
                code = f"worker ended with {ended}" if ended is not None else "hang"
                return {"code": code, "seconds": waited, "said": ""}

    def stop(self) -> None:
        """End it; the next line starts another."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def outcome(words: list[str]) -> dict[str, Any]:
    """How one line ends in this process, in the folder one is in."""
    import contextlib
    import io

    from gyrograd.cli import main

    shutil.rmtree("out", ignore_errors=True)
    said, began = io.StringIO(), time.process_time()
    code: int | str
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(words)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else str(ended.code)
        except BaseException as error:
            code = f"raised {type(error).__name__}: {error}"[:300]
    whole = said.getvalue()
    return {"code": code, "seconds": time.process_time() - began, "said": f"{whole[:2000]}{whole[-2000:]}"}


def alone(*_: Any, **__: Any) -> Any:
    """In the place of what reaches the net."""
    raise OSError("there is no network here")


def serve_lines() -> None:
    """The worker: a line of JSON in, a line of JSON out. The net is not reached, and pages are not served."""
    import resource
    import socket

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    socket.getaddrinfo = socket.create_connection = alone
    from gyrograd.explorer import server

    server.serve = lambda *_, **__: None  # type: ignore[assignment]
    # `--config -` reads the standard input, which must not be where the lines come from.
    lines = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    print("ready", file=answers, flush=True)
    for line in lines:
        print(json.dumps(outcome(json.loads(line))), file=answers, flush=True)


def main() -> int:
    """Run them all and tell what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lines", type=int, nargs="?", default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes, each of one thread")
    parser.add_argument("--only", type=int, nargs="*", help="these numbers alone")
    given = parser.parse_args()
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    chosen = given.only or range(given.lines)
    for number in chosen:
        numbers.put(number)
    results: queue.SimpleQueue[tuple[int, Ended] | None] = queue.SimpleQueue()

    def run_worker(home: Path) -> None:
        try:
            for result in run_lines(numbers, given.seed, home):
                results.put(result)
        finally:
            results.put(None)

    codes: Counter[str] = Counter()
    faults: dict[int, str] = {}
    with tempfile.TemporaryDirectory(prefix="gyrograd-fuzz-") as folder:
        working = min(given.workers, len(chosen))
        for worker in range(working):
            threading.Thread(target=run_worker, args=(Path(folder) / str(worker),)).start()
        while working:
            result = results.get()
            if result is None:
                working -= 1
                continue
            number, ended = result
            codes[str(ended.code)] += 1
            if ended.fault:
                faults[number] = ended.fault
                print(
                    f"{number}: {ended.fault}\n  {ended.words!r}\n  {ended.said.strip()[-400:]!r}", flush=True
                )
            if codes.total() % 500 == 0:
                print(
                    f"{codes.total()} of {len(chosen)}: exit codes {dict(codes)}, {len(faults)} faults",
                    flush=True,
                )
    for number in sorted(faults):
        print(f"{number}: {faults[number]}")
    print(f"{codes.total()} command lines, seed {given.seed}: exit codes {dict(codes)}, {len(faults)} faults")
    return int(bool(faults) or codes.total() < len(chosen))


if __name__ == "__main__":
    if sys.argv[1:] == ["--worker"]:
        serve_lines()
    else:
        sys.exit(main())
