"""The columns `auto` can be aimed at: each is the number its definition says, and no brute force finds a lower one."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attacks import auto as driver
from gyrograd.attacks.auto import COLUMNS, Auto
from gyrograd.attacks.engine import derivative
from gyrograd.attacks.objectives import Scene

GRADIENT = gg.attribution("gradient")
EPS = 0.05
"""So small that the ball holds one basin of each column, as a descent takes for granted."""
H, W = 2, 3


def tiny_net() -> nn.Module:
    torch.manual_seed(1)
    layers = [
        nn.Flatten(),
        nn.Linear(H * W, 8),
        nn.Softplus(3),
        nn.Linear(8, 8),
        nn.Softplus(3),
        nn.Linear(8, 3),
    ]
    net = nn.Sequential(*layers).double().eval()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(2)
    return net


def images(n: int = 3) -> tuple[Tensor, Tensor]:
    x = torch.rand(n, 1, H, W, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x = 0.15 + 0.7 * x
    return x, tiny_net()(x).argmax(1)


MASK = torch.tensor([[True, False, False], [True, True, False]])
GOAL = torch.tensor([[0.0, 1.0, 0.5], [0.0, 0.0, 1.0]])
SETTINGS: dict[str, dict[str, Any]] = {
    "top_kept": {"top_fraction": 0.34},
    "cosine": {},
    "rank_correlation": {},
    "insertion": {"ratios": (0.0, 0.17, 0.34, 0.5, 0.67, 0.84, 1.0)},
    "local_lipschitz": {},
    "distance_to_goal": {"goal": GOAL},
    "mass_in_mask": {"mask": MASK},
}


def attack(column: str, **settings: Any) -> Auto:
    return Auto(**({"eps": EPS, "column": column, "steps": 16} | SETTINGS[column] | settings))


def insertion_by_hand(
    model: nn.Module, map: Tensor, x: Tensor, target: Tensor, ratios: tuple[float, ...]
) -> list[float]:
    """One pixel after the other on black, in falling order of the map; the mean probability over the shares."""
    found = []
    model = model.requires_grad_(False)
    for pixels, image, label in zip(map.abs().sum(1).flatten(1).tolist(), x, target.tolist(), strict=True):
        order = sorted(range(len(pixels)), key=lambda at: -pixels[at])
        curve = []
        for ratio in ratios:
            canvas = torch.zeros_like(image).flatten()
            for at in order[: int(ratio * len(pixels) + 1e-9)]:
                canvas[at] = image.flatten()[at]
            curve.append(float(model(canvas.view(1, 1, H, W)).softmax(1)[0, label]))
        found.append(sum(curve) / len(curve))
    return found


def by_hand(column: str, hit: Any) -> Tensor:
    """The column of each image, from its definition."""
    before, after = hit.map_clean.flatten(1), hit.map.flatten(1)
    if column == "insertion":
        values = insertion_by_hand(tiny_net(), hit.map, hit.x_clean, hit.target, SETTINGS[column]["ratios"])
        return torch.tensor(values, dtype=torch.float64)
    if column == "local_lipschitz":
        return -(after - before).norm(dim=1) / (hit.x - hit.x_clean).flatten(1).norm(dim=1)
    if column == "distance_to_goal":
        scaled = after.abs() / after.abs().amax(1, keepdim=True)
        return 0.5 * (scaled - GOAL.flatten()).square().sum(1)
    assert column == "mass_in_mask"
    return after.abs()[:, MASK.flatten()].sum(1) / after.abs().sum(1)


NEW = ["insertion", "local_lipschitz", "distance_to_goal", "mass_in_mask"]


@pytest.mark.parametrize("column", NEW)
def test_the_value_is_the_number_of_the_definition(column):
    x, target = images()
    hit = attack(column, steps=6)(tiny_net(), GRADIENT, x, target)
    torch.testing.assert_close(hit.value, by_hand(column, hit), rtol=1e-9, atol=1e-9)
    assert (hit.value <= hit.start).all()
    assert (hit.value < hit.start).any()


def test_insertion_is_the_metric_of_that_name():
    x, target = images()
    hit = attack("insertion", steps=4)(tiny_net(), GRADIENT, x, target)
    measure = gg.metric("adversarial_insertion", ratios=SETTINGS["insertion"]["ratios"])
    torch.testing.assert_close(hit.value, measure(tiny_net(), GRADIENT, x, target, perturbed=hit.x))


def scene_of(model: nn.Module, column: str, x: Tensor, target: Tensor) -> Scene:
    """The clean side, as a run would make it."""
    goal = {"goal": GOAL, "mask": MASK}.get(COLUMNS[column].needs or "")
    goal = None if goal is None else goal.double().expand(len(x), H, W)
    return Scene(x, target, GRADIENT(model, x, target), model(x).detach(), goal, model)


@pytest.mark.parametrize("column", NEW)
def test_no_point_of_a_grid_on_the_ball_has_a_lower_column(column):
    """All 3^6 points with each pixel at -eps, 0 or eps that keep the prediction, against one run of 16 steps."""
    x, target = images(2)
    model, auto = tiny_net(), attack(column)
    hit = auto(model, GRADIENT, x, target)
    corners = torch.tensor(list(product((-EPS, 0.0, EPS), repeat=H * W))).double().view(-1, 1, H, W)
    for row in range(len(x)):
        clean, label = x[row].expand_as(corners), target[row].expand(len(corners))
        near = clean + corners
        judge = auto.aim(scene_of(model, column, clean, label)).judge
        values = judge(GRADIENT(model, near, label), model(near), near)
        lowest = values[model(near).argmax(1) == target[row]].min()
        assert hit.value[row] <= lowest + 0.02 * (1 + lowest.abs()), (row, lowest)


@pytest.mark.parametrize("column", sorted(COLUMNS))
def test_the_iterate_is_chosen_by_the_column_and_not_by_what_is_descended(column, monkeypatch):
    """Descended the wrong way, the column still never rises above that of the clean image, nor of a smaller radius."""
    entry = COLUMNS[column]

    def uphill(scene: Scene, auto: Auto) -> Any:
        objective = entry.stand_ins[0](scene, auto)
        return lambda *parts: -objective(*parts)

    monkeypatch.setitem(driver.COLUMNS, column, replace(entry, stand_ins=(uphill, uphill)))
    x, target = images()
    model = tiny_net()
    near, far = attack(column, eps=(EPS / 2, EPS), steps=3)(model, GRADIENT, x, target)
    judge = attack(column).aim(scene_of(model, column, x, target)).judge
    torch.testing.assert_close(near.value, judge(near.map, model(near.x).detach(), near.x))
    assert (near.value <= near.start).all()
    assert (far.value <= near.value).all()


def test_the_slope_of_a_linear_map_reaches_its_largest_singular_value():
    """The gradient map of x^T A x / 2 is A x: no quotient is above the largest eigenvalue of A.

    Steps along the sign of the gradient reach 0.93 of it in as many steps.
    """
    root = torch.randn(64, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = root @ root.T

    class Quadratic(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            flat = x.flatten(1)
            return torch.stack([0.5 * ((flat @ matrix) * flat).sum(1), flat.sum(1) - 1000], 1)

    x = 0.2 + 0.6 * torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    target = torch.zeros(3, dtype=torch.long)
    hit = Auto(eps=EPS, column="local_lipschitz", steps=7)(Quadratic(), GRADIENT, x, target)
    largest = torch.linalg.eigvalsh(matrix)[-1]
    assert (-hit.value <= largest * (1 + 1e-9)).all()
    assert (-hit.value / largest).mean() > 0.975


@pytest.mark.parametrize(
    ("column", "stand_in"), [*((c, s) for c in NEW[1:] for s in (0, 1)), ("insertion", 1)]
)
def test_what_is_descended_has_the_derivative_that_finite_differences_have(column, stand_in):
    x, target = images(2)
    model, auto = tiny_net(), attack(column)
    objective = auto.aim(scene_of(model, column, x, target), stand_in).descend
    z = x + 0.03 * torch.randn(x.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    along = torch.randn(x.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    found = derivative(model, GRADIENT, z, target, objective)
    step = 1e-5
    ends = [derivative(model, GRADIENT, z + s * step * along, target, objective).value for s in (1, -1)]
    wanted = (ends[0] - ends[1]) / (2 * step)
    torch.testing.assert_close((found.gradient * along).flatten(1).sum(1), wanted, rtol=1e-4, atol=1e-6)


def test_the_soft_insertion_falls_if_a_pixel_of_worth_is_put_in_later():
    """Against the hard curve: over random maps the two are alike, and the slope lowers both."""
    x, target = images(1)
    model, auto = tiny_net(), attack("insertion")
    maps = torch.rand(60, 1, H, W, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    scene = Scene(x.expand_as(maps), target.expand(60), maps, model(x).expand(60, 3), None, model)
    aim = auto.aim(scene)
    soft, hard = (each(maps, scene.logits, scene.x) for each in (aim.descend, aim.judge))
    assert torch.corrcoef(torch.stack([soft, hard]))[0, 1] > 0.7
    leaf = maps.clone().requires_grad_()
    (slope,) = torch.autograd.grad(aim.descend(leaf, scene.logits, scene.x).sum(), leaf)
    lower = (maps - 0.3 * slope / slope.abs().amax((1, 2, 3), keepdim=True)).clamp_min(0)
    assert (aim.judge(lower, scene.logits, scene.x) - hard).mean() < -0.01


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"column": "mass_in_mask"}, "give mask="),
        ({"column": "insertion", "ratios": (0.0, 2.0)}, "fractions from 0 to 1"),
        ({"column": "distance_to_goal", "goal": "frames"}, "frame"),
        ({"column": "lipschitz"}, "local_lipschitz"),
    ],
)
def test_a_column_that_lacks_what_it_needs_is_refused(settings, words):
    with pytest.raises(gg.UserError, match=words):
        Auto(**settings)


@pytest.mark.parametrize("shape", [(4, 4), (2, H, W), (3, 1, H, W)])
def test_a_mask_of_another_shape_is_refused(shape):
    x, target = images()
    with pytest.raises(gg.UserError, match="The mask has shape"):
        Auto(column="mass_in_mask", mask=torch.ones(shape, dtype=torch.bool))(tiny_net(), GRADIENT, x, target)


@pytest.mark.parametrize(
    ("column", "settings", "words"),
    [
        ("mass_in_mask", {"mask": torch.full((H, W), 0.3)}, "other values than 0 and 1"),
        ("mass_in_mask", {"mask": -torch.ones(H, W)}, "other values than 0 and 1"),
        (
            "mass_in_mask",
            {"mask": torch.arange(3).view(3, 1, 1).expand(3, H, W) == 1},
            "no pixel that counts",
        ),
        ("distance_to_goal", {"goal": torch.full((H, W), torch.nan)}, "goal map holds NaN"),
    ],
)
def test_a_mask_or_goal_that_says_nothing_is_refused(column, settings, words):
    x, target = images(3)
    with pytest.raises(gg.UserError, match=words):
        Auto(column=column, steps=1, **settings)(tiny_net(), GRADIENT, x, target)


def test_masks_and_goals_go_with_their_images_in_every_part_of_the_batch():
    x, target = images(4)
    masks = torch.rand(4, H, W, generator=torch.Generator().manual_seed(9)) > 0.5
    for column, setting in (("mass_in_mask", "mask"), ("distance_to_goal", "goal")):
        given = masks if setting == "mask" else masks.double()
        whole, parts = (
            Auto(column=column, steps=2, eps=EPS, max_batch=rows, **{setting: given})(
                tiny_net(), GRADIENT, x, target
            )
            for rows in (64, 2)
        )
        torch.testing.assert_close(whole.value, parts.value)
        alone = Auto(column=column, steps=2, eps=EPS, **{setting: given[2:3]})(
            tiny_net(), GRADIENT, x[2:3], target[2:3]
        )
        torch.testing.assert_close(whole.start[2:3], alone.start)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("column", sorted(COLUMNS))
def test_every_column_of_a_net_in_half_precision_has_a_search(column, dtype):
    x, target = images(2)
    settings = {"mask": torch.arange(W).expand(H, W) < W // 2} if column == "mass_in_mask" else {}
    hit = Auto(column=column, steps=2, eps=8 / 255, **settings)(
        tiny_net().to(dtype), GRADIENT, x.to(dtype), target
    )
    assert hit.value.isfinite().all()
