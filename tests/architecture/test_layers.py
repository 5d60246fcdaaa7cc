"""The layers of pyproject.toml hold, and a folder nobody declared fails."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command as c; c()",
        "--no-cache",
    ]
    environment = {"PYTHONPATH": str(root / "src"), "PATH": ""}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def copied(tmp_path):
    shutil.copytree(
        ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_imports_go_downward():
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout


def test_a_folder_that_is_not_declared_fails(copied):
    (copied / "src/gyrograd/misc").mkdir()
    (copied / "src/gyrograd/misc/__init__.py").touch()
    result = lint_imports(copied)
    assert result.returncode != 0
    assert "misc" in result.stdout


def test_an_upward_import_fails(copied):
    with (copied / "src/gyrograd/numerics/maps.py").open("a") as file:
        file.write("\nimport gyrograd.attributions\n")
    assert lint_imports(copied).returncode != 0


def test_the_linter_reads_every_file_of_the_package() -> None:
    # A pattern such as "data" among the excluded folders also leaves out src/gyrograd/data.
    listed = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--show-files", "src"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    assert {*map(str, (ROOT / "src" / "gyrograd").rglob("*.py"))} <= {*listed}
