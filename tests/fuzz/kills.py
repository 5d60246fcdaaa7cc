"""Kills at random moments: `make fuzz-kills [N=30] [SEED=0] [WORKERS=1]`.

Each of train, audit, harden, sweep, reproduce and explore is run once to its end, and then again and again with a
signal (9, 15 or 2) somewhere on the way. The same command must then go on to the same results, times aside, and leave
no lock and no half-written file behind.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import command_lines

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
OF_TIME = re.compile(
    r"second|time|date|when|created|host|command|pid|pace|spent|memory|^sha256$", re.IGNORECASE
)
"""Keys whose values say when, how long or in how much memory, which no two runs share, and checksums over those."""
ENDS = {0, 1, 130, 143, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT}


def commands(kit: command_lines.Kit, out: Path) -> dict[str, list[str]]:
    """A small run of each verb into this folder."""
    model, data = kit / "net.safetensors", kit / "photos"
    small = ["--images", "2", "--size", "32", "--out", str(out)]
    return {
        "train": ["train", "--config", kit / "long.yaml", "--out", str(out)],
        "audit": [
            "audit",
            model,
            data,
            "--methods",
            "gradient",
            "--attacks",
            "top_k",
            "--steps",
            "3",
            *small,
        ],
        "harden": [
            "harden",
            kit / "trained.safetensors",
            kit / "learned",
            "--epochs",
            "2",
            "--tries",
            "2",
            *small,
        ],
        "sweep": ["sweep", kit / "sweep.yaml", "--images", "2", "--out", str(out)],
        "reproduce": [
            "reproduce",
            "joo2023-table1",
            "--rows",
            "ce",
            "--parts",
            "accuracy",
            "--out",
            str(out),
        ],
        "explore": [
            "explore",
            model,
            "--data",
            data,
            "--size",
            "32",
            "--port",
            str(free_port()),
            "--device",
            "cpu",
        ],
    }


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_served(process: subprocess.Popen[bytes], port: int) -> None:
    """Until a page can be asked for, or the process has ended."""
    for _ in range(600):
        with socket.socket() as probe:
            if process.poll() is not None or probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)


def made_kit(home: Path) -> command_lines.Kit:
    """The fuzz's inputs, a run that takes a while, and a net that is right on the images it was trained on."""
    import torch
    from PIL import Image

    import gyrograd as gg
    from gyrograd.data.opening import open_data
    from gyrograd.models import save
    from gyrograd.training import TrainSettings, fit

    kit = command_lines.made_kit(home)
    train = json.loads(Path(kit / "train.yaml").read_text())
    train |= {"epochs": 6, "data_settings": {"n": 40}, "checkpoint_seconds": 0.2}
    Path(kit / "long.yaml").write_text(json.dumps(train))
    for number in range(20):
        place = home / "learned" / f"class{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        noise = torch.randint(0, 80, (32, 32, 3), generator=torch.Generator().manual_seed(number))
        Image.fromarray((noise + 150 * (number % 2)).byte().numpy()).save(place / f"{number}.png")
    model = gg.model("lenet", num_classes=2, activation="softplus", beta=10, seed=0)
    fit(
        model,
        open_data(str(home / "learned"), size=32),
        TrainSettings(epochs=20, batch_size=10, device="cpu"),
    )
    save(home / "trained.safetensors", model)
    return kit


def started(words: list[str], work: Path) -> subprocess.Popen[bytes]:
    """The command in a process of its own, with a folder for temporary files of its own."""
    (work / "tmp").mkdir(parents=True, exist_ok=True)
    run = "import signal, sys; signal.signal(2, signal.default_int_handler); from gyrograd.__main__ import run; "
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", f"{run}sys.exit(run())", *words],
        stdout=subprocess.DEVNULL,
        stderr=open(work / "stderr.txt", "ab"),
        env=os.environ
        | {"TMPDIR": str(work / "tmp"), "OMP_NUM_THREADS": "1", "PYTHONPATH": command_lines.module_paths()},
        cwd=work,
    )


