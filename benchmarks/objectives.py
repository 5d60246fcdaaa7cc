"""Ten objectives and plain cross-entropy on the embedded shapes, one after another: `make objectives`.

The same Softplus LeNet, data, order and epochs for each. Every objective gives one record in results/objectives (values
for each test image, settings, seconds); a run that was stopped goes on with the objectives that have none. Then
results/objectives.md is written from the records.

Time and memory are of one step with the whole batch, in turns with a step of cross-entropy in the same process, so that
a busy machine slows both. Memory on a CPU is the most bytes alive at once of tensors that the step made (counted where
torch dispatches its operations, see `gyrograd.experiments.cost`); weights and data are not in it.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import gyrograd as gg
from gyrograd import records
from gyrograd.data import Dataset
from gyrograd.experiments.cost import side_by_side
from gyrograd.numerics import random
from gyrograd.numerics.statistics import bootstrap_interval, paired_difference
from gyrograd.records import Record
from gyrograd.training import TrainSettings, fit, objective_of, predictions
from gyrograd.types import Model

ROOT = Path(__file__).parents[1]
PIXELS = ((0.38, 0.38, 0.38), (0.2, 0.2, 0.2))
NEAR, FAR = 8 / 255, 16 / 255
BATCH, TEST = 64, 500
METRICS = ("RPS", "Insertion", "Adv-Insertion")


@dataclass(frozen=True)
class Objective:
    """A row of the table: terms as training takes them, and the share of each batch that is regularised."""

    name: str
    words: str
    term: dict[str, Any] = field(default_factory=dict)
    part: float = 0.25
    from_teacher: bool = False


# Stronger alignment than joo2023's for CIFAR-10: these images are smoother, so gradients agree more to begin with. The
# searches are shorter than published (ig_norm: 7 steps of 5 points, then 50; iga: 3 steps; adversarial: 7; atex: 10
# draws), for a CPU.
OBJECTIVES = (
    Objective("cross_entropy", "cross-entropy alone"),
    Objective("l2", "weight 0.5, eps 16/255", {"weight": 0.5, "eps": FAR}),
    Objective("cosine", "weight 5, eps 16/255", {"weight": 5.0, "eps": FAR}),
    Objective("l2_cosine", "0.5 and 5, eps 16/255", {"l2": 0.5, "cosine": 5.0, "eps": FAR}),
    Objective("hessian", "weight 0.001", {"weight": 1e-3}),
    Objective("ssr", "weight 0.43", {"weight": 0.43}),
    Objective(
        "ig_norm",
        "weight 0.1, eps 8/255, 3 steps of 2 points, then 3 points",
        {"weight": 0.1, "eps": NEAR, "steps": 3, "search_points": 2, "points": 3},
    ),
    Objective("iga", "weight 0.5, eps 8/255, 1 step", {"weight": 0.5, "eps": NEAR, "steps": 1}, part=1.0),
    Objective(
        "atex",
        "weight 3, eps 2, 4 draws, from the first row's net",
        {"weight": 3.0, "draws": 4},
        part=1.0,
        from_teacher=True,
    ),
    Objective("adversarial", "eps 8/255, 4 steps", {"eps": NEAR, "steps": 4}, part=1.0),
    Objective("max_entropy", "weight 0.3", {"weight": 0.3}),
)


def main() -> None:
    options = arguments()
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    for objective in OBJECTIVES:
        path = options.out / f"{objective.name}.json"
        if not settled(path, objective, options):
            record = measured(objective, options)
            records.write(path, record)
            print(
                objective.name,
                {k: round(v, 2) for k, v in record.facts.items() if isinstance(v, float)},
                flush=True,
            )
    found = [records.read(options.out / f"{objective.name}.json") for objective in OBJECTIVES]
    records.write_text(options.out.with_suffix(".md"), report(found))
    print(options.out.with_suffix(".md"))


def settled(path: Path, objective: Objective, options: argparse.Namespace) -> bool:
    """Whether there is a record of these very settings."""
    return path.exists() and records.read(path).settings == described(objective, options)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "objectives")
    parser.add_argument(
        "--nets", type=Path, default=ROOT / "out" / "objectives", help="folder of the trained nets"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--train", type=int, default=1000)
    parser.add_argument("--images", type=int, default=60, help="test images that are explained and attacked")
    parser.add_argument("--attack-steps", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def measured(objective: Objective, options: argparse.Namespace) -> Record:
    """Train, explain, attack and time one objective."""
    learn = gg.dataset("shapes", split="train", n=options.train)
    test = gg.dataset("shapes", split="test", n=TEST)
    teacher = options.nets / "cross_entropy.safetensors"
    if objective.from_teacher and not teacher.exists():
        plain = begun(OBJECTIVES[0], options, teacher)
        fit(plain, learn, training(OBJECTIVES[0], options, teacher))
        gg.save(teacher, plain)
    model = begun(objective, options, teacher)
    started = time.monotonic()
    fit(model, learn, training(objective, options, teacher))
    seconds = time.monotonic() - started
    gg.save(options.nets / f"{objective.name}.safetensors", model)
    values = explained(model, test, options)
    return Record(
        objective.name,
        described(objective, options),
        list(range(len(test))),
        values,
        {"training seconds": seconds, **cost(objective, options, learn, teacher), **machine()},
    )


def described(objective: Objective, options: argparse.Namespace) -> dict[str, Any]:
    """All that decides a row."""
    names = ("epochs", "train", "images", "attack_steps", "rounds", "seed")
    own = {"term": objective.term, "part": objective.part, "words": objective.words}
    return {**own, **{name: getattr(options, name) for name in names}}


def training(objective: Objective, options: argparse.Namespace, teacher: Path) -> TrainSettings:
    own = dict(objective.term)
    if objective.from_teacher:
        own["teacher"] = str(teacher)
    terms = {} if objective.name == "cross_entropy" else {objective.name: own}
    return TrainSettings(
        terms=terms,
        part=objective.part,
        epochs=options.epochs,
        batch_size=BATCH,
        lr=2e-3,
        weight_decay=4e-5,
        clip=0.5,
        seed=options.seed,
        device="cpu",
    )


def begun(objective: Objective, options: argparse.Namespace, teacher: Path) -> Model:
    """A new net, or (a student) one with the teacher's weights."""
    model: Model = gg.model(
        "lenet", activation="softplus", beta=10, normalize=PIXELS, init="he", seed=options.seed
    )
    if objective.from_teacher:
        model.load_state_dict(gg.load(teacher).state_dict())
    return model


