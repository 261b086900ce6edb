"""Judges of popped messages and of replies convict exactly the histories that break their promises."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from dledger_remoting.pop import CheckPoint, Retry
from dledger_sim.brokers.pop_judge import PopJudge
from dledger_sim.brokers.pop_truth import PopTruth
from dledger_sim.brokers.reply_history import Asked, ReplyHistory
from dledger_sim.log.violation import Violation

KEY = ("group", "topic", 0)
OPERATION = 7
ASKED = Asked("anna", "anna/1")


def point(pop_time_ms: int) -> CheckPoint:
    return CheckPoint(3, pop_time_ms, 10_000, False, Retry.NONE, "broker", 0, 3)


class Pops:
    """A judge, and a truth that knows which pops took one message."""

    def __init__(self, *pop_times_ms: int, begun_anew: bool = False) -> None:
        taken = {(KEY, pop_time_ms, 3) for pop_time_ms in pop_times_ms}
        again = {("group", OPERATION)} if begun_anew else set()
        self.truth = SimpleNamespace(taken=taken, acked=taken, is_gone=lambda *_: False, begun_anew=again)
        self.judge = PopJudge(cast(PopTruth, self.truth), Counter())

    def shown(self, pop_time_ms: int, sent_at: float, now: float, *, is_sure: bool = True) -> None:
        self.judge.shown(KEY, point(pop_time_ms), OPERATION, sent_at, now, is_sure=is_sure)

    def acknowledged(self, pop_time_ms: int, now: float) -> None:
        self.judge.acknowledged(KEY, point(pop_time_ms), OPERATION, now)


def test_a_popped_message_is_shown_again_once_its_time_is_over() -> None:
    pops = Pops(1, 2)
    pops.shown(1, 0.0, 1.0)
    with pytest.raises(Violation, match="shown twice within its invisible time"):
        pops.shown(2, 2.0, 5.0)
    pops.shown(2, 2.0, 10.0)


def test_after_clock_jumps_a_pop_may_be_early_and_not_after_its_acknowledgement() -> None:
    pops = Pops(1, 2, 3)
    pops.shown(1, 0.0, 1.0)
    pops.shown(2, 2.0, 5.0, is_sure=False)
    pops.acknowledged(2, 6.0)
    with pytest.raises(Violation, match="after its acknowledgement"):
        pops.shown(3, 20.0, 21.0, is_sure=False)


def test_messages_of_a_recreated_queue_may_be_popped_again_after_their_ack() -> None:
    pops = Pops(1, 2, begun_anew=True)
    pops.shown(1, 0.0, 1.0)
    pops.acknowledged(1, 2.0)
    pops.shown(2, 3.0, 4.0)


def test_a_message_stored_again_by_a_repeated_send_is_judged_as_another() -> None:
    pops = Pops(1, 2)
    pops.shown(1, 0.0, 1.0)
    pops.acknowledged(1, 2.0)
    with pytest.raises(Violation, match="after its acknowledgement"):
        pops.shown(2, 3.0, 4.0)
    pops.truth.taken.add((KEY, 2, 4))
    pops.judge.shown(KEY, msgspec.structs.replace(point(2), queue_offset=4), OPERATION, 3.0, 4.0, is_sure=True)


@pytest.mark.parametrize("begun_anew", [False, True])
def test_an_answered_acknowledgement_holds_unless_its_queue_was_gone(begun_anew: bool) -> None:
    pops = Pops(1, begun_anew=begun_anew)
    pops.truth.acked = set()
    pops.shown(1, 0.0, 1.0)
    with nullcontext() if begun_anew else pytest.raises(Violation, match="acknowledgement was answered"):
        pops.acknowledged(1, 2.0)


def test_a_pop_that_shows_an_untaken_message_is_a_violation() -> None:
    with pytest.raises(Violation, match="a pop shows the messages that it took"):
        Pops(1).shown(2, 0.0, 1.0)


@pytest.fixture
def history() -> ReplyHistory:
    """Return the history of a request, and of a reply to it that was sent 1 s later."""
    history = ReplyHistory(Counter())
    history.ask(ASKED, 0.0)
    history.sent(ASKED, 1, "replier", 1.0)
    return history


def test_a_reply_that_arrives_is_heard_and_arrives_once(history: ReplyHistory) -> None:
    history.arrived(ASKED, 1, 2.0)
    history.heard(1, 3.0, is_direct=True)
    history.check(9.0)
    history.arrived(ASKED, 1, 10.0)
    with pytest.raises(Violation, match="1 arrived 2 times, and the leader itself had answered"):
        history.check(11.0)


def test_a_reply_that_was_refused_does_not_arrive(history: ReplyHistory) -> None:
    history.refused(1, 1, 2.0)
    history.check(3.0)
    history.arrived(ASKED, 1, 4.0)
    with pytest.raises(Violation, match="1 arrived 1 times, and the leader had refused it"):
        history.check(5.0)


def test_a_reply_that_was_passed_on_may_come_twice(history: ReplyHistory) -> None:
    history.arrived(ASKED, 1, 2.0)
    history.arrived(ASKED, 1, 2.5)
    history.heard(1, 3.0, is_direct=False)
    history.check(4.0)
    history.heard(1, 3.0, is_direct=True)
    with pytest.raises(Violation, match="arrived 2 times"):
        history.check(4.0)


@pytest.mark.parametrize("arrives_at", [None, 2.5])
def test_a_reply_that_had_not_arrived_is_not_heard(history: ReplyHistory, arrives_at: float | None) -> None:
    history.heard(1, 2.0, is_direct=False)
    if arrives_at is not None:
        history.arrived(ASKED, 1, arrives_at)
    with pytest.raises(Violation, match="replier was told that 1 had arrived, which had not come to anna/1 of anna"):
        history.check(3.0)


@pytest.mark.parametrize(
    ("at", "number", "moment", "why"),
    [
        (Asked("bert", "anna/1"), 1, 2.0, "1 reached bert, which had not asked anna/1 of bert"),
        (Asked("anna", "anna/2"), 1, 2.0, "1 reached anna, which had not asked anna/2 of anna"),
        (Asked("bert", "bert/1"), 1, 2.0, "1 was the reply to anna/1 of anna, and arrived as the reply to bert/1 of"),
        (ASKED, 2, 2.0, "2 reached anna before anybody replied that"),
        (ASKED, 1, 0.5, "1 reached anna before anybody replied that"),
    ],
)
def test_a_reply_that_goes_astray_is_found(
    history: ReplyHistory, at: Asked, number: int, moment: float, why: str
) -> None:
    history.ask(Asked("bert", "bert/1"), 0.0)
    history.arrived(at, number, moment)
    with pytest.raises(Violation, match=why):
        history.check(9.0)
