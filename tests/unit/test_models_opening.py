"""A text becomes the model it names, and what a model returns becomes logits."""

from __future__ import annotations

import collections
import copy
import dataclasses
import json
import warnings
from dataclasses import replace

import bad_files
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import nn

import gyrograd as gg
from gyrograd.cli.inputs import Opening, open_inputs
from gyrograd.errors import UserError
from gyrograd.explorer import open_stage
from gyrograd.models import build, load_state, save, zoo
from gyrograd.models.archives import content_of
from gyrograd.models.assembly import NOT_NORMALIZED
from gyrograd.models.opening import UNTRAINED, check_model, image_size, load, match_classes, notes, open_model
from gyrograd.models.outputs import LogProbabilities, PickedLogits

X = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    return bad_files.kit(tmp_path_factory.mktemp("kit"))


@pytest.fixture(scope="module")
def source(kit):
    """The net the kit's script, program and weights were made from."""
    model = bad_files.net()
    load_state(model, kit.weights)
    return model


def test_a_checkpoint_is_the_model_that_was_saved(kit):
    model = open_model(kit.model)
    assert torch.equal(model(X), gg.model("lenet", image_size=8, num_classes=3, seed=0).eval()(X))
    assert not model.training
    assert notes(model) == ()


def test_a_factory_gets_its_weights_and_classes(kit, source):
    assert torch.equal(open_model(f"{kit.factories}:net", weights=kit.weights)(X), source(X))
    assert open_model(f"{kit.factories}:net", classes=7)(X).shape == (3, 7)
    with pytest.raises(UserError, match="takes no num_classes; leave --classes out"):
        open_model(f"{kit.factories}:sizeless", classes=7)


def test_a_factory_may_import_what_lies_beside_it_and_the_path_is_put_back(tmp_path):
    import sys

    (tmp_path / "beside_it.py").write_text("WIDTH = 5\n")
    (tmp_path / "nets.py").write_text(
        "from torch import nn\nfrom beside_it import WIDTH\nmodel = nn.Linear(2, WIDTH)\n"
    )
    before = list(sys.path)
    assert open_model(f"{tmp_path / 'nets.py'}:model").out_features == 5
    assert sys.path == before


def test_a_script_gives_the_logits_it_was_made_from(kit, source):
    model = open_model(str(kit.script))
    torch.testing.assert_close(model(X), source(X))
    maps = gg.attribution("gradient")(model, X, torch.tensor([0, 1, 2]))
    torch.testing.assert_close(maps, gg.attribution("gradient")(source, X, torch.tensor([0, 1, 2])))


def test_a_frozen_script_can_be_explained(source, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.freeze(torch.jit.script(source)), str(tmp_path / "frozen.pt"))
    model = check_model(open_model(str(tmp_path / "frozen.pt")), X)
    torch.testing.assert_close(model(X), source(X))


@pytest.mark.parametrize("b", [1, 3, 5])
def test_an_export_gives_the_logits_it_was_made_from_at_any_batch_size(b, kit, source):
    x = torch.rand(b, 3, 8, 8)
    model = open_model(str(kit.export))
    torch.testing.assert_close(model(x), source(x))
    assert image_size(model) == 8


def test_an_attack_on_an_export_searches_on_its_softplus_twin(kit):
    model, target = open_model(str(kit.export)), torch.tensor([0, 1, 2])
    hit = gg.attack("targeted_map", steps=2)(model, gg.attribution("gradient"), X, target)
    assert not hit.stuck.any()
    assert any("Softplus twin" in flag for flag in hit.flags)


def test_the_mode_of_an_export_can_be_set_without_complaint(kit):
    model = open_model(str(kit.export))
    assert model.train() is model
    assert model.eval() is model


def test_the_suffix_of_a_file_is_not_believed(kit, source, tmp_path):
    (tmp_path / "a.pt2").write_bytes(kit.script.read_bytes())
    (tmp_path / "b.pt").write_bytes(kit.export.read_bytes())
    assert content_of(tmp_path / "a.pt2") == "torchscript"
    assert content_of(tmp_path / "b.pt") == "export"
    torch.testing.assert_close(open_model(str(tmp_path / "b.pt"))(X), source(X))


