"""Models in other forms than an nn.Module of logits: transformers, zero-shot heads, objects, TorchScript."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
import torch.nn.functional as F
import transformers
from nets import net
from torch import Tensor, nn

import gyrograd as gg
from gyrograd.models import ZeroShot, open_model
from gyrograd.models.hugging_face import UNNORMALIZED
from gyrograd.models.interpreter import interpret_scripts
from gyrograd.models.outputs import notes

SMALL = {
    "image_size": 16, "patch_size": 8, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 16,
}  # fmt: skip
TARGET = torch.tensor([0, 3])


def images(channels: int = 3, side: int = 16) -> Tensor:
    return torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A ViT of transformers as `save_pretrained` writes it, with a preprocessor, and the model itself."""
    place = tmp_path_factory.mktemp("vit")
    torch.manual_seed(0)
    config = transformers.ViTConfig(**SMALL, num_labels=5)
    model = transformers.ViTForImageClassification(config).eval()
    nn.init.normal_(model.classifier.weight)
    model.save_pretrained(place)
    (place / "preprocessor_config.json").write_text(
        json.dumps({"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "do_normalize": True})
    )
    return place, model


# --- Hugging Face ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "hf:"])
def test_a_folder_of_transformers_is_the_model_with_its_own_normalisation(folder, prefix):
    place, source = folder
    model, x = open_model(f"{prefix}{place}"), images()
    mean, std = (torch.tensor(v).reshape(1, 3, 1, 1) for v in ([0.5, 0.4, 0.3], [0.2, 0.3, 0.4]))
    expected = source(pixel_values=(x - mean) / std).logits
    torch.testing.assert_close(model(x), expected)
    assert notes(model) == ()
    map = gg.attribution("gradient")(model, x, TARGET)
    leaf = x.clone().requires_grad_()
    chosen = source(pixel_values=(leaf - mean) / std).logits.gather(1, TARGET[:, None]).sum()
    torch.testing.assert_close(map, torch.autograd.grad(chosen, leaf)[0], rtol=1e-4, atol=1e-6)


def test_a_normalisation_that_is_given_replaces_that_of_the_folder(folder):
    place, source = folder
    x = images()
    model = open_model(str(place), normalize="imagenet")
    mean, std = (torch.tensor(v).reshape(1, 3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    torch.testing.assert_close(model(x), source(pixel_values=(x - mean) / std).logits)


def test_a_folder_without_a_preprocessor_says_that_nothing_is_normalised(folder, tmp_path):
    _, source = folder
    source.save_pretrained(tmp_path)
    model = open_model(str(tmp_path))
    assert notes(model) == (UNNORMALIZED,)
    torch.testing.assert_close(model(images()), source(images()).logits)


def test_a_model_of_transformers_is_saved_and_loaded_as_any_other(folder, tmp_path):
    model = open_model(str(folder[0]))
    gg.save(tmp_path / "model.safetensors", model)
    again = gg.load(tmp_path / "model.safetensors")
    torch.testing.assert_close(again(images()), model(images()))
    assert str(folder[0]) not in model.spec.to_json()  # a description must not lead to a file


def test_a_kind_of_transformers_is_built_with_its_own_settings_and_channels():
    model = gg.model("hf:vit", num_classes=7, in_channels=4, seed=0, **SMALL).eval()
    assert model(images(4)).shape == (2, 7)
    torch.testing.assert_close(
        gg.model("hf:vit", num_classes=7, in_channels=4, seed=0, **SMALL).eval()(images(4)), model(images(4))
    )


def test_folders_and_kinds_that_are_no_classifier_are_refused_in_a_sentence(folder, tmp_path):
    place, source = folder
    for text, sentence in {
        "hf:vitt": "did you mean 'vit'",
        "hf:timm_wrapper": "name it as timm:NAME",
        str(tmp_path): "is a folder without a classifier",
    }.items():
        with pytest.raises(gg.UserError, match=sentence):
            open_model(text)
    with pytest.raises(gg.UserError, match="did you mean 'hidden_size'"):
        gg.model("hf:vit", hiden_size=3)
    with pytest.raises(gg.UserError, match="does not take 'auto_map'"):
        gg.model("hf:vit", auto_map={"AutoConfig": "code.Config"})
    with pytest.raises(gg.UserError, match="leave out --classes"):
        open_model(str(place), classes=3)
    source.vit.save_pretrained(tmp_path / "headless")
    with pytest.raises(gg.UserError, match="has no weights for 'classifier.bias'"):
        open_model(str(tmp_path / "headless"))
    source.save_pretrained(tmp_path / "odd")
    config = json.loads((tmp_path / "odd" / "config.json").read_text())
    (tmp_path / "odd" / "config.json").write_text(json.dumps(config | {"quantization_config": {"bits": 4}}))
    with pytest.raises(gg.UserError):
        open_model(str(tmp_path / "odd"))


def test_weights_in_a_pickle_are_not_read(folder, tmp_path):
    _, source = folder
    source.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(source.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(gg.UserError, match="model.safetensors"):
        open_model(str(tmp_path))


# --- modules that return more than logits ---------------------------------------------------------------


def test_a_module_that_returns_an_object_is_explained_once_it_went_through_model(folder):
    _, source = folder
    with pytest.raises(gg.UserError, match="let gyrograd.model\\(model\\) pick the logits"):
        gg.attribution("gradient")(source, images(), TARGET)
    model = gg.model(source)
    torch.testing.assert_close(model(images()), source(images()).logits)
    for name in ("lrp", "guided_backprop", "gradient_x_attention"):
        assert gg.attribution(name)(model, images(), TARGET).abs().max() > 0
    assert gg.model(source, normalize="imagenet")(images()).shape == (2, 5)


def test_a_module_of_ones_own_takes_no_settings_of_a_net_to_be_built(folder):
    with pytest.raises(gg.UserError, match="'num_classes' is for models built by name"):
        gg.model(folder[1], num_classes=3)
    built = gg.model("lenet", num_classes=3)
    assert gg.model(built) is built


# --- zero-shot heads ------------------------------------------------------------------------------------


class OpenClip(nn.Module):
    """The part of open_clip's models that is used: `encode_image`."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 8), nn.GELU(), nn.Linear(8, 6))

    def encode_image(self, x: Tensor) -> Tensor:
        return self.visual(x)

    def forward(self, image: Tensor, text: Tensor) -> None:
        raise AssertionError("the text encoder is not needed")


def test_a_zero_shot_head_gives_scaled_cosines_for_open_clip_and_transformers():
    torch.manual_seed(0)
    text = torch.randn(5, 6)
    clip = transformers.CLIPVisionConfig(**SMALL, projection_dim=6)
    for encoder, features in (
        (OpenClip().eval(), lambda model: model.encode_image(images())),
        (transformers.CLIPVisionModelWithProjection(clip).eval(), lambda model: model(images()).image_embeds),
    ):
        model = ZeroShot(encoder, text, scale=20.0).eval()
        expected = 20 * F.cosine_similarity(features(encoder)[:, None], text[None], dim=-1)
        torch.testing.assert_close(model(images()), expected, rtol=1e-4, atol=1e-4)


def test_every_rule_reaches_through_a_zero_shot_head_and_conserves():
    torch.manual_seed(0)
    model = ZeroShot(OpenClip(), torch.randn(5, 6)).double().eval()
    x = images().double()
    conserved = gg.attribution("lrp", variant="conserving").conserved(model, x, TARGET)
    torch.testing.assert_close(conserved, torch.ones_like(conserved), rtol=1e-4, atol=0)
    total = gg.attribution("deep_lift")(model, x, TARGET).flatten(1).sum(1)
    gain = (model(x) - model(torch.zeros_like(x))).gather(1, TARGET[:, None])[:, 0]
    torch.testing.assert_close(total, gain, rtol=1e-6, atol=1e-8)


def test_a_zero_shot_head_refuses_what_does_not_fit():
    with pytest.raises(gg.UserError, match="one row of numbers for each class"):
        ZeroShot(OpenClip(), torch.randn(6))
    with pytest.raises(gg.UserError, match="is zero or not finite"):
        ZeroShot(OpenClip(), torch.zeros(5, 6))
    with pytest.raises(gg.UserError, match="the projection that both share"):
        ZeroShot(OpenClip(), torch.randn(5, 7))(images())
    with pytest.raises(gg.UserError, match="scale"):
        ZeroShot(OpenClip(), torch.randn(5, 6), scale=0.0)


# --- TorchScript ----------------------------------------------------------------------------------------


class Branching(nn.Module):
    """What a script may hold: a loop over layers, a branch on sizes, lists, in-place and traced convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.more = nn.ModuleList(nn.Conv2d(6, 6, 3, padding=1) for _ in range(2))
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)), inplace=True)
        kept = [x]
        for layer in self.more:
            x = x + torch.relu(layer(x))
            kept.append(x)
        if x.shape[2] > 4:
            x = F.max_pool2d(x, 2)
        b, _, h, w = x.shape
        x = F.silu(self.up(x)) + kept[0].mean(1, keepdim=True).reshape(b, 1, h * 2, w * 2)
        for i in range(2):
            x = x * (0.5 + i)
        return self.head(self.drop(x).flatten(2).mean(-1))


class Tokens(nn.Module):
    """torch's own attention, whose script has a fast way without derivatives for runs without a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, stride=4)
        self.norm = nn.LayerNorm(8)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(self.embed(x).flatten(2).transpose(1, 2))
        z = z + self.attend(z, z, z, need_weights=False)[0]
        return self.head(F.gelu(z).mean(1))


def in_script(model: nn.Module, way: str, x: Tensor) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(model) if way == "script" else torch.jit.trace(model, x, check_trace=False)


@pytest.mark.parametrize("way", ["script", "trace"])
@pytest.mark.parametrize("make", [Branching, Tokens])
def test_maps_of_a_script_are_those_of_its_source_with_all_derivatives(make, way):
    torch.manual_seed(0)
    model, x = make().double().eval(), images().double()
    script = in_script(model, way, x)
    for name in ("lrp", "guided_backprop", "deep_lift"):
        explain = gg.attribution(name)
        torch.testing.assert_close(
            explain(script, x, TARGET), explain(model, x, TARGET), rtol=1e-9, atol=1e-12
        )
        for tested in (script, gg.models.Normalized(script, [0.0] * 3, [1.0] * 3).eval()):
            leaf = x.clone().requires_grad_()
            map, expected = (explain(m, leaf, TARGET, create_graph=True) for m in (tested, model))
            slopes = torch.autograd.grad(map.square().sum(), [leaf, *script.parameters()], allow_unused=True)
            wanted = torch.autograd.grad(
                expected.square().sum(), [leaf, *model.parameters()], allow_unused=True
            )
            for slope, want in zip(slopes, wanted, strict=True):
                assert (slope is None) == (want is None)
                if want is not None:
                    torch.testing.assert_close(slope, want, rtol=1e-7, atol=1e-12)


def test_a_script_file_has_the_maps_of_its_source_and_stays_a_script(tmp_path):
    torch.manual_seed(0)
    model, x = Branching().eval(), images()
    in_script(model, "script", x).save(str(tmp_path / "net.pt"))
    script = open_model(str(tmp_path / "net.pt"))
    for rows in (1, 2):  # one row goes through torch's script twice
        map = gg.attribution("lrp")(script, x[:rows], TARGET[:rows], create_graph=True)
        torch.testing.assert_close(
            map, gg.attribution("lrp")(model, x[:rows], TARGET[:rows]), rtol=1e-4, atol=1e-6
        )
    assert isinstance(script.core, torch.jit.ScriptModule)
    cam = gg.attribution("grad_cam")
    torch.testing.assert_close(cam(script, x, TARGET), cam(model, x, TARGET), rtol=1e-4, atol=1e-6)


def test_the_scripts_of_a_model_are_put_back_when_a_run_fails():
    script = in_script(Branching().eval(), "script", images())
    model = nn.Sequential(nn.Identity(), script)

    def fail() -> None:
        with interpret_scripts(model) as seen:
            assert not isinstance(seen[1], torch.jit.ScriptModule)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert model[1] is script


def test_a_script_that_calls_what_cannot_be_followed_is_refused_by_name():
    class Forks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            later = torch.jit.fork(torch.relu, x)
            return torch.jit.wait(later).flatten(1)

    script = in_script(Forks().eval(), "script", images())
    with pytest.raises(gg.UserError, match="calls 'prim::fork'.*torch.export"):
        gg.attribution("lrp")(script, images(), TARGET)


def test_a_script_that_refuses_its_input_says_so():
    class Picky(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[1] != 3:
                raise RuntimeError("three channels")
            return x.flatten(1)

    script = in_script(Picky().eval(), "script", images())
    with pytest.raises(gg.UserError, match="three channels"):
        gg.attribution("lrp")(script, images(4), TARGET)
    with interpret_scripts(script) as seen, pytest.raises(RuntimeError, match="three channels"):
        seen(images(4))


def test_a_plain_net_is_untouched_by_the_interpreter():
    model = net("lenet")
    with interpret_scripts(model) as seen:
        assert seen is model
