"""Audit many nets alike and build the leaderboard's site of them.

    PYTHONPATH=src python benchmarks/leaderboard_nets.py cifar10/lenet-ce checkpoints/ \
        resnet20,weights=resnet20.pt,normalize=imagenet,name=public-resnet20 --images 64 --attacked 32 --workers 8

A net is a model as `gyrograd audit` takes it, with options after commas, or a folder: each `*.safetensors` in it.
Each is audited in a process of its own, so that one that dies takes no other with it; a net that fails is tried once
more when no other is running, and then left out. A second call goes on where the first stopped: finished nets are not
opened, of others the records are kept. Below `--out`: audits/NET (card, records, report), logs/NET.log, site, and
leaderboard.tar.gz with the site and its cards, without records.

Every net gets the same images, methods and searches, so that all stand in one table. The site gives the number of
images beside each value.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from gyrograd.audit.presets import PRESETS, Preset
from gyrograd.parsing import parse_call, split

METHODS = (*PRESETS["standard"].methods, "deep_lift", "gradient_shap", "grad_cam", "lime", "shap")
OPTIONS = ("weights", "normalize", "classes", "name")
"""What may stand after a net's commas."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nets", nargs="+")
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--attacked", type=int, default=32, help="the first images, which are attacked")
    parser.add_argument(
        "--certify", type=int, default=8, help="images that are certified, of each one-pass method"
    )
    parser.add_argument("--steps", type=int, default=12, help="of each attack")
    parser.add_argument("--mean-steps", type=int, help="for maps of several passes; default: half and one")
    parser.add_argument("--radii", default="2,4,8", help="of the attacks, of 255")
    parser.add_argument(
        "--methods", default=",".join(METHODS), help="with settings in brackets: 'gradient,lrp(first=same)'"
    )
    parser.add_argument("--workers", type=int, default=2, help="nets side by side")
    parser.add_argument("--limit", type=float, default=1800, help="seconds after which a net is given up")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("out/leaderboard"))
    parser.add_argument("--only", help=argparse.SUPPRESS)  # a process of one net
    options = parser.parse_args()
    if options.only:
        audit_one(options)
        return 0
    failed = run_all(all_nets(options.nets), options, options.workers)
    failed = run_all(failed, options, 1) if failed else []
    for name in failed:
        print(f"left out: {name} (see {options.out / 'logs' / name}.log)")
    return subprocess.call(site_command(options.out)) or pack(options.out)


