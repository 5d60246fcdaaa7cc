"""The record: what is seen, what is refused with which sentence, and that nothing is left behind."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from nets import batch, net
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attributions.guided_backprop import GuidedBackprop
from gyrograd.attributions.lrp import LRP, VARIANTS, conservation, lrp
from gyrograd.attributions.replay import operation_name, record
from gyrograd.errors import UserError
from gyrograd.models import with_activation

BOTH = [GuidedBackprop(), LRP()]
both = pytest.mark.parametrize("explain", BOTH, ids=["guided", "lrp"])


class Net(nn.Module):
    """Two layers with anything in between."""

    def __init__(self, between) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(4, 6)
        self.head = nn.Linear(6, 3)
        self.between = between
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self.first(x)))


def points(b: int = 2) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.rand(b, 4, dtype=torch.float64), torch.arange(b) % 3


def test_operations_go_by_one_name():
    for func in (torch.add, Tensor.add_, Tensor.__iadd__, Tensor.__radd__, Tensor.__add__):
        assert operation_name(func) == "add"
    assert operation_name(F.relu) == operation_name(torch.relu_) == operation_name(Tensor.relu_) == "relu"
    assert operation_name(Tensor.T.__get__) == "T"


def test_the_record_holds_values_from_before_they_were_overwritten():
    model = Net(lambda z: F.relu(z, inplace=True))
    x, _ = points()
    tape = record(model, x, create_graph=False)
    assert [call.name for call in tape.path] == ["linear", "relu", "linear"]
    torch.testing.assert_close(tape.path[1].inputs[0].value, model.first(x))
    torch.testing.assert_close(tape.path[1].outputs[0].value, model.first(x).relu())
    torch.testing.assert_close(tape.logits.value, model(x))


def overwritten_twice(z: Tensor) -> Tensor:
    z *= 2
    z += 0.1
    torch.relu_(z)
    return z.flatten(1).relu_()


SAME_FUNCTION = {
    "in-place arithmetic and a view": (overwritten_twice, lambda z: F.relu(2 * z + 0.1).relu()),
    "result of an in-place call unused": (lambda z: (z.relu_(), z)[1], F.relu),
    "old name used after an in-place call": (lambda z: (F.relu(z, inplace=True), z * 1.0)[1], F.relu),
    "branching on values": (lambda z: F.relu(z) if z.max() > -1e9 else z, F.relu),
    "unused side computation": (lambda z: (z.softmax(1), F.relu(z))[1], F.relu),
    "keyword arguments": (lambda z: F.relu(input=z), F.relu),
    "shape arithmetic": (lambda z: F.relu(z).view(z.shape[0], -1).contiguous(), F.relu),
    "summed and split": (lambda z: torch.cat(F.relu(z).chunk(2, 1), 1), F.relu),
    "matrix product": (
        lambda z: F.relu(z @ torch.eye(6).double()),
        lambda z: F.relu(F.linear(z, torch.eye(6).double())),
    ),
    "iterated over rows": (lambda z: torch.stack([F.relu(row) for row in z]), F.relu),
    "beside negative constants": (
        lambda z: torch.cat([F.relu(z)[:, :3], -torch.ones_like(z)[:, :3]], 1),
        # A multiple is not known to be nonnegative, so nothing is left out here.
        lambda z: torch.cat([F.relu(z)[:, :3] * 1.0, -torch.ones_like(z)[:, :3]], 1),
    ),
    "written into memory of its own": (lambda z: torch.zeros_like(z).add_(z).relu(), F.relu),
    "mean over an axis given by name": (lambda z: F.relu(z).unflatten(1, (6, 1)).mean(dim=2), F.relu),
    "minus a negative": (lambda z: F.relu(-(-0.5 - z)), lambda z: F.relu(z + 0.5)),
}


@both
@pytest.mark.parametrize("case", SAME_FUNCTION)
def test_ways_to_write_the_same_function_give_the_same_map(explain, case):
    odd, plain = SAME_FUNCTION[case]
    x, target = points()
    expected = explain(Net(plain), x, target)
    assert expected.abs().sum() > 0
    torch.testing.assert_close(explain(Net(odd), x, target), expected, rtol=1e-5, atol=1e-7)


@both
def test_the_map_can_be_differentiated_through_overwritten_values(explain):
    x, target = points()
    x.requires_grad_()
    slopes = []
    for between in (lambda z: F.silu(z, inplace=True), F.silu):
        map = explain(Net(between), x, target, create_graph=True)
        slopes.append(torch.autograd.grad((map * map).sum(), x)[0])
    torch.testing.assert_close(slopes[0], slopes[1])
    assert slopes[0].abs().sum() > 0


def test_a_model_that_overwrites_its_input_is_refused_and_the_input_left_alone():
    class Overwrites(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rest = Net(F.relu)

        def forward(self, x: Tensor) -> Tensor:
            x -= 0.5
            return self.rest(x)

    x, target = points()
    before = x.clone()
    with pytest.raises(UserError, match="compute a new tensor there"):
        GuidedBackprop()(Overwrites(), x, target)
    assert torch.equal(x, before)


def stale_view(z: Tensor) -> Tensor:
    view = z.view(-1)
    z.relu_()
    return view.view(z.shape)


def written_into(z: Tensor) -> Tensor:
    out = torch.zeros_like(z)
    out[:, :2] = F.relu(z[:, :2])
    return out


def copied_into_a_part(z: Tensor) -> Tensor:
    z[:, :2].copy_(F.relu(z[:, :2]))
    return z


def copied_into_a_constant(z: Tensor) -> Tensor:
    out = torch.zeros_like(z)
    out.copy_(F.relu(z))
    return out


def relu_in_place(z: Tensor) -> Tensor:
    F.relu(z, inplace=True)
    return z


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z: Tensor) -> Tensor:
        return z.relu()

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return g


REFUSED = {
    "sorted": (lambda z: F.relu(z).sort(1).values, "no rule for 'sort' .*after layer 'first'.*gradient method"),
    "batch statistics": (lambda z: F.batch_norm(F.relu(z), None, None, training=True), "examples see one another"),
    "dropout that stays on": (lambda z: F.dropout(F.relu(z), 0.5), "drops at random"),
    "detached": (lambda z: F.relu(z).detach(), "no rule for 'detach'"),
    "number taken out": (lambda z: F.relu(z) / z.abs().max().item(), "takes values out"),
    "stale view": (stale_view, "another view of it was overwritten"),
    "written into": (written_into, "writes into a tensor.*torch.cat"),
    "copied into a part": (copied_into_a_part, "another view of it was overwritten"),
    "copied into a constant": (copied_into_a_constant, "writes into a tensor.*torch.cat"),
    "chosen by sign": (lambda z: torch.where(z > 0, z, 0.1 * z), "no rule for 'gt'"),
}  # fmt: skip


@both
@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_rule_is_refused_in_one_sentence(explain, case):
    between, sentence = REFUSED[case]
    x, target = points()
    with pytest.raises(UserError, match=sentence):
        explain(Net(between), x, target)


@both
def test_gradients_switched_off_inside_are_refused_when_a_graph_is_wanted(explain):
    x, target = points()
    with pytest.raises(UserError, match="switches gradients off"):
        explain(Net(Straight.apply), x.requires_grad_(), target, create_graph=True)


REFUSED_BY_LRP = {
    "one over a value": (lambda z: 1 / F.softplus(z), "only through values that LRP holds constant"),
    "an exponent": (lambda z: 2 ** F.relu(z), "no rule for 'r?pow'"),
    "a product with itself": (
        lambda z: torch.einsum("bi,bj->bij", z, z).mean(2), "not the product of two different tensors"
    ),
}  # fmt: skip


REFUSED_BY_GUIDED_BACKPROP = {
    "SiLU written out": (lambda z: z * torch.sigmoid(z), "no rule for 'mul' .*activation that is written out.*F.silu"),
    "Hardswish written out": (lambda z: z * F.relu6(z + 3) / 6, "no rule for 'mul' .*written out"),
    "own square": (lambda z: F.relu(z) * F.relu(z), "no rule for 'mul' .*written out"),
    "softsign written out": (lambda z: z / (1 + z.abs()), "no rule for 'abs'"),
    "quotient written out": (lambda z: z / (1 + z**2).sqrt(), "no rule for 'div' .*written out"),
    "softplus written out": (lambda z: (1 + z.exp()).log(), "no rule for 'exp'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_BY_GUIDED_BACKPROP)
def test_guided_backprop_refuses_an_activation_it_cannot_see_as_one(case):
    between, sentence = REFUSED_BY_GUIDED_BACKPROP[case]
    x, target = points()
    with pytest.raises(UserError, match=sentence):
        GuidedBackprop()(Net(lambda z: between(F.relu(z) + 0.1 * z)), x, target)


WRITTEN_OUT = {
    "SiLU": (lambda z: z * torch.sigmoid(z), F.silu),
    "Hardswish": (lambda z: z * F.relu6(z + 3) / 6, F.hardswish),
    "softplus": (lambda z: (1 + z.exp()).log(), F.softplus),
    "RMSNorm": (
        lambda z: F.gelu(z * torch.rsqrt(z.square().mean(1, keepdim=True) + 1e-6)),
        lambda z: F.gelu(F.rms_norm(z, (6,), eps=1e-6)),
    ),
}


@pytest.mark.parametrize("case", WRITTEN_OUT)
def test_lrp_of_a_layer_written_out_is_that_of_torchs_own(case):
    written, own = WRITTEN_OUT[case]
    x, target = points()
    for explain in (LRP(), LRP.variant("attnlrp", norm="identity", constants="pass")):
        torch.testing.assert_close(explain(Net(written), x, target), explain(Net(own), x, target))


@pytest.mark.parametrize("case", REFUSED_BY_LRP)
def test_what_lrp_has_no_rule_for_is_refused_in_one_sentence(case):
    between, sentence = REFUSED_BY_LRP[case]
    x, target = points()
    with pytest.raises(UserError, match=sentence):
        LRP()(Net(between), x, target)


def test_guided_backprop_without_an_activation_is_refused():
    x, target = points()
    with pytest.raises(UserError, match="found no activation.*'gradient'"):
        GuidedBackprop()(Net(lambda z: z * 2), x, target)


def test_zbox_without_a_layer_that_sees_the_image_is_refused():
    x, target = points()
    model = nn.Sequential(nn.Softplus(), Net(F.relu)).double()
    with pytest.raises(UserError, match="set first='same'"):
        LRP()(model, x, target)
    assert torch.isfinite(LRP(first="same")(model, x, target)).all()


@both
def test_outputs_that_are_no_logits_are_refused(explain):
    x, target = points()
    with pytest.raises(UserError, match="let the model return its logits"):
        explain(nn.Identity(), x, target)
    with pytest.raises(UserError, match="return logits, 2 x classes"):
        explain(nn.Sequential(Net(F.relu), nn.Unflatten(1, (3, 1))), x, target)


class Writes(nn.Module):
    """Tokens of which all but the first are overwritten: in place, or put together."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.in_place = in_place
        self.first, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        z = self.first(x).unflatten(1, (4, 2))
        if self.in_place:
            z[:, 1:] = z[:, 1:] + F.relu(z[:, :3])
        else:
            z = torch.cat([z[:, :1], z[:, 1:] + F.relu(z[:, :3])], 1)
        return self.head(z.flatten(1))


