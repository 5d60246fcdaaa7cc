"""The first pages' Python runs as it stands, and what the documentation links to is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def run_python_of(text: str) -> dict[str, Any]:
    """All Python blocks as one script; its names."""
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    names: dict[str, Any] = {}
    exec("\n".join(blocks), names)
    return names


def test_the_readmes_python_runs_as_one_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_python_of(TEXT)
    hit, score, loss = (names[name] for name in ("hit", "score", "loss"))
    assert hit.prediction_kept.all()
    assert not torch.equal(hit.map, hit.map_clean)
    assert [path.name for path in tmp_path.iterdir()] == ["attacked.png"]
    assert score.shape == (4,)
    assert loss.requires_grad


def test_the_first_five_minutes_run_as_one_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_python_of((ROOT / "docs" / "get-started.md").read_text(encoding="utf-8"))
    assert names["hit"].prediction_kept.all()
    assert (names["hit"].value < 1).all()  # the map moved
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attacked.png", "maps.png"]


def test_the_page_on_other_libraries_runs_as_one_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_python_of((ROOT / "docs" / "how-to" / "with-other-libraries.md").read_text(encoding="utf-8"))
    assert names["similarity"].shape == (4,)
    assert names["hit"].prediction_kept.all()
    assert len(names["scores"]) == 4
    assert names["maps"].shape == names["x"].shape
    assert names["loss"].requires_grad


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/*.md")]


def test_what_the_documentation_links_to_is_there_and_the_readme_is_short() -> None:
    lost = []
    for page in PAGES:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = link.partition("#")
            there = (page.parent / path).resolve() if path else page
            if re.match(r"https?:", link):
                continue
            if not there.exists() or (anchor and anchor not in anchors(there)):
                lost.append(f"{page.relative_to(ROOT)}: {link}")
    assert len(PAGES) > 40
    assert lost == []
    assert len(TEXT.splitlines()) <= 120


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as a reader of Markdown makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_reached_from_the_index() -> None:
    seen, waiting = set(), [ROOT / "docs" / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
        waiting += [(page.parent / link).resolve() for link in links if (page.parent / link).is_file()]
    pages = set(ROOT.glob("docs/**/*.md")) - {ROOT / "docs" / "index.md"}  # the site's form of README.md
    assert sorted(str(page.relative_to(ROOT)) for page in pages - seen) == []
