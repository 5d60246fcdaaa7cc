"""What a card says of the machine, where the machine does not say everything."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from cards import card
from small_audits import small_images, small_net
from torch import Tensor, nn

from gyrograd.audit import identity
from gyrograd.measurement.run import data_hash, model_hash
from gyrograd.models.outputs import PickedLogits
from gyrograd.models.scripts import open_script
from gyrograd.models.wrappers import ZeroShot
from gyrograd.reporting.schema import check_card


@pytest.fixture
def without_resource(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module as a system without `resource` (Windows) would import it."""
    monkeypatch.setitem(sys.modules, "resource", None)
    spec = importlib.util.spec_from_file_location("gyrograd.audit.identity_elsewhere", identity.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_peak_memory_is_left_out_where_the_system_does_not_say(without_resource: ModuleType) -> None:
    said = without_resource.rerun(small_net(), None, 1.0, 0)
    assert said["peak_memory_mb"] is None
    assert {key for key, value in said.items() if value is None} == {"peak_memory_mb"}
    assert check_card(card() | {"rerun": said})["rerun"] == said


def test_another_weight_or_buffer_is_another_model() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    hashes = {model_hash(model)}
    for change in (model[0].weight, model[1].bias, model[1].running_var, model[1].num_batches_tracked):
        change.data.add_(1)
        hashes.add(model_hash(model))
    assert len(hashes) == 5


class Tempered(nn.Module):
    """A module as users write it, which does not print its setting."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.layer = nn.Flatten()
        self.temperature = temperature

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(x) / self.temperature
        return logits


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_another_setting_is_another_model(tmp_path: Path) -> None:
    models: list[nn.Module] = [Tempered(1.0), Tempered(2.0)]
    for temperature in (1.0, 2.0):
        path = tmp_path / "script.pt"
        torch.jit.save(torch.jit.script(Tempered(temperature)), path)
        models += [open_script(path, torch.device("cpu")) for _ in range(2)]
    models += [ZeroShot(nn.Identity(), torch.ones(2, 3), scale) for scale in (1.0, 2.0)]
    models += [PickedLogits(nn.Identity(), key) for key in (0, 1)]
    hashes = [model_hash(model) for model in models]
    assert hashes[2:6:2] == hashes[3:6:2]  # of a file that is opened twice
    assert len(set(hashes)) == len(models) - 2


def test_another_pixel_class_or_shape_is_other_data() -> None:
    x, target = small_images(2)
    hashes = {
        data_hash(x, target),
        data_hash(x, target + 1),
        data_hash(x, target.flip(0) if target[0] != target[1] else target + 2),
        data_hash(x.transpose(2, 3), target),
        data_hash(x.view(2, 3, 5, 20), target),
        data_hash(x.float(), target),
    }
    assert len(hashes) == 6


def test_peak_memory_is_what_this_process_held() -> None:
    # torch alone takes more than 50 MB, and no test here takes a terabyte: the unit is right.
    assert 50 < identity.peak_memory_mb() < 1e6
