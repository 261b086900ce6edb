"""Checks of delayed messages convict messages that come early, twice or never, and nothing else."""

from __future__ import annotations

import pytest
from histories import NODES, QUEUE, History, applies, verdict

from dledger_chaos.checkers.later import EARLY_S, MIN_QUIET, QUIET_NS, QUIET_P99_S

SECOND = 10**9
DELAY_MS = 10_000
SENT = 10 * SECOND
"""Time at which all of these messages have been sent."""
DUE = SENT + DELAY_MS * SECOND // 1000
END = 1_000 * SECOND
EARLY = DUE - int((EARLY_S + 1) * SECOND)


def delayed(value="a", outcome="ok", **more):
    """Return a history with a message that is due after ten seconds."""
    more = {"delay_ms": DELAY_MS, "begin": SENT, "end": SENT + SECOND, **more}
    return History("delays").add("send-delayed", "T", value, outcome, **more)


def seen(history, *values, at=DUE + 1, first=0, queue=QUEUE):
    """Add a delivery of messages to a reader. They are there at the end, too."""
    history.pull(values, first, queue=queue, begin=at - SECOND, end=at)
    return there(history, *values, first=first, queue=queue)


def recalled(history, outcome, value="a"):
    """Add a recall of a message by its producer."""
    return history.add("recall", "T", value, outcome, begin=SENT + SECOND, end=SENT + 2 * SECOND)


def there(history, *values, first=0, queue=QUEUE):
    """Add the content at the end of a run."""
    history.add("bounds", queue, [first, first + len(values)])
    for node in NODES:
        history.pull(values, first, node, queue, f="scan", begin=END, end=END)
    return history


def clocks(history, *nodes, offset_s=30.0, drift_ppm=0, begin=SENT + 2 * SECOND, number=1):
    """Let the clocks of nodes be wrong for two seconds."""
    fault = {"type": "ClockFault", "nodes": nodes, "offset_s": offset_s, "drift_ppm": drift_ppm}
    fields = {"id": number, "class": "clock", "nodes": nodes}
    history.event("fault-begin", begin, "clock-jump", fault=fault, **fields)
    return history.event("fault-end", begin + 2 * SECOND, "clock-jump", id=number)


VALID = {
    "there when it is due": seen(delayed(), "a"),
    "there much later": seen(delayed(), "a", at=DUE + 99 * SECOND),
    "of unknown outcome, and there": seen(delayed(outcome="info"), "a"),
    "of unknown outcome, and not there": seen(delayed(outcome="info"), "x"),
    "an answer on its way when it became due": there(delayed().pull(["a"], begin=EARLY, end=DUE), "a"),
    "early, and two clocks were ahead": seen(clocks(delayed(), *NODES[:2]), "a", at=EARLY),
    "early, and one clock was behind": seen(clocks(delayed(), NODES[0], offset_s=-30.0), "a", at=EARLY),
    "early, and one clock after another was ahead": seen(
        clocks(clocks(delayed(), NODES[0]), NODES[1], number=2), "a", at=EARLY
    ),
    "never, and two clocks were ahead when it was sent": seen(clocks(delayed(), *NODES[:2], begin=SENT), "x"),
    "never, but a trim took what nobody had seen": there(delayed(), "x", first=5),
    "taken back, and not there": seen(recalled(delayed(), "ok"), "x"),
    "perhaps taken back, and not there": seen(recalled(delayed(), "info"), "x"),
    "perhaps taken back, and there": seen(recalled(delayed(), "info"), "a"),
    "too late to be taken back, and there": seen(recalled(delayed(), "fail"), "a"),
    "seen once, and trimmed": there(delayed().pull(["a"], begin=DUE, end=DUE), "x", first=1),
}

