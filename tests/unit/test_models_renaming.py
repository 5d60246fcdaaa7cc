"""EfficientNet weights with the names most files have load into timm's nets, all of them or none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from gyrograd.errors import UserError
from gyrograd.models import Normalized, build, load_state
from gyrograd.models.renaming import rename_tensors

BLOCKS = {"timm:tf_efficientnet_lite0": (16, False), "timm:tf_efficientnet_b0": (16, True)}
"""How many blocks, and whether they squeeze and excite."""


def layers(blocks: int, squeezing: bool) -> Iterator[tuple[str, str]]:
    """Every layer in the order of the net, and its kind. Only the first block lacks the widening convolution."""
    yield from (("_conv_stem", "conv"), ("_bn0", "bn"))
    for i in range(blocks):
        if i > 0:
            yield from ((f"_blocks.{i}._expand_conv", "conv"), (f"_blocks.{i}._bn0", "bn"))
        yield from ((f"_blocks.{i}._depthwise_conv", "conv"), (f"_blocks.{i}._bn1", "bn"))
        if squeezing:
            yield from ((f"_blocks.{i}._se_reduce", "linear"), (f"_blocks.{i}._se_expand", "linear"))
        yield from ((f"_blocks.{i}._project_conv", "conv"), (f"_blocks.{i}._bn2", "bn"))
    yield from (("_conv_head", "conv"), ("_bn1", "bn"), ("_fc", "linear"))


TENSORS = {
    "conv": ("weight",),
    "linear": ("weight", "bias"),
    "bn": ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"),
}


def foreign(model: nn.Module, name: str) -> dict[str, torch.Tensor]:
    """The model's tensors under the other names: both lists have the order of the net."""
    names = [f"{layer}.{tensor}" for layer, kind in layers(*BLOCKS[name]) for tensor in TENSORS[kind]]
    return dict(zip(names, model.state_dict().values(), strict=True))


def shuffled(model: nn.Module) -> nn.Module:
    """No two layers alike: those of a fresh net all have the same BatchNorm."""
    generator = torch.Generator().manual_seed(0)
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=generator))
    return model


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("prefix", ["", "module."])
def test_every_tensor_finds_its_layer(name: str, prefix: str, tmp_path) -> None:
    source = shuffled(build(name, num_classes=7, seed=0))
    tensors = {prefix + key: value for key, value in foreign(source, name).items()}
    save_file(tensors, tmp_path / "net.safetensors")
    model = build(name, num_classes=7, normalize="imagenet", weights=tmp_path / "net.safetensors")
    assert isinstance(model, Normalized)
    for key, value in model.core.state_dict().items():
        assert torch.equal(value, source.state_dict()[key]), key


def test_weights_of_another_efficientnet_are_refused_and_change_nothing(tmp_path) -> None:
    lite = "timm:tf_efficientnet_lite0"
    model = build(lite, num_classes=7, seed=1)
    tensors = foreign(model, lite)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for strange in (
        "_blocks.16._bn1.weight",
        "_blocks.3._se_reduce.weight",
        "_blocks.3._odd.weight",
        "_odd.weight",
    ):
        save_file({**tensors, strange: torch.zeros(3)}, tmp_path / "net.safetensors")
        with pytest.raises(UserError, match="that the model lacks"):
            load_state(model, tmp_path / "net.safetensors")
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_other_nets_keep_their_names() -> None:
    tensors = {"_blocks.0._bn1.weight": torch.zeros(1), "_fc.weight": torch.zeros(1)}
    assert rename_tensors(tensors, ["blocks.0.0.bn1.weight"]) == tensors
