"""Models that no number can be trusted of: the command says so, and never draws a map that is none."""

from __future__ import annotations

import json

import pytest
from PIL import Image

from gyrograd import cli

FACTORIES = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, how):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head, self.how = nn.Conv2d(3, 4, 3), nn.Linear(4, 3), how

    def forward(self, x):
        return self.how(x, self.head(self.conv(x).tanh().mean((2, 3))))

def noisy():
    return Net(lambda x, z: nn.functional.dropout(z, 0.5, training=True))

def mixing():
    return Net(lambda x, z: z - z.mean(0))

def writing():
    return Net(lambda x, z: z + 0 * x.data.mul_(0.5).sum())

def steady():
    return Net(lambda x, z: z)
"""


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kit")
    (folder / "nets.py").write_text(FACTORIES)
    for place in range(3):
        Image.new("RGB", (8, 8), (40 + 60 * place, 90, 200 - 50 * place)).save(folder / f"{place}.png")
    return folder


def run(kit, out, name, *words) -> int:
    command = [
        words[0],
        f"{kit}/nets.py:{name}",
        f"{kit}/*.png",
        "--out",
        str(out),
        "--size",
        "8",
        *words[1:],
    ]
    return cli.main(command)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("noisy", "change from call to call"),
        ("mixing", "depends on the other images of the batch"),
        ("steady", None),
    ],
)
@pytest.mark.parametrize(
    "verb", [("explain",), ("attack", "--steps", "2", "--eps", "4/255")], ids=["explain", "attack"]
)
def test_explain_and_attack_tell_what_is_wrong_with_the_model_and_go_on(
    verb, name, sentence, kit, tmp_path, capsys
):
    assert run(kit, tmp_path / "out", name, *verb, "--json") == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    told = [note for note in notes if "from call to call" in note or "other images" in note]
    assert len(told) == (sentence is not None)
    assert sentence is None or sentence in told[0]


@pytest.mark.parametrize("verb", ["explain", "attack", "audit"])
def test_a_model_that_writes_into_its_images_is_one_sentence(verb, kit, tmp_path, capsys):
    assert run(kit, tmp_path / "out", "writing", verb) == 2
    error = capsys.readouterr().err.strip()
    assert "writes into the images it is given" in error
    assert len(error.splitlines()) == 1
