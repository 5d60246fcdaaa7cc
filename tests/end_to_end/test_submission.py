"""A submitted audit is checked by one command, and whatever was changed in it is found."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn

import gyrograd as gg
from gyrograd.audit.presets import PRESETS
from gyrograd.audit.submission import read_images, verify, write_images, write_submission
from gyrograd.cli import main
from gyrograd.errors import UserError
from gyrograd.metrics import TopKIntersection
from gyrograd.models import save
from gyrograd.records import read, write

TINY = replace(
    PRESETS["quick"], methods=("gradient",), steps=1, attacked_images=2, curve=(4 / 255,), points=3, draws=2, sweep={},
    bound_images=1, bound_draws=1, flag_images=2, pictures=1, shard=2,
)  # fmt: skip


def submit(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "quick", TINY)
        words = [
            "submit",
            "cifar10/lenet-ce",
            "shapes",
            "--images",
            "3",
            "--out",
            str(folder),
            "--device",
            "cpu",
        ]
        assert main([*words, "--name", "Net", "--reported", "accuracy=0.87", "--paper", "A paper"]) == 0
    return folder


@pytest.fixture(scope="module")
def submitted(tmp_path_factory):
    return submit(tmp_path_factory.mktemp("submission") / "net")


@pytest.fixture
def folder(submitted, tmp_path):
    """A copy to change."""
    return shutil.copytree(submitted, tmp_path / "net")


def signed(folder):
    """The list of files as somebody writes it who changed some."""
    path = folder / "submission.json"
    document = json.loads(path.read_text())
    for name in document["files"]:
        document["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    path.write_text(json.dumps(document))


def changed_card(folder, change):
    card = json.loads((folder / "card.json").read_text())
    change(card)
    (folder / "card.json").write_text(json.dumps(card))


def failure(folder):
    """Which step fails, and why; None if all hold."""
    checks = list(verify(folder, device="cpu"))
    assert all(check.wrong is None for check in checks[:-1])
    return None if checks[-1].wrong is None else (len(checks), checks[-1].wrong)


def test_a_submission_holds_and_says_so(submitted, capsys):
    assert main(["verify", str(submitted), "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert "measuring again" not in err
    assert out.count("ok  ") == 4
    assert "3 images measured again agree with their records" in out
    document = json.loads((submitted / "submission.json").read_text())
    assert (document["name"], document["reported"]) == ("Net", {"accuracy": 0.87})


def test_a_changed_card_is_found(folder, capsys):
    changed_card(folder, lambda card: card["methods"][0]["columns"]["steady_radius"].update(value=9.0))
    assert main(["verify", str(folder)]) == 1
    assert "card.json was changed" in capsys.readouterr().out
    signed(folder)  # whoever changes the card can change the list of files too
    assert failure(folder) == (3, "the card's 'steady_radius' of gradient is not that of its records")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda card: card["accuracy"].update(value=1.0), "the card's accuracy"),
        (lambda card: card["methods"][0]["columns"]["insertion"].update(low=0.5), "'insertion' of gradient"),
        (lambda card: card["curves"]["eps"]["lines"][0]["y"][0].update(value=1.0), "curves over eps"),
        (lambda card: card.update(flags=[]), "does not say that saturated was raised"),
        (lambda card: card["methods"][0].update(passes=99), "99 passes and it takes 1"),
        (lambda card: card["verdict"].update(grade="steady"), "the part 'verdict' of the card"),
        (lambda card: card["verdict"].update(sentences=["All is well."]), "the part 'verdict' of the card"),
        (lambda card: card["methods"][0].update(grade="steady"), "the part 'methods' of the card"),
        (lambda card: card["columns"][0].update(detail="a longer search"), "the part 'columns' of the card"),
        (lambda card: card["curves"]["insertion"]["lines"][0].update(y=[1, 1, 1]), "curves of insertion"),
        (
            lambda card: card["methods"][0]["columns"].update(
                road={"value": 0.9, "low": 0.9, "high": 0.9, "n": 3}
            ),
            "'road' of gradient",
        ),
        (lambda card: card["data"].update(labelled=False), "the card's accuracy"),
        (lambda card: card["data"].update(images=50_000), "50000 images and 3 were submitted"),
    ],
    ids=[
        "accuracy",
        "interval",
        "curve",
        "flags",
        "passes",
        "grade",
        "sentences",
        "grade of a method",
        "search",
        "insertion",
        "another column",
        "labels",
        "images",
    ],
)
def test_a_card_that_says_more_than_its_records_is_found(folder, change, why):
    changed_card(folder, change)
    signed(folder)
    step, wrong = failure(folder)
    assert step == 3
    assert why in wrong


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_model_that_returns_probabilities_is_the_one_that_was_audited(tmp_path, monkeypatch):
    layers = nn.Conv2d(3, 4, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 7 * 7, 10), nn.Softmax(1)
    script = tmp_path / "net.pt"
    torch.jit.script(nn.Sequential(*layers).eval()).save(script)
    monkeypatch.setitem(PRESETS, "quick", replace(TINY, curve=(), bound_images=0, attacked_images=1))
    words = ["submit", str(script), "shapes", "--images", "2", "--size", "32", "--device", "cpu"]
    assert main([*words, "--out", str(tmp_path / "net")]) == 0
    assert failure(tmp_path / "net") is None


def test_a_card_of_another_version_is_not_just_called_wrong(folder):
    def older(card):
        card["rerun"]["versions"]["gyrograd"] = "0.0.9"

    changed_card(folder, older)
    signed(folder)
    assert failure(folder) is None
    changed_card(folder, lambda card: card["accuracy"].update(value=0.5))
    signed(folder)
    step, why = failure(folder)
    assert step == 3
    assert "accuracy is not that of its records (gyrograd 0.0.9 made this card and this is" in why


def test_an_audit_of_as_many_images_as_a_precision_takes_is_refused_in_a_sentence(folder, capsys):
    changed_card(folder, lambda card: card["settings"].update(precision=0.05))
    signed(folder)
    assert main(["verify", str(folder)]) == 2
    assert "was audited to a precision of 0.05" in capsys.readouterr().err
    images = read_images(folder / "images.safetensors")
    with pytest.raises(UserError, match="a submission needs a fixed number of images"):
        write_submission(folder, gg.load("cifar10/lenet-ce"), *images, {}, {})


def test_other_weights_are_found(folder):
    model = gg.load(folder / "model.safetensors")
    with torch.no_grad():
        next(model.parameters())[0] += 0.01
    save(folder / "model.safetensors", model)
    assert failure(folder) == (1, "model.safetensors was changed after it was submitted")
    signed(folder)
    assert failure(folder)[0] == 2


def test_a_changed_record_is_found_even_if_it_is_signed_anew(folder):
    (path,) = (folder / "records").glob("gradient-under-auto-[0-9a-f]*/*.json")
    record = read(path)
    for key, column in record.values.items():
        if key.startswith("kept"):
            record.values[key] = [1.0 for _ in column]
    write(path, record)
    signed(folder)
    assert failure(folder)[0] == 3


def test_records_of_sanity_checks_are_not_believed(folder):
    (path,) = (folder / "records").glob("gradient-sanity-checks-*/*.json")
    record = read(path)
    record.values["constant"] = [1.0, 1.0]  # would raise a flag that the card does not name
    write(path, record)
    signed(folder)
    assert failure(folder) is None


def test_invented_records_with_a_card_to_match_are_found_by_measuring_again(tmp_path, monkeypatch):
    """Everything is consistent, since the numbers were false when they were made."""
    with monkeypatch.context() as patch:
        patch.setattr(TopKIntersection, "__call__", lambda _, clean, *__: torch.ones(len(clean)))
        folder = submit(tmp_path / "false")
    step, wrong = failure(folder)
    assert step == 4
    assert "and its record says 1.000" in wrong


def test_records_that_are_left_out_are_measured_and_files_outside_are_not_read(folder):
    for path in (folder / "records").rglob("*.json"):
        path.unlink()
    document = json.loads((folder / "submission.json").read_text())
    document["files"] = {k: v for k, v in document["files"].items() if not k.startswith("records")}
    (folder / "submission.json").write_text(json.dumps(document))
    changed_card(folder, lambda card: card["methods"][0]["columns"]["top_k_kept"].update(value=0.9))
    signed(folder)
    assert failure(folder)[0] == 3
    document["files"]["../outside"] = "0"
    (folder / "submission.json").write_text(json.dumps(document))
    assert failure(folder)[0] == 1


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"schema": 9, "model": {}, "files": {}}'])
def test_a_broken_submission_is_one_sentence(folder, text, capsys):
    (folder / "submission.json").write_text(text)
    assert main(["verify", str(folder)]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_code_is_refused_before_the_audit(tmp_path, capsys, monkeypatch):
    (tmp_path / "net.py").write_text(
        "import gyrograd as gg\n\ndef net():\n    return gg.load('cifar10/lenet-ce')\n"
    )
    monkeypatch.setattr("gyrograd.audit.audit", None)
    assert main(["submit", f"{tmp_path}/net.py:net", "shapes", "--out", str(tmp_path / "out")]) == 2
    assert "is code, which a submission cannot include" in capsys.readouterr().err


def test_a_submission_that_names_code_is_not_opened(folder):
    document = json.loads((folder / "submission.json").read_text())
    for file in ("model.py", "../model.safetensors"):
        document["model"] = {"file": file}
        (folder / "submission.json").write_text(json.dumps(document))
        with pytest.raises(UserError, match="is code or outside its folder"):
            list(verify(folder))


def test_images_travel_bit_for_bit(tmp_path):
    for x in (torch.randint(0, 256, (2, 3, 4, 4)).float() / 255, torch.rand(2, 3, 4, 4)):
        write_images(tmp_path / "x", x, torch.tensor([1, 2]), (7, 9))
        again, target, index = read_images(tmp_path / "x")
        assert torch.equal(again, x)
        assert (target.tolist(), index) == ([1, 2], (7, 9))


def test_a_claim_without_a_number_is_one_sentence(tmp_path, capsys):
    words = ["submit", "cifar10/lenet-ce", "shapes", "--out", str(tmp_path), "--reported", "accuracy"]
    assert main(words) == 2
    assert "such as accuracy=0.95" in capsys.readouterr().err
