"""Break the code on purpose and see the tests go red: `make mutants [AREA=attributions]`.

The tests of the lists here (TOML files) first run against the code as it is: a fault whose tests are red anyway, or
that names no test, is an error of the list. Then each fault is written into a copy of the sources and its tests run
against that copy. A fault the tests survive is a hole in them. The exit code says whether there was either.
Two run at a time; WORKERS=1 leaves a core to others.
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
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-o", "addopts=", "-q", "-x", "--tb=no"]


@contextmanager
def broken_copy(mutant: dict[str, str]) -> Iterator[Path]:
    """The sources with one fault in them; a fault that no longer fits the code is an error of the list."""
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src"
        shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        path = sources / "gyrograd" / mutant["file"]
        text = path.read_text(encoding="utf-8")
        if (count := text.count(mutant["old"])) != 1:
            sys.exit(f"'{mutant['fault']}': the text to replace stands {count} times in {path.name}")
        path.write_text(text.replace(mutant["old"], mutant["new"]), encoding="utf-8")
        yield sources


def run_tests(tests: str, sources: Path) -> tuple[int, str]:
    """pytest's exit code for these tests against these sources, and the test that failed first."""
    environment = os.environ | {"PYTHONPATH": str(sources), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*PYTEST, *shlex.split(tests)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    lines = result.stdout.splitlines()
    failed = [line.removeprefix("FAILED ") for line in lines if line.startswith("FAILED ")]
    return result.returncode, failed[0] if failed else ""


def trouble_without_fault(tests: str) -> str:
    """Why these tests can catch nothing: they fail on the code as it is, or there are none. Empty if they pass."""
    code, failed = run_tests(tests, ROOT / "src")
    return "" if code == 0 else f"{failed or f'pytest ends with code {code}'} without the fault"


def outcome(mutant: dict[str, str], trouble: str) -> tuple[str, str]:
    """One of `caught`, `SURVIVED` and `ERROR`, and the test or the trouble behind it."""
    if trouble:
        return "ERROR", trouble
    with broken_copy(mutant) as sources:
        _, failed = run_tests(mutant["tests"], sources)
    # A failed test counts; a broken import catches nothing.
    return "caught" if failed else "SURVIVED", failed


def listed() -> dict[str, list[dict[str, str]]]:
    """The faults by area, out of every list beside this file."""
    lists: dict[str, list[dict[str, str]]] = {}
    for path in sorted((ROOT / "tests" / "mutation").glob("*.toml")):
        for area, mutants in tomllib.loads(path.read_text(encoding="utf-8")).items():
            lists.setdefault(area, []).extend(mutants)
    return lists


def main(areas: list[str]) -> int:
    lists = listed()
    if unknown := set(areas) - set(lists):
        sys.exit(f"No faults in {', '.join(sorted(unknown))}; there are: {', '.join(sorted(lists))}")
    chosen = [(area, mutant) for area in areas or lists for mutant in lists[area]]
    tests = sorted({mutant["tests"] for _, mutant in chosen})
    counts = {"caught": 0, "SURVIVED": 0, "ERROR": 0}

    def judged(mutant: dict[str, str]) -> tuple[str, str, float]:
        started = time.monotonic()
        return *outcome(mutant, troubles[mutant["tests"]]), time.monotonic() - started

    with ThreadPoolExecutor(max_workers=int(os.environ.get("WORKERS", "2"))) as pool:
        print(f"{len(tests)} sets of tests on the code as it is ...", flush=True)
        troubles = dict(zip(tests, pool.map(trouble_without_fault, tests), strict=True))
        results = pool.map(judged, [mutant for _, mutant in chosen])
        for (area, mutant), (verdict, by, seconds) in zip(chosen, results, strict=True):
            counts[verdict] += 1
            print(f"{verdict:8} {seconds:5.0f} s  {area}: {mutant['fault']}  {by}", flush=True)
    print(f"{counts['caught']} of {len(chosen)} faults caught, {counts['ERROR']} errors of the lists")
    return int(counts["caught"] < len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
