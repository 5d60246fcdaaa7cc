"""The command line as a user meets it: a process of its own, its exit code, what it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gyrograd import cli

GYROGRAD = [sys.executable, "-m", "gyrograd"]


def gyrograd(*words: str, timeout: int = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "200"} | environment
    return subprocess.run([*GYROGRAD, *words], capture_output=True, text=True, timeout=timeout, env=settings)


@pytest.fixture
def pictures(tmp_path):
    """A folder of two classes, one image of which is cut off."""
    for label in ("ant", "bee"):
        (tmp_path / label).mkdir()
        Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / label / "a.png")
    whole = (tmp_path / "bee" / "a.png").read_bytes()
    (tmp_path / "bee" / "b.png").write_bytes(whole[: len(whole) // 2])
    return tmp_path


def test_without_words_it_lists_its_verbs():
    result = gyrograd()
    assert result.returncode == 0
    for verb in ("demo", "list", "data", "doctor"):
        assert verb in result.stdout


def test_version_and_help():
    assert gyrograd("--version").stdout.startswith("gyrograd ")
    assert "cifar10 is the one" in gyrograd("data", "fetch", "--help").stdout


def test_the_doctor_finds_this_installation_sound():
    result = gyrograd("doctor", "--json")
    findings = {row["what"]: row for row in json.loads(result.stdout)}
    assert result.returncode == 0
    assert findings["torch pair"]["state"] == "ok"
    assert "broken" not in {row["state"] for row in findings.values()}


BROKEN = {
    "a library is missing": "OSError('libtorch_cpu.so: cannot open shared object file')",
    "a symbol is missing": "ImportError('undefined symbol: ncclCommSplit')",
}


@pytest.mark.parametrize("case", sorted(BROKEN))
def test_the_doctor_says_what_is_wrong_where_torch_does_not_import(case, tmp_path):
    (tmp_path / "torch.py").write_text(f"raise {BROKEN[case]}\n")
    # Comes before the sound one.
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    result = gyrograd("doctor", "--json", PYTHONPATH=paths)
    findings = {row["what"]: row for row in json.loads(result.stdout)}
    assert result.returncode == 1, result.stderr
    assert findings["torch pair"]["state"] == "broken"
    assert BROKEN[case].split("'")[1] in findings["torch pair"]["detail"]
    assert "pip install" in findings["torch pair"]["detail"]
    assert {"python", "disk", "cifar10"} <= set(findings)
    assert "cpu" not in findings


def test_the_doctor_says_that_the_machine_is_busy(monkeypatch, capsys):
    details = []
    for load in (0.0, 1000.0):
        monkeypatch.setattr(os, "getloadavg", lambda load=load: (load, 0.0, 0.0))
        assert cli.main(["doctor", "--json"]) == 0
        details += [row["detail"] for row in json.loads(capsys.readouterr().out) if row["what"] == "cpu"]
    assert ["busy" in detail for detail in details] == [False, True]


@pytest.mark.parametrize("own", [None, "ACTIVE"])
def test_waiting_threads_do_not_spin_unless_the_user_says_so(own, monkeypatch):
    """Set by the import, before torch is loaded: for the command line and for Python."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if own is not None:
        monkeypatch.setenv("OMP_WAIT_POLICY", own)
    script = "import os, sys, gyrograd; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [own or "PASSIVE", "False"]


WITHOUT_TORCH = """
import contextlib, io, sys
from gyrograd.cli import main, verbs
names = [[n, *i] for n, v in verbs().items() for i in (([w] for w in v) if isinstance(v, dict) else [[]])]
for words in [["--help"], ["--version"], ["completion"], ["lsit"], ["list"], ["list", "kernel", "--json"],
              ["list", "kernle"], *([*name, "--help"] for name in names)]:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown), contextlib.suppress(SystemExit):
        main(words)
    assert shown.getvalue(), words
    assert "torch" not in sys.modules, words
print(len(names))
"""


def test_help_of_every_verb_and_the_list_of_names_come_without_torch():
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 15