def test_library_models_take_weights_and_say_when_they_have_none(tmp_path):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        trained = gg.model("torchvision:squeezenet1_1", num_classes=4).eval()
    torch.save(trained.state_dict(), tmp_path / "w.pt")
    x = torch.rand(2, 3, 32, 32)
    model = open_model("torchvision:squeezenet1_1", classes=4, weights=tmp_path / "w.pt")
    assert torch.equal(model(x), trained(x))
    assert notes(model) == (NOT_NORMALIZED,)
    same = {"classes": 4, "weights": tmp_path / "w.pt"}
    assert notes(open_model("torchvision:squeezenet1_1", normalize="imagenet", **same)) == ()
    bare = open_model("timm:test_resnet", classes=4)
    assert "no trained weights" in notes(check_model(bare, x))[0]
    assert image_size(bare) == 160
    assert image_size(model) == 224


def test_a_model_without_weights_is_the_same_each_time_and_moves_no_generator():
    before = torch.get_rng_state()
    first, second = (open_model("lenet", classes=3) for _ in range(2))
    assert torch.equal(first.fc2.weight, second.fc2.weight)
    assert torch.equal(torch.get_rng_state(), before)
    assert image_size(first) == 32


def test_a_normalisation_is_put_before_a_model_that_has_none(kit, source):
    model = open_model(f"{kit.factories}:net", weights=kit.weights, normalize="imagenet")
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    torch.testing.assert_close(model(X), source((X - mean) / std))
    with pytest.raises(UserError, match="leave out --normalize"):
        open_model(kit.model, normalize="imagenet")


