"""One sentence for each mistake in the tensors, and modes left as found."""

from collections.abc import Callable

import pytest
import torch
from nets import batch, net
from torch import nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.numerics.checks import check_images, check_inputs, check_target
from gyrograd.numerics.modes import denormals_are_zero, eval_mode, flush_denormals


def images(**changes: float) -> torch.Tensor:
    x = torch.full((2, 3, 4, 4), 0.5)
    for place, value in zip(((0, 0, 0, 0), (1, 2, 3, 3)), changes.values(), strict=False):
        x[place] = value
    return x


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (
            images(a=-1.5, b=2.0),
            "undo the normalisation: give pixels in .0, 1. and wrap the model in Normalized",
        ),
        (images(a=0.0, b=255.0), "divide by 255"),
        (images(a=1.2), "clip"),
        (images(a=float("nan")), "NaN"),
        (images(a=float("inf")), "NaN or infinite"),
        (images().to(torch.uint8), "x.float"),
        (images().long(), "floating point"),
        (images()[0], "give x.None."),
        (images()[0, 0], "batch, channels, height and width"),
        (images()[:0], "at least one example"),
    ],
)
def test_images_out_of_order_are_refused(x: torch.Tensor, words: str):
    with pytest.raises(UserError, match=words) as caught:
        check_images(x)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_good_images_pass():
    check_images(images(a=0.0, b=1.0))
    check_images(images(a=-1e-7, b=1 + 1e-6).requires_grad_())


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.ones(3), "batch axis"),
        (torch.ones(0, 2), "at least one example"),
        (torch.ones(2, 2, dtype=torch.int64), "floating point"),
        (torch.tensor([[1.0, float("nan")]]), "NaN"),
    ],
)
def test_inputs_out_of_order_are_refused(x: torch.Tensor, words: str):
    with pytest.raises(UserError, match=words):
        check_inputs(x)


def test_inputs_of_any_range_pass():
    check_inputs(torch.tensor([[-40.0, 900.0]]))


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (torch.tensor([0, 1, 2]), r"shape \(3,\) for 2 examples"),
        (torch.tensor([[0], [1]]), "one class index for each"),
        (torch.tensor(1), "one class index for each"),
        (torch.tensor([0.0, 1.0]), "integers"),
        (torch.tensor([True, False]), "integers"),
        (torch.tensor([0, 5]), "from 0 to 4"),
        (torch.tensor([-1, 0]), "from 0 to 4"),
    ],
)
def test_targets_out_of_order_are_refused(target: torch.Tensor, words: str):
    with pytest.raises(UserError, match=words):
        check_target(target, 2, 5)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_good_targets_pass(dtype: torch.dtype):
    check_target(torch.tensor([0, 4], dtype=dtype), 2, 5)


def mixed_net() -> nn.Module:
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Sequential(nn.Dropout(), nn.BatchNorm1d(2)))
    net.train()
    net[1][1].eval()
    return net


def flags(net: nn.Module) -> list[bool]:
    return [module.training for module in net.modules()]


def test_each_submodule_gets_its_own_mode_back():
    net = mixed_net()
    before = flags(net)
    with eval_mode(net) as same:
        assert same is net
        assert not any(flags(net))
    assert flags(net) == before == [True, True, True, True, False]


def test_modes_come_back_after_an_exception():
    net = mixed_net()
    before = flags(net)
    with pytest.raises(KeyError), eval_mode(net):
        raise KeyError
    assert flags(net) == before


def test_a_model_stays_in_eval_mode_until_the_last_of_overlapping_blocks_ends():
    # Two threads that explain one model: the first to enter may be the first to leave.
    net = mixed_net()
    before = flags(net)
    first, second = eval_mode(net), eval_mode(net[1])
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert flags(net[1]) == [False, False, False]
    second.__exit__(None, None, None)
    assert flags(net) == before


def test_denormal_numbers_count_again_only_after_the_outer_of_two_blocks():
    assert not denormals_are_zero()
    with flush_denormals():
        with flush_denormals():
            pass
        assert denormals_are_zero()
    assert not denormals_are_zero()


def compiled() -> nn.Module:
    whole: nn.Module = torch.compile(net("lenet").double(), backend="eager")
    return whole


def compiled_in_place() -> nn.Module:
    model = net("lenet").double()
    model[0].compile(backend="eager")
    return model


@pytest.mark.parametrize("make", [compiled, compiled_in_place])
@pytest.mark.parametrize(
    "use",
    [
        lambda *given: gg.attribution("lrp")(*given),
        lambda *given: gg.attribution("guided_backprop")(*given),
        lambda model, x, y: gg.attack("auto", eps=0.1, steps=1)(model, gg.attribution("gradient"), x, y),
        lambda *given: gg.audit(*given, preset="glance"),
    ],
)
def test_a_compiled_model_is_refused_where_its_operations_or_second_derivatives_are_needed(
    use: Callable[..., object], make: Callable[[], nn.Module]
) -> None:
    with pytest.raises(UserError, match="give the module that was compiled"):
        use(make(), *batch(2))
