"""Checks of transactions convict messages that are seen too early, twice, never, or against the producer's answer."""

from __future__ import annotations

import pytest
from histories import NODES, History, verdict

from dledger_chaos.workloads.transactions import FINAL


def half(value="a", outcome="ok"):
    """Return a history with a producer's half message."""
    return History("transactions").add("send-half", "T", value, outcome)


def end(history, wish, outcome="ok", value="a", **more):
    return history.add("end-half", value, wish, outcome, **more)


def check(history, decision, value="a"):
    """Add a check-back of a broker, and its producer's answer."""
    return history.add("check", value, decision, "info")


def refused(history, wish="commit"):
    """Add an end that fails because the half message is gone."""
    return end(history, wish, "fail", process=FINAL, code=1, error="never began")


VALID = {
    "committed, and there": end(half(), "commit").end(["a"]),
    "seen while the commit is under way": end(half(), "commit", begin=30, end=99).pull(["a"], begin=40, end=50)
    .end(["a"]),
    "rolled back": end(half(), "rollback").end(["x"]),
    "a commit of unknown outcome that took effect": end(half(), "commit", "info").end(["a"]),
    "a commit of unknown outcome that did not": end(half(), "commit", "info").end(["x"]),
    "a half of unknown outcome, committed by a check": check(half(outcome="info"), "commit").end(["a"]),
    "both at once, committed": end(end(half(), "rollback", "fail", code=1), "commit").end(["a"]),
    "both at once, rolled back": end(end(half(), "commit", "fail", code=1), "rollback").end(["x"]),
    "refused at the end, for somebody has asked for the opposite": refused(check(half(), "rollback")).end(["x"]),
    "refused at the end, and a disk was full": refused(
        half().event("fault-begin", 1, "disk-full-one", id=1, nodes=[NODES[0]])
    ).end(["x"]),
    "refused at the end, and it is not known whether it ever began": refused(half(outcome="info")).end(["x"]),
    "no leader answered at the end": end(half(), "commit", "fail", process=FINAL, error="no leader").end(["x"]),
    "committed, but a trim took what nobody had seen": end(half(), "commit").end(["x"], first=5),
    "not found by its key": half().add("find-half", "a", False).end(["x"]),
    "found by its key once it is committed": end(half(), "commit").add("find-half", "a", True).end(["a"]),
}  # fmt: skip

INVALID = {
    "seen, and nobody asked for its commit": half().end(["a"]),
    "seen after a rollback was asked for": end(half(), "rollback", "info").end(["a"]),
    "seen before its commit was asked for": end(half().pull(["a"]), "commit").end(["a"]),
    "seen before a check was answered": check(half().pull(["a"]), "commit").end(["a"]),
    "seen, and a check was answered with a rollback": check(half(), "rollback").end(["a"]),
    "seen, and a check was not decided": check(half(), "unknown").end(["a"]),
    "rolled back, and there": end(end(half(), "commit", "info"), "rollback").end(["a"]),
    "said to be both": end(end(half(), "commit"), "rollback").end(["x"], first=5),
    "committed, and nowhere": end(half(), "commit").end(["x"]),
    "committed twice": end(half(), "commit").end(["a", "a"]),
    "committed, trimmed, and there again": end(half(), "commit").pull(["a"]).end(["a"], first=1),
    "refused at the end, and nobody has asked for anything else": refused(check(half(), "commit")).end(["x"]),
    "found by its key before its commit was asked for": end(half().add("find-half", "a", True), "commit").end(["a"]),
}  # fmt: skip


@pytest.mark.parametrize("story", [*VALID, *INVALID])
def test_transactions_that_contradict_the_producers_answers_are_invalid_and_no_others(story):
    found = verdict("half", (VALID | INVALID)[story].run())
    assert found.result == ("valid" if story in VALID else "invalid"), found
    assert story in VALID or found.examples


def wrong_clocks(history):
    fault = {"type": "ClockFault", "nodes": NODES[:2], "offset_s": 99.0, "drift_ppm": 0}
    fields = {"id": 1, "class": "clock", "nodes": NODES[:2]}
    history.event("fault-begin", 15, "clock-jump", fault=fault, **fields)
    return history.event("fault-end", 16, "clock-jump", id=1)


ASKED = {
    "left, and asked about": (end(check(half(), "commit"), "commit", process=FINAL), "valid"),
    "left, asked about, and ended by the answer": (check(half(), "commit"), "valid"),
    "left, and open at the end": (end(half(), "commit", process=FINAL), "invalid"),
    "left, and open at the end, and clocks were wrong": (
        wrong_clocks(end(half(), "commit", process=FINAL)), "valid",
    ),
    "left, and gone at the end": (refused(half()), "valid"),
    "ended by its producer": (end(half(), "commit", "info"), "unknown"),
    "perhaps never stored": (end(half(outcome="info"), "commit", process=FINAL), "unknown"),
}  # fmt: skip


@pytest.mark.parametrize("story", ASKED)
def test_the_checker_expects_a_check_back_for_an_unended_half_message(story):
    history, expected = ASKED[story]
    assert verdict("unasked", history.run()).result == expected
