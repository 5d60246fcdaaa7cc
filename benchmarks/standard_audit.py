"""A standard audit beside one by an earlier version of the code: seconds in turns, and what each audit finds.

    git archive 338b5f0 src | tar x -C FOLDER
    python benchmarks/standard_audit.py FOLDER/src --rounds 3

The version before `auto` (338b5f0) attacks its first method at four radii and the others at one, 32 images each; the
preset attacks every method at all four, 24 images. So today's code runs three times: at the radii of that version,
which compares like with like, at its radii with as many images, and with the preset as it is. A round takes six to
seven minutes of two idle cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

AUDIT = ("audit", "cifar10/lenet-ce", "cifar10", "--images", "100", "--preset", "standard", "--out")
RUN_CLI = "import sys; from gyrograd.cli import main; sys.exit(main())"
COLUMNS = ("top_k_kept", "attack_cosine", "adversarial_insertion")
WAYS = ("earlier code", "its radii", "its radii and images", "preset")
EARLIER_IMAGES = 32


def run_like_earlier(way: str) -> int:
    """The command line in this process; every method except the first is attacked at the preset's eps alone."""
    from gyrograd.audit import plans
    from gyrograd.audit.presets import PRESETS, Preset
    from gyrograd.cli import main

    every_radius = plans.radii_of
    if way == "its radii and images":
        PRESETS["standard"] = dataclasses.replace(PRESETS["standard"], attacked_images=EARLIER_IMAGES)

    def radii(preset: Preset, attack: str, number: int) -> tuple[float, ...]:
        return every_radius(preset, attack, number) if number == 0 else (preset.eps,)

    with mock.patch.object(plans, "radii_of", radii):
        return main()


def timed(way: str, sources: Path, out: Path) -> tuple[float, float]:
    """Seconds on the wall and of the processor, with those of the audit's own processes."""
    program = [__file__, "--inside", way] if way.startswith("its") else ["-c", RUN_CLI]
    environment = os.environ | {"PYTHONPATH": str(sources)}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, *program, *AUDIT, out], env=environment, check=True, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - began, cpu


def show_findings(out: Path) -> None:
    """Values and half widths of the intervals of what was attacked at the preset's eps."""
    for method in json.loads((out / "card.json").read_text(encoding="utf-8"))["methods"]:
        stats = [method["columns"][name] for name in COLUMNS]
        numbers = [f"{one['value']:.3f} ± {(one['high'] - one['low']) / 2:.3f}" for one in stats]
        print(f"  {method['name']:22s}", *numbers, sep=" | ")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("earlier", type=Path, help="the folder `src` of the earlier version")
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    today = Path(__file__).parents[1] / "src"
    took: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(asked.rounds):
            for way in WAYS:
                out = Path(folder) / way / str(number)
                took[way].append(timed(way, asked.earlier if way == WAYS[0] else today, out))
                print(
                    f"{way}: {took[way][-1][0]:.1f} s on the wall, {took[way][-1][1]:.1f} s of CPU",
                    flush=True,
                )
                if number == asked.rounds - 1:
                    show_findings(out)
    first = statistics.median(wall for wall, _ in took[WAYS[0]])
    for way in WAYS:
        wall = statistics.median(wall for wall, _ in took[way])
        print(f"{way}: median {wall:.1f} s, {first / wall:.2f} times as fast as the earlier code")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        sys.argv, inside = ["gyrograd", *sys.argv[3:]], sys.argv[2]
        sys.exit(run_like_earlier(inside))
    main()
