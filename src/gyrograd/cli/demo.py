"""gyrograd demo: train two small nets on embedded data, attack both, and compare their maps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gyrograd.errors import printable

if TYPE_CHECKING:
    from gyrograd.data import Dataset
    from gyrograd.reporting.showcase import Showcase
    from gyrograd.training import TrainSettings
    from gyrograd.types import Model

ATTACK_EPS = 8 / 255
NOISE_EPS = 16 / 255
STEPS = 6
METHOD = "gradient"
"""The explanation that is attacked."""
PIXELS = ((0.38, 0.38, 0.38), (0.2, 0.2, 0.2))
"""Mean and deviation of the embedded images."""
RECIPES = {"cross-entropy": "steady-shapes-ce", "steady": "steady-shapes"}
"""The two nets and how they are trained."""


@dataclass(frozen=True)
class NetResult:
    """Results of one net: CPU seconds of its training, its accuracy, and the measured values per image."""

    name: str
    seconds: float
    accuracy: float
    values: dict[str, list[float | None]]
    model: Any = None

    def mean(self, key: str) -> float:
        """Mean over the images that have a value."""
        present = [value for value in self.values[key] if value is not None]
        return sum(present) / max(1, len(present))


def demo(
    out: Path = Path("out/demo"), epochs: int = 6, train: int = 1500, images: int = 40, seed: int = 0
) -> None:
    """Train a plain and a steady LeNet, attack both, and compare them.

    Takes a minute. The images are made on the spot; the plain net is trained with cross-entropy.

    Args:
        out: folder for the report, the records and the two trained nets.
        epochs: passes over the training images.
        train: training images.
        images: test images that are explained and attacked.
        seed: for weights, order, noise and attacks.
    """
    from gyrograd import dataset
    from gyrograd.cli.inputs import check_folder
    from gyrograd.cli.terminal import Console, print_table

    check_folder(out)
    console = Console()
    learn, test = dataset("shapes", split="train", n=train), dataset("shapes", split="test")
    settings_of("cross-entropy", epochs, seed)  # refuses what does not fit, before anything is trained
    shown = test.subset(images, seed)
    console.print(
        f"Data: shapes, {len(learn):,} training and {len(test):,} test images, ten classes, made on the spot."
    )
    nets = [_train_and_measure(console, name, learn, test, shown, out, epochs, seed) for name in RECIPES]
    title = "mean over images, 95 % bootstrap interval"
    print_table(("", *(net.name for net in nets)), _rows(nets), title=title)
    for sentence in _verdict(nets):
        console.print(sentence, highlight=False)
    print(printable(_write_report(nets, shown, out, seed)))


def _train_and_measure(
    console: Any, name: str, learn: Dataset, test: Dataset, shown: Dataset, out: Path, epochs: int, seed: int
) -> NetResult:
    from gyrograd.models import save
    from gyrograd.reporting.wording import counted_images
    from gyrograd.training import predictions

    console.print(f"Training a LeNet with {name}, {epochs} epoch{'s' if epochs != 1 else ''} ...")
    model, seconds = train_net(name, learn, epochs, seed)
    accuracy = float((predictions(model, test) == test.labels).double().mean())
    save(out / f"{name}.safetensors", model, facts={"data": "shapes", "accuracy": accuracy})
    console.print(
        f"  accuracy {accuracy:.1%} after {seconds:.0f} s of one core. Attacking the explanations of "
        f"{counted_images(len(shown))} ..."
    )
    return NetResult(name, seconds, accuracy, _measurements(model, shown, seed), model)


def settings_of(name: str, epochs: int, seed: int) -> TrainSettings:
    """How the demo trains its two nets on the embedded images."""
    from gyrograd.training import recipe

    return recipe(RECIPES[name], epochs=epochs, seed=seed, device="cpu")


def train_net(name: str, images: Dataset, epochs: int, seed: int) -> tuple[Model, float]:
    """One of the two nets, trained on embedded images, and the CPU seconds of its training."""
    import gyrograd as gg
    from gyrograd.training import fit

    model: Model = gg.model("lenet", activation="softplus", beta=10, normalize=PIXELS, init="he", seed=seed)
    # CPU time, not wall-clock time, so that other work on the machine does not count.
    started = time.process_time()
    fit(model, images, settings_of(name, epochs, seed))
    return model, time.process_time() - started


def _measurements(model: Model, data: Dataset, seed: int) -> dict[str, list[float | None]]:
    """Per image: share of the map that the attack leaves, stability under noise, faithfulness before and after."""
    import gyrograd as gg
    from gyrograd.measurement import CLEAN, Metric, Plan, attacked, measure, registered
    from gyrograd.metrics import TopKIntersection

    kept = TopKIntersection(k=data.pixels()[0, 0].numel() // 10)
    plan = Plan(
        methods={METHOD: gg.attribution(METHOD)},
        conditions=(CLEAN, attacked("auto", (ATTACK_EPS,), steps=STEPS)),
        metrics=(
            registered("random_perturbation_similarity", eps=NOISE_EPS, draws=5),
            registered("insertion"),
            Metric("kept", lambda at: kept(at.attack.map_clean, at.attack.map), "attacked"),
            Metric("prediction_kept", lambda at: at.attack.prediction_kept, "attacked"),
            registered("adversarial_insertion"),
        ),
        seed=seed,
    )
    table = measure(model, data, plan)
    clean, hit = table.metrics(method=METHOD), table.metrics(method=METHOD, condition="auto", eps=ATTACK_EPS)
    columns = {
        "kept": hit["kept"],
        "prediction": hit["prediction_kept"],
        "RPS": clean["random_perturbation_similarity"],
        "Insertion": clean["insertion"],
        "Adv-Insertion": hit["adversarial_insertion"],
    }
    return {key: list(column.values()) for key, column in columns.items()}


COLUMNS = {
    "kept": "top tenth of the map kept, attack 8/255",
    "prediction": "prediction kept",
    "RPS": "RPS (cosine, noise 16/255)",
    "Insertion": "Insertion",
    "Adv-Insertion": "Insertion after the attack",
}


def _rows(nets: list[NetResult]) -> list[tuple[str, ...]]:
    from gyrograd.numerics.statistics import bootstrap_interval
    from gyrograd.numerics.wording import interval_text

    rows = [("accuracy", *(f"{net.accuracy:.1%}" for net in nets))]
    for key, title in COLUMNS.items():
        rows.append((title, *(interval_text(bootstrap_interval(net.values[key])) for net in nets)))
    rows.append(("training, seconds of one core", *(f"{net.seconds:.0f}" for net in nets)))
    return rows


def _write_report(nets: list[NetResult], data: Dataset, out: Path, seed: int) -> Path:
    import platform

    import torch

    from gyrograd import __version__, records
    from gyrograd.reporting import Section, Table, page, write_page
    from gyrograd.reporting.wording import counted_images

    for net in nets:
        record = records.Record(net.name, {"data": "shapes"}, list(range(len(data))), net.values)
        records.write(out / f"{net.name}.json", record)
    table = Table(("", *(net.name for net in nets)), tuple(_rows(nets)))
    explained = (
        f"Means over {counted_images(len(data))} with 95 % bootstrap intervals; accuracy is that on all test images. "
        "The explanation is the gradient of the label's logit; the attack changes no pixel by more than 8/255 and "
        "looks for the change that moves the map's top pixels most."
    )
    chosen = (
        f"The pictures show the one of {len(data)} images on which the two nets differ most. The means are over all "
        "of them."
    )
    sections = (Section("What was measured", (explained, chosen), table),)
    versions = f"gyrograd {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    next_step = f"Next: gyrograd audit {out / 'steady.safetensors'} shapes --images 10"
    footer = (next_step, "Run it again: gyrograd demo", f"{versions}, {platform.machine()}")
    title = "A picture is attacked: which explanation holds?"
    pictures = _pictures(nets, data, _apart_most(nets), seed)
    write_page(out / "report.html", page(title, _verdict(nets), sections, footer, pictures))
    return out / "report.html"


def _verdict(nets: list[NetResult]) -> tuple[str, ...]:
    """Sentences about what improved and what it cost; everything that got worse is included."""
    from gyrograd.numerics.statistics import paired_difference
    from gyrograd.numerics.wording import interval_text, signed_number
    from gyrograd.reporting.wording import counted_images

    plain, steady = nets
    kept, change = (paired_difference(steady.values[key], plain.values[key]) for key in ("kept", "Insertion"))
    word = "holds better" if kept.value > 0 else "holds worse"
    if not kept.excludes_zero:
        word = "does not hold significantly better"
    difference = interval_text(kept, signed_number)
    share = [net.mean("kept") for net in nets]
    # Of the numbers as they are printed, so that a reader who subtracts finds the same.
    points = round(100 * steady.accuracy, 1) - round(100 * plain.accuracy, 1)
    accuracy = f"accuracy {'falls' if points < 0 else 'rises'} by {abs(points):.1f} points"
    return (
        f"An attack of at most 8/255 per pixel leaves {share[0]:.0%} of the top pixels of the plain net's explanation "
        f"in place, and {share[1]:.0%} of the steady net's, which {word} ({difference}); means of "
        f"{counted_images(len(plain.values['kept']))}.",
        f"The price: {accuracy}, from {plain.accuracy:.1%} to {steady.accuracy:.1%}; Insertion "
        f"{'falls' if change.value < 0 else 'rises'} from {plain.mean('Insertion'):.3f} to "
        f"{steady.mean('Insertion'):.3f} ({interval_text(change, signed_number)}); training "
        f"takes {steady.seconds / max(plain.seconds, 1e-9):.1f} times as long.",
    )


def _apart_most(nets: list[NetResult]) -> int:
    """The image whose plain map moves and whose steady map holds: the largest gap, with the class kept by both."""
    # An image that could not be searched counts as one that does not move.
    plain, steady = ([1.0 if share is None else share for share in net.values["kept"]] for net in nets)
    same = [all(net.values["prediction"][row] for net in nets) for row in range(len(plain))]
    return max(range(len(plain)), key=lambda row: (same[row], steady[row] - plain[row]))


def _pictures(nets: list[NetResult], data: Dataset, row: int, seed: int) -> Showcase | None:
    """The image, attacked again on each net, alone, with its own random stream."""
    import torch

    import gyrograd as gg
    from gyrograd.audit.pictures import picture_arrays
    from gyrograd.measurement import streams
    from gyrograd.reporting.pictures import data_address, difference, views
    from gyrograd.reporting.showcase import ShowcaseRow, change_words, showcase, stays

    index = torch.tensor([row])
    x, y, keys = data.pixels(index), data.labels[index], streams(seed, index)
    attack, method = gg.attack("auto", eps=ATTACK_EPS, steps=STEPS), gg.attribution(METHOD)
    name = data.classes[int(y)]
    rows: list[ShowcaseRow] = []
    for title, net in zip(("plain net", "steady net"), nets, strict=True):
        hit = attack(net.model, method, x, y, seed=keys)
        at = {key: array[0] for key, array in picture_arrays([hit]).items()}
        image, alt, caption = at["image"], f"A made-up image of a {name}", (f"a {name}", "the image")
        if rows:
            image, alt = difference(at["image"], at["attacked"], ATTACK_EPS), "What the attack changed"
            caption = ("what it changed", f"for the {title}, {change_words(ATTACK_EPS)}")
        label = f"{title}: {METHOD}"
        rows.append(
            ShowcaseRow(data_address(image), alt, caption, label, views(at), stays(net.values["kept"][row]))
        )
    return showcase("The same image, the same attack, two nets; both predict the same class after it", rows)
