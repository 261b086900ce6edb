"""Checks of queue locks convict two owners at a time, and ordered consumers that handle messages out of turn."""

from __future__ import annotations

import msgspec
import pytest
from histories import QUEUE, History, verdict

from dledger_chaos.workloads.locks import BELIEF_S

SECOND = 10**9
KEY = f"G@{QUEUE}"


def locks(*steps):
    """Return a history of requests for a lock and releases: (who, what, begin, end, outcome), in seconds."""
    history = History("locks")
    for who, what, begin, end, *outcome in steps:
        history.add(what, KEY, None, *outcome, process=who, begin=int(begin * SECOND), end=int(end * SECOND))
    return history


OWNERS = {
    "one after the other": (locks(("a", "lock", 1, 2), ("b", "lock", 1 + BELIEF_S, 33)), "valid"),
    "given up in between": (locks(("a", "lock", 1, 2), ("a", "unlock", 3, 9), ("b", "lock", 3, 4)), "valid"),
    "given up, and nobody knows whether that arrived": (
        locks(("a", "lock", 1, 2), ("a", "unlock", 3, 9, "info"), ("b", "lock", 4, 5)), "valid",
    ),
    "asked for by both": (locks(("a", "lock", 1, 2), ("b", "lock", 1, 3, "fail")), "valid"),
    "without an answer": (locks(("a", "lock", 1, 2, "info"), ("b", "lock", 1, 3)), "valid"),
    "renewed by its owner": (locks(("a", "lock", 1, 2), ("a", "lock", 20, 21), ("a", "lock", 60, 61)), "valid"),
    "two at a time": (locks(("a", "lock", 1, 2), ("b", "lock", 3, 4)), "invalid"),
    "granted a moment before a belief ends": (
        locks(("a", "lock", 1, 2), ("b", "lock", 3, 0.9 + BELIEF_S)), "invalid",
    ),
    "granted while a renewal is believed in": (
        locks(("a", "lock", 1, 2), ("a", "lock", 20, 21), ("b", "lock", 40, 41)), "invalid",
    ),
    "given up after another one was granted it": (
        locks(("a", "lock", 1, 2), ("b", "lock", 3, 4), ("a", "unlock", 5, 6)), "invalid",
    ),
    "given up by another": (locks(("a", "lock", 1, 2), ("b", "unlock", 3, 4), ("b", "lock", 5, 6)), "invalid"),
    "an earlier renewal that is answered late": (
        locks(("a", "lock", 10, 11), ("a", "lock", 2, 12), ("b", "lock", 36, 37)), "invalid",
    ),
    "nothing was granted": (locks(("a", "lock", 1, 2, "info")), "unknown"),
}  # fmt: skip


@pytest.mark.parametrize("story", OWNERS)
def test_two_owners_of_a_lock_at_a_time_are_invalid(story):
    history, expected = OWNERS[story]
    assert verdict("lock", history.run()).result == expected


def test_locks_of_different_queues_have_different_owners():
    history = locks(("a", "lock", 1, 2)).add("lock", f"{KEY}9", None, process="b", begin=3 * SECOND, end=4 * SECOND)
    assert verdict("lock", history.run()).result == "valid"


def handled(*steps, first=0):
    """Return a history of members that handle messages of one queue: (who, offset, begin, end, outcome)."""
    history = History("orderly").add("bounds", QUEUE, [first, 9])
    for who, offset, begin, end, *outcome in steps:
        history.add("deliver", QUEUE, [offset, "v", offset], *outcome, process=who, begin=begin, end=end)
    return history


TURNS = {
    "one after the other": (handled(("a", 0, 1, 2), ("a", 1, 3, 4), ("b", 2, 5, 6)), "valid"),
    "again from an earlier one on": (handled(("a", 0, 1, 2), ("a", 1, 3, 4), ("b", 0, 5, 6), ("b", 1, 7, 8)), "valid"),
    "tried again in its place": (handled(("a", 0, 1, 2, "fail"), ("a", 0, 3, 4), ("a", 1, 5, 6)), "valid"),
    "behind what was trimmed": (handled(("a", 0, 1, 2), ("a", 5, 3, 4), first=5), "valid"),
    "by two at a time": (handled(("a", 0, 1, 9), ("b", 0, 3, 4)), "invalid"),
    "by one, two at a time": (handled(("a", 0, 1, 9), ("a", 1, 3, 4)), "invalid"),
    "past one that failed": (handled(("a", 0, 1, 2, "fail"), ("a", 1, 3, 4)), "invalid"),
    "past one": (handled(("a", 0, 1, 2), ("b", 2, 3, 4)), "invalid"),
    "not from the first on": (handled(("a", 1, 1, 2)), "invalid"),
    "past more than was trimmed": (handled(("a", 0, 1, 2), ("a", 6, 3, 4), first=5), "invalid"),
}


@pytest.mark.parametrize("story", TURNS)
def test_ordered_consumers_handle_a_queue_in_turn(story):
    history, expected = TURNS[story]
    found = verdict("in-turn", history.run())
    assert found.result == expected, found


def test_a_handling_without_an_end_conflicts_with_later_handlings():
    history = handled(("a", 0, 1, 2, "info"), ("b", 0, 3, 4))
    history.operations[1] = msgspec.structs.replace(history.operations[1], complete_ns=None)
    assert verdict("in-turn", history.run()).result == "invalid"