def explained(model: Model, test: Dataset, options: argparse.Namespace) -> dict[str, list[float | None]]:
    """Per test image: right or not and, for the first of them, what its gradient map is worth."""
    rows = torch.arange(options.images)
    x, y, gradient = test.pixels(rows), test.labels[rows], gg.attribution("gradient")
    attack = gg.attack("targeted_map", eps=NEAR, steps=options.attack_steps)
    hit = attack(model, gradient, x, y, seed=options.seed)
    values = {
        "RPS": gg.metric("rps", eps=FAR, draws=5)(model, gradient, x, y, seed=options.seed),
        "Insertion": gg.metric("insertion")(model, gradient, x, y),
        "Adv-Insertion": gg.metric("adversarial_insertion")(model, gradient, x, y, perturbed=hit.x),
        "prediction kept": hit.prediction_kept.double(),
    }
    right = (predictions(model, test) == test.labels).double()
    unseen: list[float | None] = [None] * (len(test) - options.images)
    columns = {key: [*value.detach().double().tolist(), *unseen] for key, value in values.items()}
    return {"accuracy": right.tolist(), **columns}


def cost(
    objective: Objective, options: argparse.Namespace, learn: Dataset, teacher: Path
) -> dict[str, float]:
    """Seconds and bytes of one step over those of cross-entropy, medians over rounds."""
    steps = {
        name: one_step(row, options, learn, teacher)
        for name, row in (("plain", OBJECTIVES[0]), ("own", objective))
    }
    found = side_by_side(steps, options.rounds)
    plain, own = found["plain"], found["own"]
    return {
        "step seconds": statistics.median(c.seconds for c in own),
        "time ratio": statistics.median(a.seconds / b.seconds for a, b in zip(own, plain, strict=True)),
        "memory ratio": statistics.median(a.memory / b.memory for a, b in zip(own, plain, strict=True)),
    }


def one_step(
    objective: Objective, options: argparse.Namespace, learn: Dataset, teacher: Path
) -> Callable[[], None]:
    """Forward, objective and backward of one batch, all of it regularised."""
    loss = objective_of(training(Objective(**{**vars(objective), "part": 1.0}), options, teacher))
    model, rows = begun(objective, options, teacher).train(), torch.arange(BATCH)
    x, y, keys = learn.pixels(rows), learn.labels[rows], random.keys(0, BATCH)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        loss(model, x, y, seed=keys)[0].backward()

    return step


def machine() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, one thread",
        "gyrograd": gg.__version__,
    }


def report(found: list[Record]) -> str:
    plain, sizes = found[0], found[0].settings
    lines = [
        "# Ten objectives beside cross-entropy",
        f"Softplus(10) LeNet on the embedded `shapes`: {sizes['train']:,} training images, batches of {BATCH},",
        f"{sizes['epochs']} epochs, seed {sizes['seed']}. Accuracy on {TEST} test images. On {sizes['images']} of",
        "them, of the label logit's gradient: RPS (cosine, 16/255, 5 draws), Insertion, Adv-Insertion (targeted",
        f"attack, {sizes['attack_steps']} steps, 8/255). 95 % bootstrap intervals over images; **bold** where the",
        "paired difference to cross-entropy is a gain and its interval excludes zero. One seed and one weight",
        "each: this shows that each of them trains and what it costs; it is no ranking.",
        "",
        "`make objectives` runs it again.",
        "",
        "| objective | settings | accuracy | RPS | Insertion | Adv-Insertion | step time | step memory | trained in |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [row(record, plain) for record in found]
    total = sum(record.facts["training seconds"] for record in found)
    lines += [
        "",
        f"Step time and memory: one step of {BATCH} images, all of them regularised, over one of cross-entropy, taken",
        "in turns on one thread of a CPU (medians). Memory: most bytes alive at once of tensors that the step made. In",
        "training a quarter of each batch was regularised, except by `iga`, `atex` and `adversarial`, which take the",
        "place of the loss. `trained in` is what this run took, on a machine that had other work.",
        f"All training took {total / 60:.0f} minutes. "
        + ", ".join(f"{key} {plain.facts[key]}" for key in ("gyrograd", "torch", "python", "machine"))
        + ".",
        "",
    ]
    return "\n".join(line.rstrip() for line in lines)


def row(record: Record, plain: Record) -> str:
    cells = [f"`{record.name}`", record.settings["words"]]
    cells += [cell(record, plain, key) for key in ("accuracy", *METRICS)]
    facts = record.facts
    cells += [
        f"{facts['time ratio']:.1f} x",
        f"{facts['memory ratio']:.1f} x",
        f"{facts['training seconds']:.0f} s",
    ]
    return f"| {' | '.join(cells)} |"


def cell(record: Record, plain: Record, key: str) -> str:
    interval = bootstrap_interval(record.values[key])
    words = f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
    if record is plain:
        return words
    gain = paired_difference(record.values[key], plain.values[key])
    return f"**{words}**" if gain.low > 0 else words


if __name__ == "__main__":
    main()
