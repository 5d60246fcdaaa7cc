"""An audit killed at random points and taken up again leaves the same records as one that was not."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
import torch
from children import CLEAN
from small_audits import SMALL, small_images, small_net

from gyrograd.audit import audit

KILLS = 2
PATIENCE_S = 120.0


def run(out: Path) -> None:
    x, y = small_images()
    audit(small_net(), x, y, preset=SMALL, out=out)


def records(out: Path) -> dict[str, bytes]:
    """Finished records; a kill in the middle of a write leaves a hidden file beside them, which nobody reads."""
    found = (out / "records").rglob("*.json")
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(found) if not p.name.startswith(".")}


def run_alone(out: Path) -> None:
    torch.set_num_threads(1)
    run(out)


def killed_after(count: int, out: Path, delay: float) -> None:
    """A child that audits, killed a moment after it has written so many records."""
    child = CLEAN.Process(target=run_alone, args=(out,))
    child.start()
    give_up = time.monotonic() + PATIENCE_S
    while len(records(out)) < count and time.monotonic() < give_up:
        time.sleep(0.002)
    time.sleep(delay)
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL, "the child finished before it was killed"


@pytest.mark.parametrize("seed", [0])
def test_an_audit_killed_at_two_random_points_gives_the_same_records(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gyrograd.reporting.card.write_report", lambda card, folder: None)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run(tmp_path / "whole")
        expected = records(tmp_path / "whole")
        chance = random.Random(seed)
        points = sorted(chance.sample(range(1, len(expected) - 4), KILLS))
        for count in points:
            killed_after(count, tmp_path / "killed", delay=chance.uniform(0, 0.02))
            assert count <= len(records(tmp_path / "killed")) < len(expected)
        assert not (tmp_path / "killed" / "card.json").exists()
        run(tmp_path / "killed")
    finally:
        torch.set_num_threads(threads)
    assert records(tmp_path / "killed") == expected
    cards = [(tmp_path / name / "pictures.npz").read_bytes() for name in ("whole", "killed")]
    assert cards[0] == cards[1]
