"""Checks of popped messages convict messages that come too early, too often, after an acknowledgement, or out of turn.

They also convict messages that are never acknowledged.
"""

from __future__ import annotations

import pytest
from histories import History, stories, verdict

from dledger_chaos.workloads import grpc
from dledger_chaos.workloads.pops import ORDERED, SHARED

SECOND = 10**9
QUEUE = f"{SHARED.topic}/broker-a/0"
AGAIN = f"%RETRY%{SHARED.name}_{SHARED.topic}/broker-a/0"
TURNS = f"{ORDERED.topic}/broker-a/0"
HIDDEN_MS = 3_000


class Pops:
    """Steps of group members, in seconds. Messages have the values `v0`, `v1`, ... by their offsets."""

    def __init__(self, topic=SHARED.topic, queue=QUEUE, workload="pops"):
        self.history = History(workload)
        self.topic = topic
        self.queue = queue

    def sent(self, *offsets):
        for offset in offsets:
            self.history.send(f"v{offset}", offset, self.queue, key=self.topic)
        return self

    def message(self, offset, times=0, place=None, popped=0):
        queue = AGAIN if times else self.queue
        return [queue, offset if place is None else place, f"v{offset}", times, popped]

    def pop(self, begin, end, *messages, outcome="ok"):
        times = {"begin": int(begin * SECOND), "end": int(end * SECOND)}
        self.history.add("pop", self.topic, list(messages), outcome, **times, invisible_ms=HIDDEN_MS)
        return self

    def ack(self, begin, end, *messages, outcome="ok"):
        times = {"begin": int(begin * SECOND), "end": int(end * SECOND)}
        self.history.add("ack", self.topic, list(messages), outcome, **times)
        return self

    def hide(self, begin, end, message, invisible_ms, outcome="ok"):
        times = {"begin": int(begin * SECOND), "end": int(end * SECOND)}
        self.history.add("hide", self.topic, message, outcome, **times, invisible_ms=invisible_ms)
        return self

    def kept(self, first, queue=None):
        self.history.add("kept" if queue else "bounds", queue or self.queue, [first, 100])
        return self

    def clock(self, offset_s, begin_s, end_s, *nodes):
        clock = {"nodes": list(nodes), "offset_s": offset_s, "drift_ppm": 0}
        fault = {"id": 1, "class": "clock", "nodes": list(nodes), "fault": clock}
        self.history.event("fault-begin", begin_s * SECOND, "clock-jump", **fault)
        self.history.event("fault-end", end_s * SECOND, "clock-jump", id=1, injected=True)
        return self


def shared():
    return Pops().sent(0)


ONE = shared().message
FIRST, SECOND_TIME, THIRD_TIME = ONE(0, popped=1), ONE(0, 1, 7, 2), ONE(0, 2, 9, 3)
COPY = ONE(0, 1, 8, 3)