@pytest.mark.parametrize("name", ["lrp", "guided_backprop", "deep_lift"])
def test_values_written_into_a_slice_are_those_that_were_put_together(name):
    x, target = points()
    explain, leaf = gg.attribution(name), x.clone().requires_grad_()
    results = []
    for in_place in (True, False):
        model = Writes(in_place).to(x.dtype).eval()
        map = explain(model, leaf, target, create_graph=True)
        slopes = torch.autograd.grad(map.square().sum(), [leaf, *model.parameters()], allow_unused=True)
        results.append([map.detach(), explain(model, x, target), *(s for s in slopes if s is not None)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@both
def test_a_slice_that_is_filled_with_constants_is_refused(explain):
    class Filled(Writes):
        def forward(self, x):
            z = self.first(x)
            z[:, 1:] = 0.5
            return self.head(z)

    x, target = points()
    with pytest.raises(UserError, match="setitem"):
        explain(Filled(True).to(x.dtype).eval(), x, target)


@both
def test_a_scripted_model_is_refused(explain):
    class Scripted(torch.jit.ScriptModule):
        def forward(self, x):
            return x

    x, target = points()
    with pytest.raises(UserError, match="scripted"):
        explain(nn.Sequential(Scripted(), Net(F.relu)), x, target)


@both
def test_inference_mode_is_refused(explain):
    x, target = points()
    with torch.inference_mode(), pytest.raises(UserError, match=r"torch.no_grad\(\)"):
        explain(Net(F.relu), x, target)


@both
def test_nothing_is_left_behind(explain):
    model, (x, target) = net("residual").train(), batch(2)
    model.bn1.eval()
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    random = torch.get_rng_state()
    explain(model, x.requires_grad_(), target)
    map = explain(model, x, target, create_graph=True)
    map.square().sum().backward(inputs=[x])
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), random)
    assert all(parameter.grad is None for parameter in model.parameters())
    hooks = [
        vars(module)[key] for module in model.modules() for key in vars(module) if key.endswith("_hooks")
    ]
    assert not any(hooks)


