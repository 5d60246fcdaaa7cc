"""gyrograd doctor: check the installation and list what it can use."""

from __future__ import annotations

import importlib
import importlib.metadata
import json as json_format
import os
import platform
import shutil
import sys
from dataclasses import asdict, dataclass
from typing import Literal

OPTIONAL = {
    "timm": "timm",
    "transformers": "transformers",
    "ray": "ray",
    "slurm": "submitit",
    "explore": "gradio",
    "tensorboard": "tensorboard",
}
"""The package that each extra installs."""


@dataclass(frozen=True)
class Finding:
    """One line of the report. A `broken` one makes the exit code 1."""

    what: str
    state: Literal["ok", "missing", "broken"]
    detail: str


def doctor(json: bool = False) -> int:
    """Check the installation: versions, devices, extras, data, disk.

    Args:
        json: print JSON instead of a table.
    """
    trouble = _trouble("torch")
    devices = [] if trouble else _devices()
    system = f"{platform.python_version()} on {platform.system()} {platform.machine()}, gyrograd {version('gyrograd')}"
    free = shutil.disk_usage(os.getcwd()).free / 2**30
    findings = [
        Finding("python", "ok" if sys.version_info >= (3, 11) else "broken", system),
        _pair(trouble),
        *devices,
        *_optional_parts(),
        _cifar10(trouble),
        Finding("disk", "ok" if free >= 1 else "broken", f"{free:.1f} GiB free here"),
    ]
    if json:
        print(json_format.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        from rich.text import Text

        from gyrograd.cli.terminal import print_table

        colour = {"ok": "green", "missing": "yellow", "broken": "bold red"}
        rows = [(each.what, Text(each.state, colour[each.state]), each.detail) for each in findings]
        print_table(("part", "state", "detail"), rows)
    return int(any(finding.state == "broken" for finding in findings))


def version(package: str) -> str | None:
    """The installed version of a package, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _trouble(module: str) -> str:
    """The error of importing a module in one line, or an empty text; broken libraries raise OSError."""
    try:
        importlib.import_module(module)
    except (ImportError, OSError, RuntimeError, AttributeError) as wrong:
        return " ".join(str(wrong).split()) or type(wrong).__name__
    return ""


def _pair(trouble: str) -> Finding:
    """Check that torch and torchvision fit; if they do not, importing torchvision fails."""
    found = {name: version(name) for name in ("torch", "torchvision")}
    detail = ", ".join(f"{name} {number or 'missing'}" for name, number in found.items())
    fix = "install both together: pip install --force-reinstall torch torchvision"
    if None in found.values():
        return Finding("torch pair", "broken", f"{detail}; {fix}")
    if trouble:
        return Finding("torch pair", "broken", f"{detail}: torch does not import ({trouble}); {fix}")
    misfit = _trouble("torchvision.ops")
    if misfit:
        return Finding("torch pair", "broken", f"{detail} do not fit ({misfit}); {fix}")
    return Finding("torch pair", "ok", detail)


def _devices() -> list[Finding]:
    import torch

    counts = {"core": os.cpu_count() or 1, "thread": torch.get_num_threads()}
    words = ", ".join(f"{count} {what}{'' if count == 1 else 's'}" for what, count in counts.items())
    findings = [Finding("cpu", "ok", f"{words} for torch{_load()}")]
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        findings.append(Finding(f"cuda:{index}", "ok", f"{card.name}, {card.total_memory / 2**30:.0f} GiB"))
    if len(findings) == 1:
        findings.append(Finding("cuda", "missing", "no card seen; everything runs on the CPU"))
    return findings


def _load() -> str:
    """A remark if other programs use the cores, because everything then takes longer than estimated."""
    cores = os.cpu_count() or 1
    wanting = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # there is none on Windows
    if wanting <= cores:
        return ""
    return f"; busy: {wanting:.1f} programs want to run on {cores} cores, so expect longer times"


def _optional_parts() -> list[Finding]:
    findings = []
    for extra, package in OPTIONAL.items():
        number = version(package)
        detail = f"{package} {number}" if number else f"pip install 'gyrograd[{extra}]'"
        findings.append(Finding(f"extra {extra}", "ok" if number else "missing", detail))
    return findings


def _cifar10(trouble: str) -> Finding:
    if trouble:
        return Finding("cifar10", "missing", "not looked for: that needs torch")
    from gyrograd.data import data_root

    root = data_root()
    folders = [root / name for name in ("cifar-10-batches-py", "cifar-10-batches-bin")]
    there = [str(folder) for folder in folders if folder.is_dir()]
    if there:
        return Finding("cifar10", "ok", there[0])
    return Finding("cifar10", "missing", f"not under {root}: gyrograd data fetch cifar10")
