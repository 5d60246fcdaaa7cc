"""`auto` against everything else, on the number that is reported: `python benchmarks/auto_attack.py --help`.

The share of the top tenth of the pixels that stays under attack, with the prediction unchanged, in four ways:
- `auto` at the cost of the audit's presets `quick` and `standard`;
- the three attacks the audit ran before, at the same presets' steps: targeted_map, top_k (k = 2 % of the pixels) and
  untargeted_map, the lowest for each image;
- the best of every named attack with every sensible setting, k matched, `--steps` steps and `--restarts` restarts:
  again the lowest for each image, so that no one attack has to be best everywhere.
A cell is a net, a method and one of these; each is a file below --out/cells, so that a run takes up where another
stopped. The table is written anew after each cell: auto_attack.md and auto_attack.json.

--data is a torch file with images `x` (uint8, n x 3 x 32 x 32) and classes `y`. The images after the first
`TRAIN_FROM` train the residual net, whose ReLUs work in place.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gyrograd as gg
from gyrograd import records
from gyrograd.audit.presets import PRESETS
from gyrograd.numerics.maps import reduce
from gyrograd.numerics.similarity import top_k_overlap

NETS = {
    "lenet-ce": "cifar10/lenet-ce",
    "lenet-l2-cosine": "cifar10/lenet-l2-cosine",
    "resnet20": "",
    "residual": "",
}
"""Names of the zoo; `resnet20` is read from --resnet20, `residual` is trained here."""
MAPS: dict[str, dict[str, Any]] = {
    "gradient": {},
    "input_x_gradient": {},
    "integrated_gradients": {"steps": 8},
    "smoothgrad": {"draws": 8},
    "lrp": {},
    "guided_backprop": {},
}
"""The maps that are judged, as in the audit's preset `quick`."""
EFFORT = ("quick", "standard")
"""Presets of the audit whose effort `auto` is given."""
BEFORE = ("targeted_map", "top_k", "untargeted_map")
BEFORE_STEPS = {"quick": (7, 4), "standard": (20, 12)}
"""What the audit ran before: attacks, and steps of each, fewer where a map is a mean over draws."""
NAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "top_k": ("top_k", {"judged_by": "overlap", "stop_at": 0.0}),
    "top_k, Adam": ("top_k", {"judged_by": "overlap", "stop_at": 0.0, "stepper": "adam"}),
    "top_k, momentum": ("top_k", {"judged_by": "overlap", "stop_at": 0.0, "stepper": "momentum"}),
    "top_k, recomputed": ("top_k", {"judged_by": "overlap", "stop_at": 0.0, "mask": "recomputed"}),
    "untargeted_map": ("untargeted_map", {}),
    "untargeted_map, l2": ("untargeted_map", {"measure": "l2"}),
    "targeted_map": ("targeted_map", {}),
    "mass_center": ("mass_center", {}),
}
"""Named attacks and their settings; `top_k` has the k that is judged."""
TWINS = {"softer": 5.0, "growing": (10.0, 100.0)}
"""Other sharpnesses of the twin, tried with `top_k` on piecewise linear nets."""
TRAIN_FROM = 1000
TOP = 0.1


