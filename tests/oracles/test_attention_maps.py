"""Attention rollout and gradient x attention beside the papers' formulas, on a transformer of two blocks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from nets import CLASSES, TinyViT, batch, net
from test_second_order import BAR, relative_errors
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.errors import UserError

METHODS = ("attention_rollout", "gradient_x_attention")


class TwoBlocks(TinyViT):
    """Attention that hands out its weights, with or without a class token."""

    def __init__(self, seed: int = 0, *, class_token: bool = True, fused: bool = False) -> None:
        super().__init__(seed)
        self.class_token, self.fused = class_token, fused
        self.qkv2 = nn.Linear(self.width, 3 * self.width).double()
        self.seen: list[Tensor] = []

    def block(self, z: Tensor, qkv: nn.Linear) -> Tensor:
        q, k, v = qkv(self.norm1(z)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = F.scaled_dot_product_attention(3 * q, k, v)
        else:
            weights = (3 * q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)).softmax(-1)
            self.seen.append(weights)
            mixed = F.dropout(weights, 0.5, self.training) @ v
        z = z + self.projection(mixed.transpose(1, 2).flatten(2))
        return z + self.down(F.gelu(self.up(self.norm2(z))))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.clear()
        z = self.patch(x).flatten(2).transpose(1, 2)
        if self.class_token:
            z = torch.cat([self.token.expand(len(z), -1, -1), z], 1) + self.position
        z = self.block(self.block(z, self.qkv), self.qkv2)
        return self.head(self.norm(z)[:, 0] if self.class_token else self.norm(z).mean(1))


def by_hand(method: str, model: TwoBlocks, x: Tensor, target: Tensor) -> Tensor:
    with torch.enable_grad():
        explained = model(x).gather(1, target[:, None]).sum()
        slopes = torch.autograd.grad(explained, model.seen)
    maps = []
    for i in range(len(x)):
        n = model.seen[0].shape[-1]
        flow = torch.eye(n, dtype=x.dtype)
        for weights, slope in zip(model.seen, slopes, strict=True):
            step = torch.zeros(n, n, dtype=x.dtype)
            for h in range(model.heads):
                if method == "attention_rollout":
                    step += weights[i, h].detach() / model.heads
                else:
                    step += (weights[i, h] * slope[i, h]).clamp(min=0).detach() / model.heads
            if method == "attention_rollout":
                flow = (0.5 * step + 0.5 * torch.eye(n, dtype=x.dtype)) @ flow
            else:
                flow = flow + step @ flow
        row = flow[0, 1:] if model.class_token else flow.mean(0)
        maps.append(row.reshape(3, 3))
    return F.interpolate(torch.stack(maps)[:, None], (12, 12), mode="bilinear")


@pytest.mark.parametrize("class_token", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_the_map_is_the_papers_product_over_layers(method, class_token):
    model, (x, target) = TwoBlocks(class_token=class_token), batch(2)
    found = gg.attribution(method)(model, x, target)
    expected = by_hand(method, model, x, target)
    assert expected.std() > 1e-4
    torch.testing.assert_close(found, expected.expand(-1, 3, -1, -1) / 3)


@pytest.mark.parametrize("method", METHODS)
def test_fused_attention_gives_the_map_of_written_out_attention(method):
    x, target = batch(2)
    maps = [gg.attribution(method)(TwoBlocks(fused=fused), x, target) for fused in (True, False)]
    torch.testing.assert_close(*maps)


@pytest.mark.parametrize("method", METHODS)
def test_second_derivatives_match_finite_differences(method):
    x, target = batch(2, seed=3)
    errors = relative_errors(gg.attribution(method), TwoBlocks(fused=True), x, target)
    assert max(errors.values()) <= BAR, errors


def test_other_fusions_of_heads_keep_rows_that_sum_to_one():
    model, (x, target) = TwoBlocks(), batch(2)
    maps = {
        heads: gg.attribution("attention_rollout", heads=heads)(model, x, target)
        for heads in ("mean", "max", "min")
    }
    assert not torch.allclose(maps["mean"], maps["max"])
    assert not torch.allclose(maps["mean"], maps["min"])
    model(x)
    mixed = [weights.amax(1) + torch.eye(10, dtype=x.dtype) for weights in model.seen]
    first, second = (one / one.sum(2, keepdim=True) for one in mixed)
    row = (second @ first)[:, 0, 1:].reshape(2, 1, 3, 3).detach()
    torch.testing.assert_close(
        maps["max"].sum(1, keepdim=True), F.interpolate(row, (12, 12), mode="bilinear")
    )


class Windows(nn.Module):
    """Attention between the patches of each quarter of the image alone."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = F.avg_pool2d(x, 3).unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 4, 5, 1).reshape(-1, 4, 3)
        z = (z @ z.transpose(1, 2)).softmax(-1) @ z
        return self.head(z.unflatten(0, (len(x), 4)).mean((1, 2)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("model", "sentence"),
    [(net("lenet"), "has no attention"), (Windows().double(), "not between all patches")],
)
def test_nets_without_attention_between_all_patches_are_refused(model, sentence, method):
    x, target = batch(2)
    with pytest.raises(UserError, match=sentence):
        gg.attribution(method)(model, x, target)
