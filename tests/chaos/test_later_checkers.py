"""Checks of messages that come later convict what comes early, twice or never, and nothing else."""

from __future__ import annotations

import pytest
from histories import NODES, QUEUE, History, verdict

from dledger_chaos.checkers.later import EARLY_S

SECOND = 10**9
DELAY_MS = 10_000
SENT = 10 * SECOND
"""When all of these messages are sent."""
DUE = SENT + DELAY_MS * SECOND // 1000
END = 1_000 * SECOND
EARLY = DUE - int((EARLY_S + 1) * SECOND)


def delayed(value="a", outcome="ok", **more):
    """A message that is to come after ten seconds."""
    more = {"delay_ms": DELAY_MS, "begin": SENT, "end": SENT + SECOND, **more}
    return History("delays").add("send-delayed", "T", value, outcome, **more)


def seen(history, *values, at=DUE + 1, first=0, queue=QUEUE):
    """A reader is shown messages; they are there at the end, too."""
    history.pull(values, first, queue=queue, begin=at - SECOND, end=at)
    return there(history, *values, first=first, queue=queue)


def there(history, *values, first=0, queue=QUEUE):
    """What is there at the end of a run."""
    history.add("bounds", queue, [first, first + len(values)])
    for node in NODES:
        history.pull(values, first, node, queue, f="scan", begin=END, end=END)
    return history


def clocks(history, *nodes, offset_s=30.0, drift_ppm=0, begin=SENT + 2 * SECOND, number=1):
    """The clocks of nodes are wrong for two seconds."""
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
    "never": seen(delayed(), "x"),
    "never, though readers saw all that was trimmed": there(delayed().pull(["x"], begin=DUE, end=DUE), "y", first=1),
}


@pytest.mark.parametrize("story", VALID)
def test_what_is_allowed_is_valid(story):
    found = verdict("due", VALID[story].run())
    assert found.result == "valid", found


@pytest.mark.parametrize("story", INVALID)
def test_a_message_that_comes_early_twice_or_never_is_convicted(story):
    found = verdict("due", INVALID[story].run())
    assert found.result == "invalid", found
    assert found.examples


def test_how_late_messages_come_is_told():
    history = seen(delayed(), "a", at=DUE + 3 * SECOND)
    assert verdict("due", history.run()).figures["latest_s"] == 3.0


def test_a_message_that_came_while_clocks_were_wrong_is_counted():
    history = seen(clocks(delayed(), *NODES), "a", at=EARLY)
    assert verdict("due", history.run()).figures["misled"] == 1
