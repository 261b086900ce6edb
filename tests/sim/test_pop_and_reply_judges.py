"""Judges of popped messages and of replies convict what their promises forbid, and nothing else."""

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


def test_clocks_that_jumped_may_show_it_early_and_not_after_its_acknowledgement() -> None:
    pops = Pops(1, 2, 3)
    pops.shown(1, 0.0, 1.0)
    pops.shown(2, 2.0, 5.0, is_sure=False)
    pops.acknowledged(2, 6.0)
    with pytest.raises(Violation, match="after its acknowledgement"):
        pops.shown(3, 20.0, 21.0, is_sure=False)


def test_what_a_topic_gets_back_with_a_queue_is_begun_anew() -> None:
    pops = Pops(1, 2, begun_anew=True)
    pops.shown(1, 0.0, 1.0)
    pops.acknowledged(1, 2.0)
    pops.shown(2, 3.0, 4.0)


def test_what_a_repeated_send_has_stored_again_is_another_message() -> None:
    pops = Pops(1, 2)
    pops.shown(1, 0.0, 1.0)
    pops.acknowledged(1, 2.0)
    with pytest.raises(Violation, match="after its acknowledgement"):
        pops.shown(2, 3.0, 4.0)
    pops.truth.taken.add((KEY, 2, 4))
    pops.judge.shown(KEY, msgspec.structs.replace(point(2), queue_offset=4), OPERATION, 3.0, 4.0, is_sure=True)


@pytest.mark.parametrize("begun_anew", [False, True])
def test_what_is_answered_as_acknowledged_is_so_unless_its_queue_was_gone(begun_anew: bool) -> None:
    pops = Pops(1, begun_anew=begun_anew)
    pops.truth.acked = set()
    pops.shown(1, 0.0, 1.0)
    with nullcontext() if begun_anew else pytest.raises(Violation, match="answered as acknowledged is so"):
        pops.acknowledged(1, 2.0)


def test_a_pop_that_shows_what_it_did_not_take_is_found() -> None:
    with pytest.raises(Violation, match="a pop shows what it took"):
        Pops(1).shown(2, 0.0, 1.0)


def replies() -> ReplyJudge:
    judge = ReplyJudge(Counter())
    judge.ask(ASKED)
    judge.sent(ASKED, 1)
    return judge


def test_a_reply_that_arrives_is_heard() -> None:
    judge = replies()
    judge.arrived(ASKED, 1)
    judge.heard(1, is_direct=True)
    with pytest.raises(Violation, match="does not come again"):
        judge.arrived(ASKED, 1)


def test_a_reply_that_was_passed_on_may_come_twice() -> None:
    judge = replies()
    judge.arrived(ASKED, 1)
    judge.arrived(ASKED, 1)
    judge.heard(1, is_direct=False)
    with pytest.raises(Violation, match="does not come again"):
        judge.heard(1, is_direct=True)


def test_a_reply_that_nobody_got_was_not_heard() -> None:
    with pytest.raises(Violation, match="told so was heard"):
        replies().heard(1, is_direct=False)


def test_a_reply_that_was_refused_does_not_arrive() -> None:
    judge = replies()
    judge.refused(1, 1)
    with pytest.raises(Violation, match="nor once it was refused"):
        judge.arrived(ASKED, 1)


def test_a_reply_that_arrived_is_not_refused() -> None:
    judge = replies()
    judge.arrived(ASKED, 1)
    with pytest.raises(Violation, match="nor once it was refused"):
        judge.refused(1, 1)


@pytest.mark.parametrize(
    ("at", "number", "why"),
    [
        (Asked("bert", "anna/1"), 1, "comes to the client that waits"),
        (Asked("anna", "anna/2"), 1, "comes to the client that waits"),
        (Asked("bert", "bert/1"), 1, "comes as it was sent"),
        (ASKED, 2, "one that was sent"),
    ],
)
def test_a_reply_that_goes_astray_is_found(at: Asked, number: int, why: str) -> None:
    judge = replies()
    judge.ask(Asked("bert", "bert/1"))
    with pytest.raises(Violation, match=why):
        judge.arrived(at, number)
