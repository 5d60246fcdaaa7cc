"""Four Ray actors, two of them killed at random moments, against one process: `make ray-kills`.

Audits the same images in one process and on a local Ray cluster while actors are killed (SIGKILL), and compares every
byte of the records. Prints what was killed when; fails if a byte differs.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch

import gyrograd as gg


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted((folder / "records").rglob("*.*"))}


def actors_of_this_process() -> list[int]:
    """Processes whose parent's parent this is: driver, raylet, actor."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            name = (place / "cmdline").read_bytes()
            parent = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            grandparent = int(Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        if name.startswith(b"ray::Measurer") and grandparent == os.getpid():
            found.append(int(place.name))
    return found


def kill_some(count: int, actors: int, seconds: float, chance: random.Random, stop: threading.Event) -> None:
    """Kill so many actors, each after a random part of the time the audit takes."""
    while len(actors_of_this_process()) < actors and not stop.wait(0.2):
        pass
    for _ in range(count):
        if stop.wait(chance.uniform(0.1, 0.9) * seconds / actors / count):
            return
        victim = chance.choice(actors_of_this_process())
        os.kill(victim, signal.SIGKILL)
        print(f"killed actor {victim}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actors", type=int, default=4)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = gg.model("lenet", num_classes=10, activation="softplus", seed=0).eval()
    data = gg.dataset("shapes", split="test").subset(options.images)
    # Little work in many shards: what is shown is that none is lost, and starting four actors takes the longest.
    settings: dict[str, Any] = {
        "methods": ["gradient", "lrp"],
        "aims": ("auto",),
        "curve": (),
        "sweep": {},
        "steps": 2,
        "bound_images": 0,
        "flag_images": 1,
        "pictures": 1,
        "shard": 1,
    }
    with tempfile.TemporaryDirectory() as place:
        alone, cluster = Path(place) / "alone", Path(place) / "ray"
        began = time.monotonic()
        gg.audit(model, data, out=alone, **settings)
        seconds = time.monotonic() - began
        print(f"one process: {seconds:.0f} s", flush=True)

        stop = threading.Event()
        given = (options.kills, options.actors, seconds, random.Random(options.seed), stop)
        threading.Thread(target=kill_some, args=given, daemon=True).start()
        began = time.monotonic()
        gg.audit(model, data, out=cluster, workers=options.actors, cluster="ray", **settings)
        stop.set()
        print(f"{options.actors} actors: {time.monotonic() - began:.0f} s")
        same = contents(alone) == contents(cluster)
        print(f"{len(contents(alone))} records: {'the same to the byte' if same else 'THEY DIFFER'}")
        sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