def main() -> None:
    options = parsed()
    # Rival by rival, so that a run that is stopped early has whole columns.
    cells = [
        (net, method, rival)
        for rival, net, method in product(options.only or rivals_of(options), options.nets, options.methods)
    ]
    waiting = [cell for cell in cells if finished(options, cell) is None]
    print(f"{len(cells)} cells, {len(cells) - len(waiting)} of them finished before", flush=True)
    if options.workers > 1:
        with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
            for _ in pool.imap_unordered(measure_one, [(options, cell) for cell in waiting], chunksize=1):
                write_table(options)
    else:
        for cell in waiting:
            measure_one((options, cell))
            write_table(options)
    write_table(options)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--resnet20", type=Path, help="state dict of a CIFAR-10 ResNet-20")
    parser.add_argument("--out", type=Path, default=Path("out/auto_attack"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--methods", nargs="+", choices=list(MAPS), default=list(MAPS))
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--eps", type=float, nargs="+", default=[2, 4, 8], help="radii, of 255")
    parser.add_argument("--steps", type=int, default=300, help="of each named attack")
    parser.add_argument("--restarts", type=int, default=3, help="of each named attack")
    parser.add_argument("--named", nargs="+", choices=list(NAMED), default=list(NAMED))
    parser.add_argument("--no-twins", action="store_true", help="leave out other sharpnesses of the twin")
    parser.add_argument(
        "--only", nargs="+", metavar="COLUMN", help="measure these columns, such as 'auto quick'"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes, each with cells of its own")
    parser.add_argument("--max-batch", type=int, default=None, help="rows of the model in one pass")
    parser.add_argument("--epochs", type=int, default=8, help="of the residual net's training")
    return parser.parse_args()


def rivals_of(options: argparse.Namespace) -> list[str]:
    """What is measured of each net and method, cheap ones first."""
    twins = [] if options.no_twins else [f"top_k, {name} twin" for name in TWINS]
    presets = [f"{who} {preset}" for preset in EFFORT for who in ("auto", "before")]
    return [*presets, *options.named, *twins]


def path_of(options: argparse.Namespace, cell: tuple[str, str, str]) -> Path:
    length = "" if cell[2].endswith(tuple(EFFORT)) else f"-{options.steps}x{options.restarts}"
    name = "-".join((*cell, f"{options.images}{length}")).replace(" ", "_").replace(",", "")
    return options.out / "cells" / f"{name}.json"


def finished(options: argparse.Namespace, cell: tuple[str, str, str]) -> dict[str, Any] | None:
    """What an earlier call found in this cell at these eps, if there was one; its name does not hold the eps."""
    path = path_of(options, cell)
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found if found and found["eps"] == options.eps else None


def measure_one(work: tuple[argparse.Namespace, tuple[str, str, str]]) -> None:
    """Measure a cell and write its file."""
    options, cell = work
    net, method, rival = cell
    model, x, y = model_of(net, options), *images(options)
    if rival.endswith(" twin") and not is_piecewise_linear(model):
        return
    explain = gg.attribution(method, **MAPS[method], **_batch(options, method))
    columns = []
    started = time.monotonic()
    for attack in attacks_of(rival, method, options):
        hits = attack(model, explain, x, y, seed=0)
        columns.append(torch.stack([kept(hit) for hit in hits]))
    if x.is_cuda:
        torch.cuda.synchronize()
    seconds = time.monotonic() - started
    lowest = torch.stack(columns).amin(0)  # over attacks, for each eps and image
    found = {"cell": cell, "eps": options.eps, "kept": lowest.tolist(), "seconds": seconds}
    records.write_text(path_of(options, cell), json.dumps(found) + "\n")
    print(*cell, [round(float(row.mean()), 4) for row in lowest], f"{seconds:.1f} s", flush=True)


def kept(hit: Any) -> Tensor:
    """Share of the top tenth that stays; all of it where the attack lost the prediction, which does not count."""
    before, after = reduce(hit.map_clean), reduce(hit.map)
    share = top_k_overlap(before, after, round(TOP * before[0].numel()))
    return torch.where(hit.prediction_kept, share, 1.0).double().cpu()


def attacks_of(rival: str, method: str, options: argparse.Namespace) -> list[Any]:
    """The attacks of a cell, each with its settings."""
    eps, rows = (
        [e / 255 for e in options.eps],
        {} if options.max_batch is None else {"max_batch": options.max_batch},
    )
    who, _, preset = rival.partition(" ")
    if preset in EFFORT:
        steps, cheaper = effort_of(preset, method)
        through = None
        if cheaper != MAPS[method]:
            through = gg.attribution(method, **cheaper, **_batch(options, method))
        if who == "auto":
            return [gg.attack("auto", eps=eps, steps=steps, transfer_from=through, **rows)]
        steps = BEFORE_STEPS[preset]["draws" in MAPS[method]]
        return [gg.attack(name, eps=eps, steps=steps, transfer_from=through, **rows) for name in BEFORE]
    twin = {}
    if rival.endswith(" twin"):
        twin = {"twin_beta": TWINS[rival.split()[-2]]}
        rival = "top_k"
    name, settings = NAMED[rival]
    if name == "top_k":
        settings = {**settings, "k": round(TOP * 32 * 32)}
    shared = {"eps": eps, "steps": options.steps, "restarts": options.restarts, **rows, **twin}
    return [gg.attack(name, **shared, **settings)]


def effort_of(name: str, method: str) -> tuple[int, dict[str, Any]]:
    """Steps of a search as the preset has them, and the settings of the cheaper map that is searched through.

    A map here may take fewer passes than the preset's: it gets as many steps more as that saves.
    """
    preset, settings = PRESETS[name], MAPS[method]
    if not settings:
        return preset.steps, settings
    ((count, passes),) = settings.items()
    through = min(preset.search_rows, passes)
    return (preset.mean_steps or preset.steps) * preset.search_rows // through, {count: through}


def _batch(options: argparse.Namespace, method: str) -> dict[str, Any]:
    several = options.max_batch is not None and bool(MAPS[method])
    return {"max_batch": options.max_batch} if several else {}


@cache
def _images(path: Path) -> dict[str, Tensor]:
    return torch.load(path, weights_only=True)


def images(options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """The first images and their classes, on the device."""
    data = _images(options.data)
    x = data["x"][: options.images].to(options.device).float() / 255
    return x, data["y"][: options.images].long().to(options.device)


@cache
def _model(net: str, data: Path, resnet20: Path | None, out: Path, device: str, epochs: int) -> nn.Module:
    if net == "residual":
        return residual_net(data, out, device, epochs)
    if net == "resnet20" and resnet20 is None:
        raise SystemExit("The ResNet-20 needs its weights: --resnet20 FILE, or leave it out of --nets.")
    if net == "resnet20":
        return gg.model("resnet20", weights=resnet20, normalize="imagenet").to(device).eval()
    return gg.load(NETS[net]).to(device).eval()


def model_of(net: str, options: argparse.Namespace) -> nn.Module:
    return _model(net, options.data, options.resnet20, options.out, options.device, options.epochs)


def is_piecewise_linear(model: nn.Module) -> bool:
    return any(isinstance(module, nn.ReLU) for module in model.modules()) or not any(
        isinstance(module, nn.Softplus) for module in model.modules()
    )


class Block(nn.Module):
    """Two convolutions and a way around them, every ReLU in place."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip
        same = stride == 1 and width_in == width
        self.around = nn.Identity() if same else nn.Conv2d(width_in, width, 1, stride, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.body(x) + self.around(x))
        return out


def residual_net(data: Path, out: Path, device: str, epochs: int) -> nn.Module:
    """A small residual net with in-place ReLUs, trained on the images from `TRAIN_FROM` on; kept for the next run."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(inplace=True),
        Block(24, 24, 1), Block(24, 48, 2), Block(48, 96, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10),
    ).to(device)  # fmt: skip
    file = out / f"residual-{epochs}.pt"
    if file.exists():
        net.load_state_dict(torch.load(file, weights_only=True, map_location=device))
        return net.eval()
    x, y = (_images(data)[key][TRAIN_FROM:].to(device) for key in ("x", "y"))
    steps = epochs * (len(x) // 128)
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=max(2, steps))
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).to(device).split(128)[: len(x) // 128]:
            images = x[rows].float() / 255
            images = torch.where(torch.rand(len(rows), 1, 1, 1).to(device) < 0.5, images.flip(3), images)
            optimizer.zero_grad()
            F.cross_entropy(net(images), y[rows].long()).backward()
            optimizer.step()
            schedule.step()
    net.eval()
    held = _images(data)
    with torch.no_grad():
        right = net(held["x"][:TRAIN_FROM].to(device).float() / 255).argmax(1).cpu() == held["y"][:TRAIN_FROM]
    print(
        f"residual net: accuracy {float(right.double().mean()):.3f} on the first {TRAIN_FROM} images",
        flush=True,
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(net.state_dict(), file)
    return net


def write_table(options: argparse.Namespace) -> None:
    """Means of every finished cell, and `auto` beside the best of the rest."""
    every = product(options.nets, options.methods, rivals_of(options))
    found = {cell: kept for cell in every if (kept := finished(options, cell)) is not None}
    rows = [
        row
        for net, method in product(options.nets, options.methods)
        for row in rows_of(found, net, method, options)
    ]
    records.write_text(options.out / "auto_attack.json", json.dumps(rows, indent=1) + "\n")
    header = ["net", "method", "eps", "auto standard", "auto quick", "before standard", "before quick", "best named",
              "standard - named", "quick - named", "which", "seconds: auto s, q", "before s, q", "named"]  # fmt: skip
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [f"| {' | '.join(_shown(row, key) for key in ROW)} |" for row in rows]
    about = (
        f"Share of the top tenth kept, mean over {options.images} images; named attacks {options.steps} steps, "
        f"{options.restarts} restarts, the lowest of all for each image; torch {torch.__version__}, {options.device}."
    )
    records.write_text(options.out / "auto_attack.md", "\n".join([about, "", *lines]) + "\n")


ROW = ("net", "method", "eps", "auto standard", "auto quick", "before standard", "before quick", "named",
       "standard_above", "quick_above", "strongest", "auto_seconds", "before_seconds", "named_seconds")  # fmt: skip


def rows_of(
    found: dict[Any, Any], net: str, method: str, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """A row for each eps."""
    mine = {rival: found[net, method, rival] for rival in rivals_of(options) if (net, method, rival) in found}
    if not mine:
        return []
    named = {rival: cell for rival, cell in mine.items() if not rival.endswith(tuple(EFFORT))}
    rows = []
    for at, eps in enumerate(options.eps):
        row: dict[str, Any] = {"net": net, "method": method, "eps": eps}
        mean = {rival: sum(cell["kept"][at]) / len(cell["kept"][at]) for rival, cell in mine.items()}
        row |= {rival: mean[rival] for rival in mine if rival not in named}
        if named:
            lowest = [
                min(values) for values in zip(*(cell["kept"][at] for cell in named.values()), strict=True)
            ]
            row["named"] = sum(lowest) / len(lowest)
            row["strongest"] = min(named, key=lambda rival: mean[rival])
            row["each"] = {rival: mean[rival] for rival in named}
            for preset in EFFORT:
                if f"auto {preset}" in mine:
                    row[f"{preset}_above"] = mean[f"auto {preset}"] - row["named"]
        for who in ("auto", "before"):
            spent = [mine.get(f"{who} {preset}", {}).get("seconds") for preset in ("standard", "quick")]
            row[f"{who}_seconds"] = ", ".join("-" if s is None else f"{s:.1f}" for s in spent)
        row["named_seconds"] = sum(cell["seconds"] for cell in named.values())
        rows.append(row)
    return rows


def _shown(row: dict[str, Any], key: str) -> str:
    value = row.get(key, "-")
    if key.endswith("_above") and isinstance(value, float):
        return f"{value:+.3f}"
    if key in ("eps", "named_seconds") and isinstance(value, float):
        return f"{value:g}" if key == "eps" else f"{value:.0f}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
