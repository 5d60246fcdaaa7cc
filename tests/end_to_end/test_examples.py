"""The examples run as they stand, small: with three lines more a net's explanations hold further under attack."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

EXAMPLES = Path(__file__).parents[2] / "examples"
# Lightning's own: its use of torch's pytree, and its advice on loader workers.
LIGHTNING = ("ignore:.*isinstance.treespec, LeafSpec:FutureWarning", "ignore:.*does not have many workers")


@pytest.mark.filterwarnings(*LIGHTNING)
@pytest.mark.parametrize("name", ["plain_pytorch", "lightning_module", "huggingface_trainer"])
def test_an_example_runs_and_its_lines_make_the_explanations_hold(name, capsys):
    found = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](images=400, test_images=48, epochs=5)
    assert found["after"][1] > found["before"][1] + 0.02
    lines = re.findall(
        r"(before|after) adding the lines: accuracy (\d\.\d{3}), top kept (\d\.\d{3})",
        capsys.readouterr().out,
    )
    assert lines == [(when, f"{found[when][0]:.3f}", f"{found[when][1]:.3f}") for when in ("before", "after")]


@pytest.mark.parametrize("steady", [None, F.cross_entropy])
def test_the_hugging_face_example_accumulates_the_mean_of_all_images(steady):
    """The Trainer adds the losses of several batches up, and leaves it to them to divide by the number of images."""
    trainer = runpy.run_path(str(EXAMPLES / "huggingface_trainer.py"))["SteadyTrainer"]
    inputs = {"pixel_values": torch.eye(8), "labels": torch.arange(8) % 3}
    own = SimpleNamespace(steady=steady)

    def loss(rows: slice, **counted: int) -> float:
        some = {name: values[rows] for name, values in inputs.items()}
        return float(
            trainer.compute_loss(
                own, lambda pixel_values: SimpleNamespace(logits=pixel_values), some, **counted
            )
        )

    parts = [loss(rows, num_items_in_batch=8) for rows in (slice(6), slice(6, 8))]
    assert sum(parts) == pytest.approx(loss(slice(8)))


def test_the_picture_of_the_readme_is_drawn_and_the_steady_net_keeps_its_map(tmp_path):
    draw = runpy.run_path(str(EXAMPLES / "steady_picture.py"))["main"]
    kept = draw(tmp_path / "a.png", images=2, steps=4)
    assert all(steady > plain + 0.1 for plain, steady in zip(*kept.values(), strict=True))
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_the_pictures_of_the_concepts_are_those_the_pages_show(tmp_path):
    drawn = runpy.run_path(str(EXAMPLES / "concept_pictures.py"))["main"](tmp_path, images=1, steps=1)
    pages = "".join(page.read_text() for page in (EXAMPLES.parent / "docs" / "concepts").glob("*.md"))
    for path in drawn:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert f"(../pictures/{path.name})" in pages


def test_every_example_is_tested():
    names = {"plain_pytorch", "lightning_module", "huggingface_trainer", "steady_picture", "concept_pictures"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == names
