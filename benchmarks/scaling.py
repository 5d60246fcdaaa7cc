"""Seconds and peak memory against number of images, draws and pixels: `make bench-scaling`.

Three jobs on a LeNet with ReLU: RPS (draws: noisy copies), insertion (draws: shares of pixels) and the targeted
attack on the gradient (draws: steps). Each point is a process of its own, whose peak memory the system keeps, less
what the process held before the job began. Writes results/scaling.md and docs/pictures/cost.png, in which the
straight lines are least-squares fits.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
JOBS = {"rps": "RPS", "insertion": "insertion", "attack": "attack"}
COLOURS = {"rps": "#0072b2", "insertion": "#d55e00", "attack": "#009e73"}
ROWS = 64
"""Images in one pass (`max_batch`), at every point but those of the last memory panel."""


@dataclass(frozen=True)
class Point:
    """One measurement to make."""

    job: str
    images: int = 64
    draws: int = 10
    side: int = 16
    rows: int = ROWS


AXES: dict[str, tuple[int, ...]] = {
    "images": (64, 128, 192, 256),
    "draws": (5, 10, 20, 40),
    "side": (8, 16, 24, 32),
}
REPEATS = {"rps": 7, "insertion": 7, "attack": 3}
CUT = "side, rows cut"
"""The axis of sides with ever fewer rows in one pass, so that a pass holds the same number of pixels."""


def points_along(job: str, axis: str) -> list[Point]:
    start = Point(job)
    if axis == CUT:
        return [replace(start, side=side, rows=ROWS * 16**2 // side**2) for side in AXES["side"]]
    return [replace(start, **{axis: value}) for value in AXES[axis]]


# --- the child ----------------------------------------------------------------------------------------------------


def work_of(point: Point) -> Callable[[], object]:
    """The job, ready to run."""
    import torch

    import gyrograd as gg

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = gg.model("lenet", image_size=point.side, seed=0).eval()
    x = torch.rand(point.images, 3, point.side, point.side)
    with torch.no_grad():
        target = torch.cat([model(part).argmax(1) for part in x.split(point.rows)])
    map = gg.attribution("gradient", max_batch=point.rows)
    settings: dict[str, dict[str, Any]] = {
        "rps": {"eps": 16 / 255, "draws": point.draws},
        "insertion": {"ratios": tuple((i + 1) / point.draws for i in range(point.draws))},
        "attack": {"eps": 8 / 255, "steps": point.draws},
    }
    make = gg.metric if point.job in ("rps", "insertion") else gg.attack
    name = "targeted_map" if point.job == "attack" else point.job
    run = make(name, **settings[point.job], max_batch=point.rows)
    return lambda: run(model, map, x, target)


def peak_megabytes() -> float:
    """Of this process so far; Linux counts in kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(point: Point) -> dict[str, float]:
    """Median wall and processor seconds, and by how much the job raised the peak."""
    # Pays for what is loaded on first use; too small to fill a pass, so that it leaves the peak to the job.
    work_of(replace(point, images=2, draws=2))()
    work = work_of(point)
    before = peak_megabytes()
    spent = []
    for _ in range(REPEATS[point.job]):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        spent.append((time.perf_counter() - wall, time.process_time() - cpu))
    walls, cpus = zip(*spent, strict=True)
    return {
        "wall": statistics.median(walls), "cpu": statistics.median(cpus), "low": min(cpus), "high": max(cpus),
        "memory": peak_megabytes() - before, "before": before,
    }  # fmt: skip


# --- the parent ---------------------------------------------------------------------------------------------------


