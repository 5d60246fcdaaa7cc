"""LRP and guided backprop on foreign nets: a sample of the coverage table; copies in torchvision and timm agree."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision.models as tv
from timm.models import convnext, densenet, resnet, swin_transformer
from torch import Tensor, nn
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.resnet import BasicBlock, Bottleneck

import gyrograd as gg

ROOT = Path(__file__).parents[2]

# Ten of benchmarks/coverage.py, with fewer blocks and smaller images where the net permits.
SAMPLE: dict[str, tuple[int, dict[str, Any]]] = {
    "torchvision:squeezenet1_1": (48, {}),
    "timm:mobilenetv3_small_050": (32, {}),
    "timm:tinynet_e": (32, {}),  # an EfficientNet, scaled down
    "timm:regnety_002": (32, {}),
    "timm:starnet_s1": (32, {"depths": (1, 1, 1, 1)}),
    "timm:lcnet_050": (32, {}),
    "timm:convnext_atto": (32, {"depths": (1, 1, 1, 1)}),
    "timm:cait_xxs24_224": (32, {"img_size": 32, "depth": 2, "embed_dim": 48}),
    "timm:vit_tiny_patch16_224": (32, {"img_size": 32, "depth": 2, "embed_dim": 48}),
    "timm:swin_tiny_patch4_window7_224": (
        32,
        {"img_size": 32, "depths": (2, 1), "embed_dim": 12, "num_heads": (2, 4)},
    ),
}


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    spec = importlib.util.spec_from_file_location("coverage_table", ROOT / "benchmarks/coverage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["coverage_table"] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_the_coverage_table_is_exact_and_conserves(name, coverage):
    """Maps alone and in a batch, derivatives to x and to all weights, and what arrives under the conserving variant."""
    side, settings = SAMPLE[name]
    model = gg.model(name, num_classes=10, seed=0, **coverage.ARCHITECTURES[name][1] | settings)
    model = coverage.stirred(model, side).double()
    x = torch.rand(2, 3, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for method in ("lrp", "guided_backprop"):
        outcome, why, errors = coverage.outcome_of(method, model, x, torch.tensor([3, 7]))
        assert outcome == "exact", (method, why)
        if method == "lrp":
            assert errors["conserved"] <= 1e-4


def test_the_published_table_has_a_row_for_every_architecture_and_a_column_for_every_method(coverage):
    page = (ROOT / "results/coverage.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| t")]
    assert [row[0].strip() for row in rows] == list(coverage.ARCHITECTURES)
    header = next(line for line in page.splitlines() if line.startswith("| net |"))
    assert [word.strip() for word in header.split("|")[2:-4]] == coverage.METHODS
    assert {word.strip() for row in rows for word in row[1:-3]} == {"+", "map", "-"}


# One net, written by torchvision and by timm: narrow and shallow where both permit.
COPIES = {
    "resnet of basic blocks": lambda: (
        tv.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5),
        resnet.ResNet(resnet.BasicBlock, (1, 1, 1, 1), num_classes=5),
    ),
    "resnet of bottlenecks": lambda: (
        tv.ResNet(Bottleneck, [1, 1, 1, 1], num_classes=5),
        resnet.ResNet(resnet.Bottleneck, (1, 1, 1, 1), num_classes=5),
    ),
    "densenet": lambda: (
        tv.DenseNet(8, (2, 2), num_init_features=16, num_classes=5),
        densenet.DenseNet(8, (2, 2), num_classes=5),
    ),
    "mobilenet_v3": lambda: (
        tv.mobilenet_v3_small(num_classes=5),
        timm.create_model("mobilenetv3_small_100", num_classes=5, bn_eps=1e-3),
    ),
    "efficientnet": lambda: (
        tv.efficientnet_b0(num_classes=5),
        timm.create_model("efficientnet_b0", num_classes=5),
    ),
    "convnext": lambda: (
        tv.ConvNeXt([CNBlockConfig(8, 8, 1)] * 3 + [CNBlockConfig(8, None, 2)], num_classes=5),
        convnext.ConvNeXt(depths=(1, 1, 1, 2), dims=(8, 8, 8, 8), num_classes=5),
    ),
    "swin": lambda: (
        tv.SwinTransformer([4, 4], 8, [2, 2], [2, 4], [4, 4], num_classes=5),
        swin_transformer.SwinTransformer(
            32, embed_dim=8, depths=(2, 2), num_heads=(2, 4), window_size=4, num_classes=5
        ),
    ),
}


def with_weights_of(twin: nn.Module, model: nn.Module) -> nn.Module:
    """The twin with the model's weights and statistics: of each shape they come in the same order."""

    def by_shape(net: nn.Module) -> dict[tuple[int, ...], list[Tensor]]:
        groups: dict[tuple[int, ...], list[Tensor]] = {}
        for value in net.state_dict().values():
            if value.is_floating_point():
                groups.setdefault(tuple(n for n in value.shape if n > 1), []).append(value)
        return groups

    ours, theirs = by_shape(twin), by_shape(model)
    assert ours.keys() == theirs.keys()
    for shape, values in theirs.items():
        for to, value in zip(ours[shape], values, strict=True):
            to.copy_(value.reshape(to.shape))
    return twin


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_one_net_in_torchvision_and_timm_have_the_same_maps(name, coverage):
    torch.manual_seed(0)
    model, twin = COPIES[name]()
    twin = with_weights_of(twin, coverage.stirred(model, 32)).double().eval()
    model = model.double()
    x, target = torch.rand(2, 3, 32, 32, dtype=torch.float64), torch.tensor([3, 0])
    torch.testing.assert_close(twin(x), model(x), rtol=1e-9, atol=1e-9)
    for explain in (
        *(gg.attribution("lrp", variant=variant) for variant in ("auto", "conserving", "epsilon")),
        gg.attribution("guided_backprop"),
    ):
        map, other = (explain(net, x, target) for net in (model, twin))
        assert (other - map).abs().max() <= 1e-6 * map.abs().max()
        assert map.abs().max() > 0


