"""Break the code on purpose and see the tests go red: `make mutants [AREA=attributions]`.

Each fault of the lists here (TOML files) is written into a copy of the sources and its tests run against that
copy. A fault the tests survive is a hole in them, and the exit code says so.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]


def broken_copy(folder: Path, mutant: dict[str, str]) -> None:
    """The sources with one fault in them; a fault that no longer fits the code is an error of the list."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    path = folder / "src" / "gyrograd" / mutant["file"]
    text = path.read_text(encoding="utf-8")
    if text.count(mutant["old"]) != 1:
        sys.exit(
            f"'{mutant['fault']}': the text to replace stands {text.count(mutant['old'])} times in {path.name}"
        )
    path.write_text(text.replace(mutant["old"], mutant["new"]), encoding="utf-8")


def caught(mutant: dict[str, str]) -> tuple[bool, float, str]:
    """Whether the mutant's tests fail, how long that took, and the test that failed first."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        broken_copy(Path(folder), mutant)
        environment = os.environ | {"PYTHONPATH": f"{folder}/src", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-o", "addopts=", "-q", "-x", "--tb=no"]
        result = subprocess.run(
            [*command, *shlex.split(mutant["tests"])],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
    failed = [
        line.removeprefix("FAILED ") for line in result.stdout.splitlines() if line.startswith("FAILED ")
    ]
    # A failed test counts; a broken import or a list of no tests catches nothing.
    return bool(failed), time.monotonic() - started, failed[0] if failed else ""


def listed() -> dict[str, list[dict[str, str]]]:
    """The faults by area, out of every list beside this file."""
    lists: dict[str, list[dict[str, str]]] = {}
    for path in sorted(Path(__file__).parent.glob("*.toml")):
        for area, mutants in tomllib.loads(path.read_text(encoding="utf-8")).items():
            lists.setdefault(area, []).extend(mutants)
    return lists


def main(areas: list[str]) -> int:
    chosen = [
        (area, mutant)
        for area, mutants in listed().items()
        if not areas or area in areas
        for mutant in mutants
    ]
    survivors = 0
    with ThreadPoolExecutor(max_workers=2) as pool:
        for (area, mutant), (dead, seconds, by) in zip(
            chosen, pool.map(caught, [m for _, m in chosen]), strict=True
        ):
            survivors += not dead
            print(
                f"{'caught  ' if dead else 'SURVIVED'} {seconds:5.0f} s  {area}: {mutant['fault']}  {by}",
                flush=True,
            )
    print(f"{len(chosen) - survivors} of {len(chosen)} faults caught")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
