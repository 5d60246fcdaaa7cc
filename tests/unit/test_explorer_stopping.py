"""A stop is obeyed: in the queue, between two passes of any attack or map, and by no work asked for after it."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_attributions import ONE_OF_EACH
from torch import nn

import gyrograd as gg
from gyrograd.data import Dataset
from gyrograd.data.opening import NamedData
from gyrograd.explorer import Net, Plan, Stopped, attack_image, compare_models, explain_image, make_stage
from gyrograd.explorer.page import Wish, _in_a_sentence, compute_answer, watch_of
from gyrograd.explorer.watching import ProgressReporter, at_every_pass, unwatched

SIDE = 16
METHODS = sorted(ONE_OF_EACH)


def small_net(activation: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, padding=1), activation(), nn.Conv2d(4, 4, 3, padding=1), activation()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * SIDE * SIDE, 3)).eval()


@pytest.fixture(params=[nn.Softplus, nn.ReLU])
def net(request) -> Net:
    blocks = torch.randint(
        0, 256, (2, 3, 4, 4), generator=torch.Generator().manual_seed(3), dtype=torch.uint8
    )
    images = blocks.repeat_interleave(SIDE // 4, 2).repeat_interleave(SIDE // 4, 3)
    data = Dataset(images, torch.arange(2), ("ant", "bee", "cow"), "farm")
    stage = make_stage({"net": small_net(request.param)}, NamedData(data, ("a", "b"), (0, 1)))
    return stage.nets[0]


@pytest.fixture
def x() -> torch.Tensor:
    pixels = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    return pixels.repeat_interleave(SIDE // 4, 2).repeat_interleave(SIDE // 4, 3)


class Passes:
    """Counts the passes of a net, and is a watch that wants no more once there were enough."""

    def __init__(self, net: Net, enough: int) -> None:
        self.count, self.enough, self.after = 0, enough, 0
        net.model.register_forward_hook(self.note)

    def note(self, *_: object) -> None:
        self.count += 1
        self.after += self.count > self.enough

    def __call__(self, share: float, what: str) -> None:
        if self.count >= self.enough:
            raise Stopped(what)


@pytest.mark.parametrize("method", ["gradient", "shap"])
@pytest.mark.parametrize("attack", sorted(gg.available("attack")))
def test_no_attack_takes_another_pass_after_a_stop(attack, method, net, x):
    plan = Plan(method, attack, eps=2 / 255, steps=4)
    whole = Passes(net, 10**6)
    attack_image(net, x, None, plan, watch=whole)
    for enough in {3, whole.count // 2, whole.count - 2}:
        passes = Passes(net, enough)
        with pytest.raises(Stopped):
            attack_image(net, x, None, plan, watch=passes)
        assert passes.after == 0
    assert not net.model._forward_pre_hooks
    assert all(weight.requires_grad for weight in net.model.parameters())


@pytest.mark.parametrize("method", METHODS)
def test_no_method_takes_another_pass_after_a_stop(method, net, x):
    explain_image(net, x, None, [method], watch=lambda *_: None)  # a net that is new takes more passes
    whole = Passes(net, 10**6)
    explain_image(net, x, None, [method, "gradient"], watch=whole)
    passes = Passes(net, whole.count - 1)
    with pytest.raises(Stopped):
        explain_image(net, x, None, [method, "gradient"], watch=passes)
    assert passes.after == 0
    assert not net.model._forward_pre_hooks


def told_of(net: Net, x: torch.Tensor, **plan: object) -> list[tuple[float, str]]:
    told: list[tuple[float, str]] = []
    attack_image(net, x, None, Plan(**plan), watch=lambda share, what: told.append((share, what)))
    return told


@pytest.mark.parametrize("method", ["gradient", "smoothgrad", "lime"])
def test_an_attack_on_the_prediction_tells_every_step(method, net, x):
    told = told_of(net, x, method=method, attack="pgd", eps=8 / 255, steps=4)
    assert list(dict.fromkeys(told)) == [(done / 4, f"step {done} of 4") for done in range(5)]
    assert [share for share, _ in told] == sorted(share for share, _ in told)


def test_noise_has_no_steps_to_tell_of(net, x):
    assert {what for _, what in told_of(net, x, attack="random")} == {"Random"}


def test_watching_every_pass_changes_no_number(net, x):
    plan = Plan("smoothgrad", "pgd", eps=16 / 255, steps=3)
    one, other = (
        attack_image(net, x, None, plan, seed=2, watch=w).hit for w in (unwatched, Passes(net, 10**6))
    )
    alone = gg.attack("pgd", eps=16 / 255, steps=3)(
        net.model, gg.attribution("smoothgrad"), x, net.model(x).argmax(1), seed=2
    )
    assert torch.equal(one.x, other.x)
    assert torch.equal(one.map, alone.map)


def test_a_look_of_another_thread_is_not_stopped(net, x):
    def stop() -> None:
        raise Stopped("here")

    seen = []
    with at_every_pass(net.model, stop):
        other = threading.Thread(target=lambda: seen.append(net.model(x)))
        other.start()
        other.join()
        with pytest.raises(Stopped):
            net.model(x)
    assert len(seen) == 1
    net.model(x)


def test_a_copy_forgets_the_watch_with_the_block(net, x):
    import copy

    calls = []
    with at_every_pass(net.model, lambda: calls.append(1)):
        twin = copy.deepcopy(net.model)
        twin(x)
    assert calls == [1]
    twin(x)
    assert calls == [1]


def test_a_place_is_told_again_once_there_is_one():
    told = []
    place = ProgressReporter(lambda share, what: told.append((share, what)))
    place.again()
    assert told == []
    place(0.5, "half")
    place.again()
    assert told == [(0.5, "half")] * 2


def shown(wish: Wish, key: str, work=lambda watch: ("done", b"")) -> str:
    """What the page shows when the work's turn comes."""
    watch = watch_of(wish, key, lambda share, desc: None)
    return _in_a_sentence(lambda: compute_answer(work, watch))[0]


