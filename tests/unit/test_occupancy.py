"""One writer a folder, held against real processes: refused while the first lives, free once it is dead."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from gyrograd import occupancy
from gyrograd.errors import UserError
from gyrograd.occupancy import NAME, exclusive_folder, wait_for_lock
from gyrograd.training.processes import Group, Share

HOLDER = """
import os, sys
from gyrograd.occupancy import exclusive_folder
with exclusive_folder(sys.argv[1]):
    if "fork" in sys.argv:
        if os.fork() == 0:
            os.write(1, f"{os.getpid()}\\n".encode())  # in one piece: two processes write here
            sys.stdin.read()
            os._exit(0)
    os.write(1, b"in\\n")
    sys.stdin.read()
"""
# Four processes count to 40 each in one file, in turn; the count is read and written with a pause in between.
COUNTERS = """
import os, sys, time
from pathlib import Path
from gyrograd.occupancy import wait_for_lock
import gyrograd.occupancy as occupancy
occupancy.PAUSE_S = 0.001
total = Path(sys.argv[1]) / "total"
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        children = []
        break
    children.append(child)
for _ in range(40):
    with wait_for_lock(Path(sys.argv[1]) / "lock", "the count"):
        number = int(total.read_text())
        time.sleep(0.0005)
        total.write_text(str(number + 1))