STORIES = stories(
    valid={
        "shown and acknowledged": shared().pop(0, 1, FIRST).ack(1, 2, FIRST),
        "shown again when its time was over": shared().pop(0, 1, FIRST).pop(3.5, 4, SECOND_TIME).ack(5, 6, SECOND_TIME),
        "a little before, by a clock that is behind":
            shared().pop(0, 1, FIRST).pop(1, 2.6, SECOND_TIME).ack(5, 6, SECOND_TIME),
        "hidden anew for a shorter time":
            shared().pop(0, 1, FIRST).hide(1, 1.1, ONE(0, popped=2), 1000).pop(1.5, 2, SECOND_TIME)
            .ack(5, 6, SECOND_TIME),
        "perhaps hidden anew for a shorter time":
            shared().pop(0, 1, FIRST).hide(1, 1.1, FIRST, 500, "info").pop(1, 2, SECOND_TIME).ack(5, 6, SECOND_TIME),
        "again after a pop without an answer":
            shared().pop(0, 9, outcome="info").pop(4, 5, SECOND_TIME).ack(5, 6, SECOND_TIME),
        "again by an answer that came late": shared().pop(0, 9, FIRST).pop(4, 5, SECOND_TIME).ack(5, 6, SECOND_TIME),
        "perhaps acknowledged": shared().pop(0, 1, FIRST).ack(1, 2, FIRST, outcome="info"),
        "never acknowledged, and trimmed": shared().pop(0, 1, FIRST).kept(1),
        "never acknowledged, and its copy trimmed":
            shared().pop(0, 1, FIRST).pop(4, 5, SECOND_TIME).kept(0).kept(8, AGAIN),
    },
    invalid={
        "shown early": shared().pop(0, 1, FIRST).pop(1, 2, SECOND_TIME).ack(5, 6, SECOND_TIME),
        "shown early, for it was hidden anew":
            shared().pop(0, 1, FIRST).hide(2, 2.1, ONE(0, popped=2), 9000).pop(4, 5, SECOND_TIME)
            .ack(5, 6, SECOND_TIME),
        "shown early, for it was not hidden for a shorter time":
            shared().pop(0, 1, FIRST).hide(1, 1.1, FIRST, 500, "fail").pop(1, 2, SECOND_TIME).ack(5, 6, SECOND_TIME),
        "shown after its acknowledgement": shared().pop(0, 1, FIRST).ack(1, 2, FIRST).pop(4, 5, SECOND_TIME),
        "shown twice by one delivery": shared().pop(0, 1, FIRST).pop(6, 7, FIRST).ack(8, 9, FIRST),
        "popped twice where it lies": shared().pop(0, 1, FIRST).pop(6, 7, ONE(0, popped=2)).ack(8, 9, FIRST),
        "come again twice": shared().pop(0, 1, FIRST).pop(6, 7, SECOND_TIME).pop(11, 12, COPY).ack(13, 14, COPY),
        "come again though nobody had been shown it": shared().pop(4, 5, SECOND_TIME).ack(5, 6, SECOND_TIME),
        "come twice for one pop without an answer":
            shared().pop(0, 9, outcome="info").pop(9, 10, THIRD_TIME).ack(11, 12, THIRD_TIME),
        "refused every acknowledgement": shared().pop(0, 1, FIRST).ack(1, 2, FIRST, outcome="fail"),
        "never shown": shared().sent(1).pop(0, 1, ONE(1, popped=1)).ack(1, 2, ONE(1, popped=1)),
        "never acknowledged": shared().pop(0, 1, FIRST).kept(0).kept(0, AGAIN),
    },
    unknown={
        "nothing is popped": Pops().pop(0, 1),
    },
)  # fmt: skip


@pytest.mark.parametrize("story", STORIES)
def test_the_pop_checker_judges_deliveries_and_acknowledgements(story):
    pops, expected = STORIES[story]
    found = verdict("popped", pops.history.run())
    assert found.result == expected, found


def test_wrong_clocks_may_show_a_message_early_and_never_after_its_acknowledgement():
    early = shared().pop(0, 1, FIRST).pop(1, 2, SECOND_TIME).clock(100, 0, 9, "n0", "n1").ack(5, 6, SECOND_TIME)
    late = shared().pop(0, 1, FIRST).ack(1, 2, FIRST).pop(4, 5, SECOND_TIME).clock(100, 0, 9, "n0", "n1")
    assert verdict("popped", early.history.run()).result == "valid"
    assert verdict("popped", late.history.run()).result == "invalid"


def turns():
    return Pops(ORDERED.topic, TURNS)


def at(offset, popped=1):
    return turns().message(offset, popped=popped)


