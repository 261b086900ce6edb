"""Judges of locks, of what is sent back, of check-backs and of reads that wait for quotas: each lets through what is
right, and names what is not.
"""

from __future__ import annotations

from collections import Counter

import pytest

from dledger_broker.features.quotas.admission import READ_HOLD_S
from dledger_broker.features.quotas.meters import Meter
from dledger_sim.brokers.half_truth import HalfTruth
from dledger_sim.brokers.lockers import LockJudge
from dledger_sim.brokers.schedules.brokers import TOPIC, Brokers
from dledger_sim.brokers.schedules.quotas import waiting_pop
from dledger_sim.brokers.sent_back import Copy, SentBackTruth
from dledger_sim.log.invariants import Violation

COPY = Copy("consumers", 7, 1, is_dead=False)
LETTER = COPY._replace(is_dead=True)


# ---------------------------------------------------------------- locks


def test_a_queue_changes_hands_once_its_owner_believes_in_it_no_more() -> None:
    counts = Counter[str]()
    judge = LockJudge(counts)
    judge.granted("anna", 0, 10.0, until=41.0)
    judge.granted("bert", 1, 10.0, until=41.0)
    judge.granted("anna", 0, 30.0, until=61.0)
    judge.granted("bert", 0, 61.0, until=92.0)
    judge.ended("bert", 0)
    judge.granted("anna", 0, 62.0, until=93.0)
    assert judge.last_owner(0) == "anna"
    assert counts["lock taken when a belief was over"] == 1


def test_two_members_do_not_believe_in_one_queue() -> None:
    judge = LockJudge(Counter())
    judge.granted("anna", 0, 10.0, until=41.0)
    judge.granted("anna", 0, 12.0, until=40.0)  # a late answer to an earlier request shortens no belief
    with pytest.raises(Violation, match="one member of a group at a time"):
        judge.granted("bert", 0, 40.5, until=71.0)


# ---------------------------------------------------------------- what is sent back


def test_each_request_may_store_one_and_one_that_is_answered_has_stored_it() -> None:
    truth = SentBackTruth(Counter())
    truth.ask(COPY)
    truth.ask(COPY)
    truth.see_waiting(COPY)
    truth.check_entry()
    truth.answer(COPY)
    truth.see_record(COPY, 5.0)
    truth.refuse(COPY)
    with pytest.raises(Violation, match="stored once it is answered"):
        truth.answer(COPY)


def test_what_was_refused_or_not_asked_for_is_not_stored() -> None:
    truth = SentBackTruth(Counter())
    truth.ask(COPY)
    truth.refuse(COPY)
    truth.see_waiting(COPY)
    with pytest.raises(Violation, match="each request that was not refused"):
        truth.check_entry()
    truth = SentBackTruth(Counter())
    truth.ask(COPY)
    truth.see_record(LETTER, 5.0)
    with pytest.raises(Violation, match="each request that was not refused"):
        truth.check_entry()


def test_what_is_refused_must_not_be_there() -> None:
    truth = SentBackTruth(Counter())
    truth.ask(LETTER)
    truth.see_record(LETTER, 5.0)
    truth.check_entry()
    with pytest.raises(Violation, match="each request that was not refused"):
        truth.refuse(LETTER)


def test_one_that_is_moved_counts_once_and_comes_once_when_its_delay_is_over() -> None:
    truth = SentBackTruth(Counter())
    truth.ask(COPY, due=8.0)
    for _ in range(2):
        truth.see_waiting(COPY)
        truth.check_entry()
        truth.see_moved(COPY)
    truth.see_waiting(COPY)
    truth.see_record(COPY, 8.0)
    with pytest.raises(Violation, match="as often as it was sent back"):
        truth.see_record(COPY, 9.0)


def test_nothing_comes_again_too_early() -> None:
    truth = SentBackTruth(Counter())
    truth.ask(COPY, due=9.0)
    truth.ask(COPY, due=8.0)
    truth.see_waiting(COPY)
    with pytest.raises(Violation, match="before its delay is over"):
        truth.see_record(COPY, 7.9)


def test_what_others_than_consumers_send_back_is_not_judged() -> None:
    truth = SentBackTruth(Counter())
    truth.see_waiting(COPY)
    truth.check_entry()
    truth.see_record(COPY, 1.0)
    truth.see_record(COPY, 1.0)


# ---------------------------------------------------------------- check-backs


def half_sent_at(moment: float) -> HalfTruth:
    """Operation 7 is a half at position 100, immune for 2 s; producers are asked twice at most."""
    truth = HalfTruth(Counter())
    truth.most_checks, truth.immune_s = 2, 2.0
    truth.sent[7] = moment
    truth.see_half(7, 100)
    return truth


def test_a_producer_is_asked_when_the_half_is_immune_no_more_and_not_for_ever() -> None:
    truth = half_sent_at(5.0)
    truth.see_check(7, 100, 7.0)
    truth.see_check(7, 100, 8.0)
    with pytest.raises(Violation, match="for ever"):
        truth.see_check(7, 100, 9.0)


def test_a_half_is_immune_for_a_while() -> None:
    with pytest.raises(Violation, match="immune"):
        half_sent_at(5.0).see_check(7, 100, 6.9)


def test_a_producer_is_asked_about_what_it_has_sent_where_it_stands() -> None:
    with pytest.raises(Violation, match="asked about a half"):
        half_sent_at(5.0).see_check(7, 96, 8.0)


# ---------------------------------------------------------------- reads that wait for quotas


def test_a_read_waits_for_a_quota_no_longer_than_its_client_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers()
    monkeypatch.setattr(Meter, "overdue", lambda _meter, _now: [])
    answers = waiting_pop(brokers, brokers.leader)
    with pytest.raises(Violation, match="a read waits for quotas no longer than its client expects"):
        send_for(brokers, READ_HOLD_S + 2.0)
    assert answers == []


def send_for(brokers: Brokers, seconds: float) -> None:
    """Have entries applied meanwhile."""
    connection = brokers.connect(brokers.leader)
    for _ in range(round(seconds * 10)):
        brokers.send(connection, TOPIC)
        brokers.run(0.1)