BAD = {
    "unknown verb": (["lsit"], "did you mean 'list'"),
    "unknown inner verb": (["data", "fetsch", "cifar10"], "did you mean 'fetch'"),
    "unknown kind": (["list", "atribution"], "did you mean 'attribution'"),
    "unknown option": (["list", "--jsn"], "did you mean '--json'"),
    "missing name": (["data", "show"], "needs name: write `gyrograd data show NAME`"),
    "unknown data set": (["data", "show", "shaeps"], "did you mean 'shapes'"),
    "not a number": (["data", "show", "shapes", "--n", "many"], "n is 'many'; give a whole number"),
    "needs no fetching": (["data", "fetch", "shapes"], "needs no fetching"),
    "missing folder": (["data", "check", "folder", "--path", "/nonexistent/folder"], "/nonexistent/folder"),
    "no training epochs": (["demo", "--epochs", "0"], "at least one epoch"),
}


def mistake(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What these words print, once they are refused. In this process: starting one takes seconds."""
    assert cli.main(list(words)) == 2
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    assert len(printed.strip().splitlines()) == 1
    return printed


@pytest.mark.parametrize("case", sorted(BAD))
def test_a_mistake_is_one_sentence_and_exit_code_2(case, capsys):
    words, sentence = BAD[case]
    assert sentence in mistake(capsys, *words)


def test_the_exit_code_of_a_mistake_is_that_of_the_process():
    result = gyrograd("lsit")
    assert result.returncode == 2
    assert "did you mean 'list'" in result.stderr


def test_a_truncated_image_is_named(pictures, capsys):
    assert str(pictures / "bee" / "b.png") in mistake(
        capsys, "data", "check", "folder", "--path", str(pictures)
    )


def test_cifar10_that_is_not_there_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("GYROGRAD_DATA", str(tmp_path))
    assert "gyrograd data fetch cifar10" in mistake(capsys, "data", "check", "cifar10")


def test_an_output_that_cannot_be_written_is_one_sentence(tmp_path, capsys):
    (tmp_path / "file").touch()
    mistake(capsys, "data", "show", "shapes", "--n", "1", "--out", str(tmp_path / "file" / "a.png"))


def test_the_demo_ends_with_the_path_of_its_report(tmp_path):
    result = gyrograd(
        "demo", "--epochs", "1", "--train", "32", "--images", "2", "--out", str(tmp_path), timeout=300
    )
    assert result.returncode == 0, result.stderr
    report = Path(result.stdout.strip().splitlines()[-1])
    page = report.read_text(encoding="utf-8")
    assert report == tmp_path / "report.html"
    for words in (
        "the plain net",
        "The price: accuracy ",
        "Insertion ",
        "prediction kept",
        "data:image/png;base64,",
    ):
        assert words in page
    assert {"cross-entropy.json", "steady.json", "steady.safetensors"} <= {p.name for p in tmp_path.iterdir()}


INTERRUPTS = {
    "while Python ends": (
        "import atexit, os, signal; atexit.register(os.kill, os.getpid(), signal.SIGINT)",
        0,
    ),
    "while an object is deleted": (
        """
import time
import gyrograd.cli
class Fragile:
    def __del__(self):
        raise KeyboardInterrupt
def main():
    Fragile()
    for _ in range(600):
        time.sleep(0.1)
gyrograd.cli.main = main
""",
        130,
    ),
    "while it starts": (
        """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "gyrograd.cli":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
""",
        130,
    ),
}


@pytest.mark.parametrize("when", sorted(INTERRUPTS))
def test_an_interrupt_prints_no_frames(when):
    before, code = INTERRUPTS[when]
    run = f"import signal; signal.signal(2, signal.default_int_handler)\n{before}\nfrom gyrograd.__main__ import run\n"
    words = [sys.executable, "-c", f"{run}import sys; sys.exit(run())", "--version"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=50)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert ("interrupted" in result.stderr) == (code == 130)
