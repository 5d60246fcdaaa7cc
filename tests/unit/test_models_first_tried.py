"""A model that was not seen before is tried on a few examples: what it may not do, and whose mistake it was."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from small_attributions import ONE_OF_EACH, small
from torch import Tensor, nn

import gyrograd as gg
from gyrograd import theory
from gyrograd.attributions import Gradient
from gyrograd.errors import UserError
from gyrograd.models import Normalized
from gyrograd.models.outputs import check_model
from gyrograd.numerics.checks import TRIAL_ROWS, try_model
from gyrograd.smoothing import Smoothed

SIDE = 6
WRITES = "writes into the images .* compute a new tensor there: x = .x - m. / s"


class Net(nn.Module):
    """Softplus net whose forward begins with `change`."""

    def __init__(self, change: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.change = change
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.softplus(self.conv(self.change(x))).mean((2, 3)))


def subtracted(x: Tensor) -> Tensor:
    return x.sub_(0.4).div_(0.2)


def behind_the_back(x: Tensor) -> Tensor:
    x.data.mul_(3)
    return x


WRITERS = {"in place": subtracted, "through .data": behind_the_back}
every_writer = pytest.mark.parametrize("change", WRITERS.values(), ids=WRITERS.keys())


def batch(b: int = 2) -> tuple[Tensor, Tensor]:
    return torch.rand(b, 3, SIDE, SIDE), torch.arange(b) % 5


@every_writer
@pytest.mark.parametrize("name", sorted(ONE_OF_EACH))
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_model_that_writes_into_its_input_is_refused_by_every_attribution(name, change, create_graph):
    if create_graph and not ONE_OF_EACH[name].differentiable:
        pytest.skip("no graph to x")
    x, target = batch()
    before = x.clone()
    with pytest.raises(UserError, match=WRITES):
        small(name)(Net(change), x, target, create_graph=create_graph)
    assert torch.equal(x, before)


def own_map(model: nn.Module, x: Tensor, target: Tensor, *, create_graph: bool = False) -> Tensor:
    return x * model(x.clone())[:, :1, None, None].detach()


def verbs() -> dict[str, Callable[[nn.Module, Tensor, Tensor], object]]:
    gradient = Gradient()
    attacks = {
        f"attack {name}": lambda m, x, t, name=name: gg.attack(name, eps=0.1)(m, gradient, x, t)
        for name in ("untargeted_map", "random", "pgd")
    }
    metrics = {
        f"metric {name}": lambda m, x, t, name=name: gg.metric(name)(m, gradient, x, t)
        for name in ("accuracy", "rps", "insertion", "infidelity", "faithfulness", "model_lipschitz")
    }
    regularizers = {
        f"regularizer {name}": lambda m, x, t, name=name: gg.regularizer(name)(m, x, t)
        for name in ("l2", "cosine", "hessian", "ssr", "ig_norm", "iga", "adversarial", "max_entropy")
    }
    return {
        **attacks,
        **metrics,
        **regularizers,
        "attack on a map of the user's own": lambda m, x, t: gg.attack("random", eps=0.1)(m, own_map, x, t),
        "theory criterion": lambda m, x, t: theory.l2_criterion(m, x, t, torch.full_like(x, 0.01)),
        "theory curvature": lambda m, x, _: theory.top_loss_curvature(m, x),
        "predicted": lambda m, x, _: gg.predict(m, x),
        "checked": lambda m, x, _: check_model(m, x),
        "audit": lambda m, x, t: gg.audit(m, x, t, preset="quick", methods=["gradient"]),
    }


@every_writer
@pytest.mark.parametrize("verb", verbs())
def test_no_verb_explains_or_alters_what_a_model_writes_into(verb, change):
    x, target = batch()
    before = x.clone()
    with pytest.raises(UserError, match=WRITES):
        verbs()[verb](Net(change), x, target)
    assert torch.equal(x, before)


def test_a_normalised_core_that_writes_behind_autograds_back_is_refused():
    x, target = batch()
    with pytest.raises(UserError, match=WRITES):
        Gradient()(Normalized(Net(behind_the_back), [0.5] * 3, [0.2] * 3), x, target)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda x: F.dropout(x, 0.1), True),
        (lambda x: x + 0.01 * torch.randn_like(x), True),
        (lambda x: 2 * x, False),
    ],
)
def test_an_attack_tells_of_a_model_that_answers_differently_every_time(change, told):
    x, target = batch(2)
    hit = gg.attack("auto", eps=4 / 255, steps=1)(Net(change), Gradient(), x, target)
    assert any("change from call to call" in flag for flag in hit.flags) == told


def test_a_model_is_tried_on_a_few_examples_when_it_is_first_seen():
    x, target = batch(TRIAL_ROWS + 2)
    rows = []
    model = Net(lambda x: rows.append(len(x)) or x)
    Gradient()(model, x, target)
    first = list(rows)
    Gradient()(model, x, target)
    gg.attribution("smoothgrad", draws=2)(model, x, target)
    assert first == [TRIAL_ROWS, TRIAL_ROWS, TRIAL_ROWS + 2]
    assert rows == [TRIAL_ROWS, TRIAL_ROWS, *[TRIAL_ROWS + 2] * 2, 2 * (TRIAL_ROWS + 2)]


def test_a_tried_model_is_not_kept_alive():
    model = Net()
    Gradient()(model, *batch())
    there = weakref.ref(model)
    del model
    gc.collect()
    assert there() is None


class OwnError(Exception):
    pass


@pytest.mark.parametrize("error", [KeyError("key"), ZeroDivisionError(), MemoryError(), OwnError("mine")])
def test_what_a_model_raises_is_the_cause_of_one_sentence(error):
    def broken(_: Tensor) -> Tensor:
        raise error

    with pytest.raises(UserError, match=f"The model raised {type(error).__name__}") as caught:
        Gradient()(Net(broken), *batch())
    assert caught.value.__cause__ is error
    assert "\n" not in str(caught.value)


OUTPUTS = {
    "a tuple": (lambda z: (z, z), "returned a tuple"),
    "a dict": (lambda z: {"logits": z}, "returned a dict"),
    "truth numbers": (lambda z: z > 0, "returned bool numbers"),
    "integers": (lambda z: z.long(), "returned int64 numbers"),
    "complex numbers": (lambda z: z + 1j, "returned complex64 numbers"),
    "sparse rows": (lambda z: z.to_sparse(), "returned sparse numbers"),
    "one number an image": (lambda z: z[:, 0], "returned shape"),
}


@pytest.mark.parametrize(("output", "words"), OUTPUTS.values(), ids=OUTPUTS.keys())
@pytest.mark.parametrize("name", ["gradient", "ig", "smoothgrad", "guided_backprop", "lrp", "lime"])
def test_other_outputs_than_logits_are_named_in_one_sentence(name, output, words):
    class Odd(Net):
        def forward(self, x: Tensor) -> Tensor:
            return output(super().forward(x))

    with pytest.raises(UserError, match=words):
        small(name)(Odd(), *batch())


def test_images_of_another_precision_are_named():
    x, target = batch()
    with pytest.raises(
        UserError,
        match="cannot take float64 images .*; give it weights of float64, or images of its dtype",
    ):
        Gradient()(Net(), x.double(), target)


def test_a_model_is_not_tried_again_by_checked():
    x, _ = batch()
    model = Net()
    try_model(model, x)
    assert check_model(model, x) is model


def test_complex_weights_are_named():
    model = Net()
    model.extra = nn.Parameter(torch.eye(3).to(torch.complex64))
    with pytest.raises(UserError, match="'extra' holds complex numbers"):
        check_model(model, batch()[0])


@pytest.mark.parametrize("draws", [True, 1.5, 0])
def test_a_smoothed_model_takes_a_whole_number_of_draws(draws):
    make = getattr(Smoothed.__init__, "__wrapped__", Smoothed.__init__)
    with pytest.raises(UserError, match="at least one draw, a whole number, not"):
        make(Smoothed.__new__(Smoothed), Net(), gg.kernel("gaussian"), draws)


def test_images_that_lie_otherwise_in_memory_are_tried_as_well():
    turned = torch.rand(2, 3, 8, 8).transpose(2, 3)
    try_model(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)), turned)


def test_images_of_another_size_are_named_by_their_size():
    model = nn.Sequential(nn.Flatten(), nn.Linear(10, 5))
    with pytest.raises(UserError, match=r"cannot take images of 3 x 2 x 2 .*\(--size\)"):
        Gradient()(model, torch.rand(2, 3, 2, 2), torch.tensor([0, 1]))


def test_inputs_of_another_kind_are_refused_in_a_sentence_after_a_model_was_tried() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * (SIDE - 2) ** 2, 5))
    x, target = batch()
    Gradient()(model, x, target)
    with pytest.raises(UserError, match="cannot take float64 images"):
        Gradient()(model, x.double(), target)
    with pytest.raises(UserError, match="cannot take images of 3 x 5 x 5"):
        Gradient()(model, x[..., 1:, 1:], target)


def test_a_function_in_place_of_a_model_is_one_sentence():
    """In a process of its own, because the types of all calls are checked in this one."""
    code = """
import torch, gyrograd as gg
from gyrograd.errors import UserError
f, x, y, h = (lambda x: x.flatten(1)[:, :3]), torch.rand(2, 3, 4, 4), torch.tensor([0, 1]), gg.attribution("gradient")
calls = {"predict": lambda: gg.predict(f, x)}
for kind, given in {"attribution": (x, y), "regularizer": (x, y), "attack": (h, x, y), "metric": (h, x, y)}.items():
    for name in gg.available(kind):
        calls[f"{kind} {name}"] = lambda kind=kind, name=name, given=given: getattr(gg, kind)(name)(f, *given)
for name, call in calls.items():
    try:
        call()
    except UserError as wrong:
        print(name, "|", wrong)
    else:
        print(name, "| nothing")
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    sentences = dict(line.split(" | ", 1) for line in told.splitlines())
    assert len(sentences) > 60
    # Metrics of attacks first ask for the attacked images.
    others = {
        name
        for name, said in sentences.items()
        if not said.startswith("The model is a function; give an nn.")
    }
    assert all(sentences[name].startswith("This metric looks at attacked") for name in others)
