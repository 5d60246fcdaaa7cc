"""The check of a real device: it passes what is right and names what is wrong. The device here is the CPU."""

from __future__ import annotations

from itertools import count

from every_method import EVERY
from on_device import failures


def test_right_methods_pass():
    methods = ("map gradient", "slopes gradient", "attack top_k", "metric insertion", "regularizer l2")
    assert not list(failures("cpu", {name: EVERY[name] for name in methods}))


def test_wrong_methods_are_named_with_the_check_they_fail():
    calls = count(1)
    wrong = {
        "map rounded": lambda model, x, y: [model(x).sum(1).half()],
        "metric changing": lambda model, x, y: [next(calls) * model(x).detach().to(x.dtype)],
    }
    assert [line.split(":")[0] for line in failures("cpu", wrong)] == [
        "map rounded, finite_in_half_precision",
        "map rounded, single_under_autocast",
        "metric changing, same_as_on_the_cpu",
        "metric changing, same_without_grad",
    ]