def test_a_stop_pressed_while_the_work_waits_in_the_queue_is_obeyed_when_its_turn_comes():
    wish = Wish()
    wish.ask("attack")
    wish.stop()
    begun = []
    assert "Stopped at the start." in shown(wish, "attack", lambda watch: begun.append(1) or ("done", b""))
    assert begun == []
    wish.ask("attack")
    assert shown(wish, "attack") == "done"


def test_work_asked_for_after_a_stop_does_not_save_what_was_stopped():
    wish = Wish()
    wish.ask("attack")
    watch = watch_of(wish, "attack", lambda share, desc: None)
    watch(0.0, "step 0")
    wish.stop()
    wish.ask("compare")
    with pytest.raises(Stopped, match="step 1"):
        watch(0.5, "step 1")
    assert shown(wish, "compare") == "done"


def test_the_bar_moves_while_nobody_stops():
    wish, moved = Wish(), []
    wish.ask("explain")
    watch_of(wish, "explain", lambda share, desc: moved.append((share, desc)))(0.25, "gradient")
    assert moved == [(0.25, "gradient")]


@given(st.lists(st.sampled_from(["explain", "attack", "stop"]), max_size=12))
def test_work_runs_if_and_only_if_no_stop_came_after_its_button(presses):
    wish, wanted = Wish(), {}
    for press in presses:
        if press == "stop":
            wish.stop()
            wanted = dict.fromkeys(wanted, False)
        else:
            wish.ask(press)
            wanted[press] = True
    for key, runs in wanted.items():
        assert (shown(wish, key) == "done") == runs


def test_two_models_compared_stop_in_the_first(net, x):
    passes = Passes(net, 5)
    with pytest.raises(Stopped, match="net: step"):
        compare_models([net, net], x, None, Plan(steps=50), watch=passes)
    assert passes.after == 0
