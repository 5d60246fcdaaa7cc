"""Every experiment twice at `smoke`, once for all tests that look at the results.

In a process of its own: with signatures checked in every call it would take twice as long. Experiments share nets and
records, so one process runs them all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gyrograd.occupancy import wait_for_lock
from gyrograd.registry import available

WITH_PAGES = ("joo2023-figure2b", "tan2023-table1", "wang2020-figure8")
"""One of each paper whose page is written by the run itself."""
RUNNER = """
import hashlib, json, os, sys, traceback
from pathlib import Path
from gyrograd.experiments import engine, reproduce

os.fsync = lambda _: None  # a thousand records that nobody has to find after a power cut

names, out, paged = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]

def digests():
    files = [p for part in ("records", "nets") for p in sorted((out / "smoke" / part).rglob("*")) if p.is_file()]
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}

errors, first, render = {}, {}, engine.render
for turn in (0, 1):
    if turn:
        first = digests()
    for name in names:
        # Pages take a third of the time; the tests draw each of them from its files.
        engine.render = render if turn and name in paged else (lambda folder: folder)
        try:
            reproduce(name, "smoke", out)
        except Exception:
            errors.setdefault(name, traceback.format_exc())
        if not turn and (out / "smoke" / name / "results.json").exists():
            results = out / "smoke" / name / "results.json"
            (out / f"{name}.first.json").write_bytes(results.read_bytes())
changed = sorted(set(first.items()) ^ set(digests().items()))
(out / "outcome.json").write_text(json.dumps({"errors": errors, "changed": changed}))
"""


def finished_runs(temporary: pytest.TempPathFactory) -> Path:
    """The folder in which every experiment has run twice; the first test process that asks for it runs them.

    It holds `smoke` (pages of `WITH_PAGES` alone), `{name}.first.json` (results of the first run) and `outcome.json`:
    `errors` by name, and
    `changed`, the nets and records that the second run wrote.
    """
    base = temporary.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "reproduce"
    folder.mkdir(exist_ok=True)
    with wait_for_lock(folder / ".lock", "the experiments"):
        if not (folder / "outcome.json").exists():
            words = [sys.executable, "-W", "error", "-c", RUNNER]
            names = sorted(available("experiment"))
            done = subprocess.run(
                [*words, json.dumps(names), folder, *WITH_PAGES], capture_output=True, text=True, timeout=1500
            )
            assert done.returncode == 0, done.stderr
    return folder