def results(out: Path) -> dict[str, Any]:
    """What a run wrote, without what differs from run to run."""
    from safetensors.numpy import load_file

    found: dict[str, Any] = {}
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        name = str(path.relative_to(out))
        if path.suffix == ".json":
            found[name] = timeless(json.loads(path.read_text()))
        elif path.suffix == ".jsonl":
            found[name] = [timeless(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.suffix == ".safetensors":
            found[name] = {key: value.tobytes() for key, value in load_file(path).items()}
        elif path.suffix in {".html", ".md"}:
            found[name] = "there"  # made of the others, with times in the text
        else:
            found[name] = path.read_bytes()
    return found


def timeless(tree: Any) -> Any:
    """The document without times."""
    if isinstance(tree, dict):
        return {key: timeless(value) for key, value in tree.items() if not OF_TIME.search(str(key))}
    return [timeless(value) for value in tree] if isinstance(tree, list) else tree


def differences(expected: Any, found: Any, place: str = "") -> Iterator[str]:
    """Where two documents differ: a path of keys, and the two values."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in sorted({*expected, *found}):
            yield from differences(expected.get(key), found.get(key), f"{place}/{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{place}/{number}")
    elif expected != found:
        yield f"{place} {str(expected)[:60]} -> {str(found)[:60]}"


def leftovers(work: Path) -> list[str]:
    """Locks, half-written files and temporary folders of ours."""
    hidden = [path for path in (work / "out").rglob(".*") if path.is_file()]
    return [str(path.relative_to(work)) for path in [*hidden, *(work / "tmp").glob("gyrograd-*")]]


def killed_and_resumed(verb: str, words: list[str], work: Path, after: float, number: int) -> list[str]:
    """What is wrong after a run that was killed and run again."""
    first = started(words, work)
    try:
        first.wait(after)
    except subprocess.TimeoutExpired:
        first.send_signal(number)
    first.wait(120)
    wrong = [] if first.returncode in ENDS else [f"the killed run ended with {first.returncode}"]
    if verb == "explore":
        for folder in (work / "tmp").glob("gyrograd-*"):
            os.utime(folder, (0, 0))  # an hour later
        again = started(words, work)
        wait_until_served(again, int(words[words.index("--port") + 1]))
        again.send_signal(signal.SIGTERM)
        again.wait(120)
        ended = again.returncode in {143, -signal.SIGTERM}
    else:
        again = started(words, work)
        again.wait(300)
        ended = again.returncode in {0, 1}
    wrong += [] if ended else [f"the second run ended with {again.returncode}"]
    said = (work / "stderr.txt").read_text(errors="replace")
    wrong += [f"a traceback: {said[said.index('Traceback') :][-1500:]}"] if "Traceback" in said else []
    return wrong + [f"left behind: {left}" for left in leftovers(work)[:3]]


def whole_run(verb: str, kit: command_lines.Kit, work: Path) -> tuple[float, dict[str, Any]]:
    """Seconds and results of a run that nobody kills."""
    if verb == "explore":
        return 15.0, {}
    began = time.monotonic()
    process = started(commands(kit, work / "out")[verb], work)
    process.wait(300)
    seconds = time.monotonic() - began
    print(f"{verb}: ends with {process.returncode} in {seconds:.0f} s", flush=True)
    return seconds, results(work / "out")


def main() -> int:
    """Run, kill, run again, compare."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kills", type=int, nargs="?", default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="commands at a time, each of one thread")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gyrograd-kills-") as folder, ThreadPool(given.workers) as pool:
        kit = made_kit(Path(folder) / "kit")
        verbs = list(commands(kit, Path()))[: given.kills]
        wholes = dict(zip(verbs, pool.map(lambda v: whole_run(v, kit, Path(folder) / v), verbs), strict=True))

        def kill(number: int) -> bool:
            verb, signalled = verbs[number % len(verbs)], SIGNALS[number // len(verbs) % 3]
            seconds, expected = wholes[verb]
            work = Path(folder) / f"{number}-{verb}"
            after = random.Random(f"{given.seed} {number}").uniform(0.2, 1.0) * seconds
            wrong = killed_and_resumed(verb, commands(kit, work / "out")[verb], work, after, signalled)
            found = results(work / "out")
            wrong += [f"differs: {where}" for where in islice(differences(expected, found), 4)]
            print(
                f"{number + 1}: {verb}, {signalled.name} after {after:.1f} s: {wrong or 'as without'}",
                flush=True,
            )
            return bool(wrong)

        faults = sum(pool.map(kill, range(given.kills), chunksize=1))
    print(f"{given.kills} kills, seed {given.seed}: {faults} with a fault")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
