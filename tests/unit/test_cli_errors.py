"""Whatever goes wrong in a verb is one sentence: the user's mistake, the user's own code, or a defect of gyrograd."""

from __future__ import annotations

import pytest

from gyrograd import cli
from gyrograd.errors import UserError, printable

NET = """
import torch
from torch import nn

class MyError(Exception):
    pass

class Net(nn.Module):
    def __init__(self, raised, late=False):
        super().__init__()
        self.core, self.raised, self.calls, self.late = nn.Linear(3 * 8 * 8, 4), raised, 0, late

    def forward(self, x):
        self.calls += 1
        if not self.late or self.calls > 2:
            raise self.raised
        return self.core(x.flatten(1))

def key(): return Net(KeyError("weights"))
def zero(): return Net(ZeroDivisionError("division by zero"))
def memory(): return Net(MemoryError())
def own(): return Net(MyError("of my own"))
class Odd(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.core, self.kind = nn.Linear(3 * 8 * 8, 4), kind
        if kind == "sparse weight":
            self.mask = nn.Parameter(torch.eye(4).to_sparse())
        if kind == "whole weight":
            self.core.weight = nn.Parameter(self.core.weight.long(), requires_grad=False)

    def forward(self, x):
        y = self.core(x.flatten(1))
        kinds = {"bool": torch.bool, "int64": torch.int64, "complex64": torch.complex64}
        if self.kind == "nan map":
            return y + 0 * torch.sqrt(0 * x.flatten(1).sum(1, keepdim=True))
        return y.to_sparse() if self.kind == "sparse" else y.to(kinds.get(self.kind, y.dtype))

def bool_out(): return Odd("bool")
def int_out(): return Odd("int64")
def complex_out(): return Odd("complex64")
def sparse_out(): return Odd("sparse")
def sparse_weight(): return Odd("sparse weight")
def whole_weight(): return Odd("whole weight")
def nan_map(): return Odd("nan map")
def good(): return Odd("good")
def late(): return Net(MyError("of my own"), late=True)
def file(): return Net(FileNotFoundError(2, "No such file", "lookup.csv"), late=True)
"""


