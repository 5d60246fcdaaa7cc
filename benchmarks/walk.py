"""How many functions and files one image visits on its way through an audit, and one batch through a training step.

    python benchmarks/walk.py [--list]

Counts gyrograd's own functions and lambdas that are entered at least once, by folder; what is only done once for all
(imports) was done before. The audit is a quick one of a single method; `--report` adds its report on disk. `--list`
names them all, with their lines and the number of functions that called them: a short one with one caller may be better
written where it is called, if its name says no more than its body.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import gyrograd

HOME = str(Path(gyrograd.__file__).parent)

Function = tuple[str, str, int, int]
"""File inside the package, name, first line, number of lines."""
Visited = dict[Function, set[CodeType]]
"""Every function with those that call it."""


def visited(work: Callable[[], Any]) -> Visited:
    """Every function of gyrograd that `work` enters; it is done once before, so that everything is imported."""
    work()
    found: Visited = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        named = not code.co_name.startswith("<") or code.co_name == "<lambda>"
        if event == "call" and named and code.co_filename.startswith(HOME):
            last = max(line for _, _, line in code.co_lines() if line is not None)
            size = last - code.co_firstlineno + 1
            place = (code.co_filename[len(HOME) + 1 :], code.co_name, code.co_firstlineno, size)
            found.setdefault(place, set()).update([frame.f_back.f_code] if frame.f_back else [])

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


def audit(out: Path | None) -> Callable[[], Any]:
    """One image through a quick audit of the gradient."""
    net = gyrograd.model("lenet", activation="softplus", beta=3, seed=0)
    data = gyrograd.dataset("shapes", split="test", n=1)
    return lambda: gyrograd.audit(
        net, data, preset="quick", methods=["gradient"], steps=2, out=out, fresh=True
    )


def training_step() -> Callable[[], Any]:
    """One batch through one step with l2_cosine."""
    from gyrograd.training import TrainSettings, fit

    net = gyrograd.model("lenet", activation="softplus", beta=3, seed=0)
    data = gyrograd.dataset("shapes", split="train", n=8)
    settings = TrainSettings(terms={"l2_cosine": {}}, epochs=1, batch_size=8, device="cpu")
    return lambda: fit(net, data, settings)


def tell(name: str, found: Visited, every: bool) -> None:
    """Print the counts, by folder."""
    print(f"{name}: {len(found)} functions in {len({file for file, *_ in found})} files")
    folders = Counter(file.rpartition("/")[0] or "." for file, *_ in found)
    print("  " + ", ".join(f"{folder} {n}" for folder, n in folders.most_common()))
    for (file, function, line, size), callers in sorted(found.items()) if every else ():
        print(f"  {file}:{line} {function}, {size} lines, {len(callers)} callers")


def main() -> None:
    """Walk an audit and a training step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="name every function")
    parser.add_argument("--report", action="store_true", help="write the audit's report too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tell("audit", visited(audit(Path(folder) if given.report else None)), given.list)
    tell("training step", visited(training_step()), given.list)


if __name__ == "__main__":
    main()
