"""The documentation site is built without a warning, with the tutorials run on the way."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gyrograd as gg

ROOT = Path(__file__).parents[2]
TUTORIALS = ("audit-your-model", "can-lime-be-trusted", "harden-a-timm-model", "train-steady", "certificates")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once; a warning, a dead link or a tutorial that raises fails every test here."""
    out = tmp_path_factory.mktemp("site")
    source = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    build = [
        sys.executable,
        "-m",
        "sphinx",
        "-qW",
        "--keep-going",
        "-c",
        "docs",
        "-d",
        out / "read",
        ".",
        out / "html",
    ]
    alone = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    built = subprocess.run(build, cwd=ROOT, env=alone, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-4000:]
    return out / "html"


def test_every_markdown_page_is_on_the_site(site: Path) -> None:
    pages = {page.relative_to(ROOT).with_suffix("") for page in ROOT.glob("docs/**/*.md")}
    lost = [page for page in pages - {Path("docs/README")} if not (site / f"{page}.html").is_file()]
    assert len(pages) > 50
    assert lost == []


def test_every_link_and_picture_of_the_site_is_there(site: Path) -> None:
    lost = set()
    for page in site.glob("**/*.html"):
        if (ROOT / page.relative_to(site)).exists():
            continue  # a page of results/ that was copied as it is
        text = re.sub(r"<pre>.*?</pre>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for link in re.findall(r'(?:href|src)="([^"#?]+)', text):
            if not re.match(r"[a-z]+:", link) and not (page.parent / link).exists():
                lost.add(f"{page.relative_to(site)}: {link}")
    assert lost == set()


def test_the_reference_lists_every_registered_name_with_its_example(site: Path) -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in site.glob("docs/api/*.html"))
    for kind in ("attribution", "attack", "metric", "regularizer", "kernel", "model", "dataset"):
        for name in gg.available(kind):
            assert f"gg.{kind}(&quot;{name}&quot;)" in text, name
    for name in gg.__all__:
        assert f'id="gyrograd.{name}"' in text or f'.{name}"' in text, name
    assert text.count("&gt;&gt;&gt; </span>") > 300


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_ran_and_shows_its_pictures(site: Path, name: str) -> None:
    page = (site / "docs" / "tutorials" / f"{name}.html").read_text(encoding="utf-8")
    assert len(re.findall(r"<img [^>]*_images/", page)) >= 1
    assert "cell_output" in page
    assert "Traceback" not in page


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_is_offered_as_a_notebook_without_outputs_that_colab_can_run(
    site: Path, name: str
) -> None:
    notebook = json.loads((site / "docs" / "tutorials" / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert "google.colab" in "".join(cells[0]["source"])
    assert all(cell["outputs"] == [] for cell in cells)