# AttnLRP of whole transformers


def scaled_slope(t: Tensor, factor: float) -> Tensor:
    """t, whose derivative is `factor` times its own."""
    return factor * t + ((1 - factor) * t).detach()


def by_gradient_times_input(model: tv.VisionTransformer, x: Tensor, target: Tensor) -> Tensor:
    """AttnLRP with the epsilon rule as Achtibat et al. run it: the gradient times the input of a net whose slopes are
    changed. A product halves them, an activation is its ratio, and a LayerNorm's denominator has none."""

    def normed(norm: nn.LayerNorm, z: Tensor) -> Tensor:
        centred = z - z.mean(-1, keepdim=True)
        spread = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
        return centred / spread.detach() * norm.weight + norm.bias

    x = x.clone().requires_grad_()
    z = model.conv_proj(x).flatten(2).transpose(1, 2)
    z = torch.cat([model.class_token.expand(len(z), -1, -1), z], 1) + model.encoder.pos_embedding
    for block in model.encoder.layers:
        attend = block.self_attention
        qkv = F.linear(normed(block.ln_1, z), attend.in_proj_weight, attend.in_proj_bias)
        q, k, v = qkv.unflatten(2, (3, attend.num_heads, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = scaled_slope(q, 0.25), scaled_slope(k, 0.25), scaled_slope(v, 0.5)
        mixed = (q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)).softmax(-1) @ v
        z = z + attend.out_proj(mixed.transpose(1, 2).flatten(2))
        hidden = block.mlp[0](normed(block.ln_2, z))
        z = z + block.mlp[3](hidden * (F.gelu(hidden) / hidden).detach())
    chosen = model.heads(normed(model.encoder.ln, z)[:, 0]).gather(1, target[:, None])
    (slope,) = torch.autograd.grad(chosen.sum(), x)
    return x.detach() * slope


def test_attnlrp_of_torchvisions_transformer_is_the_gradient_times_input_of_its_authors(coverage):
    torch.manual_seed(0)
    model = tv.VisionTransformer(16, 4, 3, 2, 12, 24, num_classes=5)
    nn.init.normal_(model.heads.head.weight)
    model = coverage.stirred(model, 16).double()
    x, target = torch.rand(2, 3, 16, 16, dtype=torch.float64), torch.tensor([3, 0])
    explain = gg.attribution("lrp", variant="attnlrp", rule="epsilon", stabilizer=1e-14)
    expected = by_gradient_times_input(model, x, target)
    assert (explain(model, x, target) - expected).abs().max() <= 1e-6 * expected.abs().max()