ORDERS = {
    "one after the other": (turns().pop(0, 1, at(0)).ack(1, 2, at(0)).pop(2, 3, at(1, 2)), "valid"),
    "many at once": (turns().pop(0, 1, at(0), at(1)).ack(1, 2, at(0), at(1)).pop(2, 3, at(2, 2)), "valid"),
    "while an acknowledgement is under way": (turns().pop(0, 1, at(0)).ack(1, 9, at(0)).pop(2, 3, at(1, 2)), "valid"),
    "again what is not acknowledged": (
        turns().pop(0, 1, at(0), at(1)).ack(1, 2, at(1)).pop(4, 5, at(0, 2)).ack(5, 6, at(0, 2)).pop(6, 7, at(2, 3)),
        "valid",
    ),
    "again the rest, while one is hidden anew": (turns().pop(0, 1, at(0), at(1)).pop(4, 5, at(1, 2)), "valid"),
    "behind what was trimmed": (turns().pop(2, 3, at(5)).kept(5), "valid"),
    "past one that is not acknowledged": (turns().pop(0, 1, at(0)).pop(2, 3, at(1, 2)), "invalid"),
    "past one that is acknowledged later": (turns().pop(0, 1, at(0)).pop(2, 3, at(1, 2)).ack(4, 5, at(0)), "invalid"),
    "past one that nobody was shown": (turns().pop(0, 1, at(1)), "invalid"),
    "past more than was trimmed": (turns().pop(2, 3, at(6)).kept(5), "invalid"),
    "nothing is popped": (turns().pop(0, 1), "unknown"),
}


@pytest.mark.parametrize("story", ORDERS)
def test_a_queue_that_is_popped_in_order_shows_nothing_before_its_turn(story):
    pops, expected = ORDERS[story]
    found = verdict("popped-in-turn", pops.history.run())
    assert found.result == expected, found


def test_ordered_pops_are_redelivered_in_place_after_their_invisible_time():
    late, early = (turns().sent(0).pop(0, 1, at(0)).pop(3.5, when, at(0, 2)).ack(8, 9, at(0, 2)) for when in (4, 2))
    assert verdict("popped", late.history.run()).result == "valid"
    assert verdict("popped", early.history.run()).result == "invalid"


def again_in_order(*showings):
    """Return a history of two messages, the second of which is acknowledged, followed by these deliveries."""
    pops = turns().sent(0, 1).pop(0, 1, at(0), at(1)).ack(1, 2, at(1))
    for number, (begin, offsets) in enumerate(showings, 2):
        pops.pop(begin, begin + 0.5, *(turns().message(offset, popped=number) for offset in offsets))
    last = len(showings) + 1
    return pops.ack(8, 9, turns().message(0, popped=last), turns().message(1, popped=last))


@pytest.mark.parametrize(
    ("showings", "expected"),
    [
        ([(4, [0, 1])], "valid"),  # behind the open one
        ([(4, [0]), (7.5, [1])], "valid"),  # the first pop asked for one message
        ([(4, [1])], "invalid"),  # although the queue was not read from its open message on
    ],
)
def test_in_ordered_pops_an_acknowledged_message_returns_only_behind_an_open_one(showings, expected):
    found = verdict("popped", again_in_order(*showings).history.run())
    assert found.result == expected, found


def behind_proxies(group):
    return Pops(group.topic, f"{group.topic}/broker-a/0", grpc.NAME).sent(0, 1)


def test_pops_through_proxies_are_judged_as_others_are():
    pops = behind_proxies(grpc.SHARED)
    one, other = pops.message(0, popped=1), pops.message(1, popped=1)
    pops.pop(0, 1, one, other).ack(1, 2, one, other)
    assert verdict("popped", pops.history.run()).result == "valid"
    again = [f"%RETRY%{grpc.SHARED.name}_{grpc.SHARED.topic}/broker-a/0", 7, "v0", 1, 2]
    assert verdict("popped", pops.pop(5, 6, again).history.run()).result == "invalid"
    turns = behind_proxies(grpc.ORDERED)
    turns.pop(0, 1, turns.message(0, popped=1)).pop(2, 3, turns.message(1, popped=2))
    assert verdict("popped-in-turn", turns.history.run()).result == "invalid"


def test_a_proxy_may_have_repeated_a_pop_whose_answer_was_lost():
    """A message that comes the second time was shown to nobody before: that convicts pops of brokers alone."""
    results = []
    for pops in (behind_proxies(grpc.SHARED), Pops().sent(0, 1)):
        message = [f"%RETRY%{pops.topic}_{pops.topic}/broker-a/0", 7, "v0", 1, 2]
        other = pops.message(1, popped=1)
        pops.pop(5, 6, message, other).ack(6, 7, message, other)
        results.append(verdict("popped", pops.history.run()).result)
    assert results == ["valid", "invalid"]
