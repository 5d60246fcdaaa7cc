"""Golden check: this tree gives the same numbers as an earlier one, to the bit.

    python tests/golden/same_numbers.py --base GITREV [--parts audit-lenet,audit-shapes,reproduce,train]

Both trees run the same work, each in a process of its own: two quick audits, one reproduction at the smallest scale and
one short training. Compared is every number they record: values of the records, numbers of the card and of
results.json, rows of the training log, weights. Times, memory, versions, settings and the layout of files are left out;
a column that has another name in the other tree counts as the same if its values are the same. Exit code 1 if any bit
differs.

`tests/golden/test_golden_numbers.py` compares the smallest of this work with `numbers.json`, within a tolerance;
`--store` writes that file anew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STORED = HERE / "numbers.json"
STORED_PARTS = ("audit-small", "train-small")
LEFT_OUT = {
    "schema",
    "settings",
    "rerun",
    "facts.hardware",
    "facts.seconds",
    "facts.versions",
    "facts.command",
}
"""Parts of card.json and results.json that say how and where they were made."""
TIMES = {"seconds", "images_per_second", "memory_mb"}
"""Columns of a training log that differ from run to run."""

Numbers = dict[str, list[float | None]]


# What is run. gyrograd is imported inside: --base runs another tree than the one this file is in.


def audit_lenet(out: Path) -> Numbers:
    """Quick audit of the zoo's LeNet on embedded images: two methods, attacked by `auto`."""
    import gyrograd as gg
    from gyrograd.models import zoo

    net, data = zoo.load("cifar10/lenet-ce"), gg.dataset("shapes", split="test", n=6)
    changes = {"methods": ("gradient", "smoothgrad"), "steps": 3, "attacked_images": 4, "shard": 4}
    gg.audit(net, data, preset="quick", out=out, **changes)
    return audit_numbers(out)


def audit_shapes(out: Path) -> Numbers:
    """Quick audit of a small untrained net: four methods, three attacks, further metrics, no labels."""
    import gyrograd as gg

    net = gg.model("lenet", num_classes=4, activation="softplus", beta=3, seed=1)
    images = gg.dataset("shapes", split="test", n=5).pixels()
    gg.audit(
        net,
        images,
        preset="quick",
        methods=("input_x_gradient", "integrated_gradients", "guided_backprop", "lime"),
        attacks=("auto", "top_k", "targeted_map"),
        metrics=("rank_correlation", "max_sensitivity", "infidelity"),
        steps=2,
        attacked_images=3,
        sweep={"smoothgrad": (0.1,), "unigrad": (0.1,)},
        out=out,
    )
    return audit_numbers(out)


def reproduce(out: Path) -> Numbers:
    """One table of joo2023 at the smallest scale: nets are trained, then measured."""
    from gyrograd.experiments import reproduce as run

    run("joo2023-table1", "smoke", out)
    results = json.loads((out / "smoke" / "joo2023-table1" / "results.json").read_text(encoding="utf-8"))
    found = record_numbers(out / "smoke" / "records") | flat("results", results)
    for path in sorted((out / "smoke" / "nets").glob("*.safetensors")):
        # Nets of several settings share a name up to its hash; one that has another hash is found by its weights.
        found |= weight_numbers(f"net {path.stem}", path)
    return found


def train(out: Path) -> Numbers:
    """Two epochs of a LeNet with l2_cosine, an average of the weights, and augmentation."""
    import gyrograd as gg
    from gyrograd.training import TrainSettings, fit

    net = gg.model("lenet", activation="softplus", beta=3, seed=0)
    learn, test = gg.dataset("shapes", split="train", n=96), gg.dataset("shapes", split="test", n=32)
    terms = {"l2_cosine": {"l2": 0.1, "cosine": 0.5}}
    more = {"ema": 0.9, "crop": 2, "flip": True, "clip": 1.0, "warmup": 0.5, "label_smoothing": 0.1}
    settings = TrainSettings(terms=terms, epochs=2, batch_size=32, lr=1e-2, seed=0, device="cpu", **more)
    fit(net, learn, settings, test=test, out=out)
    return training_numbers(out) | weight_numbers("net", net)


