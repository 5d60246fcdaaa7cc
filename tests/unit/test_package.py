"""What is built from the repository holds everything it needs, stays small enough for PyPI, and is described once."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import gyrograd

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONDA = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8"))
CONDA_NAMES = {"torch": "pytorch", "matplotlib": "matplotlib-base"}

PACKAGE = ROOT / "src" / "gyrograd"
FILES = [path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}]


def test_every_file_beside_the_code_is_part_of_the_package() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["gyrograd"]
    built_in = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    assert {path.suffix for path in FILES} >= {".jinja", ".yaml", ".toml", ".safetensors"}
    assert sorted(str(path.relative_to(PACKAGE)) for path in set(FILES) - built_in) == []


def test_the_package_stays_well_below_the_100_megabytes_that_pypi_takes() -> None:
    # Weights hardly compress, so the size on disk is that of the wheel.
    assert sum(path.stat().st_size for path in FILES) < 95e6


def test_the_version_is_the_same_everywhere() -> None:
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited is not None
    assert PROJECT["project"]["version"] == gyrograd.__version__ == CONDA["context"]["version"] == cited[1]


def test_conda_asks_for_what_pip_asks_for() -> None:
    for needed in PROJECT["project"]["dependencies"]:
        name, _, least = needed.partition(">=")
        name = name.partition("[")[0]
        assert f"{CONDA_NAMES.get(name, name)} >={least}" in CONDA["requirements"]["run"]
    assert f"python {PROJECT['project']['requires-python']}" in CONDA["requirements"]["run"]
