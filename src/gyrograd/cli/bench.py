"""gyrograd bench: what explaining, attacking and training cost on this machine."""

from __future__ import annotations

import json as json_format
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from gyrograd.registry import Settings

if TYPE_CHECKING:
    from torch import Tensor

    from gyrograd.measurement.simulation import Prediction
    from gyrograd.types import Model

METHODS = ("gradient", "integrated_gradients(steps=10)", "smoothgrad(draws=10)", "guided_backprop", "lrp")
ALIGNED: dict[str, Settings] = {
    "training step, cross-entropy": {},
    "... with l2 + cosine": {"terms": {"l2_cosine": {}}},
    "... on 1/4 of every 4th batch, fast": {
        "terms": {"l2_cosine": {}},
        "regularized_fraction": 0.25,
        "regularize_every": 4,
        "fast": True,
    },
}
STEPS_PER_ROUND = 4
"""Training steps per round, so that every round contains a regularised step."""


@dataclass(frozen=True)
class TimedWork:
    """A piece of work to time; its time is divided by `share`."""

    name: str
    run: Callable[[], Any]
    share: int = 1


def bench(
    model: str = "lenet",
    batch: int = 16,
    side: int = 32,
    repeats: int = 3,
    device: str = "auto",
    scale: int | None = None,
    workers: int = 1,
    preset: str = "quick",
    json: bool = False,
) -> None:
    """Time maps, attack steps and training steps on this machine.

    Prints medians over rounds, on random images.

    Args:
        model: a name of `gyrograd list model`, torchvision:NAME or timm:NAME; ReLUs become Softplus(3).
        batch: images per batch.
        side: their side in pixels.
        repeats: rounds; the fastest and the slowest are printed with the median.
        device: auto, cpu, cuda or cuda:INDEX.
        scale: instead predict an audit of this many images, with 1, 2, 4, ... up to `workers` workers, from an audit of
            a few images here.
        workers: largest number of workers to predict.
        preset: preset of the predicted audit.
        json: print JSON instead of a table.
    """
    from gyrograd.errors import check_counts

    check_counts(batch=batch, side=side, repeats=repeats)
    if scale is not None:
        check_counts(scale=scale, workers=workers)
        plays = _predict_audits(model, side, device, scale, workers, preset)
        print(json_format.dumps([asdict(row) for row in plays], indent=1)) if json else _print_scale(plays)
        return
    jobs = _jobs(model, batch, side, device)
    for job in jobs:
        job.run()  # the first run of anything is slower
    rounds = [[_seconds(job) for job in jobs] for _ in range(repeats)]
    seconds = [sorted(times) for times in zip(*rounds, strict=True)]
    rows = [
        Timing(job.name, statistics.median(times), times[0], times[-1])
        for job, times in zip(jobs, seconds, strict=True)
    ]
    print(json_format.dumps([asdict(row) for row in rows], indent=1)) if json else _print(
        rows, model, batch, side
    )


TRIAL_IMAGES = 4
"""Images of the small audit that a prediction is based on."""


def _predict_audits(
    name: str, side: int, device: str, images: int, most: int, preset: str
) -> list[Prediction]:
    """Audit a few random images and predict larger audits."""
    import subprocess
    import sys

    import torch

    import gyrograd as gg
    from gyrograd.audit.engine import shard_of
    from gyrograd.audit.presets import preset_of
    from gyrograd.measurement.simulation import Timed, predicted

    net, chosen = _net(name, side, device), preset_of(preset)
    x, y = torch.rand(TRIAL_IMAGES, 3, side, side), torch.arange(TRIAL_IMAGES) % 10
    timed = Timed()
    for _ in range(2):  # the first run of anything is slower
        timed = Timed()
        began = time.perf_counter()
        gg.audit(net, x, y, preset=preset, workers=timed)
        rest = time.perf_counter() - began - sum(timed.seconds.values())
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import gyrograd.measurement.workers"], check=False)
    start = time.perf_counter() - began
    # Sanity checks and pictures use more images in a larger audit.
    rest *= min(images, chosen.flag_images) / min(TRIAL_IMAGES, chosen.flag_images)
    counts = sorted({*(1 << i for i in range(most.bit_length())), most})
    shard = shard_of(chosen, (images, *x.shape[1:]))
    return [
        predicted(timed.costs(), images, count, shard=shard, start_s=start, rest_s=rest) for count in counts
    ]