INVALID = {
    "early": seen(delayed(), "a", at=EARLY),
    "early, of unknown outcome": seen(delayed(outcome="info"), "a", at=EARLY),
    "early, though one clock alone was ahead": seen(clocks(delayed(), NODES[0]), "a", at=EARLY),
    "early, though one clock alone went too fast": seen(
        clocks(delayed(), NODES[0], offset_s=0.0, drift_ppm=9_000), "a", at=EARLY
    ),
    "early, long after clocks were wrong": seen(
        clocks(delayed(begin=200 * SECOND, end=201 * SECOND), *NODES), "a", at=202 * SECOND
    ),
    "twice": seen(delayed(), "a", "a"),
    "twice, of unknown outcome": seen(delayed(outcome="info"), "a", "a"),
    "twice, though clocks were wrong": seen(clocks(delayed(), *NODES), "a", "a"),
    "once, and once more in another queue": seen(seen(delayed(), "a"), "a", queue="T/broker-a/1"),
    "once, trimmed, and once more": there(delayed().pull(["a"], begin=DUE, end=DUE), "a", first=1),
    "taken back, and there": seen(recalled(delayed(), "ok"), "a"),
    "taken back, and there, though clocks were wrong": seen(clocks(recalled(delayed(), "ok"), *NODES), "a"),
    "perhaps taken back, and there twice": seen(recalled(delayed(), "info"), "a", "a"),
    "too late to be taken back, and never there": seen(recalled(delayed(), "fail"), "x"),
    "never": seen(delayed(), "x"),
    "never, though readers saw all that was trimmed": there(delayed().pull(["x"], begin=DUE, end=DUE), "y", first=1),
}


DUE_STORIES = [*((VALID, story, "valid") for story in VALID), *((INVALID, story, "invalid") for story in INVALID)]


@pytest.mark.parametrize(("table", "story", "expected"), DUE_STORIES, ids=[story for _, story, _ in DUE_STORIES])
def test_a_delayed_message_that_comes_early_or_repeatedly_or_never_is_invalid(table, story, expected):
    found = verdict("due", table[story].run())
    assert found.result == expected, found
    assert bool(found.examples) == (expected == "invalid")


def many(late_s, latest_s):
    """Return the minimum number of messages, of which two come later than the others."""
    history = History("delays")
    values = [f"m{number}" for number in range(MIN_QUIET)]
    for value in values:
        history.add("send-delayed", "T", value, delay_ms=DELAY_MS, begin=SENT, end=SENT + SECOND)
    for first, shown, late in ((0, values[:-2], late_s), (MIN_QUIET - 2, values[-2:], latest_s)):
        at = DUE + int(late * SECOND)
        history.pull(shown, first, begin=at, end=at)
    return there(history, *values).event("phase", END, "final-reads")


def test_a_quiet_group_may_deliver_one_message_in_a_hundred_late():
    assert verdict("punctual", many(0.1, 0.9).run()).figures["p99_s"] == 0.9
    assert verdict("punctual", many(0.1, 0.9).run()).result == "valid"
    assert verdict("punctual", many(0.1, QUIET_P99_S + 0.1).run()).result == "invalid"