TWO_IMAGES = ["shapes", "--images", "2", "--size", "8", "--unlabelled", "--out", "o"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("factory", "said"),
    [("key", "KeyError: 'weights'"), ("zero", "ZeroDivisionError"), ("memory", "MemoryError"),
     ("own", "MyError: of my own"), ("late", "MyError: of my own"), ("file", "FileNotFoundError")],
)  # fmt: skip
def test_an_error_of_the_users_model_names_its_file_and_line(factory, said, home, capsys):
    words = ["explain", f"net.py:{factory}", *TWO_IMAGES]
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    line = NET.splitlines().index("            raise self.raised") + 1
    assert said in err
    assert f"net.py, line {line}, in forward" in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("factory", "said"),
    [("bool_out", "returned bool numbers"), ("int_out", "returned int64 numbers"),
     ("complex_out", "returned complex64 numbers"), ("sparse_out", "returned sparse numbers"),
     ("sparse_weight", "'mask' is a sparse tensor"), ("whole_weight", "give it weights of float32")],
)  # fmt: skip
def test_a_model_of_odd_numbers_is_one_sentence(factory, said, home, capsys):
    words = ["attack", f"net.py:{factory}", "shapes", "--images", "1", "--size", "8", "--steps", "1"]
    assert cli.main([*words, "--out", "o"]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize("verb", ["explain", "attack"])
def test_maps_that_are_no_numbers_are_not_drawn(verb, home, capsys):
    words = [verb, "net.py:nan_map", *TWO_IMAGES]
    assert cli.main(words) == 2
    assert "NaN or infinite numbers" in capsys.readouterr().err
    assert [path.name for path in home.glob("o/*map*.png")] == []
    assert [path.name for path in home.glob("o/*gradient*.png")] == []


def test_other_methods_are_drawn_beside_one_that_gives_no_numbers(home, capsys):
    words = ["explain", "net.py:nan_map", *TWO_IMAGES, "--json"]
    assert cli.main([*words, "--method", "gradient,lime(draws=8, segments=grid)"]) == 2
    assert len(list(home.glob("o/*lime*overlay.png"))) == 2
    assert list(home.glob("o/*gradient*.png")) == []


METHODS = [
    "smoothgrad(sigma=nan)", "smoothgrad(sigma=inf)", "smoothgrad(sigma=.nan)", "smoothgrad(draws=1.5)",
    "smoothgrad(sigma=true)", "smoothgrad(draws=True)", "smoothgrad(draws=100000000)", "lime(segments=0)",
    "integrated_gradients(steps=abc)", "integrated_gradients(steps=1000000000000000)", "lime(segments=[1, 2])",
    "smoothgrad(sigma={a: 1})", "gradient(quantity=2001-99-99)", "gradient(quantity=%s)" % ("9" * 5000),
]  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_a_setting_that_does_not_fit_is_one_sentence(method, home, capsys):
    words = ["explain", "net.py:good", "shapes", "--images", "1", "--size", "8", "--unlabelled", "--out", "o"]
    assert cli.main([*words, "--method", method]) == 2
    err = capsys.readouterr().err
    assert err.startswith("gyrograd: ")
    assert len(err.strip().splitlines()) == 1
    assert not (home / "o").exists()


@pytest.mark.parametrize(
    "words",
    [["explain", "lenet", "shapes", "--size", "1000000000"], ["explain", "lenet", "shapes", "--classes", "-1"],
     ["explain", "timm:resnet18", "shapes", "--classes", "0"], ["attack", "lenet", "shapes", "--steps", "1" + "0" * 15],
     ["explain", "lenet", "shapes", "--classes", "1000000000000"], ["bench", "--side", "100000000"],
     ["attack", "lenet", "shapes", "--attack", "targeted_map(step_size=nan)"], ["bench", "--repeats", "1" + "0" * 12],
     ["explain", "torchvision:resnet18:pretrained:pretrained", "shapes"],
     ["reproduce", "joo2023-table1", "--device", "zzz"],
     ["explain", "lenet", "shapes", "--out", "a\0b"], ["report", "a\0b"], ["sweep", "a\0b"], ["demo", "--images", "0"],
     ["train", "--model", "lenet", "--lr", "1e30"], ["bench", "--device", "zzz"]],
)  # fmt: skip
def test_a_value_no_run_could_do_with_is_one_sentence_at_once(words, home, capsys):
    assert cli.main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("gyrograd: ")
    assert len(err.strip().splitlines()) == 1
    assert sorted(path.name for path in home.iterdir()) == ["net.py"]


@pytest.mark.parametrize(
    "words",
    [["demo"], ["train", "--model", "lenet"], ["harden", "lenet", "shapes"], ["reproduce", "joo2023-table1"],
     ["explain", "lenet", "shapes"], ["attack", "lenet", "shapes"], ["audit", "lenet", "shapes"],
     ["compare", "a", "b"], ["data", "show", "shapes"]],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_found_before_any_work(words, home, capsys, monkeypatch):
    def work(*_, **__):
        raise AssertionError("work was done first")

    monkeypatch.setattr("gyrograd.registry.make", work)
    monkeypatch.setattr("gyrograd.models.opening.open_model", work)
    (home / "file").write_text("keep me")
    assert cli.main([*words, "--out", "file/below"]) == 2
    assert "is a file where a folder is needed" in capsys.readouterr().err
    assert (home / "file").read_text() == "keep me"


def test_data_that_are_missing_are_found_before_anything_is_trained(home, capsys, monkeypatch):
    monkeypatch.setenv("GYROGRAD_DATA", str(home / "data"))
    (home / "data" / "cifar-10-batches-bin").mkdir(parents=True)
    assert cli.main(["reproduce", "joo2023-table1", "--scale", "paper"]) == 2
    assert f"There is no folder {home / 'data'}" in capsys.readouterr().err


def test_a_sweep_with_a_value_given_twice_is_refused(home, capsys):
    (home / "sweep.yaml").write_text("model: lenet\ntest: {split: test}\ngrid: {lr: [0.1, 1e-1]}\n")
    assert cli.main(["sweep", "sweep.yaml"]) == 2
    assert "0.1 twice for lr" in capsys.readouterr().err


def failing(error: Exception):
    def show(kind: str | None = None) -> None:
        """List nothing."""
        raise error

    return show


def test_an_unexpected_error_is_a_sentence_that_says_it_is_a_defect(monkeypatch, capsys):
    def broken() -> None:
        """Fails as gyrograd itself would."""
        import json

        json.loads("{")

    monkeypatch.setattr(cli, "verbs", lambda: {"list": broken})
    monkeypatch.setattr(cli, "foreign_code", lambda error: None)  # this test is no part of gyrograd
    assert cli.main(["list"]) == 70
    err = capsys.readouterr().err
    assert err.startswith("gyrograd: This is a bug in gyrograd, not in your code: JSONDecodeError: ")
    assert "--debug" in err
    assert len(err.strip().splitlines()) == 1
    assert cli.main(["list", "--debug"]) == 70
    assert "Traceback" in capsys.readouterr().err
    assert cli.main(["list"]) == 70
    assert "Traceback" not in capsys.readouterr().err


def test_the_environment_asks_for_frames_too(monkeypatch, capsys):
    monkeypatch.setenv("GYROGRAD_DEBUG", "1")
    assert cli.main(["list", "no-such-kind"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate"),
        RuntimeError("can't start new thread"),  # under ulimit -v, when images of a Parquet file are decoded
    ],
)
def test_memory_that_ran_out_is_a_sentence(error, monkeypatch, capsys):
    monkeypatch.setattr(cli, "verbs", lambda: {"list": failing(error)})
    monkeypatch.setattr(cli, "foreign_code", lambda error: None)
    assert cli.main(["list"]) == 2
    assert "Memory ran out" in capsys.readouterr().err


def test_control_characters_do_not_reach_the_terminal(capsys, monkeypatch):
    assert printable("a\x1b[2J\x07\r\u202eb\udcff") == r"a\x1b[2J\x07\r\u202eb\udcff"
    assert printable("Grüße,\u00a0名前.png") == "Grüße,\u00a0名前.png"
    monkeypatch.setattr(cli, "verbs", lambda: {"list": failing(UserError("no \x1b]0;title\x07 here"))})
    assert cli.main(["list"]) == 2
    assert capsys.readouterr().err == "gyrograd: no \\x1b]0;title\\x07 here\n"


def test_a_hostile_file_name_reaches_neither_the_terminal_nor_a_page(home, capsys):
    from PIL import Image

    name = "cat\x1b[2J\x07.png"
    Image.new("RGB", (8, 8), (9, 90, 200)).save(home / name)
    (home / "o\x1b[31m").mkdir()
    assert cli.main(["explain", "net.py:good", name, "--size", "8", "--out", "o\x1b[31m"]) == 0
    said = capsys.readouterr().out
    assert "cat\\x1b[2J\\x07.png" in said
    assert "o\\x1b[31m/overview.png" in said
    assert "\x1b" not in said
    assert "\x07" not in said


def test_pages_write_control_characters_out():
    from gyrograd.reporting import Section, page

    html = page("net\x1b[2J", ("line\x07",), (Section("head\u202e"),), ())
    assert "<title>net\\x1b[2J</title>" in html
    assert not {"\x1b", "\x07", "\u202e"} & set(html)


@pytest.mark.parametrize("words", [["--out", ""], ["--out="], ["--out", "", "--images", "1"]])
def test_an_empty_folder_name_is_refused_before_anything_is_written_here(
    words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["explain", "cifar10/lenet-ce", "shapes", *words]) == 2
    assert "--out has an empty value; write --out VALUE, or leave it out." in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_an_empty_file_of_settings_is_answered_in_words(tmp_path, capsys):
    empty = tmp_path / "empty.yaml"
    empty.touch()
    assert cli.main(["explain", "cifar10/lenet-ce", "shapes", f"--config={empty}"]) == 2
    assert "The file of --config holds no settings by name" in capsys.readouterr().err