@pytest.mark.parametrize(
    ("text", "settings", "sentence"),
    [
        ("torchvision:resnet18:pretrained", {"weights": "w.pt"}, "brings its own weights"),
        ("torchvision:resnet18:pretrained:pretrained", {}, "says ':pretrained' twice"),
        ("torchvision:resnet18:pretrained", {"classes": 3}, "have their own classes"),
        ("lenet", {"device": "meta"}, "'meta' hold no numbers"),
        ("lenet", {"device": "cuda:99"}, "no device 'cuda:99'"),
        ("lenet", {"classes": 3, "weights": "nowhere.pt"}, "no file of weights at nowhere.pt"),
        ("./lenet", {}, "no file lenet"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(text, settings, sentence):
    from pathlib import Path

    if "weights" in settings:
        settings = {**settings, "weights": Path(settings["weights"])}
    with pytest.raises(UserError, match=sentence):
        open_model(text, **settings)


# --- the zoo --------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "HOME", tmp_path / "zoo")
    return tmp_path / "zoo"


def stocked() -> nn.Module:
    model = gg.model("lenet", image_size=8, num_classes=3, seed=5).eval()
    zoo.add("tiny/lenet-ce", model, {"accuracy": 0.5, "command": "gyrograd train"})
    return model


def test_an_empty_zoo_has_no_names(home):
    assert zoo.names() == ()
    with pytest.raises(UserError, match="no model 'tiny/lenet-ce' in the zoo: there are none"):
        zoo.load("tiny/lenet-ce")


def test_a_zoo_model_is_found_by_name_with_its_card(home):
    model = stocked()
    assert zoo.names() == ("tiny/lenet-ce",)
    assert zoo.card("tiny/lenet-ce")["accuracy"] == 0.5
    for way in (zoo.load, load, open_model):
        found = way("tiny/lenet-ce")
        assert torch.equal(found(X), model(X))
        assert not found.training


def test_nets_designed_for_small_images_say_so_and_a_perceptron_does_not():
    assert image_size(gg.model("resnet20")) == 32
    assert image_size(gg.model("mlp", in_features=4)) is None


def test_a_zoo_model_kept_in_half_precision_is_half_the_size_and_computes_in_single(home):
    model = stocked()
    zoo.add("tiny/lenet-half", model, {}, half=True)
    whole, half = (home / "tiny" / name / "model.safetensors" for name in ("lenet-ce", "lenet-half"))
    assert half.stat().st_size < 0.6 * whole.stat().st_size
    found = zoo.load("tiny/lenet-half")
    assert {w.dtype for w in found.parameters()} == {torch.float32}
    torch.testing.assert_close(found(X), model(X), rtol=1e-2, atol=1e-2)
    assert {w.dtype for w in model.parameters()} == {torch.float32}  # the one that was given is left alone


def test_a_zoo_models_readme_tells_how_to_load_it_and_every_number_with_its_interval(home):
    score = {"value": 0.9, "low": 0.8, "high": 0.95, "n": 10_000}
    folder = zoo.add(
        "tiny/a", gg.model("mlp", in_features=4), {"accuracy": score, "robustness": {"RPS": score}}
    )
    text = (folder / "README.md").read_text()
    assert 'gg.load("tiny/a")' in text
    assert "| accuracy | 0.9 | 0.8 to 0.95 | 10,000 |" in text
    assert "| RPS | 0.9 |" in text


def test_load_takes_paths_too_and_a_near_miss_is_suggested(home, tmp_path):
    model = stocked()
    save(tmp_path / "a.safetensors", model)
    assert torch.equal(load(tmp_path / "a.safetensors")(X), model(X))
    for way in (load, open_model):
        with pytest.raises(UserError, match="did you mean 'tiny/lenet-ce'"):
            way("tiny/lenet-cce")
    with pytest.raises(UserError, match="no checkpoint at"):
        load("b.safetensors")


def test_a_zoo_model_whose_hash_is_not_the_cards_is_refused(home):
    stocked()
    other = gg.model("lenet", image_size=8, num_classes=3, seed=6)
    save(home / "tiny" / "lenet-ce" / "model.safetensors", other)
    with pytest.raises(UserError, match="its hash is not the card's"):
        zoo.load("tiny/lenet-ce")


@pytest.mark.parametrize("content", [None, "no json", "[]", json.dumps({"accuracy": 1})])
def test_a_card_that_is_missing_or_damaged_is_one_sentence(home, content):
    stocked()
    path = home / "tiny" / "lenet-ce" / "config.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(UserError, match="missing or damaged"):
        zoo.load("tiny/lenet-ce")


@pytest.mark.parametrize("name", ["", "a//b", "../a", "a/..", "a/"])
def test_a_name_that_leads_out_of_the_zoo_is_refused(home, name):
    with pytest.raises(UserError, match="not the name of a zoo model"):
        zoo.add(name, gg.model("lenet"), {})


# --- what comes out -------------------------------------------------------------------------------------


class Answering(nn.Module):
    """Gives back its logits in some wrapping."""

    def __init__(self, wrap):
        super().__init__()
        self.net, self.wrap = bad_files.net(), wrap

    def forward(self, x):
        return self.wrap(self.net(x))


Named = collections.namedtuple("Named", ["features", "logits"])


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    loss: None = None


@pytest.mark.parametrize(
    "wrap",
    [
        lambda z: (z,),
        lambda z: [z, z[:, None].expand(-1, 4, -1)],
        lambda z: {"logits": z, "other": z + 1},
        lambda z: {"out": z, "aux": [z]},
        lambda z: Named(z * 3, z),
        lambda z: Output(z),
        lambda z: collections.OrderedDict(logits=z, hidden_states=(z, z)),
    ],
)
def test_the_logits_are_picked_where_they_can_only_be_one(wrap):
    model = Answering(wrap)
    picked = check_model(model, X)
    assert isinstance(picked, PickedLogits)
    assert torch.equal(picked(X), model.net(X))
    assert len(notes(picked)) == 1


def test_a_model_of_plain_logits_comes_back_as_it_is():
    model = Answering(lambda z: z)
    assert check_model(model, X) is model


@given(seed=st.integers(0, 2**31), scale=st.floats(0.1, 30), k=st.integers(2, 9))
def test_the_softmax_of_wrapped_probabilities_is_the_probabilities(seed, scale, k):
    z = torch.randn(4, k, generator=torch.Generator().manual_seed(seed)) * scale

    class Fixed(nn.Module):
        def forward(self, x):
            return z.softmax(1) + 0 * x.mean()

    model = check_model(Fixed(), torch.zeros(4, 1, 2, 2))
    assert isinstance(model, LogProbabilities)
    torch.testing.assert_close(model(torch.zeros(4, 1, 2, 2)).softmax(1), z.softmax(1))


@given(seed=st.integers(0, 2**31), shift=st.floats(0.01, 3))
def test_positive_logits_are_not_taken_for_probabilities(seed, shift):
    z = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed)).softmax(1) + shift

    class Fixed(nn.Module):
        def forward(self, x):
            return z

    model = Fixed()
    assert check_model(model, torch.zeros(4, 1, 2, 2)) is model


def test_the_map_of_wrapped_probabilities_is_that_of_the_log_probability():
    model = Answering(lambda z: z.softmax(1))
    target = torch.tensor([0, 1, 2])
    through = gg.attribution("gradient")(check_model(model, X), X, target)
    direct = gg.attribution("gradient", quantity="log_probability")(model.net, X, target)
    torch.testing.assert_close(through, direct)


def test_checking_leaves_modes_and_weights_alone():
    model = Answering(lambda z: (z,)).train()
    model.net[1].eval()
    before = copy.deepcopy(model.state_dict())
    check_model(model, X)
    assert model.training
    assert not model.net[1].training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_outputs_of_training_alone_do_not_matter():
    class WithAuxiliaryHead(Answering):
        def forward(self, x):
            z = self.net(x)
            return (z, z) if self.training else z

    model = WithAuxiliaryHead(None).train()
    assert check_model(model, X) is model


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda m: m.net[0].to("meta"), "'net.0.weight' is on meta and the images are on cpu"),
        (lambda m: m.net[0].bias.data.fill_(float("inf")), "'net.0.bias' holds NaN or infinite"),
    ],
)
def test_weights_that_cannot_work_are_named(spoil, sentence):
    model = Answering(lambda z: z)
    spoil(model)
    with pytest.raises(UserError, match=sentence):
        check_model(model, X)