@pytest.mark.parametrize("end", [DUE - QUIET_NS // 2, None], ids=["a fault that had just ended", "one that went on"])
def test_a_group_is_not_quiet_during_or_just_after_a_fault(end):
    history = many(0.1, 5.0)
    assert applies("punctual", history.run())
    history.event("fault-begin", SENT, "kill-leader", id=1)
    if end is not None:
        history.event("fault-end", end, "kill-leader", id=1)
    assert not applies("punctual", history.run())


def test_the_due_verdict_reports_the_latest_delivery_while_readers_read_and_messages_under_wrong_clocks():
    late = seen(delayed(), "a", at=DUE + 3 * SECOND)
    assert verdict("due", late.event("phase", END, "final-reads").run()).figures["latest_s"] == 3.0
    resting = seen(delayed(), "a", at=DUE + 3 * SECOND).event("phase", DUE, "final-reads")
    assert "latest_s" not in verdict("due", resting.run()).figures
    misled = seen(clocks(delayed(), *NODES), "a", at=EARLY)
    assert verdict("due", misled.run()).figures["misled"] == 1


FIRST = "chaos-retries/broker-a/0"
AGAIN = "%RETRY%chaos-retries/broker-a/0"
DEAD = "%DLQ%chaos-retries/broker-a/0"


def sent_back(value="a#1", outcome="ok", queue=AGAIN, delay_ms=DELAY_MS, history=None):
    """Return a history in which a consumer sends a message back, with a delay of ten seconds."""
    told = {} if delay_ms is None else {"delay_ms": delay_ms}
    topic = queue.partition("/")[0]
    history = history or History("retries")
    return history.add("send-back", topic, value, outcome, begin=SENT, end=SENT + SECOND, **told)


def buried(value="a#1", outcome="ok", history=None):
    """Return a history in which a consumer makes a message a dead letter."""
    return sent_back(value, outcome, DEAD, None, history)


def came(history, topic="chaos-retries", position=0):
    """Add a message that names its original topic, and lies at byte 0."""
    return there(history, "a", queue=FIRST).add("came-again", "a", [topic, position])


KEPT = {
    "once, when it is due": seen(sent_back(), "a#1", queue=AGAIN),
    "once for two acknowledgements": seen(sent_back(history=sent_back()), "a#1", queue=AGAIN),
    "for each acknowledgement once": seen(sent_back(history=sent_back()), "a#1", "a#1", queue=AGAIN),
    "once more after an unknown outcome": seen(
        sent_back(outcome="info", history=sent_back()), "a#1", "a#1", queue=AGAIN
    ),
    "not once more after an unknown outcome": seen(sent_back(outcome="info", history=sent_back()), "a#1", queue=AGAIN),
    "a dead letter, at once": seen(buried(), "a#1", queue=DEAD, at=SENT + SECOND),
    "a dead letter, and once more, at once": seen(
        seen(buried(history=sent_back(outcome="info")), "a#1", queue=DEAD, at=SENT + SECOND), "x", queue=AGAIN
    ),
    "refused": seen(sent_back(outcome="fail"), "x", queue=AGAIN),
    "it says what it was": came(seen(sent_back(), "a#1", queue=AGAIN)),
}

BROKEN = {
    "early": seen(sent_back(), "a#1", queue=AGAIN, at=EARLY),
    "twice for one acknowledgement": seen(sent_back(), "a#1", "a#1", queue=AGAIN),
    "twice for an unknown outcome": seen(sent_back(outcome="info"), "a#1", "a#1", queue=AGAIN),
    "three times for an acknowledgement and an unknown outcome": seen(
        sent_back(outcome="info", history=sent_back()), "a#1", "a#1", "a#1", queue=AGAIN
    ),
    "never": seen(sent_back(), "x", queue=AGAIN),
    "a dead letter twice": seen(buried(), "a#1", "a#1", queue=DEAD),
    "no dead letter": seen(buried(), "x", queue=DEAD),
    "a dead letter that is to come again": seen(sent_back(), "a#1", queue=DEAD),
    "a dead letter that comes again": seen(buried(), "a#1", queue=AGAIN),
    "counted wrongly": seen(sent_back(), "a", queue=AGAIN),
    "refused, and there": seen(sent_back(outcome="fail"), "a#1", queue=AGAIN),
    "it says that it was sent to another topic": came(seen(sent_back(), "a#1", queue=AGAIN), topic="U"),
    "it says that it was the last delivery": came(seen(sent_back(), "a#1", queue=AGAIN), position=700),
}


@pytest.mark.parametrize("story", [*KEPT, *BROKEN])
def test_wrong_retries_and_dead_letters_are_invalid_and_correct_ones_valid(story):
    found = verdict("dead-letter", (KEPT | BROKEN)[story].run())
    assert found.result == ("valid" if story in KEPT else "invalid"), found


def test_a_send_back_accepted_after_a_refusal_is_valid():
    """A message whose send back was first refused and then accepted may be there."""
    history = seen(sent_back(history=sent_back(outcome="fail")), "a#1", queue=AGAIN)
    assert verdict("refused", history.run()).result == "valid"