def audit_small(_: Path) -> Numbers:
    """An audit of seconds, its card alone; in float64, where another machine's rounding hardly shows."""
    from small_audits import SMALL, small_images, small_net

    from gyrograd.audit import audit

    x, y = small_images(3)
    return flat("card", audit(small_net(), x, y, preset=SMALL, attacks=("top_k",), pictures=1).document)


def train_small(out: Path) -> Numbers:
    """Four steps of a small net with every part of a run.

    By SGD: BatchNorm cancels the bias before it, whose gradient is nothing but rounding, and Adam would blow that up to
    steps of full length, which differ from machine to machine.
    """
    from small_training import net, pictures, settings

    from gyrograd.training import fit

    model = net()
    fit(model, pictures(20), settings(epochs=2, optimizer="sgd"), test=pictures(6, seed=1), out=out)
    return training_numbers(out) | weight_numbers("net", model)


PARTS: dict[str, Callable[[Path], Numbers]] = {
    "audit-lenet": audit_lenet,
    "audit-shapes": audit_shapes,
    "reproduce": reproduce,
    "train": train,
    "audit-small": audit_small,
    "train-small": train_small,
}
COMPARED = ("audit-lenet", "audit-shapes", "reproduce", "train", "audit-small")


def collect(parts: tuple[str, ...], folder: Path) -> dict[str, Numbers]:
    """The numbers of these parts, run with the gyrograd that is imported here."""
    return {part: PARTS[part](folder / part) for part in parts}


# What is collected of what a run wrote.


def audit_numbers(out: Path) -> Numbers:
    """Records, card and pictures of an audit's folder."""
    import numpy as np

    found = record_numbers(out / "records")
    found |= flat("card", json.loads((out / "card.json").read_text(encoding="utf-8")))
    if (out / "pictures.npz").exists():
        with np.load(out / "pictures.npz") as arrays:
            found |= {f"picture {name}": arrays[name].astype(float).ravel().tolist() for name in arrays.files}
    return found


def record_numbers(folder: Path) -> Numbers:
    """Columns of every record, its shards put together by example; columns without any number are left out."""
    from gyrograd import records

    rows: dict[str, dict[Any, float | None]] = defaultdict(dict)
    for path in sorted(folder.rglob("*.json")):
        record = records.read(path)
        for name, column in record.values.items():
            # Another seed or net can share the name of a record, never its folder.
            key = f"record {record.name} / {name} / {path.parent.name.rpartition('-')[0]}"
            rows[key].update(zip(record.examples, column, strict=True))
    columns = {key: [row[example] for example in sorted(row)] for key, row in rows.items()}
    return {key: column for key, column in columns.items() if any(value is not None for value in column)}


