"""Class activation maps beside slow twins: loops over channels and places in float64, as the papers print them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from nets import CLASSES, TinyViT, batch, net
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.numerics.maps import reduce

METHODS = ("grad_cam", "grad_cam_plus_plus", "hires_cam", "layer_cam")


class TwoParts(nn.Module):
    """A convolutional part and a nonlinear head, so that the gradient differs from place to place."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv1, self.conv2 = (
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            nn.Conv2d(4, 5, 3, stride=2, padding=1),
        )
        self.hidden, self.out = nn.Linear(45, 8), nn.Linear(8, CLASSES)
        self.double().eval()

    def features(self, x: Tensor) -> Tensor:
        return F.softplus(self.conv2(F.softplus(self.conv1(x))))

    def head(self, maps: Tensor) -> Tensor:
        return 3 * self.out(F.softplus(self.hidden(maps.flatten(1))))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


def slopes(head, maps: Tensor, target: int) -> Tensor:
    """The derivative of the logit to each value of `c h w` maps, by central differences."""
    slope, step = torch.zeros_like(maps), 1e-5
    for place in torch.cartesian_prod(*map(torch.arange, maps.shape)):
        moved = torch.zeros_like(maps)
        moved[tuple(place)] = step
        above, below = head((maps + moved)[None]), head((maps - moved)[None])
        slope[tuple(place)] = (above - below)[0, target] / (2 * step)
    return slope


def twin(method: str, maps: Tensor, slope: Tensor, *, relu: bool) -> Tensor:
    """Sum over channels k and places (i, j), value by value."""
    channels, height, width = maps.shape
    places = [(i, j) for i in range(height) for j in range(width)]
    cam = torch.zeros(height, width, dtype=maps.dtype)
    for k in range(channels):
        mean = sum(slope[k, i, j] for i, j in places) / len(places)
        total = sum(maps[k, a, b] for a, b in places)
        plus_plus = torch.zeros(())
        for i, j in places:
            g = slope[k, i, j]
            alpha = g**2 / (2 * g**2 + total * g**3)
            plus_plus = plus_plus + alpha * max(g, torch.zeros_like(g))
        for i, j in places:
            weight = {
                "grad_cam": mean,
                "grad_cam_plus_plus": plus_plus,
                "hires_cam": slope[k, i, j],
                "layer_cam": slope[k, i, j].clamp(min=0),
            }[method]
            cam[i, j] += weight * maps[k, i, j]
    return cam.clamp(min=0) if relu else cam


def enlarged(cam: Tensor, side: int) -> Tensor:
    """Bilinear, pixel centres aligned, the edge repeated: value by value."""
    small = len(cam)
    large = torch.zeros(side, side, dtype=cam.dtype)
    for i in range(side):
        for j in range(side):
            y, x = (min(max((p + 0.5) * small / side - 0.5, 0), small - 1) for p in (i, j))
            top, left = int(y), int(x)
            bottom, right = min(top + 1, small - 1), min(left + 1, small - 1)
            down, across = y - top, x - left
            large[i, j] = (1 - down) * ((1 - across) * cam[top, left] + across * cam[top, right]) + down * (
                (1 - across) * cam[bottom, left] + across * cam[bottom, right]
            )
    return large


@pytest.mark.parametrize("relu", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_the_map_is_the_papers_sum_over_channels_and_places(method, relu):
    model, (x, target) = TwoParts(), batch(2)
    found = gg.attribution(method, relu=relu)(model, x, target)
    with torch.no_grad():
        for image, c, map in zip(x, target, found, strict=True):
            maps = model.features(image[None])[0]
            expected = enlarged(twin(method, maps, slopes(model.head, maps, int(c)), relu=relu), 12)
            assert expected.abs().max() > 1e-2
            torch.testing.assert_close(map.sum(0), expected, rtol=1e-7, atol=1e-8)
            assert torch.equal(map[0], map[1])


def test_reduced_maps_are_the_class_activation_map():
    x, target = batch(2)
    map = gg.attribution("layer_cam")(TwoParts(), x, target)
    torch.testing.assert_close(reduce(map), 3 * map[:, 0])


def test_hires_cam_before_a_linear_head_sums_to_the_logit_less_its_bias():
    model, (x, target) = net("residual"), batch(3)
    with torch.no_grad():
        logit = (model(x) - model.head.bias).gather(1, target[:, None])[:, 0]
    map = gg.attribution("hires_cam", relu=False)(model, x, target)
    torch.testing.assert_close(map.sum((1, 2, 3)) / (12 / 6) ** 2, logit)


def test_a_named_layer_gives_the_map_of_that_layer():
    model, (x, target) = net("lenet"), batch(2)
    found = gg.attribution("grad_cam", layer="5", relu=False)(model, x, target)
    with torch.enable_grad():
        maps = model[:6](x).detach().requires_grad_()
        (slope,) = torch.autograd.grad(model[6:](maps).gather(1, target[:, None]).sum(), maps)
    cam = (slope.mean((2, 3), keepdim=True) * maps).sum(1, keepdim=True).detach()
    torch.testing.assert_close(found.sum(1, keepdim=True), F.interpolate(cam, (12, 12), mode="bilinear"))
    assert not model[5]._forward_hooks


def test_a_layer_whose_output_is_overwritten_is_taken_as_it_was_returned():
    x, target = batch(2)
    plain = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)
    ).double()
    overwriting = nn.Sequential(plain[0], nn.ReLU(inplace=True), *plain[2:])
    maps = [gg.attribution("hires_cam", layer="0", relu=False)(m, x, target) for m in (plain, overwriting)]
    torch.testing.assert_close(*maps)
    assert maps[0].abs().max() > 0