@pytest.mark.parametrize(
    "explain", [GuidedBackprop(), *map(LRP.variant, VARIANTS)], ids=["guided", *VARIANTS]
)
@settings(max_examples=5)
@given(seed=st.integers(0, 1000), b=st.integers(2, 4))
def test_a_batch_is_its_examples(explain, seed, b):
    torch.manual_seed(seed)
    model, x, target = Net(torch.tanh), torch.rand(b, 4, dtype=torch.float64), torch.randint(3, (b,))
    singles = [explain(model, x[i : i + 1], target[i : i + 1]) for i in range(b)]
    torch.testing.assert_close(explain(model, x, target), torch.cat(singles), rtol=1e-7, atol=1e-10)


def test_maps_of_a_smoothed_model_are_the_mean_of_the_maps_of_its_draws():
    core, (x, target) = net("lenet"), batch(2)
    calm = gg.smoothed(core, gg.kernel("uniform", eps=0.05), draws=3, seed=1)
    noise = calm._noise_for(x)
    for explain in (LRP(first="same"), LRP(first="same", start="one", max_batch=2), GuidedBackprop()):
        mean = torch.stack([explain(core, x + shift, target) for shift in noise]).mean(0)
        torch.testing.assert_close(explain(calm, x, target), mean)


@both
def test_an_in_place_relu_is_explained_and_attacked_through_its_softplus_twin(explain):
    x, target = points()
    plain, in_place = (
        with_activation(Net(f), "softplus", beta=5, example=x) for f in (F.relu, relu_in_place)
    )
    expected = explain(plain, x, target)
    torch.testing.assert_close(explain(in_place, x, target), expected)
    leaf = x.clone().requires_grad_()
    map = explain(in_place, leaf, target, create_graph=True)
    torch.testing.assert_close(map, expected)
    assert torch.autograd.grad(map.square().sum(), leaf)[0].any()