def preset_of(options: argparse.Namespace) -> Preset:
    """The site's columns and nothing else: no plane, no theorems, one aim of the attack.

    The radius at which maps are compared is 8/255; the others lie on the curve that gives the steady radius.
    """
    methods = dict(parse_call(text) for text in split(options.methods))
    usual = {
        "integrated_gradients": {"steps": 8},
        "smoothgrad": {"draws": 8},
        "unigrad": {"draws": 8},
        "gradient_shap": {"draws": 8},
        "lime": {"segments": "grid", "grid": 4, "draws": 100},
        "shap": {"segments": "grid", "grid": 4, "draws": 100},
    }
    return Preset(
        curve=tuple(float(radius) / 255 for radius in options.radii.split(",")),
        methods=tuple(methods),
        aims=("auto",),
        method_settings={
            name: {**usual.get(name, {}), **methods.get(name, {})} for name in {*usual, *methods}
        },
        steps=options.steps,
        mean_steps=options.mean_steps or max(1, options.steps // 2 + 1),
        attacked_images=options.attacked,
        certified_images=options.certify,
        bound_images=0,
        flag_images=min(20, options.images),
        pictures=2,
        # One pass for all images: on a GPU the time goes into starting kernels.
        shard=options.images,
    )


def all_nets(words: Iterable[str]) -> dict[str, str]:
    """The word of each net by its name; one that is given twice counts once."""
    found: dict[str, str] = {}
    for word in words:
        for name, net in nets_of(word):
            if Path(found.setdefault(name, net)) != Path(net):
                sys.exit(f"{found[name]} and {net} are both called {name}; write {net},name=ANOTHER.")
    return found


def nets_of(word: str) -> Iterable[tuple[str, str]]:
    """Name and word of each net that a word stands for."""
    if Path(word).is_dir():
        for path in sorted(Path(word).glob("*.safetensors")):
            yield path.stem, str(path)
        return
    model, own = parsed(word)
    yield own.get("name") or model.removesuffix(".safetensors").split("/")[-1].split(":")[-1], word


def parsed(word: str) -> tuple[str, dict[str, str]]:
    """The model and its options: `resnet20,weights=resnet20.pt`."""
    model, *rest = word.split(",")
    own = dict(part.partition("=")[::2] for part in rest)
    unknown = [key for key in own if key not in OPTIONS]
    if unknown:
        sys.exit(f"'{word}': {unknown[0]} is no option of a net; there are {', '.join(OPTIONS)}.")
    return model, own


def run_all(names: Iterable[str], options: argparse.Namespace, workers: int) -> list[str]:
    """Audit the nets side by side; returns those that failed."""
    began = time.monotonic()
    wanted = [name for name in names if not is_finished(options, name)]

    def one(name: str) -> str | None:
        log = options.out / "logs" / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        threads = str(max(1, (os.cpu_count() or 1) // workers))
        started = time.monotonic()
        with log.open("w") as told:
            command = [sys.executable, *sys.argv, "--only", name]
            try:
                code: int | str = subprocess.run(
                    command,
                    stdout=told,
                    stderr=subprocess.STDOUT,
                    timeout=options.limit,
                    env={**os.environ, "OMP_NUM_THREADS": threads},
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                code = "late"
        said = (
            "done"
            if code == 0
            else f"failed ({code}): {(log.read_text().splitlines() or ['nothing said'])[-1]}"
        )
        print(
            f"{time.monotonic() - began:6.0f} s  {name} {said}, {time.monotonic() - started:.0f} s",
            flush=True,
        )
        return None if code == 0 else name

    with ThreadPoolExecutor(workers) as pool:
        return [name for name in pool.map(one, wanted) if name is not None]


def is_finished(options: argparse.Namespace, name: str) -> bool:
    """Whether an earlier call made this card, with these settings."""
    try:
        card = json.loads((options.out / "audits" / name / "card.json").read_text())
    except (OSError, ValueError):
        return False
    asked = json.loads(json.dumps(asdict(preset_of(options))))
    same = all(card["settings"].get(key) == value for key, value in asked.items())
    return bool(same and card["complete"] and card["data"]["images"] == options.images)


def audit_one(options: argparse.Namespace) -> None:
    import gyrograd as gg
    from gyrograd.cli.inputs import Opening, open_inputs

    model, own = parsed(all_nets(options.nets)[options.only])
    opening = Opening(
        images=options.images,
        weights=Path(own["weights"]) if "weights" in own else None,
        classes=int(own["classes"]) if "classes" in own else None,
        normalize=own.get("normalize"),
        device=options.device,
    )
    here = open_inputs(model, options.data, opening)
    card = gg.audit(
        here.model,
        here.data,
        preset=preset_of(options),
        index=here.index,
        names=here.names,
        classes=here.class_names,
        out=options.out / "audits" / options.only,
        model_name=options.only,
        data_name=here.data.name,
        notes=here.notes,
    )
    print(card.summary())


def site_command(out: Path) -> list[str]:
    return [sys.executable, "-m", "gyrograd", "leaderboard", str(out / "audits"), "--out", str(out / "site")]


def pack(out: Path) -> int:
    """The site, and every card by its net, in one file."""
    path = out / "leaderboard.tar.gz"
    with tarfile.open(path, "w:gz") as packed:
        packed.add(out / "site", "site")
        for card in sorted((out / "audits").glob("*/card.json")):
            packed.add(card, f"audits/{card.parent.name}/card.json")
    print(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