def _print_scale(rows: list[Prediction]) -> None:
    from gyrograd.cli.terminal import print_table
    from gyrograd.progress import duration_in_words

    cells = [
        (
            str(row.workers),
            duration_in_words(row.seconds),
            f"{row.busy:.0%}",
            str(row.files),
            f"{row.disk_bytes / 1e6:.1f} MB",
            f"{row.memory_bytes / 1e6:.0f} MB",
        )
        for row in rows
    ]
    heads = ("workers", "time", "busy", "files", "disk", "memory of the card")
    print_table(heads, cells, title=f"an audit of {rows[0].images} images, predicted")


def _net(name: str, side: int, device: str) -> Model:
    import gyrograd as gg
    from gyrograd.models.opening import resolve_device

    size = {"image_size": side} if name == "lenet" else {}
    net: Model = gg.model(name, activation="softplus", beta=3, num_classes=10, seed=0, **size)
    return net.to(resolve_device(device)).eval()


def _jobs(name: str, batch: int, side: int, device: str) -> list[TimedWork]:
    import torch

    import gyrograd as gg
    from gyrograd.cli.parsing import make_from_text
    from gyrograd.models.opening import resolve_device

    net, place = _net(name, side, device), resolve_device(device)
    x, y = torch.rand(batch, 3, side, side, device=place), torch.arange(batch, device=place) % 10

    @torch.no_grad()
    def forward() -> None:
        net(x)

    attack, gradient = gg.attack("targeted_map", eps=8 / 255, steps=2), gg.attribution("gradient")
    return [
        TimedWork("forward", forward),
        *(TimedWork(word, partial(make_from_text("attribution", word), net, x, y)) for word in METHODS),
        TimedWork("attack step on gradient", partial(attack, net, gradient, x, y), 2),
        *(_training(title, changes, net, x, y, place) for title, changes in ALIGNED.items()),
    ]


def _training(title: str, changes: Settings, net: Model, x: Tensor, y: Tensor, device: str) -> TimedWork:
    """Some optimizer steps on a copy of the net."""
    import copy

    from gyrograd.data import Dataset
    from gyrograd.training import TrainSettings, fit

    images = Dataset(
        x.cpu().repeat(STEPS_PER_ROUND, 1, 1, 1),
        y.cpu().repeat(STEPS_PER_ROUND),
        tuple("0123456789"),
        "random images",
    )
    settings = TrainSettings(epochs=1, batch_size=len(x), clip=0.5, device=device, **changes)
    return TimedWork(title, lambda: fit(copy.deepcopy(net), images, settings), STEPS_PER_ROUND)


def _seconds(job: TimedWork) -> float:
    import torch

    started = time.perf_counter()
    job.run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / job.share


@dataclass(frozen=True)
class Timing:
    """Seconds of one kind of work over its repetitions; `seconds` is their median."""

    what: str
    seconds: float
    fastest: float
    slowest: float


def _print(rows: list[Timing], model: str, batch: int, side: int) -> None:
    from gyrograd.cli.terminal import print_table

    cells = [
        (
            row.what,
            f"{1000 * row.seconds:.1f}",
            f"{1000 * row.fastest:.1f} - {1000 * row.slowest:.1f}",
            f"{row.seconds / rows[0].seconds:.1f}",
        )
        for row in rows
    ]
    print_table(("", "ms", "range", "x forward"), cells, title=f"{model}, {batch} images of {side} px")
