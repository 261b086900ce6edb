"""The check of resets convicts resets that are forgotten, disobeyed, or undone by earlier reads."""

from __future__ import annotations

import pytest
from histories import QUEUE, RECORD_BYTES, History, stories, verdict

from dledger_chaos.checkers.resets import LATE_NS
from dledger_chaos.workloads.resets import FINAL, GROUP, TOPIC

KEY = f"{GROUP}@{QUEUE}"
OTHER = "T/broker-a/1"
END = 10**9 - 1
"""End of a run by hand, in ns."""


class Story:
    """Deliveries and resets of a group. Each line has its begin and end, or one moment."""

    def __init__(self, messages=6):
        self.history = History("resets")
        for offset in range(messages):
            self.history.send(f"m{offset}", offset, key=TOPIC, begin=0, end=1)

    def given(self, *offsets, at, process="member-0"):
        for offset in offsets:
            seen = [offset, f"m{offset}", offset * RECORD_BYTES]
            self.history.add("deliver", QUEUE, seen, "ok", process, at, at)
        return self

    def reset(self, offset, begin, end, outcome="ok", process="resetter", queue=QUEUE):
        self.history.add("reset", GROUP, [[queue, offset]], outcome, process, begin, end)
        return self

    def told(self, committed, begin, end, outcome="ok"):
        self.history.add("committed", KEY, committed, outcome, "watcher", begin, end)
        return self

    def finally_reset(self, offset=4, *, given=(4, 5), outcome="ok"):
        self.reset(offset, END - 50, END - 40, outcome, FINAL)
        return self.given(*given, at=END - 20, process="last") if given else self

    def verdict(self):
        return verdict("reset", self.history.run())


STORIES = stories(
    valid={
        "no reset at first": Story().given(0, 1, 2, at=5).told(3, 10, 11).finally_reset(),
        "nothing is committed at first": Story().told(None, 10, 11).finally_reset(),
        "a reset back": Story().given(0, 1, 2, 3, at=5).reset(1, 10, 20).told(1, 30, 31).finally_reset(),
        "and on from there":
            Story().given(0, 1, 2, 3, at=5).reset(1, 10, 20).given(1, 2, at=25).told(3, 30, 31).finally_reset(),
        "a reset ahead": Story().reset(4, 10, 20).told(4, 30, 31).finally_reset(),
        "asked while it is reset":
            Story().given(0, 1, 2, 3, at=5).reset(1, 10, 20).told(4, 8, 15).told(1, 12, 15).finally_reset(),
        "one of unknown outcome, done":
            Story().given(0, 1, 2, 3, at=5).reset(1, 10, 20, "info").told(1, 30, 31).finally_reset(),
        "one of unknown outcome, not done":
            Story().given(0, 1, 2, 3, at=5).reset(1, 10, 20, "info").told(4, 30, 31).finally_reset(),
        "one of unknown outcome, done late":
            Story().reset(1, 10, 20, "info").reset(3, 21, 25).told(1, 30, 31).finally_reset(),
        "one to where nobody knows": Story().reset(None, 10, 20, "info").told(5, 30, 31).finally_reset(),
        "one that was refused": Story().given(0, 1, 2, at=5).reset(1, 10, 20, "fail").told(3, 30, 31).finally_reset(),
        "of another queue": Story().given(0, 1, 2, at=5).reset(1, 10, 20, queue=OTHER).told(3, 30, 31).finally_reset(),
    },
    invalid={
        "undone by a commit of what was read before":
            Story().given(0, 1, 2, 3, at=5).reset(1, 10, 20).told(4, 30, 31).finally_reset(),
        "undone, though somebody read on":
            Story().given(0, 1, 2, 3, at=5).reset(1, 10, 20).given(1, 3, at=25).told(4, 30, 31).finally_reset(),
        "a reset ahead, undone": Story().given(0, at=5).reset(4, 10, 20).told(1, 30, 31).finally_reset(),
        "told of before it was delivered": Story().reset(1, 10, 20).told(3, 25, 26).given(1, 2, at=30).finally_reset(),
        "forgotten": Story().reset(1, 10, 20).told(None, 30, 31).finally_reset(),
        "of two the earlier": Story().reset(1, 10, 20).reset(3, 21, 25).told(1, 30, 31).finally_reset(),
        "one that was refused, done":
            Story().given(0, 1, 2, at=5).reset(1, 10, 20, "fail").told(1, 30, 31).given(1, at=40).reset(0, 50, 51)
            .reset(2, 55, 60, "fail").told(2, 70, 71).finally_reset(),
        "one of unknown outcome, done after ages":
            Story().reset(1, 10 - LATE_NS, 20 - LATE_NS, "info").reset(3, 15, 16).told(1, 30, 31).finally_reset(),
        "not delivered at the end": Story().told(0, 2, 3).finally_reset(given=(5,)),
        "delivered before the last reset only": Story().told(0, 2, 3).given(4, 5, at=END - 60).finally_reset(given=()),
        "delivered after another reset only":
            Story().told(0, 2, 3).finally_reset(given=()).reset(4, END - 30, END - 25, process=FINAL)
            .given(4, 5, at=END - 20),
        "not to be reset at the end": Story().told(0, 2, 3).reset(1, 5, 6).finally_reset(outcome="info"),
    },
    unknown={
        "nobody asks": Story().finally_reset(),
        "nobody resets": Story().told(0, 2, 3),
    },
)  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_the_reset_checker_expects_delivery_from_the_reset_offset(story):
    told, expected = STORIES[story]
    found = told.verdict()
    assert found.result == expected, found


def test_trimmed_messages_need_no_delivery_after_a_reset():
    story = Story().reset(0, 10, 20).given(2, at=25).told(3, 30, 31).finally_reset()
    assert story.verdict().result == "invalid"
    story.history.add("bounds", QUEUE, [2, 6])
    assert story.verdict().result == "valid"