def test_the_class_count_is_read_from_the_weights(tmp_path):
    torch.save(build("mlp", num_classes=7, in_features=4).state_dict(), tmp_path / "seven.pt")
    lenet = build("lenet", num_classes=100, seed=0)
    torch.save(lenet.state_dict(), tmp_path / "hundred.pt")
    model = open_model("lenet", weights=tmp_path / "hundred.pt")
    x = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model(x), lenet.eval()(x))
    with pytest.raises(
        UserError, match="has 100 classes .* and --classes is 10; leave out --classes, or give --classes 100"
    ):
        open_model("lenet", weights=tmp_path / "hundred.pt", classes=10)
    with pytest.raises(UserError, match="lacks"):
        open_model("lenet", weights=tmp_path / "seven.pt")


def test_a_net_of_ones_own_with_another_class_count_is_a_sentence(tmp_path):
    (tmp_path / "own.py").write_text("import torch\ndef net(): return torch.nn.Linear(4, 3)\n")
    torch.save(torch.nn.Linear(4, 5).state_dict(), tmp_path / "five.pt")
    with pytest.raises(UserError, match="has 5 classes .* and .*own.py:net 3; give a model of 5 classes"):
        open_model(f"{tmp_path}/own.py:net", weights=tmp_path / "five.pt")


@pytest.mark.parametrize("name", ["lenet", "timm:test_resnet", "torchvision:squeezenet1_1"])
def test_an_untrained_model_has_the_classes_of_the_labelled_data(name, tmp_path):
    for place in ("cat", "dog", "owl"):
        (tmp_path / place).mkdir()
        for number in range(2):
            Image.new("RGB", (40, 40)).save(tmp_path / place / f"{number}.png")
    how = Opening(size=32, device="cpu", normalize="imagenet")
    here = open_inputs(name, str(tmp_path), how)
    assert here.classes == 3
    assert UNTRAINED in here.notes
    asked = open_inputs(name, str(tmp_path), replace(how, classes=3)).model
    assert [*here.model.state_dict()] == [*asked.state_dict()]
    assert all(torch.equal(a, b) for a, b in zip(here.model.parameters(), asked.parameters(), strict=True))
    assert open_inputs(name, str(tmp_path), replace(how, classes=5)).classes == 5
    own = 10 if name == "lenet" else 1000
    assert open_inputs(name, str(tmp_path), replace(how, unlabelled=True)).classes == own
    (stage,) = open_stage([name], str(tmp_path), size=32).nets
    assert stage.classes == ("cat", "dog", "owl")


def test_trained_weights_and_single_classes_decide_the_number_before_the_data(tmp_path):
    trained = gg.model("lenet", num_classes=4, seed=1)
    torch.save(trained.state_dict(), tmp_path / "w.pt")
    assert match_classes(open_model("lenet", weights=tmp_path / "w.pt"), 3).spec.settings["num_classes"] == 4
    bare = open_model("lenet")
    assert match_classes(bare, 10) is bare
    assert match_classes(bare, 1) is bare


def test_without_data_a_model_has_the_number_of_its_architecture():
    for name, own in (("timm:test_resnet", 1000), ("torchvision:squeezenet1_1", 1000), ("lenet", 10)):
        model = gg.model(name, seed=0).eval()
        assert model.spec.settings["num_classes"] == own
        assert model(torch.rand(1, 3, 32, 32)).shape == (1, own)
    assert gg.model("hf:vit", hidden_size=8, num_attention_heads=2).spec.settings["num_classes"] == 2
