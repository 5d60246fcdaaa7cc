"""Wrappers around a model, specs that describe it, and building by name."""

from __future__ import annotations

import builtins
import importlib
import re

import numpy as np
import pytest
import torch
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.errors import UserError
from gyrograd.models import ModelSpec, Normalized, Probability, build, logits_of, rebuild, spec_of
from gyrograd.models.wrappers import NORMALIZATIONS


class Constant(nn.Module):
    """Returns what it was given, whatever the input."""

    def __init__(self, out: object) -> None:
        super().__init__()
        self.out = out

    def forward(self, x: Tensor) -> object:
        return self.out


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0.1, 2)), min_size=1, max_size=4))
def test_normalised_input_is_minus_mean_over_std_for_each_channel(
    statistics: list[tuple[float, float]],
) -> None:
    mean, std = zip(*statistics, strict=True)
    x = torch.rand(2, len(mean), 3, 3, generator=torch.Generator().manual_seed(0))
    out = Normalized(nn.Flatten(), mean, std)(x).numpy().reshape(x.shape)
    for channel in range(len(mean)):
        expected = (x[:, channel].numpy() - np.float32(mean[channel])) / np.float32(std[channel])
        np.testing.assert_allclose(out[:, channel], expected, rtol=1e-5, atol=1e-6)


def test_efficientnet_lite_takes_bytes_minus_127_over_128() -> None:
    mean, std = NORMALIZATIONS["efficientnet_lite"]
    code = torch.arange(256.0).reshape(1, 1, 16, 16).expand(1, 3, 16, 16)
    seen = Normalized(nn.Flatten(), mean, std)(code / 255)
    torch.testing.assert_close(seen, ((code - 127) / 128).flatten(1))


def test_normalised_takes_inputs_without_pixels() -> None:
    out = Normalized(nn.Identity(), (1.0, 2.0), (2.0, 4.0))(torch.tensor([[3.0, 10.0]]))
    assert out.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("mean", "std", "words"),
    [
        ((0.5,), (0.0,), "above 0"),
        ((0.5,), (-1.0,), "above 0"),
        ((0.5,), (float("nan"),), "above 0"),
        ((float("inf"),), (1.0,), "finite"),
        ((0.5, 0.5), (1.0,), "mean has 2 numbers and std 1"),
        ((), (), "one number for each channel"),
    ],
)
def test_impossible_statistics_are_explained(mean, std, words: str) -> None:
    with pytest.raises(UserError, match=words):
        Normalized(nn.Identity(), mean, std)


def test_a_wrong_channel_count_is_explained() -> None:
    model = build("lenet", normalize="cifar10")
    with pytest.raises(UserError, match=r"3 channels and the input is \(2, 1, 32, 32\)"):
        model(torch.rand(2, 1, 32, 32))


def test_probabilities_are_the_softmax_of_the_logits() -> None:
    core = build("mlp", seed=0)
    x = torch.randn(5, 2)
    exponentials = core(x).double().exp()
    expected = exponentials / exponentials.sum(1, keepdim=True)
    torch.testing.assert_close(Probability(core)(x).double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ((torch.zeros(2, 3), torch.zeros(2, 3)), "returned a tuple"),
        (torch.zeros(2), "shape"),
        (torch.zeros(2, 3, 4), "shape"),
        (torch.zeros(3, 2), "for 2 inputs"),
        (torch.tensor([[0.0, float("nan")], [0.0, 0.0]]), "NaN"),
        (torch.tensor([[0.0, float("inf")], [0.0, 0.0]]), "infinite"),
    ],
)
def test_an_output_that_is_no_logits_is_explained(out: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        logits_of(Constant(out), torch.rand(2, 3, 4, 4))


def test_good_logits_pass_unchanged() -> None:
    out = torch.randn(2, 3)
    assert logits_of(Constant(out), torch.rand(2, 1, 4, 4)) is out


settings_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-1, 1) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=4,
)
settings_dicts = st.dictionaries(st.text(max_size=4), settings_values, max_size=3)


@given(
    st.text(max_size=6), settings_dicts, st.lists(st.tuples(st.text(max_size=4), settings_dicts), max_size=2)
)
def test_a_spec_equals_its_json_round_trip(name: str, settings: dict, wraps: list) -> None:
    spec = ModelSpec(name, settings, tuple(wraps))
    assert ModelSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"name": "x"}', '{"name": "x", "settings": 3, "wraps": []}']
)
def test_text_that_is_no_spec_is_explained(text: str) -> None:
    with pytest.raises(UserError, match="not the description of a model"):
        ModelSpec.from_json(text)


def test_settings_that_json_cannot_hold_are_explained() -> None:
    with pytest.raises(UserError, match="numbers, strings, lists and None"):
        ModelSpec("x", {"f": print})


