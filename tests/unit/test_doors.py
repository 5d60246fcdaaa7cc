"""The verbs return what their types promise."""

from __future__ import annotations

from typed_doors import walk_through_every_door

from gyrograd.attacks import AttackResult
from gyrograd.types import AttackOutcome


def test_what_the_doors_promise_to_type_checkers_holds_when_they_are_used():
    hit = walk_through_every_door()
    assert isinstance(hit, AttackResult)
    assert isinstance(hit, AttackOutcome)
