"""LRP's rule for each family of operations against its formula, and a whole transformer against a slow twin."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from nets import Squeezed, TinyViT, batch
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attributions.guided_backprop import GuidedBackprop
from gyrograd.attributions.lrp import LRP
from gyrograd.attributions.replay import record

SIGNED = {"rule": "epsilon", "residual": "signed", "pool": "signed", "bias": "keep", "stabilizer": 1e-12}


class Operation(nn.Module):
    """An operation alone: what it returns are the logits."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x).flatten(1)


def relevance_of(function, x: Tensor, target: int, **changes) -> Tensor:
    explain = LRP(first="same", **SIGNED | changes)
    return explain(Operation(function), x[None], torch.tensor([target]))[0]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.1


def at(place: int, length: int, value: float | Tensor = 1.0) -> Tensor:
    out = torch.zeros(length, dtype=torch.float64)
    out[place] = value
    return out


HALVES = slice(None, 4), slice(4, None)


def halves(function):
    """A function of the first and the last four of eight numbers."""
    return lambda x: function(*x.chunk(2, 1))


W = drawn(4, 4, seed=5)
C = drawn(4, seed=6)


def split(first: Tensor, second: Tensor) -> Tensor:
    return torch.cat([at(2, 4, first), at(2, 4, second)])


def softmax_taylor(x: Tensor) -> Tensor:
    return x * (at(2, 8) - x.softmax(0))