COMPOSED = {
    "plain": lambda: build("lenet", num_classes=3),
    "normalised": lambda: build("lenet", normalize="cifar10"),
    "swapped": lambda: build("resnet20", activation="softplus", beta=3, normalize=((0.5,) * 3, (0.2,) * 3)),
    "functional": lambda: build("torchvision:googlenet", num_classes=3, activation="silu"),
    "wrapped by hand": lambda: Normalized(Probability(build("mlp", hidden=(4, 5))), (0.1, 0.2), (1.0, 2.0)),
    "timm": lambda: build("timm:resnet18", num_classes=3, in_channels=1),
}


@pytest.mark.parametrize("make", COMPOSED.values(), ids=COMPOSED)
def test_a_model_is_built_again_from_its_spec(make) -> None:
    model = make()
    twin = rebuild(ModelSpec.from_json(spec_of(model).to_json()))
    twin.load_state_dict(model.state_dict())
    assert spec_of(twin) == spec_of(model) == model.spec
    assert str(twin) == str(model)
    for mean in ("mean", "std"):
        assert torch.equal(getattr(twin, mean, torch.zeros(1)), getattr(model, mean, torch.zeros(1)))


def test_defaults_are_written_into_the_spec() -> None:
    assert dict(build("mlp").spec.settings) == {"num_classes": 2, "in_features": 2, "hidden": [32]}


def test_an_unknown_wrapper_is_explained() -> None:
    with pytest.raises(UserError, match="did you mean 'normalized'"):
        rebuild(ModelSpec("mlp", {}, (("normalised", {}),)))


@pytest.mark.parametrize("name", ["lenet", "timm:resnet18", "torchvision:resnet18"])
def test_a_seed_decides_the_weights_and_leaves_the_global_state_alone(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(name, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second, other = build(name, seed=7), build(name, seed=8)
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_without_a_seed_the_global_state_decides() -> None:
    torch.manual_seed(1)
    first = next(build("mlp").parameters())
    assert not torch.equal(first, next(build("mlp").parameters()))
    torch.manual_seed(1)
    assert torch.equal(first, next(build("mlp").parameters()))


def test_a_built_model_is_in_train_mode() -> None:
    model = gg.model("resnet20", activation="softplus", beta=3, normalize="imagenet")
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("lenett", {}, "did you mean 'lenet'"),
        ("lenet", {"num_clases": 3}, "did you mean 'num_classes'"),
        ("lenet", {"beta": 3}, "activation='softplus'"),
        ("lenet", {"normalize": "cifar"}, "did you mean 'cifar10'"),
        ("lenet", {"normalize": ((0.5,),)}, "a pair"),
        ("lenet", {"pretrained": True}, "weights=PATH"),
        ("torchvision:resnet19", {}, "did you mean 'resnet1"),
        ("torchvision:resnet18", {"num_clases": 3}, "does not take these settings"),
        ("torchvision:fcn_resnet50", {}, "There is no model"),
        ("timm:resnet18x", {}, "did you mean 'resnet18"),
        ("timm:resnet18", {"depth": 3}, "does not take these settings"),
        ("keras:resnet18", {}, "known: hf, timm, torchvision"),
        ("torchvision:resnet18", {"pretrained": True, "num_classes": 5}, "leave num_classes out"),
        ("swin", {"activation": "softplus"}, "no ReLU to swap"),
    ],
)
def test_a_mistake_in_the_name_or_settings_is_explained(name: str, settings: dict, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        gg.model(name, **settings)
    assert "\n" not in str(caught.value)


def test_timm_missing_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = importlib.import_module

    def without_timm(name: str, package: str | None = None):
        if name == "timm":
            raise ModuleNotFoundError("No module named 'timm'", name="timm")
        return whole(name, package)

    monkeypatch.setattr(importlib, "import_module", without_timm)
    with pytest.raises(UserError, match=re.escape("pip install 'gyrograd[timm]'")):
        build("timm:resnet18")


@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_auxiliary_heads_of_torchvision_do_not_leak(name: str) -> None:
    side = 75 if name == "inception_v3" else 32
    model = build(f"torchvision:{name}", num_classes=4, seed=0)
    assert model.training
    assert logits_of(model, torch.rand(2, 3, side, side)).shape == (2, 4)


def test_pretrained_weights_bring_their_classes_and_normalisation(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = torchvision.models.resnet18()
    monkeypatch.setattr(
        "torchvision.models._api.WeightsEnum.get_state_dict", lambda *_, **__: stored.state_dict()
    )
    model = build("torchvision:resnet18", pretrained=True)
    assert isinstance(model, Normalized)
    torch.testing.assert_close(model.mean, torch.tensor([0.485, 0.456, 0.406]))
    assert torch.equal(model.core.fc.weight, stored.fc.weight)
    assert model.spec.settings == {"num_classes": 1000}
    own = build("torchvision:resnet18", pretrained=True, normalize=((0.5,) * 3, (0.25,) * 3))
    assert own.std.tolist() == [0.25] * 3


def test_weights_that_cannot_be_fetched_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise builtins.OSError("no route")

    monkeypatch.setattr("torchvision.models._api.WeightsEnum.get_state_dict", unreachable)
    with pytest.raises(UserError, match=r"could not be fetched \(no route\)"):
        build("torchvision:resnet18", pretrained=True)