def in_child(point: Point) -> dict[str, float]:
    command = [sys.executable, __file__, "--point", json.dumps(asdict(point))]
    quiet = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=quiet, check=False)
    if done.returncode:
        sys.exit(f"{point} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(point, {key: round(value, 3) for key, value in found.items()}, flush=True)
    return found


def size_of(point: Point, axis: str) -> int:
    """What the cost should grow with: a side counts by its square."""
    return point.side**2 if axis.startswith("side") else int(getattr(point, axis))


def straight_line(x: list[int], y: list[float]) -> tuple[float, float, float]:
    """Slope, intercept and R^2 of the least-squares line."""
    slope, start = np.polyfit(x, y, 1)
    left = np.sum((np.array(y) - slope * np.array(x) - start) ** 2)
    return float(slope), float(start), float(1 - left / np.sum((np.array(y) - np.mean(y)) ** 2))


Found = dict[Point, dict[str, float]]


def table(found: Found) -> str:
    header = ["job", "along", "sizes", "cpu s (range)", "wall s", "R^2 of the line", "memory MB", "max - min"]
    rows = [header, ["---"] * len(header)]
    for job, label in JOBS.items():
        for axis in (*AXES, CUT):
            points = points_along(job, axis)
            sizes, got = [size_of(p, axis) for p in points], [found[p] for p in points]
            line = straight_line(sizes, [g["cpu"] for g in got])
            memory = [g["memory"] for g in got]
            times = [f"{g['cpu']:.2f} ({g['low']:.2f} - {g['high']:.2f})" for g in got]
            names = [f"{p.side} px" + (f", {p.rows} rows" if axis == CUT else "") for p in points]
            shown = names if axis.startswith("side") else [str(size) for size in sizes]
            rows.append(
                [label, axis, " / ".join(shown), " / ".join(times), " / ".join(f"{g['wall']:.2f}" for g in got),
                 f"{line[2]:.4f}", " / ".join(f"{m:.0f}" for m in memory), f"{max(memory) - min(memory):.0f}"]
            )  # fmt: skip
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def picture(found: Found) -> bytes:
    """Seconds above, memory below, a column for each axis; PNG bytes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 6), dpi=130, layout="constrained")
    axes = figure.subplots(2, 3, sharex="col")
    labels = {"images": "images", "draws": "draws / shares / steps", "side": "pixels (side squared)"}
    for column, (axis, label) in enumerate(labels.items()):
        for job, name in JOBS.items():
            points = points_along(job, axis)
            sizes, colour = [size_of(p, axis) for p in points], COLOURS[job]
            cpu = [found[p]["cpu"] for p in points]
            slope, start, fit = straight_line(sizes, cpu)
            axes[0, column].plot(sizes, cpu, "o", color=colour, ms=5)
            axes[0, column].plot(sizes, [slope * s + start for s in sizes], color=colour, lw=1.2,
                                 label=f"{name}, R² = {fit:.3f}")  # fmt: skip
            axes[1, column].plot(
                sizes, [found[p]["memory"] for p in points], "o-", color=colour, lw=1.2, ms=5
            )
            if axis == "side":
                cut = [found[p]["memory"] for p in points_along(job, CUT)]
                axes[1, column].plot(sizes, cut, "s--", color=colour, lw=1.2, ms=4, mfc="white")
        axes[1, column].set_xlabel(label)
        axes[0, column].legend(fontsize=8, frameon=False)
        for axes_of_row in axes[:, column]:
            axes_of_row.set_ylim(bottom=0)
            axes_of_row.set_xlim(left=0)
            axes_of_row.grid(alpha=0.25)
    axes[0, 0].set_ylabel("processor seconds")
    axes[1, 0].set_ylabel("memory above the start, MB")
    axes[1, 2].set_title("filled: 64 rows in a pass; open: 64 x 16² pixels in a pass", fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def report(found: Found) -> str:
    import torch

    return (
        "# What it costs as it grows\n\n"
        f"Command: `make bench-scaling`. torch {torch.__version__}, Python {platform.python_version()}, "
        f"{platform.machine()} CPU, 1 thread; LeNet with ReLU and initial weights, random images. Where an axis does "
        f"not move: 64 images of 16 px, 10 draws, {ROWS} rows in one pass. Draws are RPS's noisy copies, insertion's "
        f"shares of pixels, the attack's steps. Medians of 7 runs (attack: 3) in one process; a process for each "
        "point, one after the other. Memory is "
        "the peak resident size (ru_maxrss) less the peak before the job.\n\n"
        "The machine has two cores and other work ran on them, so processor seconds are plotted, not those on the "
        "wall. The line is fitted by least squares to processor seconds over images, draws, and pixels (side squared). "
        "Memory is bounded by rows in one pass (`max_batch`), not by pixels, so with 64 rows it grows with the side; "
        f"\"{CUT}\" cuts the rows as the image grows (at 8 px the attack's 64 images do not fill 256 rows).\n\n"
        f"{table(found)}\n\n![Processor seconds and memory](../docs/pictures/cost.png)\n"
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--point", help="measure this one point and print it (what the command itself calls)")
    parser.add_argument("--results", type=Path, default=ROOT / "results" / "scaling.md")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "pictures" / "cost.png")
    options = parser.parse_args()
    if options.point:
        print(json.dumps(measure(Point(**json.loads(options.point)))))
        return
    from gyrograd.records import write_text

    wanted = dict.fromkeys(p for job in JOBS for axis in (*AXES, CUT) for p in points_along(job, axis))
    found = {point: in_child(point) for point in wanted}
    options.picture.write_bytes(picture(found))
    write_text(options.results, report(found))


if __name__ == "__main__":
    main()
