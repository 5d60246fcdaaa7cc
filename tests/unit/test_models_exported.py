"""Activations made of ReLUs in a torch.export file: the numbers of the model, and a twin to attack on."""

from __future__ import annotations

import warnings
from pathlib import Path

import bad_files
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.attacks.twin import guide_for
from gyrograd.attributions.decompositions import as_torch_function
from gyrograd.models.opening import open_model
from gyrograd.models.piecewise import MODULES

X = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
TARGET = torch.tensor([0, 1, 2])
IN_PLACE = [kind for kind in MODULES if "inplace" in vars(kind())]


class Called(nn.Module):
    """A function as a layer."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, z: Tensor) -> Tensor:
        return self.function(z)


def rows_changed_in_place(z: Tensor) -> Tensor:
    """What the call returns is not used: the tensor it changed is."""
    F.leaky_relu(z.flatten(1), 0.3, inplace=True)
    return z


ACTIVATIONS = {
    **{kind.__name__: kind for kind in MODULES},
    **{f"{kind.__name__} in place": lambda kind=kind: kind(inplace=True) for kind in IN_PLACE},
    "Hardtanh of its own width": lambda: nn.Hardtanh(-0.2, 0.3),
    "LeakyReLU of its own slope": lambda: nn.LeakyReLU(0.3),
    "a view changed in place": lambda: Called(rows_changed_in_place),
}


def saved_and_opened(make, folder) -> tuple[nn.Module, nn.Module]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        source = nn.Sequential(nn.Conv2d(3, 4, 3), make(), nn.Flatten(), nn.Linear(4 * 36, 3)).eval()
    # Weights this large reach both ends of a Hardtanh and of a ReLU6.
    source[0].weight.data *= 40
    bad_files.export(source, folder / "net.pt2", X)
    return source, open_model(str(folder / "net.pt2"))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_export_keeps_its_numbers_and_can_be_made_smooth(name, tmp_path):
    source, model = saved_and_opened(ACTIVATIONS[name], tmp_path)
    torch.testing.assert_close(model(X), source(X), rtol=0, atol=1e-5 * float(source(X).detach().abs().max()))
    near, far = (guide_for(model, X, beta).model(X) for beta in (1e4, 0.5))
    torch.testing.assert_close(near, source(X), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(far, source(X), rtol=1e-3, atol=1e-3)


def test_an_attack_on_an_exported_relu6_net_searches_on_its_twin(tmp_path):
    source, model = saved_and_opened(nn.ReLU6, tmp_path)
    explain = gg.attribution("gradient")
    attack = gg.attack("untargeted_map", steps=3)
    hit, meant = (attack(one, explain, X, TARGET) for one in (model, source))
    assert not hit.stuck.any()
    assert any("Softplus twin" in flag for flag in hit.flags)
    torch.testing.assert_close(hit.x, meant.x)


class Resizing(nn.Module):
    """Sizes that depend on the image's, an attention mask of infinities, and a mean over what is left."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = F.interpolate(self.patches(x), scale_factor=2.0)
        b, c, h, w = z.shape
        return self.head(self.layer(z.reshape(b, c, h * w).transpose(1, 2)).mean(1))


class Rescaled(nn.Module):
    """Every kind of rescaling between two layers, to a size and by a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = F.interpolate(torch.relu(self.first(x)), size=(7, 9), mode="bilinear", align_corners=True)
        z = F.interpolate(F.interpolate(z, scale_factor=2.0), scale_factor=0.35, mode="bicubic")
        volume = F.interpolate(z[:, :, None], size=(2, 5, 6), mode="trilinear")
        return self.head(F.interpolate(volume.flatten(2), size=11, mode="linear").mean(2))


def exported(model: nn.Module, x: Tensor, way: str, path: Path) -> nn.Module:
    """The model as it comes out of a torch.export file."""
    any_size = torch.export.Dim.AUTO
    shapes = {0: any_size, 2: any_size, 3: any_size} if way == "any size" else {0: torch.export.Dim("batch")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, (x,), dynamic_shapes=(shapes,))
        torch.export.save(program.run_decompositions() if way == "decomposed" else program, path)
    return open_model(str(path))


@pytest.mark.parametrize("way", ["any size", "decomposed"])
def test_exports_of_any_size_and_of_basic_operators_are_opened(way, tmp_path):
    """Guards, formulas of sizes and infinities are in these files; basic operators have no rules."""
    source = Resizing().eval()
    x = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    model = exported(source, x, way, tmp_path / "net.pt2")
    torch.testing.assert_close(model(x), source(x))
    if way == "decomposed":
        with pytest.raises(gg.UserError, match="LRP has no rule for 'convolution'"):
            gg.attribution("lrp")(model, x, TARGET)


@pytest.mark.parametrize(
    ("make", "way"), [(Resizing, "export"), (Rescaled, "export"), (Rescaled, "script"), (Rescaled, "trace")]
)
def test_maps_of_a_file_are_those_of_its_source_with_their_derivatives(make, way, tmp_path):
    torch.manual_seed(0)
    x, source = torch.rand(3, 3, 16, 16), make().eval()
    if way == "export":
        model = exported(source, x, "any batch", tmp_path / "net.pt2")
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = torch.jit.script(source) if way == "script" else torch.jit.trace(source, x)
    for explain in (
        gg.attribution("lrp"), gg.attribution("lrp", variant="conserving"), gg.attribution("guided_backprop"),
        gg.attribution("deep_lift"),
    ):  # fmt: skip
        found = []
        for net in (model, source):
            leaf = x.clone().requires_grad_()
            map = explain(net, leaf, TARGET, create_graph=True)
            (slope,) = torch.autograd.grad(map.square().sum(), leaf)
            found.append((map.detach(), slope))
        for ours, theirs in zip(*found, strict=True):
            assert (ours - theirs).abs().max() <= 1e-4 * theirs.abs().max()


def test_operators_that_rescale_are_the_function_with_the_same_size_or_factors():
    x = torch.rand(2, 3, 14, 11, generator=torch.Generator().manual_seed(0))
    bicubic, nearest = torch.ops.aten.upsample_bicubic2d, torch.ops.aten.upsample_nearest2d
    for operator, args in (
        (bicubic.vec, (x, None, False, [0.35, 0.4])),
        (bicubic.vec, (x, [4, 5], True, None)),
        (bicubic.default, (x, [4, 4], False, 0.35, 0.4)),
        (bicubic.default, (x, [4, 4], False)),
        (nearest.vec, (x, None, [0.35, 0.4])),
        (nearest.default, (x, [4, 4], 0.35, 0.4)),
        (nearest.default, (x, [5, 20])),
    ):
        function, arranged, more = as_torch_function(operator, args, {})
        assert function is F.interpolate
        assert torch.equal(function(*arranged, **more), operator(*args))
