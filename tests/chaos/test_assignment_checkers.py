"""Checks of assignments convict members that do not share a topic, and forgotten modes."""

from __future__ import annotations

import pytest
from histories import NODES, History, verdict

from dledger_chaos.checkers.base import NodeFiles
from dledger_chaos.workloads.assignments import FINAL, QUEUES, TOPIC

GROUP = "broker-a"
FILES = [NodeFiles(node, GROUP, "", []) for node in NODES]
KEY = f"G@{GROUP}"
PULL = [["PULL", f"{TOPIC}/{GROUP}/{queue_id}"] for queue_id in range(QUEUES)]
POP = [["POP", f"{TOPIC}/{GROUP}/-1"]]


def asked(*answers, pull=((0, 3), (3, QUEUES)), pop=(POP, POP)):
    """Return a history of assignments, during the run and at its end. Each range of queues is one member's."""
    history = History("assignments")
    for rows in answers:
        history.add("assign", KEY, rows)
    for number, rows in enumerate(pop):
        history.add("settle-POP", KEY, rows, process=f"last-{number}")
    for number, share in enumerate(pull):
        history.add("settle-PULL", KEY, PULL[slice(*share)], process=f"last-{number}")
    return history


STORIES = {
    "each has its part": (asked(PULL[:3], PULL[3:]), "valid"),
    "while members come and go": (asked(PULL, PULL[1:4], None, PULL[:5]), "valid"),
    "one queue twice": (asked([PULL[0], PULL[0]]), "invalid"),
    "of another topic": (asked([["PULL", f"other/{GROUP}/0"]]), "invalid"),
    "none of the topic's": (asked([["PULL", f"{TOPIC}/{GROUP}/{QUEUES}"]]), "invalid"),
    "popped, though nobody said so": (asked(POP), "invalid"),
    "a queue of two at the end": (asked(PULL, pull=((0, 3), (2, QUEUES))), "invalid"),
    "a queue of nobody at the end": (asked(PULL, pull=((0, 3), (4, QUEUES))), "invalid"),
    "all of one at the end": (asked(PULL, pull=((0, QUEUES), (0, 0))), "invalid"),
    "pulled at the end, though it was to be popped": (asked(PULL, pop=(POP, PULL)), "invalid"),
    "nobody at the end": (asked(PULL, pull=()), "unknown"),
    "nothing": (asked(), "unknown"),
}  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_members_share_a_topic(story):
    history, expected = STORIES[story]
    assert verdict("assigned", history.run(files=FILES)).result == expected


def test_only_the_last_answer_of_a_member_is_its_share():
    history = asked(PULL, pull=((0, QUEUES), (3, QUEUES)))
    history.add("settle-PULL", KEY, PULL[:3], process="last-0")
    assert verdict("assigned", history.run(files=FILES)).result == "valid"


def modes(*steps):
    """Return a history of modes that are set or read: (f, value, outcome)."""
    history = History("assignments")
    for f, value, *outcome in steps:
        history.add(f, KEY, value, *outcome, process=FINAL)
    return history


MODES = {
    "as it was set": (modes(("read", None), ("write", ["POP", 1]), ("read", ["POP", 1])), "valid"),
    "set without an answer": (modes(("write", ["POP", 1], "info"), ("read", None), ("read", ["POP", 1])), "valid"),
    "refused": (modes(("write", ["POP", 1], "fail"), ("read", None)), "valid"),
    "beside assignments": (modes(("write", ["POP", 1]), ("assign", POP), ("read", ["POP", 1])), "valid"),
    "forgotten": (modes(("write", ["POP", 1]), ("read", None)), "invalid"),
    "the one before": (modes(("write", ["POP", 1]), ("write", ["PULL", 2]), ("read", ["POP", 1])), "invalid"),
    "in part": (modes(("write", ["POP", 1]), ("read", ["PULL", 1])), "invalid"),
    "refused, and there": (modes(("write", ["POP", 1], "fail"), ("read", ["POP", 1])), "invalid"),
    "never read": (modes(("write", ["POP", 1])), "unknown"),
}


@pytest.mark.parametrize("story", MODES)
def test_the_request_mode_checker_expects_the_mode_that_was_set_last(story):
    history, expected = MODES[story]
    assert verdict("request-mode", history.run()).result == expected
