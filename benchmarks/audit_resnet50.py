"""The standard audit of a ResNet50 at 224 pixels, stage by stage: `python benchmarks/audit_resnet50.py --out FOLDER`.

The net has torchvision's architecture and random weights, with statistics of its own images in every batch
normalisation and logits that differ from image to image; the images are made here. So it needs no download, and its
cost is that of a trained net; its explanations mean nothing, and nothing is judged.

FOLDER/profile.json says what was reached: seconds and images of every cell, how much of the plan is done, and the
seconds that the rest would take. It is written after every cell, so that a killed run leaves it, too. A second call
with the same FOLDER goes on where the first one stopped, and adds up.
`--count` measures nothing and counts: forward passes (by floating-point operations) that each cell takes per image.

    python benchmarks/audit_resnet50.py --out /tmp/r50 --images 1000 --limit 300          # on a GPU
    python benchmarks/audit_resnet50.py --out /tmp/tiny --images 4 --size 32 --steps 2    # a trial run on a CPU
    python benchmarks/audit_resnet50.py --count --images 2 --size 64
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import gyrograd as gg
from gyrograd.attacks.auto import Auto
from gyrograd.measurement.cells import Cell, Finished, Task
from gyrograd.models.wrappers import Normalized

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SPREAD = 3.0
"""Standard deviation of the logits over images: predictions are neither certain nor all alike."""
NORMALISED_ON = 64
"""Images whose statistics the batch normalisations take."""


def made_images(count: int, size: int) -> Tensor:
    """Smooth coloured noise with edges: sums of noise at several scales, in [0, 1]."""
    chance = torch.Generator().manual_seed(0)
    total = torch.zeros(count, 3, size, size)
    for cells in (2, 4, 8, 16, 32):
        coarse = torch.randn(count, 3, cells, cells, generator=chance)
        mode = "nearest" if cells in (4, 16) else "bicubic"
        total += F.interpolate(coarse, (size, size), mode=mode) / cells**0.5
    return torch.sigmoid(total)


def random_resnet50(x: Tensor, device: str, classes: int) -> nn.Module:
    """A ResNet50 whose activations are normalised on these images and whose predictions vary."""
    torch.manual_seed(0)
    import torchvision

    core = torchvision.models.resnet50(weights=None, num_classes=classes).to(device)
    model = Normalized(core, MEAN, STD).to(device)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the mean over all batches that follow
    with torch.no_grad():
        for part in x.to(device).split(16):
            model.train()(part)
        model.eval()
        logits = torch.cat([model(part) for part in x.to(device).split(16)])
        core.fc.weight.mul_(SPREAD / logits.std(0).mean())
        core.fc.bias.sub_(logits.mean(0)).mul_(SPREAD / logits.std(0).mean())
    return model.eval()


class OutOfTimeError(KeyboardInterrupt):
    """The limit was reached; an audit ends on it as on Ctrl-C, and keeps what it has."""


class Flops(TorchDispatchMode):
    """Counts the floating-point operations of convolutions and matrix products, whatever calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(func._overloadpacket)) is not None:
            self.count += formula(*args, **(kwargs or {}), out_val=result)
        return result


@dataclass
class Stages:
    """Measures in this process and notes what each cell took; stops before a task for which no time is left."""

    device: str
    until: float
    count_flops: bool = False
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    images: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    flops: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    searches: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    limits: dict[str, int | None] = field(default_factory=dict)
    write: Callable[[], None] = lambda: None

    def __call__(self, cells: Sequence[Cell], tasks: Sequence[Task]) -> Finished:
        self.limits = {cell.name: cell.limit for cell in cells}
        for number, task in enumerate(tasks):
            if time.monotonic() > self.until:
                raise OutOfTimeError
            cell, began = cells[task.cell], self._now()
            if self.count_flops:
                with Flops() as counted:
                    record = cell.record(list(task.positions))
                self.flops[cell.name] += counted.count
            else:
                record = cell.record(list(task.positions))
            self.seconds[cell.name] += self._now() - began
            self.images[cell.name] += len(task.positions)
            self.write()
            yield number, record

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.monotonic()

    @contextmanager
    def columns_timed(self) -> Iterator[None]:
        """Note what `auto` takes for each column; the searches of a method are one cell."""
        whole = Auto.every_radius

        def timed(auto: Auto, *args: Any, **kwargs: Any) -> Any:
            began = self._now()
            try:
                return whole(auto, *args, **kwargs)
            finally:
                self.searches[auto.column] += self._now() - began

        Auto.every_radius = timed  # type: ignore[method-assign]
        try:
            yield
        finally:
            Auto.every_radius = whole  # type: ignore[method-assign]


def stage_of(cell: str) -> str:
    """What a cell belongs to on the profile."""
    for ending, stage in {" under noise": "noise", " under auto": "attacks"}.items():
        if cell.endswith(ending):
            return stage
    if cell in ("model", "bounds"):
        return cell
    return "plane" if " at " in cell else "clean maps"