assert all(os.waitpid(child, 0)[1] == 0 for child in children)
"""
ABOUT_PROCESSES = ("WORLD_SIZE", "RANK", "TORCHELASTIC_RUN_ID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


@pytest.fixture(autouse=True)
def nothing_started_this(monkeypatch):
    for key in ABOUT_PROCESSES:
        monkeypatch.delenv(key, raising=False)


@pytest.fixture
def holders():
    """Starts processes that hold a folder; none outlives the test."""
    started = []

    def start(folder: Path, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(folder), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def sentence_of(folder: Path, **how: bool) -> str:
    with pytest.raises(UserError) as caught, exclusive_folder(folder, **how):
        pytest.fail("two are in")
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence


def test_a_second_process_is_told_who_holds_the_folder_since_when(tmp_path, holders):
    first = holders(tmp_path / "run")
    assert first.stdout.readline() == "in\n"
    sentence = sentence_of(tmp_path / "run")
    expected = rf"{tmp_path}/run is in use: process {first.pid} on {re.escape(socket.gethostname())} "
    assert re.match(
        expected + r"has been at work there since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC; ", sentence
    ), sentence
    assert sentence.endswith("; wait until it ends, stop it, or give another folder (--out).")


def test_a_killed_process_leaves_no_lock_and_one_that_ends_no_file(tmp_path, holders):
    first = holders(tmp_path)
    assert first.stdout.readline() == "in\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert (tmp_path / NAME).exists()
    with exclusive_folder(tmp_path):
        assert f'"pid": {os.getpid()}' in (tmp_path / NAME).read_text()
    assert list(tmp_path.iterdir()) == []


def test_a_fork_does_not_keep_the_lock_of_its_dead_parent(tmp_path, holders):
    first = holders(tmp_path, "fork")
    child, _ = sorted(first.stdout.readline().strip() for _ in range(2))  # a number and "in"
    first.send_signal(signal.SIGKILL)
    first.wait()
    os.kill(int(child), 0)  # it lives
    with exclusive_folder(tmp_path):
        pass


def test_a_fork_that_leaves_the_block_takes_nothing_away(tmp_path):
    with exclusive_folder(tmp_path):
        before = (tmp_path / NAME).stat().st_ino
        code = (
            "import os, sys\nfrom gyrograd.occupancy import exclusive_folder\nfrom gyrograd.errors import UserError\n"
            "with exclusive_folder(sys.argv[1]):\n    child = os.fork()\n    if child: os.waitpid(child, 0)\n"
            "    held = os.path.exists(sys.argv[1] + '/.writer')\n"
            "print(held, flush=True)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "other")], capture_output=True, text=True
        )
        assert done.stdout.split() == ["True", "True"], done.stderr
        assert (tmp_path / NAME).stat().st_ino == before


def test_a_thread_may_ask_again_for_what_it_holds_and_keeps_it_to_the_end(tmp_path):
    with exclusive_folder(tmp_path / "run"):
        with exclusive_folder(tmp_path / "other" / ".." / "run"):
            pass
        assert (tmp_path / "run" / NAME).exists()
        sentences: list[str] = []
        other = threading.Thread(target=lambda: sentences.append(sentence_of(tmp_path / "run")))
        other.start()
        other.join()
        assert f"process {os.getpid()}" in sentences[0]
    with exclusive_folder(tmp_path / "run"):
        pass


def test_a_block_that_fails_gives_the_folder_back(tmp_path):
    with pytest.raises(ZeroDivisionError), exclusive_folder(tmp_path):
        1 / 0  # noqa: B018
    assert list(tmp_path.iterdir()) == []


def test_a_block_that_writes_nothing_leaves_no_folder_that_was_not_there(tmp_path):
    (tmp_path / "here").mkdir()
    for folder in ("here", "new", "here/deep/new"):
        with exclusive_folder(tmp_path / folder):
            assert (tmp_path / folder).is_dir()
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


def test_a_block_that_writes_leaves_its_folders(tmp_path):
    with exclusive_folder(tmp_path / "deep" / "new"):
        (tmp_path / "deep" / "other").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["deep", "other"]


def test_an_empty_folder_taken_away_while_it_is_asked_for_is_made_again(tmp_path, monkeypatch):
    opened = os.open

    def after_the_last_holder(path, *words):
        monkeypatch.setattr(os, "open", opened)
        Path(path).parent.rmdir()
        return opened(path, *words)

    monkeypatch.setattr(os, "open", after_the_last_holder)
    with exclusive_folder(tmp_path / "run"):
        assert (tmp_path / "run" / NAME).exists()


def test_a_lock_on_a_file_that_was_taken_away_does_not_count(tmp_path, monkeypatch):
    locked = occupancy._try_lock

    def after_the_last_holder(file, path):
        monkeypatch.setattr(occupancy, "_try_lock", locked)
        path.unlink()
        return locked(file, path)

    monkeypatch.setattr(occupancy, "_try_lock", after_the_last_holder)
    with exclusive_folder(tmp_path):
        assert (tmp_path / NAME).exists()


def test_a_lock_file_that_leads_nowhere_is_a_sentence(tmp_path):
    (tmp_path / NAME).symlink_to(tmp_path / "gone" / "file")
    with pytest.raises(UserError, match="cannot be written"), exclusive_folder(tmp_path):
        pass


def test_a_folder_taken_away_inside_the_block_is_no_trouble(tmp_path):
    with exclusive_folder(tmp_path / "run"):
        (tmp_path / "run" / NAME).unlink()
        (tmp_path / "run").rmdir()
    assert list(tmp_path.iterdir()) == []


def test_a_holder_whose_file_was_replaced_leaves_the_new_one_alone(tmp_path):
    with exclusive_folder(tmp_path):
        (tmp_path / NAME).unlink()
        (tmp_path / NAME).write_text("another's")
    assert (tmp_path / NAME).read_text() == "another's"


def test_processes_in_turn_lose_no_count(tmp_path):
    (tmp_path / "total").write_text("0")
    subprocess.run([sys.executable, "-c", COUNTERS, str(tmp_path)], check=True, timeout=120)
    assert (tmp_path / "total").read_text() == "160"
    assert [path.name for path in tmp_path.iterdir()] == ["total"]


def test_who_waits_says_for_whom(tmp_path, holders, capfd, monkeypatch):
    first = holders(tmp_path)
    assert first.stdout.readline() == "in\n"
    monkeypatch.setattr(occupancy.time, "sleep", lambda seconds: first.communicate())
    with wait_for_lock(tmp_path / NAME, "the net"):
        pass
    said = capfd.readouterr().err
    assert said.startswith(
        f"gyrograd: waiting for the net: process {first.pid} on {socket.gethostname()} has been"
    )
    assert said.count("\n") == 1


def test_a_holder_that_has_not_signed_yet_is_another_process(tmp_path):
    with exclusive_folder(tmp_path):
        (tmp_path / NAME).write_text("")
        found = []
        other = threading.Thread(target=lambda: found.append(sentence_of(tmp_path)))
        other.start()
        other.join()
    assert "in use: another process has just begun to work there; wait" in found[0]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_locks_a_run_goes_on_and_says_so_once(number, tmp_path, monkeypatch, capfd):
    def refuse(file, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", refuse)
    for _ in range(2):
        with exclusive_folder(tmp_path):
            assert (tmp_path / NAME).exists()
    expected = f"gyrograd: {tmp_path} is on a file system without locks ({os.strerror(number)}); see to it"
    assert capfd.readouterr().err.startswith(expected)
    with exclusive_folder(tmp_path):
        pass
    assert capfd.readouterr().err == ""


def test_any_other_trouble_of_the_disk_is_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    assert "cannot be written (Not a directory)" in sentence_of(tmp_path / "file" / "run")
    assert "cannot be written (File exists)" in sentence_of(tmp_path / "file")

    def break_down(file, how):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("fcntl.flock", break_down)
    files = len(os.listdir("/proc/self/fd"))
    assert "cannot be written (Input/output error)" in sentence_of(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == files


def test_of_torchruns_processes_the_first_takes_the_folder_for_all(tmp_path, monkeypatch, holders):
    first = holders(tmp_path)
    assert first.stdout.readline() == "in\n"
    for key, value in {"WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x", "RANK": "1"}.items():
        monkeypatch.setenv(key, value)
    with exclusive_folder(tmp_path, ranks=True):
        pass
    assert sentence_of(tmp_path).endswith(
        "; torchrun started 2 copies of what one process does: start it without torchrun."
    )
    monkeypatch.setenv("RANK", "0")
    assert sentence_of(tmp_path, ranks=True).endswith("or give another folder (--out).")


def test_copies_that_srun_started_are_told_the_command_for_one_run(tmp_path, monkeypatch, holders):
    first = holders(tmp_path)
    assert first.stdout.readline() == "in\n"
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    sentence = sentence_of(tmp_path, ranks=True)
    assert "srun started 4 copies of this command" in sentence
    assert "srun --ntasks 1 torchrun --nproc-per-node 4 --no-python gyrograd train ..." in sentence
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert sentence_of(tmp_path, ranks=True).endswith(
        "; wait until it ends, stop it, or give another folder (--out)."
    )


class Radio:
    """Carries messages between processes that are not there: the first one's last message is what all hear."""

    def __init__(self, message: str | None) -> None:
        self.message = message

    def broadcast(self, value: str | None, src: int) -> str | None:
        return self.message


def test_every_process_of_a_run_hears_that_the_folder_is_taken(tmp_path):
    other = Group(torch.device("cpu"), share=Share(1, 2), fabric=Radio("the folder is in use."))
    with pytest.raises(UserError, match="the folder is in use"), other.holding(tmp_path / "run"):
        pytest.fail("it trained")
    free = Group(torch.device("cpu"), share=Share(1, 2), fabric=Radio(None))
    with free.holding(tmp_path / "run"):
        assert not (tmp_path / "run").exists()