def layer_norm(x: Tensor, keep_bias: bool = True) -> Tensor:
    y = (x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt() * C[2] + (0.7 if keep_bias else 0.0)
    parts = x * (at(2, 4) - 0.25) / (x.var(unbiased=False) + 1e-5).sqrt() * C[2]
    return parts / y[2]


def evenly(a: Tensor, b: Tensor) -> Tensor:
    """Of negative weights only negative values excite; what is left is a trace."""
    shares = (a + b).clamp(max=0) / (a + b).clamp(max=0).sum()
    return torch.cat([shares * a / (a + b), shares * b / (a + b)])


def batch_norm(value: Tensor) -> Tensor:
    part = value * C[1] / (C[2] ** 2 + 1e-5).sqrt()
    return part / (part - C[0] * C[1] / (C[2] ** 2 + 1e-5).sqrt() + 0.7)


def of_matrices(a: Tensor, b: Tensor, part=lambda products: products) -> Tensor:
    """Entry (0, 1) of a 2x2 product: half of a_0i b_i1 over their sum to each factor."""
    a, b = a.view(2, 2), b.view(2, 2)
    left, right = torch.zeros_like(a), torch.zeros_like(b)
    products = part(a[0] * b[:, 1])
    left[0] = right[:, 1] = products / products.sum() / 2
    return torch.cat([left.flatten(), right.flatten()])


def matrices(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[:, :4].view(-1, 2, 2), x[:, 4:].view(-1, 2, 2)


MASK = torch.tensor([0.0] * 4 + [-torch.inf] * 4, dtype=torch.float64)
BIAS = torch.full((4,), 0.7, dtype=torch.float64)
RULES = {
    "product": (halves(torch.mul), {}, lambda a, b: split(0.5, 0.5)),
    "product with a gate": (halves(lambda a, b: a * b.sigmoid()), {}, lambda a, b: split(0.5, 0.5)),
    "gate held": (halves(lambda a, b: a * b.sigmoid()), {"product": "gate"}, lambda a, b: split(1.0, 0.0)),
    "gate held, written first": (
        halves(lambda a, b: b.tanh().view(-1, 4) * a), {"product": "gate"}, lambda a, b: split(1.0, 0.0)),
    "small gate held": (
        lambda x: x[:, :4] * x[:, 4:].mean(1, keepdim=True), {"product": "gate"}, lambda a, b: split(1.0, 0.0)),
    "two of a kind have no gate": (halves(torch.mul), {"product": "gate"}, lambda a, b: split(0.5, 0.5)),
    "quotient": (halves(torch.div), {}, lambda a, b: split(1.0, 0.0)),
    "reciprocal square root": (
        halves(lambda a, b: a * torch.rsqrt(b.square() + 1)), {}, lambda a, b: split(1.0, 0.0)),
    "sum": (halves(torch.add), {}, lambda a, b: split(a[2] / (a + b)[2], b[2] / (a + b)[2])),
    "difference": (halves(torch.sub), {}, lambda a, b: split(a[2] / (a - b)[2], -b[2] / (a - b)[2])),
    "reversed difference, alpha": (
        halves(lambda a, b: torch.rsub(a, b, alpha=3)), {},
        lambda a, b: split(-3 * a[2] / (b - 3 * a)[2], b[2] / (b - 3 * a)[2])),
    "difference by positive parts": (
        halves(torch.sub), {"residual": "positive"},
        lambda a, b: split(a[2].relu() / (a.relu() + (-b).relu())[2], (-b)[2].relu() / (a.relu() + (-b).relu())[2])),
    "addcmul": (
        halves(lambda a, b: torch.addcmul(a, a, b, value=2)), {},
        lambda a, b: split((a + a * b)[2] / (a + 2 * a * b)[2], (a * b)[2] / (a + 2 * a * b)[2])),
    "matrix product": (lambda x: torch.matmul(*matrices(x)), {"target": 1}, of_matrices),
    "matrix product by positive parts": (
        lambda x: torch.matmul(*matrices(x)), {"target": 1, "rule": "zplus"},
        lambda a, b: of_matrices(a, b, torch.relu)),
    "batched product": (lambda x: torch.bmm(*matrices(x)), {"target": 1}, of_matrices),
    "einsum": (lambda x: torch.einsum("bij,bjk->bik", *matrices(x)), {"target": 1}, of_matrices),
    "product added to another": (
        lambda x: torch.baddbmm(0 * matrices(x)[0], *matrices(x), alpha=2), {"target": 1}, of_matrices),
    "weights from x": (
        lambda x: F.linear(x[:1, :4], x[:, 4:].view(1, 4)), {"target": 0},
        lambda a, b: torch.cat([a * b, a * b]) / (a @ b) / 2),
    "constant first": (
        halves(lambda a, b: (W @ a.unsqueeze(2)).squeeze(2)), {},
        lambda a, b: torch.cat([W[2] * a / (W @ a)[2], 0 * b])),
    "einsum with a constant": (
        halves(lambda a, b: torch.einsum("ij,bj->bi", W, a)), {},
        lambda a, b: torch.cat([W[2] * a / (W @ a)[2], 0 * b])),
    "softmax": (lambda x: x.softmax(1), {}, lambda a, b: softmax_taylor(torch.cat([a, b]))),
    "softmax, masked": (
        lambda x: F.softmax(x.masked_fill(torch.arange(8) > 3, -torch.inf), dim=1), {},
        lambda a, b: torch.cat([a * (at(2, 4) - a.softmax(0)), 0 * b])),
    **{
        f"softmax, masked by a sum, {constants}": (
            lambda x: (x * torch.ones(8) + MASK).softmax(1), {"constants": constants},
            lambda a, b: torch.cat([a * (at(2, 4) - a.softmax(0)), 0 * b]))
        for constants in ("pass", "share")
    },
    "softmax, masked by a sum behind a sum": (
        halves(lambda a, b: torch.cat([a + b, b], 1).add(MASK).softmax(1)), {"constants": "share"},
        lambda a, b: torch.cat([a * (at(2, 4) - (a + b).softmax(0)), b * (at(2, 4) - (a + b).softmax(0))])),
    "softmax weights held": (
        halves(lambda a, b: a.softmax(1) * b), {"softmax": "constant"}, lambda a, b: split(0.0, 1.0)),
    "layer norm": (
        halves(lambda a, b: F.layer_norm(a, (4,), C, BIAS)), {"norm": "linear"},
        lambda a, b: torch.cat([layer_norm(a), 0 * b])),
    "layer norm, bias dropped": (
        halves(lambda a, b: F.layer_norm(a, (4,), C, BIAS)), {"norm": "linear", "bias": "drop"},
        lambda a, b: torch.cat([layer_norm(a, False), 0 * b])),
    "group norm": (
        lambda x: F.group_norm(x.view(-1, 2, 4), 2, C[[2, 1]], BIAS[:2]), {"norm": "linear"},
        lambda a, b: torch.cat([layer_norm(a), 0 * b])),
    "instance norm": (
        lambda x: F.instance_norm(x.view(-1, 2, 4), weight=C[[2, 1]], bias=BIAS[:2]), {"norm": "linear"},
        lambda a, b: torch.cat([layer_norm(a), 0 * b])),
    **{
        f"{name}, identity": (halves(function), {}, lambda a, b: split(1.0, 0.0))
        for name, function in {
            "layer norm": lambda a, b: F.layer_norm(a, (4,), C, BIAS),
            "rms norm": lambda a, b: F.rms_norm(a, (4,), C),
            "normalize": lambda a, b: F.normalize(a, dim=1),
            "gelu": lambda a, b: F.gelu(a), "silu": lambda a, b: F.silu(a), "hardswish": lambda a, b: F.hardswish(a),
            "mish": lambda a, b: F.mish(a), "exp": lambda a, b: a.exp(), "square": lambda a, b: a**2,
        }.items()
    },
    "rms norm": (
        halves(lambda a, b: F.rms_norm(a + 0 * b, (4,), C)), {"norm": "linear"}, lambda a, b: split(1.0, 0.0)),
    "batch norm": (
        lambda x: F.batch_norm(x.view(-1, 2, 4), C[:2], C[2:] ** 2, C[1:3], BIAS[:2]), {"norm": "linear"},
        lambda a, b: split(batch_norm(a[2]), 0.0)),
    "batch norm, passed over": (
        lambda x: F.batch_norm(x.view(-1, 2, 4), C[:2], C[2:] ** 2, C[1:3], BIAS[:2]), {},
        lambda a, b: split(1.0, 0.0)),
    **{
        f"{function.__name__} of a sum": (
            halves(lambda a, b, function=function: function(a + b)), {},
            lambda a, b: split(a[2] / (a + b)[2], b[2] / (a + b)[2]))
        for function in (F.relu, F.silu, F.hardswish, F.gelu, F.mish)
    },
    "approximate GELU of a sum": (
        halves(lambda a, b: F.gelu(a + b, approximate="tanh")), {},
        lambda a, b: split(a[2] / (a + b)[2], b[2] / (a + b)[2])),
    "vector norm": (
        halves(lambda a, b: torch.stack([a.norm(dim=1), b.norm(dim=1)], 1)), {"target": 0},
        lambda a, b: torch.cat([a**2 / (a**2).sum(), 0 * b])),
    "largest": (lambda x: x.view(-1, 2, 4).amax(2), {"target": 1}, lambda a, b: torch.cat([0 * a, at(b.argmax(), 4)])),
    "evenly behind a signed sum": (
        halves(lambda a, b: F.linear(a + b, -torch.ones_like(W))),
        {"rule": "zplus_even", "bias": "drop"},
        lambda a, b: evenly(a, b)),
    "gated linear unit": (lambda x: F.glu(x, 1), {}, lambda a, b: split(0.5, 0.5)),
    "added constant": (
        halves(lambda a, b: (a + 0 * b) + C), {"constants": "share"}, lambda a, b: split(a[2] / (a + C)[2], 0.0)),
    "added constant, passed": (halves(lambda a, b: (a + 0 * b) + C), {}, lambda a, b: split(1.0, 0.0)),
    "added constant, absolute": (
        halves(lambda a, b: F.gelu(a) - C), {"constants": "share", "residual": "absolute"},
        lambda a, b: split(F.gelu(a[2]).abs() / (F.gelu(a[2]).abs() + C[2].abs()), 0.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_each_operation_shares_as_its_formula_says(name):
    function, changes, expected = RULES[name]
    x = drawn(8, seed=3)
    changes = {"target": 2} | changes
    torch.testing.assert_close(
        relevance_of(function, x, **changes), expected(x[:4], x[4:]), rtol=1e-5, atol=1e-6
    )


PLACES = torch.tensor([5, 0, 3, 2])
MOVES = {
    "rolled": lambda x: x.roll(3, 1),
    "flipped": lambda x: x.flip(1),
    "padded": lambda x: F.pad(x, (2, 1), value=0.4),
    "padded by reflection": lambda x: F.pad(x, (2, 1), mode="reflect"),
    "windows": lambda x: x.unfold(1, 3, 2),
    "patches": lambda x: F.unfold(x.view(-1, 1, 2, 4), 2),
    "partitioned": lambda x: x.view(-1, 2, 2, 2).permute(0, 2, 1, 3).reshape_as(x.view(-1, 2, 2, 2)),
    "picked": lambda x: x[:, PLACES],
    "selected": lambda x: x.index_select(1, PLACES),
    "gathered": lambda x: x.gather(1, PLACES.expand(len(x), 4)),
    "repeated": lambda x: x.repeat_interleave(2, 1),
    "cut and stacked": lambda x: torch.stack(x.split([4, 4], 1)[::-1], 2),
    "after a class token": lambda x: torch.cat([torch.ones(len(x), 2, dtype=x.dtype), x[:, 3:]], 1),
    "chosen": lambda x: torch.where(torch.arange(8) > 3, x, 0.5),
    "diagonal": lambda x: x[:, :4].view(-1, 2, 2).diagonal(dim1=1, dim2=2),
    "turned": lambda x: x.view(-1, 2, 4).rot90(1, (1, 2)),
    "lower triangle": lambda x: x[:, :4].view(-1, 2, 2).tril(),
    "max-pool": lambda x: F.max_pool1d(x.view(-1, 1, 8), 2),
}


@pytest.mark.parametrize("name", MOVES)
def test_relevance_goes_back_to_where_each_value_came_from(name):
    move, x = MOVES[name], drawn(8, seed=4)
    (jacobian,) = torch.autograd.functional.jacobian(lambda x: move(x[None]).flatten(), (x,))
    for changed in (False, True):  # as relative changes, and as changes: behind a signed sum
        function = (lambda x: move(x + 0 * x)) if changed else move
        for target in range(len(jacobian)):
            torch.testing.assert_close(
                relevance_of(function, x, target), jacobian[target], rtol=1e-9, atol=1e-9
            )


# A whole transformer. R is relevance, shares are written out entry by entry.


def layer_by_products(a: Tensor, layer: nn.Linear, r: Tensor, gamma: float) -> Tensor:
    """W + gamma W+ with bias, mirrored for negative outputs; gamma 0 is the epsilon rule."""
    products = a[:, None] * layer.weight.T
    up, down = (products + gamma * side for side in (products.clamp(min=0), products.clamp(max=0)))
    b = layer.bias
    z = products.sum(0) + b
    total = torch.where(
        z > 0, up.sum(0) + b + gamma * b.clamp(min=0), down.sum(0) + b + gamma * b.clamp(max=0)
    )
    return (torch.where(z > 0, up, down) / total * r).sum(1)


def norm_by_products(a: Tensor, norm: nn.LayerNorm, r: Tensor) -> Tensor:
    centred = torch.eye(len(a), dtype=a.dtype) - 1 / len(a)
    spread = ((a - a.mean()).square().mean() + norm.eps).sqrt()
    products = a[:, None] * centred * norm.weight / spread
    return (products / (products.sum(0) + norm.bias) * r).sum(1)


def token_by_token(rule, a: Tensor, module: nn.Module, r: Tensor, *settings: float) -> Tensor:
    return torch.stack([rule(a[i], module, r[i], *settings) for i in range(len(a))])


def attention_by_products(model: TinyViT, a: Tensor, r: Tensor, gamma: float, half: bool) -> Tensor:
    """From the block's mixed tokens (before the projection) to its normalised tokens."""
    q, k, v = model.qkv(a).unflatten(1, (3, model.heads, -1)).unbind(1)
    shares = [torch.zeros_like(q) for _ in range(3)]
    r = r.unflatten(1, (model.heads, -1))
    for h in range(model.heads):
        scores = q[:, h] @ k[:, h].T * q.shape[-1] ** -0.5
        weights = scores.softmax(1)
        mixed = weights @ v[:, h]
        to_scores = torch.zeros_like(scores)
        for i in range(len(a)):
            products = weights[i][:, None] * v[:, h] / mixed[i] * r[i, h]
            shares[2][:, h] += products / (2 if half else 1)
            to_scores[i] = products.sum(1) / 2
        if half:
            to_scores = scores * (to_scores - weights * to_scores.sum(1, keepdim=True))
            for i in range(len(a)):
                for j in range(len(a)):
                    products = q[i, h] * k[j, h] * q.shape[-1] ** -0.5 / scores[i, j] * to_scores[i, j] / 2
                    shares[0][i, h] += products
                    shares[1][j, h] += products
    return token_by_token(layer_by_products, a, model.qkv, torch.stack(shares, 1).flatten(1), gamma)


def transformer_by_products(model: TinyViT, x: Tensor, target: int, gamma: float, half: bool) -> Tensor:
    size = model.patch.kernel_size[0]
    patches = F.unfold(x[None], size, stride=size)[0].T
    embedding = nn.Linear(patches.shape[1], model.width).double()
    embedding.weight.data, embedding.bias.data = model.patch.weight.flatten(1), model.patch.bias
    tokens = torch.cat([model.token[0], embedding(patches)])
    start = tokens + model.position[0]
    normed = model.norm1(start)
    mixed = model.mixed(normed[None])[0]
    middle = start + model.projection(mixed)
    hidden = model.up(model.norm2(middle))
    end = middle + model.down(F.gelu(hidden))
    r = torch.zeros_like(end)
    r[0] = layer_by_products(model.norm(end)[0], model.head, at(target, 5), gamma)
    r = token_by_token(norm_by_products, end, model.norm, r)
    through = token_by_token(layer_by_products, F.gelu(hidden), model.down, r * (end - middle) / end, gamma)
    through = token_by_token(layer_by_products, model.norm2(middle), model.up, through, gamma)
    r = r * middle / end + token_by_token(norm_by_products, middle, model.norm2, through)
    through = token_by_token(layer_by_products, mixed, model.projection, r * (middle - start) / middle, gamma)
    through = attention_by_products(model, normed, through, gamma, half)
    r = r * start / middle + token_by_token(norm_by_products, start, model.norm1, through)
    r = (r * tokens / start)[1:]
    r = token_by_token(layer_by_products, patches, embedding, r, gamma)
    return F.fold(r.T[None], x.shape[1:], size, stride=size)[0]


@pytest.mark.parametrize(
    ("variant", "gamma", "half"), [("attnlrp", 0.25, True), ("attnlrp", 0.4, True), ("cplrp", 0.0, False)]
)
def test_a_transformer_equals_its_slow_twin(variant, gamma, half):
    model, (x, target) = TinyViT(), batch(2)
    explain = LRP.variant(variant, stabilizer=1e-14, **{"gamma": gamma} if gamma else {})
    with torch.no_grad():
        expected = torch.stack(
            [transformer_by_products(model, x[i], int(target[i]), gamma, half) for i in range(2)]
        )
        # The twin hands back 1; the papers hand back the logit.
        expected = expected * model(x).gather(1, target[:, None])[:, :, None, None]
    torch.testing.assert_close(
        explain(model, x, target), expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max())
    )


class WithoutConstants(TinyViT):
    """The tiny transformer without what takes relevance and is no pixel: biases, positions, the class token."""

    def __init__(self) -> None:
        super().__init__()
        for name, weight in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, x: Tensor) -> Tensor:
        z = self.patch(x).flatten(2).transpose(1, 2)
        z = z + self.attended(self.norm1(z))
        z = z + self.down(F.gelu(self.up(self.norm2(z))))
        return self.head(self.norm(z).mean(1))


def test_attnlrp_and_cplrp_lose_relevance_to_constants_and_to_the_softmax_rule_alone():
    x, target = batch(2)
    whole = torch.ones(2, dtype=torch.float64)
    settings = {"stabilizer": 1e-14}
    for explain in (
        LRP.variant("cplrp", **settings),
        LRP.variant("attnlrp", softmax="constant", **settings),
    ):
        torch.testing.assert_close(explain.conserved(WithoutConstants(), x, target), whole, rtol=1e-6, atol=0)
        assert (explain.conserved(TinyViT(), x, target) - 1).abs().min() > 0.01
    taylor = LRP.variant("attnlrp", **settings).conserved(WithoutConstants(), x, target)
    assert (taylor - 1).abs().min() > 1e-4


def test_auto_is_attnlrp_for_attention_and_the_papers_else_and_says_so():
    x, target = batch(2)
    auto = gg.attribution("lrp", gamma=0.1)
    for model, name in ((TinyViT(), "attnlrp"), (Squeezed(), "paper")):
        assert auto.chosen(model, x) == name
        torch.testing.assert_close(auto(model, x, target), LRP.variant(name, gamma=0.1)(model, x, target))
        torch.testing.assert_close(
            auto.conserved(model, x, target), LRP.variant(name, gamma=0.1).conserved(model, x, target)
        )


@pytest.mark.parametrize("net", [TinyViT, Squeezed], ids=["transformer", "gates"])
@settings(max_examples=8, phases=[Phase.generate])  # no net is simpler than another
@given(seed=st.integers(0, 10_000))
def test_the_conserving_variant_loses_nothing_in_attention_gates_tokens_and_padding(net, seed):
    x, target = batch(2, seed)
    arrived = LRP.variant("conserving").conserved(net(seed), x, target)
    torch.testing.assert_close(arrived, torch.ones_like(arrived), rtol=1e-3, atol=0)


def test_relevance_of_a_class_token_is_lost_unless_it_is_skipped():
    x, target = batch(2)
    settings = LRP.variant("conserving", constants="pass")
    assert (settings.conserved(TinyViT(), x, target) < 0.9).all()


EXPLAIN = {
    "guided": GuidedBackprop(),
    **{name: LRP.variant(name) for name in ("paper", "conserving", "attnlrp", "cplrp")},
    "gates held": LRP(product="gate", norm="linear", constants="share"),
}


@pytest.mark.parametrize("net", [TinyViT, Squeezed], ids=["transformer", "gates"])
@pytest.mark.parametrize("method", EXPLAIN)
def test_second_derivatives_match_finite_differences_to_x_and_to_all_weights(net, method):
    model, (x, target) = net(), batch(2)
    explain, draw = EXPLAIN[method], torch.Generator().manual_seed(1)
    v = torch.randn(x.shape, generator=draw, dtype=x.dtype)

    def value() -> Tensor:
        return (explain(model, x, target) * v).sum()

    x.requires_grad_()
    weights = list(model.parameters())
    total = (explain(model, x, target, create_graph=True) * v).sum()
    slopes = torch.autograd.grad(total, [x, *weights], allow_unused=True, materialize_grads=True)
    for tensors, found in (([x], slopes[:1]), (weights, slopes[1:])):
        # In proportion to each number, so that none changes its sign: rules by sign have a kink there.
        along = [t.detach() * torch.randn(t.shape, generator=draw, dtype=t.dtype) for t in tensors]
        exact = sum(float((slope * d).sum()) for slope, d in zip(found, along, strict=True))
        assert abs(exact) > 1e-4 * float(total.detach().abs())
        errors = []
        for h in (1e-6, 1e-7, 1e-8, 1e-5):
            ends = []
            for side in (h, -h):
                for t, d in zip(tensors, along, strict=True):
                    t.data.add_(side * d)
                ends.append(value())
                for t, d in zip(tensors, along, strict=True):
                    t.data.sub_(side * d)
            errors.append(abs(float(ends[0] - ends[1]) / (2 * h) - exact) / abs(exact))
            if errors[-1] <= 1e-6:
                break
        assert min(errors) <= 1e-5


# Ways to write one net


@pytest.mark.parametrize("method", EXPLAIN)
def test_fused_and_written_out_attention_and_torchs_module_give_one_map(method):
    x, target = batch(2)
    maps = [EXPLAIN[method](TinyViT(attention=kind), x, target) for kind in ("fused", "written", "module")]
    for other in maps[1:]:
        torch.testing.assert_close(other, maps[0], rtol=1e-7, atol=1e-9 * float(maps[0].abs().max()))


@pytest.mark.parametrize("causal", [False, True])
def test_masks_of_fused_attention_are_kept(causal):
    x = drawn(1, 2, 3, 4)
    mask = torch.tensor([[True, False, True], [True, True, False], [False, True, True]])
    given_mask = {"is_causal": True} if causal else {"attn_mask": mask}
    weights = (x @ x.transpose(-2, -1) * 0.5).masked_fill(
        ~(torch.ones(3, 3).tril().bool() if causal else mask), -torch.inf
    )
    fused = Operation(lambda z: F.scaled_dot_product_attention(z, z + 0, z * 1, **given_mask))
    map = GuidedBackprop()(nn.Sequential(nn.Softplus(), fused), x, torch.tensor([3]), create_graph=True)
    assert torch.isfinite(map).all()
    torch.testing.assert_close(fused(x), (weights.softmax(-1) @ x).flatten(1))
    torch.testing.assert_close(record(fused, x, create_graph=False).logits.value, fused(x))


@pytest.mark.parametrize("method", EXPLAIN)
def test_timm_and_torchvision_vision_transformers_with_the_same_weights_agree(method):
    torch.manual_seed(0)
    model = torchvision.models.VisionTransformer(16, 8, 2, 2, 12, 24, num_classes=5).double().eval()
    nn.init.normal_(model.heads.head.weight)
    nn.init.normal_(model.class_token)
    twin = timm.models.VisionTransformer(
        16, 8, depth=2, embed_dim=12, num_heads=2, mlp_ratio=2, num_classes=5
    ).double().eval()  # fmt: skip
    names = {
        "conv_proj": "patch_embed.proj", "class_token": "cls_token", "encoder.pos_embedding": "pos_embed",
        "encoder.layers.encoder_layer_": "blocks.", "ln_1": "norm1", "ln_2": "norm2", "mlp.0": "mlp.fc1",
        "mlp.3": "mlp.fc2", "self_attention.in_proj_": "attn.qkv.", "self_attention.out_proj": "attn.proj",
        "encoder.ln": "norm", "heads.head": "head",
    }  # fmt: skip
    state = model.state_dict()
    for theirs, ours in names.items():
        state = {key.replace(theirs, ours): value for key, value in state.items()}
    twin.load_state_dict(state)
    x, target = torch.rand(2, 3, 16, 16, dtype=torch.float64), torch.tensor([3, 0])
    map, other = (EXPLAIN[method](net, x, target) for net in (model, twin))
    torch.testing.assert_close(other, map, rtol=1e-6, atol=1e-8 * float(map.abs().max()))


def small_efficientnet() -> nn.Module:
    """Squeeze and excitation, in-place activations, BatchNorm, depthwise convolutions."""
    settings = [torchvision.models.efficientnet.MBConvConfig(2, 3, 1, 8, 8, 1, 1.0, 1.0)]
    return torchvision.models.efficientnet.EfficientNet(settings, 0.1, num_classes=5)


EXPORTED = {
    "transformer": lambda: torchvision.models.VisionTransformer(16, 8, 1, 2, 12, 24, num_classes=5),
    "efficientnet": small_efficientnet,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EXPORTED)
def test_a_model_through_torch_export_has_the_map_of_its_source(name):
    torch.manual_seed(0)
    model = EXPORTED[name]().double().eval()
    side = 16 if name == "transformer" else 12
    x, target = torch.rand(2, 3, side, side, dtype=torch.float64), torch.tensor([3, 0])
    if name == "transformer":
        nn.init.normal_(model.heads.head.weight)
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("b", min=1, max=64)},))
    for method in ("guided", "paper", "attnlrp"):
        map = EXPLAIN[method](model, x, target)
        assert map.abs().max() > 0
        torch.testing.assert_close(
            EXPLAIN[method](Frozen(exported.module()), x, target), map,
            rtol=1e-6, atol=1e-9 * float(map.abs().max()),
        )  # fmt: skip


class Frozen(nn.Module):
    """An exported module, which refuses `train()` and `eval()`: it is in evaluation mode for good."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.call = [module]

    def forward(self, x: Tensor) -> Tensor:
        return self.call[0](x)
