"""The README's Python runs as it stands, and what it links to is there."""

from __future__ import annotations

import re
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_readmes_python_runs_as_one_script() -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    exec("\n".join(blocks), names)
    maps, hit, score, loss = (names[name] for name in ("maps", "hit", "score", "loss"))
    assert maps.shape == names["x"].shape
    assert hit.prediction_kept.all()
    assert not torch.equal(hit.map, hit.map_clean)
    assert score.shape == (4,)
    assert loss.requires_grad


def test_what_the_readme_links_to_is_there_and_it_is_short() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", TEXT)
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).exists()] == []
    assert len(TEXT.splitlines()) <= 120
