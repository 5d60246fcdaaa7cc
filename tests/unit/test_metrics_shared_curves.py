"""A measurement evaluates equal insertion curves once, and their ends, which no map changes, once per image."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from small_audits import small_images, small_net
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.measurement import CLEAN, Plan, Sample, measure, registered
from gyrograd.metrics.insertion import InsertionCurve, shared_curves
from gyrograd.metrics.passes import checked_target

RATIOS = (0.0, 0.25, 0.5, 1.0)
GRADIENT = gg.attribution("gradient")


def game(name: str, **settings: object) -> InsertionCurve:
    return InsertionCurve(name, ratios=RATIOS, **settings)  # type: ignore[arg-type]


@contextmanager
def rows_of(model: nn.Module) -> Iterator[list[int]]:
    """The number of rows of each pass of the model in the block."""
    rows: list[int] = []
    handle = model.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    yield rows
    handle.remove()


@pytest.mark.parametrize("name", ["insertion", "deletion"])
@pytest.mark.parametrize("substrate", ["model_zero", "mean", 0.5])
def test_curves_are_the_same(name: str, substrate: str | float) -> None:
    model, (x, y) = small_net(), small_images(3)
    curve, map = game(name, substrate=substrate), torch.rand_like(x)
    alone = curve.curve_of_map(model, map, x, y)
    with shared_curves():
        for _ in range(2):
            torch.testing.assert_close(curve.curve_of_map(model, map, x, y), alone, rtol=0, atol=1e-6)


def test_ends_are_evaluated_once_for_all_curves_of_the_same_images() -> None:
    model, (x, y) = small_net(), small_images(3)
    with shared_curves():
        game("insertion").curve_of_map(model, x, x, y)
        with rows_of(model) as rows:
            game("insertion").curve_of_map(model, -x, x, y)
            game("deletion").curve_of_map(model, x[1:], x[1:].clone(), y[1:])
    assert sum(rows) == 2 * 3 + 2 * 2


def test_equal_curves_are_evaluated_once() -> None:
    model, (x, y) = small_net(), small_images(3)
    with shared_curves():
        found = game("insertion").curve_of_map(model, x, x, y)
        with rows_of(model) as rows:
            again = game("insertion", attacked=True).curve_of_map(model, x.clone(), x.clone(), y)
            assert torch.equal(found, again)
            assert rows == []
            for other in ({"ties": "strict"}, {"reduce": "sum"}, {"max_batch": 2}):
                curve = game("insertion", **other)
                before = len(rows)
                found = curve.curve_of_map(model, x, x, y)
                assert len(rows) > before
    torch.testing.assert_close(found, curve.curve_of_map(model, x, x, y), rtol=0, atol=1e-6)


def test_other_images_classes_quantities_models_and_backgrounds_have_ends_of_their_own() -> None:
    model, other, (x, y) = small_net(), small_net(), small_images(3)
    with torch.no_grad():
        next(other.parameters()).mul_(-2)
    cases = [
        (game("insertion"), model, x, y),
        (game("insertion"), model, x, (y + 1) % 3),
        (game("insertion"), model, x.flip(0), y),
        (game("insertion"), other, x, y),
        (game("insertion", quantity="logit"), model, x, y),
        (game("insertion", substrate=0.5), model, x, y),
    ]
    with shared_curves():
        shared = [curve.curve_of_map(net, x, images, target) for curve, net, images, target in cases]
    for (curve, net, images, target), found in zip(cases, shared, strict=True):
        torch.testing.assert_close(found, curve.curve_of_map(net, x, images, target), rtol=0, atol=1e-6)


def test_an_end_does_not_depend_on_the_images_it_is_asked_for_with() -> None:
    model, (x, y) = small_net(), small_images(5)
    with shared_curves():
        together = game("insertion").curve_of_map(model, x, x, y)[:, [0, -1]]
    with shared_curves():
        apart = [
            game("insertion").curve_of_map(model, x[i : i + 1], x[i : i + 1], y[i : i + 1]) for i in range(5)
        ]
    assert torch.equal(together, torch.cat(apart)[:, [0, -1]])


def test_a_measurement_shares_the_ends() -> None:
    model, (x, y) = small_net(), small_images(3)
    metrics = (registered("insertion", ratios=RATIOS), registered("deletion", ratios=RATIOS))
    checked_target(model, x, y)
    with rows_of(model) as rows:
        measure(model, Sample(x, y, (0, 1, 2)), Plan({"g": GRADIENT}, (CLEAN,), metrics))
    # The map, two ends per image, and two points per image and curve.
    assert sum(rows) == 3 + 2 * 3 + 2 * 2 * 3


def test_outside_of_a_measurement_nothing_is_remembered() -> None:
    model, (x, y) = small_net(), small_images(2)
    before = game("insertion").curve_of_map(model, x, x, y)
    with torch.no_grad():
        next(model.parameters()).mul_(-2)
    assert not torch.equal(game("insertion").curve_of_map(model, x, x, y), before)


def test_the_number_of_classes_is_asked_for_once_and_again_for_a_class_beyond_it() -> None:
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).eval(), torch.rand(2, 1, 2, 2)
    checked_target(model, x, torch.tensor([0, 2]))
    with rows_of(model) as rows:
        checked_target(model, x, torch.tensor([1, 2]))
        assert rows == []
        with pytest.raises(UserError, match="has 3"):
            checked_target(model, x, torch.tensor([0, 4]))
    model[1] = nn.Linear(4, 5)
    assert checked_target(model, x, 4).tolist() == [4, 4]


def test_the_map_of_clean_images_is_shared_with_attacks_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, y) = small_net(), small_images(3)
    explained: list[tuple[Tensor, bool]] = []
    of_gradient = type(GRADIENT).__call__

    def noted(self: object, net: nn.Module, images: Tensor, *others: object, **more: object) -> Tensor:
        explained.append((images, any(weight.requires_grad for weight in net.parameters())))
        found: Tensor = of_gradient(self, net, images, *others, **more)
        return found

    monkeypatch.setattr(type(GRADIENT), "__call__", noted)
    noise = gg.measurement.noise((8 / 255,))
    few = Plan({"first": GRADIENT}, (CLEAN,), (registered("insertion"),), images=2)
    kept = gg.measurement.Metric("kept", lambda at: at.attack.value, "attacked")
    both = Plan({"g": GRADIENT}, (CLEAN, noise), (registered("insertion"), kept))
    # The plan of two images comes in between: those of all three are still known after it.
    measure(model, Sample(x, y, (0, 1, 2)), [both, few])
    # With frozen weights, as an attack has them: with others the last digit would depend on who asks first.
    assert [trained for images, trained in explained if torch.equal(images, x)] == [False]