def profile_of(stages: Stages, images: int, earlier: dict[str, Any]) -> dict[str, Any]:
    """Seconds and images by cell, those of earlier calls included, and what the rest would take."""
    cells = dict(earlier.get("cells", {}))
    for name, limit in stages.limits.items():
        before = cells.get(name, {"seconds": 0.0, "images": 0})
        cells[name] = {
            "seconds": round(before["seconds"] + stages.seconds[name], 3),
            "images": before["images"] + stages.images[name],
            "of": min(images, limit or images),
        }
    by_stage: dict[str, float] = defaultdict(float)
    left = 0.0
    for name, cell in cells.items():
        by_stage[stage_of(name)] += cell["seconds"]
        if cell["images"]:
            left += cell["seconds"] / cell["images"] * (cell["of"] - cell["images"])
    done = sum(min(cell["images"], cell["of"]) for cell in cells.values())
    before = earlier.get("searches", {})
    searches = {name: round(s + before.get(name, 0.0), 2) for name, s in stages.searches.items()}
    return {
        "searches": {**before, **searches},
        "stages": {name: round(s, 2) for name, s in sorted(by_stage.items(), key=lambda item: -item[1])},
        "measured_s": round(sum(by_stage.values()), 2),
        "left_s": round(left, 2),
        "done": done / max(1, sum(cell["of"] for cell in cells.values())),
        "not_begun": [name for name, cell in cells.items() if not cell["images"]],
        "cells": cells,
    }


def report_counts(stages: Stages, model: nn.Module, x: Tensor, images: int, speed: float) -> None:
    """Forward passes per image and cell, and for a whole audit of so many images."""
    with Flops() as one, torch.no_grad():
        model(x[:1])
    by_stage: dict[str, float] = defaultdict(float)
    for name, flops in stages.flops.items():
        passes, of = flops / one.count / stages.images[name], min(images, stages.limits[name] or images)
        by_stage[stage_of(name)] += passes * of
        print(f"{passes:9.1f} forward passes per image, {of:5d} images  {name}")
    total = sum(by_stage.values())
    for name, passes in sorted(by_stage.items(), key=lambda item: -item[1]):
        print(f"{passes:12,.0f} forward passes, {passes / total:4.0%}, {passes / speed:6.0f} s  {name}")
    print(f"{total:12,.0f} in all, {total / speed:6.0f} s at {speed:,.0f} images per second")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("out/audit-resnet50"))
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--preset", default="standard")
    parser.add_argument("--steps", type=int, help="of every attack, for trial runs")
    parser.add_argument("--methods", help="comma-separated; default: those of the preset")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds after which no task is begun")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--plain-layout", action="store_true", help="channels first; default on a GPU: last")
    parser.add_argument(
        "--ieee", action="store_true", help="convolutions in float32; torch's default is tf32"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--count", action="store_true", help="count forward passes instead of seconds")
    parser.add_argument(
        "--of", type=int, default=1000, help="with --count: images of the audit that is added up"
    )
    parser.add_argument("--speed", type=float, default=2500.0, help="with --count: forward passes per second")
    given = parser.parse_args()

    began = time.monotonic()
    x = made_images(given.images, given.size)
    model = random_resnet50(made_images(NORMALISED_ON, given.size), given.device, given.classes)
    if given.device == "cuda" and not given.plain_layout:
        model.to(
            memory_format=torch.channels_last
        )  # tensor cores read channels last, and layers keep the layout
    torch.backends.cudnn.allow_tf32 = not given.ieee
    opened = time.monotonic() - began
    print(f"made {given.images} images and the net in {opened:.1f} s", flush=True)
    stages = Stages(given.device, time.monotonic() + given.limit, given.count)
    file, earlier = given.out / "profile.json", {}
    if file.exists() and not given.count:
        earlier = json.loads(file.read_text())
    methods = given.methods.split(",") if given.methods else None
    started = time.monotonic()

    def write(complete: bool = False) -> dict[str, Any]:
        """Bring profile.json up to date."""
        found = profile_of(stages, given.images, earlier)
        found |= {
            "wall_s": round(time.monotonic() - started + earlier.get("wall_s", 0.0), 2),
            "complete": complete,
            "images": given.images,
            "size": given.size,
            "preset": given.preset,
            "layout": "channels first" if given.plain_layout or given.device != "cuda" else "channels last",
            "convolutions": "float32" if given.ieee or given.device != "cuda" else "tf32",
            "device": torch.cuda.get_device_name() if given.device == "cuda" else "cpu",
            "torch": torch.__version__,
            "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if given.device == "cuda" else None,
        }
        if not given.count:
            file.parent.mkdir(parents=True, exist_ok=True)
            partial = file.with_suffix(".partial")
            partial.write_text(json.dumps(found, indent=1) + "\n")
            partial.replace(file)
        return found

    stages.write = write
    complete = False
    try:
        with stages.columns_timed():
            gg.audit(
                model, x, preset=given.preset, methods=methods, steps=given.steps, workers=stages,
                out=None if given.count else given.out, model_name="resnet50 (random weights)",
            )  # fmt: skip
        complete = True
    except KeyboardInterrupt:
        print("out of time; the same command goes on from here", flush=True)
    if given.count:
        report_counts(stages, model, x.to(given.device), given.of, given.speed)
        return
    found = write(complete)
    for name, cell in sorted(found["cells"].items(), key=lambda item: -item[1]["seconds"]):
        print(f"{cell['seconds']:9.2f} s {cell['images']:5d} of {cell['of']:5d} images  {name}")
    for name, seconds in found["stages"].items():
        print(f"{seconds:9.2f} s  {name}")
    for name, seconds in found["searches"].items():
        print(f"{seconds:9.2f} s  searches for {name}, pictures included")
    print(
        f"{found['wall_s']:.1f} s on the wall, {found['measured_s']:.1f} s of it in cells; {found['done']:.0%} of the "
        f"(cell, image) pairs done, the rest of the begun cells would take {found['left_s']:.0f} s"
    )


if __name__ == "__main__":
    main()