def test_the_class_token_is_left_out_and_the_layer_is_where_patches_still_reach_the_class():
    model, (x, target) = TinyViT(), batch(2)
    found = gg.attribution("hires_cam", relu=False)(model, x, target)
    z = model.patch(x).flatten(2).transpose(1, 2)
    z = torch.cat([model.token.expand(2, -1, -1), z], 1) + model.position
    tokens = model.norm1(z).detach().requires_grad_()
    with torch.enable_grad():
        y = z.detach() + model.projection(model.mixed(tokens))
        y = y + model.down(F.gelu(model.up(model.norm2(y))))
        logit = model.head(model.norm(y)[:, 0]).gather(1, target[:, None]).sum()
        (slope,) = torch.autograd.grad(logit, tokens)
    cam = (slope * tokens).detach()[:, 1:].sum(2).reshape(2, 1, 3, 3)
    torch.testing.assert_close(found.sum(1, keepdim=True), F.interpolate(cam, (12, 12), mode="bilinear"))
    assert "norm1" in gg.attribution("hires_cam").chosen(model, x)


@pytest.mark.parametrize("method", ["grad_cam", "grad_cam_plus_plus"])
def test_second_derivatives_of_a_transformers_map_match_finite_differences(method):
    from test_second_order import BAR, relative_errors

    x, target = batch(2, seed=3)
    errors = relative_errors(gg.attribution(method, relu=False), TinyViT(), x, target)
    assert max(errors.values()) <= BAR, errors


def test_channels_last_maps_are_read_as_such():
    class Last(TwoParts):
        """As Swin: height, width, channels; a layer norm, then the head."""

        def forward(self, x: Tensor) -> Tensor:
            maps = F.layer_norm(self.features(x).permute(0, 2, 3, 1), (5,))
            return self.head(maps.permute(0, 3, 1, 2))

    class First(Last):
        def forward(self, x: Tensor) -> Tensor:
            maps = F.layer_norm(self.features(x).permute(0, 2, 3, 1), (5,)).permute(0, 3, 1, 2)
            return self.head(maps + torch.zeros(5, 1, 1, dtype=x.dtype))

    x, target = batch(2)
    last, first = (gg.attribution("hires_cam", relu=False)(model, x, target) for model in (Last(), First()))
    assert last.abs().max() > 0
    torch.testing.assert_close(last, first)


def test_images_that_are_not_square_keep_their_sides():
    x = torch.rand(1, 3, 16, 24, dtype=torch.float64)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 4, stride=4), nn.Softplus(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).double()
    assert gg.attribution("grad_cam")(model, x, 1).shape == x.shape
    assert "4 x 4 x 6" in gg.attribution("grad_cam").chosen(model, x)


@pytest.mark.parametrize(
    ("structure", "expected"),
    [("lenet", "6 x 6 x 6"), ("residual", "6 x 6 x 6"), ("functional_relu", "6 x 6 x 6")],
)
def test_the_last_activation_with_height_and_width_is_chosen_before_pools(structure, expected):
    assert gg.attribution("grad_cam").chosen(net(structure), batch(1)[0]).endswith(expected)


def test_a_smoothed_models_map_is_the_mean_of_its_draws_maps():
    model, (x, target) = TwoParts(), batch(2)
    calm = gg.smoothed(model, gg.kernel("uniform", eps=0.2), draws=3, max_batch=2)
    noise = calm._noise_for(x)
    for method in METHODS:
        each = [gg.attribution(method)(model, x + one, target) for one in noise]
        torch.testing.assert_close(gg.attribution(method)(calm, x, target), torch.stack(each).mean(0))
    assert calm.max_batch == 2


def test_a_small_denominator_can_be_held_up():
    model, (x, target) = TwoParts(), batch(1)
    with torch.enable_grad():
        maps = model.features(x).detach().requires_grad_()
        (g,) = torch.autograd.grad(model.head(maps)[0, target[0]], maps)
    alpha = g**2 / (2 * g**2 + maps.sum((2, 3), keepdim=True) * g**3 + 0.1)
    cam = ((alpha * g.relu()).sum((2, 3), keepdim=True) * maps).sum(1, keepdim=True).detach()
    found = gg.attribution("grad_cam_plus_plus", eps=0.1)(model, x, target)
    torch.testing.assert_close(found.sum(1, keepdim=True), F.interpolate(cam, (12, 12), mode="bilinear"))


@pytest.mark.parametrize(
    ("structure", "settings", "sentence"),
    [
        ("mlp", {}, "no layer with height and width"),
        ("lenet", {"layer": "fc"}, "has no layer 'fc'"),
        ("lenet", {"layer": "11"}, "not a grid of places"),
        ("residual", {"layer": "aux"}, "do not depend on the output of layer 'aux'"),
    ],
)
def test_a_model_without_such_a_layer_is_refused_with_a_sentence(structure, settings, sentence):
    model, (x, target) = net(structure), batch(2)
    model.aux = nn.Identity()
    with pytest.raises(UserError, match=sentence):
        gg.attribution("grad_cam", **settings)(model, x, target)


def test_inputs_without_height_and_width_are_refused():
    with pytest.raises(UserError, match="need images b c h w"):
        gg.attribution("grad_cam")(nn.Linear(4, 3), torch.rand(2, 4), 0)
