"""The time left: told once it is known, on a terminal as a bar, elsewhere as one line, and never wrong by its units."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gyrograd as gg
from gyrograd import progress
from gyrograd.progress import Effort, Pace, duration_in_words, track


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def worked(efforts: list[Effort], seconds: list[float]) -> tuple[Pace, Clock]:
    """A pace after items that took so long."""
    clock = Clock()
    pace = Pace(efforts, clock)
    for each in seconds:
        clock.now += each
        pace.advance()
    return pace, clock


def test_nothing_is_said_before_something_was_seen() -> None:
    pace, _ = worked([("a", 1.0)] * 3, [])
    assert pace.left() is None
    assert pace.share() == 0
    assert not pace.known()


def test_the_rest_goes_at_the_speed_of_its_own_kind() -> None:
    efforts = [("cheap", 1.0), ("dear", 2.0), ("cheap", 3.0), ("dear", 4.0)]
    pace, _ = worked(efforts, [1.0, 20.0])
    assert pace.left() == pytest.approx(3 * 1.0 + 4 * 10.0)
    assert pace.share() == pytest.approx(21 / 64)


def test_a_kind_not_seen_yet_goes_at_the_speed_of_all_and_is_not_called_known() -> None:
    pace, _ = worked([("a", 1.0), ("a", 1.0), ("b", 6.0)], [6.0, 2.0])
    assert pace.left() == pytest.approx(6 * 4.0)
    assert not pace.known()


def test_a_small_first_item_of_a_kind_says_nothing_about_the_rest() -> None:
    efforts = [("attack", 1.0), ("attack", 1.0), ("attack", 98.0)]
    assert not worked(efforts, [8.0])[0].known()
    assert worked([("attack", 6.0), ("attack", 94.0)], [8.0])[0].known()
    assert worked(efforts, [40.0])[0].known()  # but half a minute of it does


def test_the_time_left_falls_during_a_long_item_but_not_below_the_items_after_it() -> None:
    pace, clock = worked([("a", 1.0)] * 3, [10.0])
    clock.now += 4
    assert pace.left() == pytest.approx(16)
    clock.now += 100
    assert pace.left() == pytest.approx(10)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.floats(0.1, 100)), min_size=2, max_size=20),
    st.floats(0.01, 10),
    st.floats(0.01, 10),
)
def test_right_guesses_within_a_kind_give_the_exact_time_whatever_their_units(
    efforts: list[Effort], a: float, b: float
) -> None:
    speeds = {"a": a, "b": b}
    seconds = [size * speeds[kind] for kind, size in efforts]
    done = next((i for i in range(1, len(efforts)) if len({k for k, _ in efforts[:i]}) == 2), len(efforts))
    pace, _ = worked(efforts, seconds[:done])
    assert pace.left() == pytest.approx(sum(seconds[done:]), rel=1e-6, abs=1e-9)


def test_more_items_than_were_announced_break_nothing() -> None:
    assert list(track(iter(range(5)), 2, "counting")) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.2, "1 second"), (1.4, "1 second"), (40.2, "40 seconds"), (89.0, "89 seconds"), (91.0, "2 minutes"),
     (725.0, "12 minutes"), (5.5 * 3600, "5.5 hours"), (86400 * 3.0, "3.0 days")],
)  # fmt: skip
def test_times_are_said_as_people_say_them(seconds: float, said: str) -> None:
    assert duration_in_words(seconds) == said


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The pace of `track` goes by this clock."""
    clock = Clock()
    whole = Pace
    monkeypatch.setattr(progress, "Pace", lambda efforts, **more: whole(efforts, clock, **more))
    return clock


def taking(clock: Clock, items: Iterator[float]) -> None:
    for seconds in items:
        clock.now += seconds


def test_without_a_terminal_one_line_tells_how_long_it_takes(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    taking(clock, track([10.0] * 100, 100, "auditing"))
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "gyrograd: auditing: about 16 minutes on this machine.\n"


def test_short_work_says_nothing(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    taking(clock, track([1.0] * 50, 50, "auditing"))
    assert capsys.readouterr() == ("", "")


def test_weights_count_for_their_own_items_only(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    """Two items of twenty, then one that is guessed at a thousand: fifty times as much as the bare count says."""
    items = [20.0, 20.0, 1000.0]
    taking(clock, track(items, 3, "weighed", lambda seconds: ("all", seconds)))
    assert "weighed: about 17 minutes" in capsys.readouterr().err
    taking(clock, track(items, 3, "counted"))
    assert capsys.readouterr().err == ""


def test_the_start_of_workers_is_not_taken_for_the_pace_of_their_work(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """A minute until eight images arrive, then a second for each thousand: not days for fifty thousand."""
    sizes = [8.0] + [1000.0] * 300

    def arriving() -> Iterator[float]:
        for number, size in enumerate(sizes):
            clock.now += 1.0 if number else 60.0
            yield size

    planned = [("all", size) for size in sizes]
    list(track(arriving(), len(sizes), "auditing", lambda size: ("all", size), planned))
    assert capsys.readouterr().err == "gyrograd: auditing: about 5 minutes on this machine.\n"


def test_work_within_work_says_nothing_of_its_own(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    for each in track([[10.0] * 20] * 20, 20, "outer", lambda each: ("all", float(len(each)))):
        taking(clock, track(each, 20, "inner"))
    assert capsys.readouterr().err == "gyrograd: outer: about 63 minutes on this machine.\n"
    taking(clock, track([10.0] * 20, 20, "later"))
    assert "later" in capsys.readouterr().err


class ZMQInteractiveShell:
    """The shell of a notebook's kernel, by its name."""


def test_a_notebook_has_one_line_that_counts_and_is_empty_at_the_end(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs: list[list[str]] = []

    def display(shown: dict[str, str], **_: bool) -> SimpleNamespace:
        own = [shown["text/plain"]]
        outputs.append(own)
        return SimpleNamespace(update=lambda shown, **_: own.append(shown["text/plain"]))

    kernel = SimpleNamespace(get_ipython=ZMQInteractiveShell)
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    taking(clock, track([10.0] * 4, 4, "auditing"))
    (line,) = outputs
    assert line[0] == "auditing: 1/4, about 30 seconds left"
    assert line[2] == "auditing: 3/4, about 10 seconds left"
    assert line[-1] == ""
    taking(clock, track([0.1] * 4, 4, "soon done"))
    assert len(outputs) == 1
    assert capsys.readouterr() == ("", "")


def test_an_attack_shows_how_far_it_is(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            clock.now += 10
            return torch.stack([x.square().sum((1, 2, 3)), x.sum((1, 2, 3))], 1)

    x = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    attack = gg.attack("untargeted_map", eps=8 / 255, steps=12)
    attack(Slow(), gg.attribution("gradient"), x, torch.tensor([0]))
    assert "attacking: about" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_with_the_time_left_and_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    for _ in track(range(3), 3, "auditing"):
        time.sleep(0.15)
    assert "auditing" in screen.getvalue()
    assert "left" in screen.getvalue()
    assert "on this machine" not in screen.getvalue()


def test_a_terminal_shows_nothing_of_work_that_is_soon_done(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert list(track(range(3), 3, "auditing")) == [0, 1, 2]
    assert screen.getvalue() == ""


def test_an_error_inside_the_work_passes_and_leaves_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(progress, "PATIENCE_S", 0.0)
    with pytest.raises(ValueError, match="broken"):
        _broken_work()
    list(track(range(2), 2, "another bar can be begun"))


def _broken_work() -> None:
    for _ in track(range(3), 3, "auditing"):
        time.sleep(0.05)
        raise ValueError("broken")
