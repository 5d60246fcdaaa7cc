"""The documentation site: `make site` builds it, the tests build it with warnings as errors.

The site's source is the repository itself (`sphinx-build -c docs . OUT`), not this folder: the pages link to results/
and examples/ by relative paths, and these are right both on the site and where the repository is browsed.
"""

from __future__ import annotations

import inspect
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from myst_nb.core.read import read_myst_markdown_notebook
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

import gyrograd as gg
from gyrograd.registry import Entry, in_order

ROOT = Path(__file__).parents[1]

project = "gyrograd"
author = "The gyrograd developers"
copyright = f"{author}, Apache-2.0"
version = release = gg.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
include_patterns = ["docs/**", "results/**.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
exclude_patterns = ["docs/README.md", ".venv", "out", "data", "src", "tests", "benchmarks", "**/.*"]

html_theme = "furo"
html_title = "gyrograd"
html_static_path: list[str] = []
html_theme_options = {"navigation_with_keys": True}
html_copy_source = False
html_show_sphinx = False

myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_in_temp = True  # tutorials write files
nb_execution_timeout = 300
suppress_warnings = ["myst.header"]  # parts of results/attacks begin at the second level
nb_merge_streams = True
nb_output_stderr = "remove"  # progress bars, and what other libraries say about the terminal
nb_render_markdown_format = "gfm"
nb_render_image_options = {"width": "100%"}

autodoc_typehints = "none"
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False


def as_restructured_text(
    _app: Sphinx, _what: str, _name: str, _of: Any, _options: Any, lines: list[str]
) -> None:
    """Docstrings are Markdown; autodoc reads reStructuredText, where `|x|`, `*` and `x_` mean other things."""
    for number, line in enumerate(lines):
        if line.lstrip().startswith((">>>", "...")):
            continue
        spans = re.split(r"(`+[^`]*`+)", line)
        lines[number] = "".join(
            f"``{span.strip('`')}``" if span.startswith("`") else re.sub(r"([*|\\]|_(?!\w))", r"\\\1", span)
            for span in spans
        )


def list_registered(_app: Sphinx, _docname: str, source: list[str]) -> None:
    """`<!-- registered: metric -->` becomes the reference of all metrics: a new one is on the site without an edit."""
    source[0] = re.sub(
        r"<!-- registered: (\w+) -->",
        lambda found: "\n".join(reference_of(entry) for entry in in_order(found[1])),
        source[0],
    )


def reference_of(entry: Entry) -> str:
    """One registered name: how it is called, where it comes from, and its docstring."""
    other_names = f" Also `{'`, `'.join(entry.aliases)}`." if entry.aliases else ""
    better = "" if entry.direction == "none" else f" {entry.direction.capitalize()}."
    origin = " ".join(part for part in (entry.paper, entry.equation) if part and part != "own")
    directive = "autoclass" if inspect.isclass(entry.factory) else "autofunction"
    return f"""
## {entry.name}
`gg.{entry.kind}("{entry.name}")`.{other_names}{better}{f" From {origin}." if origin else ""}

```{{eval-rst}}
.. {directive}:: {entry.factory.__module__}.{entry.factory.__qualname__}
```
"""


class OpenPagesInPlace(SphinxPostTransform):
    """A link to one of the results' HTML pages opens it. Sphinx would offer it as a download."""

    default_priority = 5

    def run(self, **_: Any) -> None:
        for link in list(self.document.findall(addnodes.download_reference)):
            target = (ROOT / self.env.docname).parent / link["reftarget"]
            if target.suffix == ".html":
                page = nodes.reference("", "", *link.children, refuri=link["reftarget"], internal=True)
                link.replace_self(page)


def add_files(app: Sphinx, failed: Exception | None) -> None:
    """The results' HTML pages, the tutorials as notebooks, and a first page that leads to docs/."""
    if failed:
        return
    for page in ROOT.glob("results/**/*.html"):
        place = Path(app.outdir) / page.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(page, place)
    for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")):
        if page.name != "README.md":
            write_notebook(page, Path(app.outdir) / "docs" / "tutorials" / f"{page.stem}.ipynb")
    first = (
        '<!doctype html><title>gyrograd</title><meta http-equiv="refresh" content="0; url=docs/index.html">'
    )
    (Path(app.outdir) / "index.html").write_text(first, encoding="utf-8")


def write_notebook(page: Path, notebook: Path) -> None:
    """A tutorial's Markdown as a notebook without outputs, for Jupyter and Colab."""
    cells = read_myst_markdown_notebook(page.read_text(encoding="utf-8"))
    nbformat.write(cells, notebook)


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", list_registered)
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)  # before napoleon's
    app.connect("build-finished", add_files)
    app.add_post_transform(OpenPagesInPlace)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
