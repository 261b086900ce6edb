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
from dledger_sim.brokers.reply_judge import Asked, ReplyJudge
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
def judge() -> ReplyJudge:
    judge = ReplyJudge(Counter())
    judge.ask(ASKED)
    judge.sent(ASKED, 1)
    return judge


def test_a_reply_that_arrives_is_heard_and_not_refused(judge: ReplyJudge) -> None:
    judge.arrived(ASKED, 1)
    judge.heard(1, is_direct=True)
    with pytest.raises(Violation, match="does not arrive twice"):
        judge.arrived(ASKED, 1)
    with pytest.raises(Violation, match="nor after it was refused"):
        judge.refused(1, 1)


def test_a_reply_that_was_passed_on_may_come_twice(judge: ReplyJudge) -> None:
    judge.arrived(ASKED, 1)
    judge.arrived(ASKED, 1)
    judge.heard(1, is_direct=False)
    with pytest.raises(Violation, match="does not arrive twice"):
        judge.heard(1, is_direct=True)


def test_a_reply_that_did_not_arrive_is_not_heard_and_one_that_was_refused_does_not_arrive(judge: ReplyJudge) -> None:
    with pytest.raises(Violation, match="its reply was delivered"):
        judge.heard(1, is_direct=False)
    judge.refused(1, 1)
    with pytest.raises(Violation, match="nor after it was refused"):
        judge.arrived(ASKED, 1)


@pytest.mark.parametrize(
    ("at", "number", "why"),
    [
        (Asked("bert", "anna/1"), 1, "reaches the client that waits"),
        (Asked("anna", "anna/2"), 1, "reaches the client that waits"),
        (Asked("bert", "bert/1"), 1, "arrives as it was sent"),
        (ASKED, 2, "was sent by a replier"),
    ],
)
def test_a_reply_that_goes_astray_is_found(judge: ReplyJudge, at: Asked, number: int, why: str) -> None:
    judge.ask(Asked("bert", "bert/1"))
    with pytest.raises(Violation, match=why):
        judge.arrived(at, number)
