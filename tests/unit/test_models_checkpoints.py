"""Checkpoints come back bit for bit or say why not; foreign weights load in full or not at all."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import bad_files
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from gyrograd.errors import UserError
from gyrograd.models import Probability, build, checkpoints, load, load_state, save
from gyrograd.models.checksums import digest, signed_bytes

MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: build("mlp", seed=1),
    "lenet, normalised": lambda: build("lenet", seed=1, num_classes=3, image_size=8, normalize="cifar10"),
    "resnet20, softplus": lambda: build("resnet20", seed=1, activation="softplus", beta=3),
    "functional": lambda: build("torchvision:squeezenet1_1", seed=1, activation="silu", normalize="imagenet"),
    "float64": lambda: build("resnet20", seed=1).double(),
    "bfloat16": lambda: build("mlp", seed=1).bfloat16(),
    "probability": lambda: Probability(build("mlp", seed=1)),
}


def equal_bits(one: Tensor, other: Tensor) -> bool:
    as_bytes = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*as_bytes)


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_model_comes_back_bit_for_bit(make, tmp_path: Path) -> None:
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_()
            module.num_batches_tracked += 7
    path = tmp_path / "deep" / "model.safetensors"
    save(path, model)
    state = torch.get_rng_state()
    back = load(path)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module.training for module in back.modules())
    assert back.spec == model.spec
    assert list(back.state_dict()) == list(model.state_dict())
    assert all(equal_bits(back.state_dict()[key], tensor) for key, tensor in model.state_dict().items())
    assert str(back) == str(model)


def test_a_loaded_model_gives_the_same_logits_and_can_be_trained(tmp_path: Path) -> None:
    model = build("lenet", seed=1, image_size=8, activation="softplus", beta=3, normalize="cifar10").eval()
    save(tmp_path / "a", model)
    back, x = load(tmp_path / "a"), torch.rand(2, 3, 8, 8)
    assert torch.equal(back(x), model(x))
    back(x).sum().backward()
    assert all(p.grad is not None for p in back.parameters())


def test_facts_are_kept(tmp_path: Path) -> None:
    save(tmp_path / "a", build("mlp"), facts={"accuracy": 0.5, "epochs": [1, 2]})
    assert checkpoints.facts(tmp_path / "a") == {"accuracy": 0.5, "epochs": [1, 2]}


@pytest.mark.parametrize("facts", [{"a": float("nan")}, {"a": torch.zeros(1)}])
def test_facts_that_json_cannot_hold_are_explained(facts: dict, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="plain JSON"):
        save(tmp_path / "a", build("mlp"), facts=facts)
    assert list(tmp_path.iterdir()) == []


def test_saving_does_not_change_the_random_state(tmp_path: Path) -> None:
    state = torch.get_rng_state()
    save(tmp_path / "a", build("mlp", seed=0))
    assert torch.equal(torch.get_rng_state(), state)


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save(tmp_path / name, build("mlp", seed=0), facts={"x": 1, "y": 2})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch) -> None:
    save(tmp_path / "a", build("mlp", seed=0))
    before = (tmp_path / "a").read_bytes()

    def full_disk(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        save(tmp_path / "a", build("mlp", seed=1))
    assert (tmp_path / "a").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "model.safetensors"
    save(path, build("mlp", seed=0, hidden=(3,)), facts={"accuracy": 0.9})
    return path.read_bytes()


@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_one_flipped_bit_anywhere_is_noticed(whole: bytes, where: float, bit: int, tmp_path_factory) -> None:
    content = bytearray(whole)
    content[int(where * len(whole))] ^= 1 << bit
    path = tmp_path_factory.mktemp("flipped") / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_a_flipped_bit_of_a_weight_is_called_damage(whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match="do not match its checksum"):
        load(tmp_path / "a")


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_called_damaged(whole: bytes, keep: float, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(whole[: int(keep * len(whole))])
    with pytest.raises(UserError, match="is damaged") as caught:
        load(tmp_path / "a")
    assert "\n" not in str(caught.value)


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("unpickled",))


def write_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "a")


FOREIGN: dict[str, tuple[Callable[[Path], object], str]] = {
    "safetensors": (lambda p: save_file({"w": torch.zeros(2)}, p), "not written by gyrograd"),
    "safetensors with notes": (
        lambda p: save_file({"w": torch.zeros(2)}, p, {"format": "pt"}),
        "not written by",
    ),
    "pt": (lambda p: torch.save({"w": torch.zeros(2)}, p), "pickle or zip"),
    "pickle": (lambda p: p.write_bytes(pickle.dumps(Bomb())), "pickle or zip"),
    "zip": (write_zip, "pickle or zip"),
    "text": (lambda p: p.write_text("hello, I am a long enough text\n" * 9), "not a gyrograd checkpoint"),
    "empty": (lambda p: p.write_bytes(b""), "not a gyrograd checkpoint"),
    "folder": (lambda p: p.mkdir(), "There is no checkpoint"),
    "nothing": (lambda p: None, "There is no checkpoint"),
}


@pytest.mark.parametrize(("write", "words"), FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_file_is_explained(write, words: str, tmp_path: Path) -> None:
    write(tmp_path / "a")
    with pytest.raises(UserError, match=words) as caught:
        load(tmp_path / "a")
    assert "\n" not in str(caught.value)


def rewritten(path: Path, change: Callable[[dict, dict[str, Tensor]], object]) -> None:
    """Change note and tensors of a checkpoint and sign it again: a file that is whole but wrong."""
    with safe_open(path, framework="pt") as file:
        note = json.loads(file.metadata()["gyrograd"])
        tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
    del note["sha256"]
    change(note, tensors)
    note["sha256"] = digest(note, tensors)
    save_file(tensors, path, {"gyrograd": json.dumps(note)})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w, t: w.update(schema=2), "has schema 2 and this gyrograd reads up to 1"),
        (lambda w, t: t.pop("0.weight"), "lacks '0.weight' of the model"),
        (lambda w, t: t.update(extra=torch.zeros(1)), "has 'extra' that the model lacks"),
        (
            lambda w, t: w["spec"]["settings"].update({"num_classes": 5}),
            "has 2 classes .* and the model 5; build the model with num_classes=2",
        ),
        (
            lambda w, t: w["spec"]["settings"].update({"in_features": 7}),
            r"'0.weight' is \(3, 2\) and the model's is \(3, 7\)",
        ),
        (lambda w, t: w["spec"]["settings"].update({"hiden": 7}), "did you mean 'hidden'"),
        (lambda w, t: w.update(spec={}), "not the description of a model"),
    ],
)
def test_a_whole_but_wrong_checkpoint_is_explained(change, words: str, whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(whole)
    rewritten(tmp_path / "a", change)
    with pytest.raises(UserError, match=words):
        load(tmp_path / "a")


def test_a_signed_again_checkpoint_without_change_loads(whole: bytes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(whole)
    rewritten(tmp_path / "a", lambda w, t: None)
    assert load(tmp_path / "a").spec.name == "mlp"


def test_a_model_of_ones_own_cannot_be_saved_and_why(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="was not built by gyrograd"):
        save(tmp_path / "a", nn.Linear(2, 2))


def test_a_model_changed_by_hand_is_not_saved_under_its_old_name(tmp_path: Path) -> None:
    model = build("mlp")
    model[2] = nn.Linear(32, 7)
    with pytest.raises(UserError, match="changed after gyrograd built it"):
        save(tmp_path / "a", model)


def as_pt(tensors: dict[str, Tensor], path: Path) -> None:
    torch.save(tensors, path)


STORED: dict[str, Callable[[dict[str, Tensor], Path], object]] = {
    "safetensors": save_file,
    "pt": as_pt,
    "module.": lambda t, p: torch.save({f"module.{k}": v for k, v in t.items()}, p),
    "model.module.": lambda t, p: save_file({f"model.module.{k}": v for k, v in t.items()}, p),
    "in a container": lambda t, p: torch.save({"epoch": 3, "state_dict": t}, p),
    "in two containers": lambda t, p: torch.save({"state_dict": {"model": t}}, p),
    "old pickle": lambda t, p: torch.save(t, p, _use_new_zipfile_serialization=False),
}


@pytest.mark.parametrize("store", STORED.values(), ids=STORED)
@pytest.mark.parametrize("normalize", [None, "imagenet"])
def test_foreign_weights_load_into_the_model_or_its_core(
    store, normalize: str | None, tmp_path: Path
) -> None:
    source = build("resnet20", seed=1)
    tensors = {k: v for k, v in source.state_dict().items() if "num_batches_tracked" not in k}
    store(tensors, tmp_path / "weights")
    model = build("resnet20", seed=2, normalize=normalize)
    load_state(model, tmp_path / "weights")
    loaded = (model.core if normalize else model).state_dict()
    assert all(torch.equal(loaded[key], tensor) for key, tensor in tensors.items())
    built = build("resnet20", normalize=normalize, weights=tmp_path / "weights", activation="softplus")
    loaded = (built.core if normalize else built).state_dict()
    assert all(torch.equal(loaded[key], tensor) for key, tensor in tensors.items())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda t: t.update({"0.wieght": t.pop("0.weight")}),
            r"lacks '0.weight' .*nearest there is '0.wieght'",
        ),
        (lambda t: t.clear() or t.update(zzz=torch.zeros(1)), "and 3 more .*nothing there is near it"),
        (lambda t: t.update(more=torch.zeros(1), most=torch.zeros(1)), "has 'more' and 1 more that"),
        (lambda t: t.update({"2.weight": torch.zeros(9, 32), "2.bias": torch.zeros(9)}), "num_classes=9"),
        (lambda t: t.update({"0.weight": torch.zeros(32, 3)}), r"is \(32, 3\) and the model's is \(32, 2\)"),
    ],
)
def test_foreign_weights_that_do_not_fit_are_explained_and_change_nothing(
    change, words: str, tmp_path: Path
) -> None:
    tensors = {key: torch.ones_like(tensor) for key, tensor in build("mlp").state_dict().items()}
    change(tensors)
    save_file(tensors, tmp_path / "weights")
    model = build("mlp", seed=1)
    with pytest.raises(UserError, match=words):
        load_state(model, tmp_path / "weights")
    untouched = build("mlp", seed=1).state_dict()
    assert all(torch.equal(tensor, untouched[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda p: None, "There is no file"),
        (lambda p: p.write_text("text " * 99), "neither safetensors nor a .pt"),
        (lambda p: p.write_bytes(pickle.dumps(Bomb())), "runs no code"),
        (lambda p: torch.save({"w": Bomb()}, p), "runs no code"),
        (write_zip, "damaged or holds more than tensors"),
        (lambda p: torch.save([torch.zeros(1)], p), "holds no state dict"),
        (lambda p: torch.save({"epoch": 3}, p), "holds no state dict"),
    ],
)
def test_a_file_without_plain_weights_is_explained(write, words: str, tmp_path: Path) -> None:
    write(tmp_path / "weights")
    with pytest.raises(UserError, match=words) as caught:
        load_state(build("mlp"), tmp_path / "weights")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("start", [b"\x80", b"PK"])
def test_safetensors_whose_length_looks_like_a_pickle_or_zip_is_read(start: bytes, tmp_path: Path) -> None:
    tensors = build("mlp", seed=1).state_dict()
    path = tmp_path / "weights"
    sizes = range(257) if start == b"\x80" else range(0x4B50 - 600, 0x4B50, 4)
    for size in sizes:
        save_file(tensors, path, {"note": "x" * size})
        if path.read_bytes().startswith(start):
            break
    assert path.read_bytes().startswith(start)
    model = build("mlp", seed=2)
    load_state(model, path)
    assert torch.equal(model[0].weight, tensors["0.weight"])
    with pytest.raises(UserError, match="not written by gyrograd"):
        load(path)


def test_a_model_whose_own_names_look_like_a_prefix_reads_its_own_weights(tmp_path):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(2, 3)

    here, there = Wrapped(), Wrapped()
    save_file(there.state_dict(), tmp_path / "own.safetensors")
    load_state(here, tmp_path / "own.safetensors")
    assert torch.equal(here.net.weight, there.net.weight)


def signed(path, spec, tensors=None, **note):
    """A checkpoint of any description, with a checksum that fits."""
    tensors = tensors or {"weight": torch.zeros(2)}
    path.write_bytes(signed_bytes("gyrograd", {"schema": 1, "facts": {}, "spec": spec, **note}, tensors))
    return path


@pytest.mark.parametrize("classes", [-1, 0, "ten", 10**12, 1.5, True, [3]])
def test_an_impossible_class_count_is_one_sentence(classes, tmp_path):
    spec = {"name": "lenet", "settings": {"num_classes": classes, "image_size": 8}, "wraps": []}
    with pytest.raises(UserError, match="num_classes is|much larger than itself"):
        load(signed(tmp_path / "a.safetensors", spec))
    if type(classes) is int:
        for name in ("lenet", "torchvision:resnet18"):
            with pytest.raises(UserError, match="give a whole number from 1 to 1,000,000"):
                build(name, num_classes=classes)


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (None, "does not say which model"),
        ([], "does not say which model"),
        ({"name": "lenet"}, "not the description of a model"),
        (
            {"name": "lenet", "settings": {"in_channels": -3}, "wraps": []},
            "cannot be built with these settings",
        ),
        (
            {"name": "lenet", "settings": {"in_channels": "a"}, "wraps": []},
            "has in_channels='a'; give a whole number",
        ),
        ({"name": "lenet", "settings": {"in_channels": 10**12}, "wraps": []}, "much larger than itself"),
        ({"name": "mlp", "settings": {"hidden": [1] * 5_000}, "wraps": []}, "much larger than itself"),
        ({"name": "lenet", "settings": {}, "wraps": [["normalized", {"mean": "a"}]]}, "cannot be built"),
        ({"name": "lenet", "settings": {}, "wraps": [["other", {}]]}, "no model wrapper 'other'"),
        ({"name": "timm:test_resnet", "settings": {"pretrained": True}, "wraps": []}, "cannot be built"),
    ],
)
def test_a_description_of_no_model_is_one_sentence(spec, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        load(signed(tmp_path / "a.safetensors", spec))


def test_facts_that_are_a_list_are_one_sentence(tmp_path):
    spec = {"name": "lenet", "settings": {}, "wraps": []}
    with pytest.raises(UserError, match="lacks spec or facts"):
        load(signed(tmp_path / "a.safetensors", spec, facts=[]))


def test_a_checkpoint_does_not_make_a_library_unpickle_another_file(tmp_path):
    """timm would read `checkpoint_path`; earlier versions of it unpickle the whole file."""
    (tmp_path / "evil.pth").write_bytes(bad_files.evil(tmp_path))
    settings = {"checkpoint_path": str(tmp_path / "evil.pth")}
    spec = {"name": "timm:test_resnet", "settings": settings, "wraps": []}
    with pytest.raises(UserError, match="'checkpoint_path' would make .* read other files"):
        load(signed(tmp_path / "a.safetensors", spec))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: w.to(torch.complex64), "holds complex numbers and the model's are real numbers"),
        (lambda w: w > 0, "holds true or false"),
        (lambda w: w.long(), "holds whole numbers"),
        (lambda w: w.to_sparse(), "sparse, quantized or empty"),
        (lambda w: torch.empty_like(w, device="meta"), "sparse, quantized or empty"),
    ],
)
def test_weights_that_would_lose_something_are_refused(change, sentence, tmp_path):
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    torch.save({"weight": change(before), "bias": model.bias.detach()}, tmp_path / "a.pt")
    with pytest.raises(UserError, match=sentence):
        load_state(model, tmp_path / "a.pt")
    assert torch.equal(model.weight, before)


def test_a_checkpoint_of_whole_numbers_is_one_sentence(tmp_path):
    model = build("mlp", seed=0)
    spec = json.loads(model.spec.to_json())
    tensors = {key: value.long() for key, value in model.state_dict().items()}
    with pytest.raises(UserError, match="holds whole numbers"):
        load(signed(tmp_path / "a.safetensors", spec, tensors))
