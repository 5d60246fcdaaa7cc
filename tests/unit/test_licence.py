"""The licence is in the repository and in what is built from it."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_licence_is_there_and_is_built_in():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE"]
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_the_security_policy_names_what_is_run_and_what_is_not():
    text = (ROOT / "SECURITY.md").read_text()
    for word in (
        "FILE.py:FACTORY",
        "TorchScript",
        "torch.export",
        "plug-ins",
        "checkpoint",
        "recipe",
        "Reporting",
    ):
        assert word in text
