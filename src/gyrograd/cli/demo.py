"""gyrograd demo: the main job, small, on embedded data. Train two nets, attack both, print the table, write a page."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyrograd.errors import printable

if TYPE_CHECKING:
    from gyrograd.data import Dataset
    from gyrograd.numerics.statistics import Interval
    from gyrograd.training import TrainSettings
    from gyrograd.types import Model

ATTACK_EPS = 8 / 255
NOISE_EPS = 16 / 255
PIXELS = ((0.38, 0.38, 0.38), (0.2, 0.2, 0.2))
"""Mean and deviation of the embedded images."""
REGULARISED = 4
"""One image in so many is regularised: a quarter of each batch costs a quarter and aligns as well."""


@dataclass(frozen=True)
class Measured:
    """One net: what was measured for each image, and what there is to see."""

    name: str
    seconds: float
    accuracy: float
    values: dict[str, Any]
    attacked: Any


def demo(
    out: Path = Path("out/demo"), epochs: int = 8, train: int = 2500, images: int = 100, seed: int = 0
) -> None:
    """Train a LeNet with cross-entropy and one with l2 + cosine on embedded data, attack both, and compare.

    Args:
        out: folder for the report, the records and the two trained nets.
        epochs: passes over the training images.
        train: training images.
        images: test images that are explained and attacked.
        seed: of weights, order, noise and attacks.
    """
    from gyrograd import dataset
    from gyrograd.cli.subject import check_folder
    from gyrograd.cli.terminal import Console

    check_folder(out)
    console = Console()
    learn, test = dataset("shapes", split="train", n=train), dataset("shapes", split="test")
    settings_of("cross-entropy", epochs, seed)  # refuses what does not fit, before anything is trained
    shown = test.subset(images, seed)
    console.print(
        f"Data: shapes, {len(learn):,} training and {len(test):,} test images, ten classes, made on the spot."
    )
    nets = [
        _trained_and_measured(console, name, learn, test, out, epochs, images, seed)
        for name in ("cross-entropy", "l2 + cosine")
    ]
    _print_table(console, nets)
    path = _write_report(nets, shown, out)
    print(printable(path))


def _trained_and_measured(
    console: Any, name: str, learn: Dataset, test: Dataset, out: Path, epochs: int, images: int, seed: int
) -> Measured:
    import gyrograd as gg
    from gyrograd.models import save
    from gyrograd.reporting.wording import counted_images
    from gyrograd.training import fit, predictions

    model = gg.model("lenet", activation="softplus", beta=10, normalize=PIXELS, init="he", seed=seed)
    console.print(f"Training a LeNet with {name}, {epochs} epoch{'s' if epochs != 1 else ''} ...")
    started = time.monotonic()
    fit(model, learn, settings_of(name, epochs, seed))
    seconds = time.monotonic() - started
    accuracy = float((predictions(model, test) == test.labels).double().mean())
    save(
        out / f"{name.replace(' + ', '-')}.safetensors", model, facts={"data": "shapes", "accuracy": accuracy}
    )
    console.print(
        f"  accuracy {accuracy:.1%} after {seconds:.0f} s. Attacking the explanations of {counted_images(images)} ..."
    )
    values, attacked = _measurements(model, test.subset(images, seed), seed)
    return Measured(name, seconds, accuracy, values, attacked)


def settings_of(name: str, epochs: int, seed: int) -> TrainSettings:
    """How the demo trains its two nets on the embedded images."""
    from gyrograd.training import TrainSettings

    # Stronger than joo2023's for CIFAR-10: these images are smoother, so their gradients agree more to begin with.
    align = {"l2_cosine": {"l2": 0.5, "cosine": 5.0, "eps": NOISE_EPS}}
    terms: dict[str, Any] = {} if name == "cross-entropy" else align
    return TrainSettings(
        terms=terms,
        part=1 / REGULARISED,
        epochs=epochs,
        weight_decay=4e-5,
        clip=0.5,
        seed=seed,
        device="cpu",
    )


def _measurements(model: Model, data: Dataset, seed: int) -> tuple[dict[str, Any], Any]:
    """Per image: stability under noise, faithfulness before and after the attack, and what the attack did."""
    import gyrograd as gg
    from gyrograd.metrics import TopKIntersection

    x, y = data.pixels(), data.labels
    gradient = gg.attribution("gradient")
    hit = gg.attack("targeted_map", eps=ATTACK_EPS, steps=40)(model, gradient, x, y, seed=seed)
    kept = TopKIntersection(k=100)(hit.map_clean, hit.map)
    values = {
        "RPS": gg.metric("rps", eps=NOISE_EPS, draws=5)(model, gradient, x, y, seed=seed),
        "Insertion": gg.metric("insertion")(model, gradient, x, y),
        "Adv-Insertion": gg.metric("adversarial_insertion")(model, gradient, x, y, perturbed=hit.x),
        "top 100 kept": kept,
        "attack success": (hit.prediction_kept & (kept < 0.5)).double(),
        "prediction kept": hit.prediction_kept.double(),
    }
    return {key: column.detach().double().tolist() for key, column in values.items()}, hit


COLUMNS = {
    "RPS": "RPS (cosine, noise 16/255)",
    "Insertion": "Insertion",
    "Adv-Insertion": "Adv-Insertion (eps 8/255)",
    "top 100 kept": "top 100 pixels kept",
    "attack success": "attack success (half of them lost)",
    "prediction kept": "prediction kept",
}


def _stat(found: Interval) -> dict[str, float | None]:
    """As the reports write it; one image has no interval."""
    known = found.n > 1
    return {
        "value": found.value,
        "low": found.low if known else None,
        "high": found.high if known else None,
    }


def _rows(nets: list[Measured]) -> list[tuple[str, ...]]:
    from gyrograd.numerics.statistics import bootstrap_interval
    from gyrograd.reporting.wording import with_interval

    rows = [("accuracy", *(f"{net.accuracy:.3f}" for net in nets))]
    for key, title in COLUMNS.items():
        rows.append((title, *(with_interval(_stat(bootstrap_interval(net.values[key]))) for net in nets)))
    rows.append(("seconds of training", *(f"{net.seconds:.0f}" for net in nets)))
    return rows


def _print_table(console: Any, nets: list[Measured]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("", *(net.name for net in nets), title="mean over images, 95 % bootstrap interval")
    for row in _rows(nets):
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)


def _write_report(nets: list[Measured], data: Dataset, out: Path) -> Path:
    from gyrograd import records
    from gyrograd.reporting import Figure, Section, Table, page, write_page

    for net in nets:
        name = net.name.replace(" + ", "-")
        record = records.Record(name, {"data": "shapes"}, list(range(len(data))), net.values)
        records.write(out / f"{name}.json", record)
    table = Table(("", *(net.name for net in nets)), tuple(_rows(nets)))
    explained = "Means over images with 95 % bootstrap intervals. The explanation is the gradient of the label's logit."
    pictures = tuple(Figure(_picture(net, data), _caption(net)) for net in nets)
    sections = (
        Section("What was measured", (explained,), table),
        Section(
            "What the attack did",
            ("The same four images for both nets; each map on its own scale.",),
            None,
            pictures,
        ),
    )
    path = out / "report.html"
    write_page(path, page("gyrograd demo: two nets, one attack", _verdict(nets), sections, _footer()))
    return path


def _verdict(nets: list[Measured]) -> tuple[str, ...]:
    plain, aligned = nets
    return (
        f"Trained with l2 + cosine, the net's explanations {_change('RPS', nets)}.",
        f"Under attack they {_change('top 100 kept', nets)}.",
        f"The price: {plain.accuracy - aligned.accuracy:+.1%} of accuracy and "
        f"{aligned.seconds / plain.seconds:.1f} times the training time.",
    )


def _change(key: str, nets: list[Measured]) -> str:
    """Steadier or not, with the paired difference and its interval."""
    from gyrograd.numerics.statistics import paired_difference
    from gyrograd.reporting.wording import signed

    change = paired_difference(nets[1].values[key], nets[0].values[key])
    word = "hold stiller" if change.value > 0 else "move more"
    if not change.excludes_zero:
        word = "hold no stiller"
    return f"{word}: {COLUMNS[key]} {signed(_stat(change))}"


def _picture(net: Measured, data: Dataset) -> bytes:
    from gyrograd.numerics.maps import reduce
    from gyrograd.reporting import map_grid

    rows = slice(0, 4)
    hit = net.attacked
    maps = {"map": hit.map_clean, "map, attacked": hit.map}
    images = {"image": hit.x_clean, "attacked": hit.x, "difference x 20": (hit.x - hit.x_clean) * 20 + 0.5}
    return map_grid(
        {key: value[rows].permute(0, 2, 3, 1).cpu().numpy() for key, value in images.items()},
        {key: reduce(value[rows], "abs_sum").detach().cpu().numpy() for key, value in maps.items()},
        [data.classes[int(label)] for label in data.labels[rows]],
    )


def _caption(net: Measured) -> str:
    return (
        f"LeNet trained with {net.name}: image, attacked image (eps 8/255), difference, map before and after."
    )


def _footer() -> tuple[str, ...]:
    import platform

    import torch

    from gyrograd import __version__

    return (
        "Run it again: gyrograd demo",
        f"gyrograd {__version__}, torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}",
    )