def training_numbers(out: Path) -> Numbers:
    """Rows of the training log but for their times."""
    lines = (out / "log.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]
    return flat("log", rows)


def weight_numbers(name: str, source: Any) -> Numbers:
    """Weights of a model, or of a file of them."""
    if isinstance(source, Path):
        from safetensors.torch import load_file

        weights = load_file(source)
    else:
        weights = source.state_dict()
    return {f"{name} {key}": value.detach().double().ravel().tolist() for key, value in weights.items()}


def flat(path: str, value: Any) -> Numbers:
    """Every number of a JSON value, one list for each list of numbers."""
    if path.partition(".")[2] in LEFT_OUT:
        return {}
    if isinstance(value, dict):
        items = [(f"{path}.{key}", item) for key, item in value.items()]
        return {key: numbers for at, item in items for key, numbers in flat(at, item).items()}
    if isinstance(value, list):
        if value and all(isinstance(item, int | float | None) for item in value):
            return {path: [None if item is None else float(item) for item in value]}
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
        return {key: numbers for at, item in items for key, numbers in flat(at, item).items()}
    return {path: [float(value)]} if isinstance(value, int | float) else {}


def differences(before: Numbers, after: Numbers) -> list[str]:
    """One line for every column that the other tree does not have to the bit, under its own or another name."""
    exact_before, exact_after = ({k: _bits(v) for k, v in side.items()} for side in (before, after))
    gone = {key: bits for key, bits in exact_before.items() if exact_after.get(key) != bits}
    new = {key: bits for key, bits in exact_after.items() if exact_before.get(key) != bits}
    unmatched: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for key, bits in new.items():
        unmatched[bits].append(key)
    lines = []
    for key, bits in gone.items():
        if unmatched[bits]:
            del new[unmatched[bits].pop()]
        elif key in new:
            pairs = zip(before[key], after[key], strict=False)
            first = next(
                (i for i, (a, b) in enumerate(pairs) if a != b), min(len(before[key]), len(after[key]))
            )
            lines.append(
                f"{key} differs from position {first}: {before[key][first:][:1]} {after[key][first:][:1]}"
            )
            del new[key]
        else:
            lines.append(f"{key} is gone")
    return lines + [f"{key} is new" for key in new]


def _bits(column: list[float | None]) -> tuple[str, ...]:
    return tuple("none" if value is None else value.hex() for value in column)


def run_tree(tree: Path, parts: tuple[str, ...], folder: Path) -> dict[str, Numbers]:
    """The numbers of a source tree, made in a process of its own."""
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    words = [
        sys.executable,
        str(Path(__file__).resolve()),
        "--collect",
        str(folder),
        "--parts",
        ",".join(parts),
    ]
    subprocess.run(words, env=environment, cwd=folder, check=True)
    numbers: dict[str, dict[str, Numbers]] = json.loads((folder / "numbers.json").read_text(encoding="utf-8"))
    if Path(str(numbers["tree"])).resolve() != (tree / "src").resolve():
        raise SystemExit(f"The numbers come from {numbers['tree']} and not from {tree}.")
    return numbers["numbers"]


def compare(base: str, parts: tuple[str, ...]) -> int:
    """Run both trees, print every difference, return their number."""
    found = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(folder / "tree"), base], check=True)
        try:
            before = run_tree(folder / "tree", parts, folder / "before")
            after = run_tree(ROOT, parts, folder / "after")
        finally:
            subprocess.run([*git, "remove", "--force", str(folder / "tree")], check=True)
    for part in parts:
        lines = differences(before[part], after[part])
        count = sum(len(column) for column in before[part].values())
        print(f"{part}: {count:,} numbers in {len(before[part]):,} columns, {len(lines)} differ")
        for line in lines:
            print(f"  {line}")
        found += len(lines)
    return found


def main() -> int:
    """Compare two trees; or, in the process of one tree, collect its numbers."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", help="git revision to compare with")
    parser.add_argument("--parts", default=",".join(COMPARED), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--collect", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--store", action="store_true", help=f"write {STORED.name} anew")
    given = parser.parse_args()
    parts = tuple(given.parts.split(","))
    sys.path.insert(0, str(HERE.parent))
    if given.collect is not None:
        import gyrograd

        tree = str(Path(gyrograd.__file__).parents[1])
        numbers = {"tree": tree, "numbers": collect(parts, given.collect)}
        (given.collect / "numbers.json").write_text(json.dumps(numbers), encoding="utf-8")
        return 0
    if given.store:
        with tempfile.TemporaryDirectory() as folder:
            stored = collect(STORED_PARTS, Path(folder))
        STORED.write_text(json.dumps(stored, indent=0) + "\n", encoding="utf-8")
        return 0
    if given.base is None:
        parser.error("name the git revision to compare with: --base GITREV")
    return 1 if compare(given.base, parts) else 0


if __name__ == "__main__":
    sys.exit(main())