def test_a_batchnorm_is_not_merged_into_a_layer_whose_output_goes_elsewhere_too():
    norm = nn.BatchNorm1d(6).double().eval()
    nn.init.uniform_(norm.running_var, 0.2, 3)
    nn.init.uniform_(norm.weight, -1, 2)
    x, target = points()
    forked = Net(lambda z: F.relu(norm(z)) + F.relu(z))
    straight = Net(lambda z: F.relu(norm(z)))
    merge, ignore = LRP(first="same"), LRP(first="same", batchnorm="pass")
    torch.testing.assert_close(merge(forked, x, target), ignore(forked, x, target))
    assert not torch.allclose(merge(straight, x, target), ignore(straight, x, target))


def test_lrp_settings_are_checked_and_named():
    assert lrp("paper") == LRP() == LRP.variant("paper") == gg.attribution("lrp", variant="paper")
    assert lrp() == lrp("auto") == gg.attribution("lrp")
    assert lrp(rule="epsilon", max_batch=3) == lrp("auto", "epsilon", max_batch=3) != lrp(rule="gamma")
    assert lrp("reference", first="same") == LRP.variant("reference", first="same")
    assert gg.attribution("lrp", variant="epsilon").rule == "epsilon"
    for wrong, sentence in {
        "rule": "did you mean 'zplus'",
        "variant": "known: attnlrp, auto, conserving, cplrp, epsilon, gamma, paper, reference",
    }.items():
        with pytest.raises(UserError, match=sentence):
            lrp(**{wrong: "zpluss"})
    with pytest.raises(UserError, match="stabilizer is .*; give a number above 0"):
        LRP(stabilizer=0.0)
    with pytest.raises(UserError, match="did you mean 'probability'"):
        GuidedBackprop("probabilty")


def test_conservation_is_the_share_that_arrived():
    map = torch.tensor([[[1.0, 2.0]], [[0.5, 0.0]]])
    torch.testing.assert_close(conservation(map, torch.tensor([3.0, 1.0])), torch.tensor([1.0, 0.5]))
