"""Judges of locks, of messages sent back, of check-backs and of reads that wait convict exactly the wrong histories."""

from __future__ import annotations

from collections import Counter

import pytest

from dledger_broker.features.quotas.gate import READ_HOLD_S
from dledger_broker.features.quotas.meters import Meter
from dledger_sim.brokers.half_truth import HalfTruth
from dledger_sim.brokers.lockers import BELIEF_S, LockJudge
from dledger_sim.brokers.schedules.brokers import TOPIC, Brokers
from dledger_sim.brokers.schedules.quotas import waiting_pop
from dledger_sim.brokers.sent_back import Copy, SentBackTruth
from dledger_sim.log.invariants import Violation

COPY = Copy("consumers", 7, 1, is_dead=False)
LETTER = COPY._replace(is_dead=True)


def test_a_queue_lock_changes_hands_after_the_owners_belief_ended() -> None:
    counts = Counter[str]()
    judge = LockJudge(counts)
    judge.granted("anna", 0, 10.0, sent_at=10.0)
    judge.granted("bert", 1, 10.0, sent_at=10.0)
    judge.granted("anna", 0, 30.0, sent_at=30.0)
    judge.granted("bert", 0, 61.0, sent_at=61.0)
    judge.ended("bert", 0, 61.5)
    judge.granted("anna", 0, 62.0, sent_at=62.0)
    assert judge.last_owner(0) == "anna"
    assert counts["lock taken when a belief was over"] == 1


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_two_simultaneous_owners_of_a_queue_are_a_violation(share: float) -> None:
    judge = LockJudge(Counter(), BELIEF_S * share)
    judge.granted("anna", 0, 10.0, sent_at=10.0)
    judge.granted("anna", 0, 12.0, sent_at=9.0)  # a late answer to an earlier request shortens no lock
    with pytest.raises(Violation, match="one member of a group at a time"):
        judge.granted("bert", 0, 9.9 + BELIEF_S * share, sent_at=20.0)


@pytest.fixture
def truth() -> SentBackTruth:
    return SentBackTruth(Counter())


def test_an_answered_send_back_without_a_stored_copy_is_a_violation(truth: SentBackTruth) -> None:
    for _ in range(3):
        truth.ask(COPY)
    with pytest.raises(Violation, match="stored once it is answered"):
        truth.answer(COPY)
    truth.see_waiting(COPY)
    truth.check_entry()
    truth.answer(COPY)
    truth.answer(COPY)
    truth.see_record(COPY, 5.0)
    truth.refuse(COPY)


def test_a_stored_copy_of_a_refused_or_missing_request_is_a_violation(truth: SentBackTruth) -> None:
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
    truth = SentBackTruth(Counter())
    truth.ask(LETTER)
    truth.see_record(LETTER, 5.0)
    truth.check_entry()
    with pytest.raises(Violation, match="each request that was not refused"):
        truth.refuse(LETTER)  # it was stored


def test_a_moved_copy_counts_once_and_comes_once_after_its_delay(truth: SentBackTruth) -> None:
    truth.ask(COPY, due=8.0)
    for _ in range(2):
        truth.see_waiting(COPY)
        truth.check_entry()
        truth.see_moved(COPY)
    truth.see_waiting(COPY)
    truth.see_record(COPY, 8.0)
    with pytest.raises(Violation, match="as often as it was sent back"):
        truth.see_record(COPY, 9.0)


def test_a_copy_before_the_end_of_its_delay_is_a_violation(truth: SentBackTruth) -> None:
    truth.ask(COPY, due=9.0)
    truth.ask(COPY, due=8.0)
    truth.see_waiting(COPY)
    with pytest.raises(Violation, match="before its delay is over"):
        truth.see_record(COPY, 7.9)


def test_copies_that_no_consumer_sent_back_are_not_judged(truth: SentBackTruth) -> None:
    truth.see_waiting(COPY)
    truth.check_entry()
    truth.see_record(COPY, 1.0)
    truth.see_record(COPY, 1.0)


def half_sent_at(moment: float) -> HalfTruth:
    """Return the truth about operation 7: a half message at position 100, immune for 2 s, with up to 2 check-backs."""
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
    with pytest.raises(Violation, match="immune"):
        half_sent_at(5.0).see_check(7, 100, 6.9)
    with pytest.raises(Violation, match="asked about a half"):
        half_sent_at(5.0).see_check(7, 96, 8.0)


def test_a_read_waits_for_a_quota_no_longer_than_its_client_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers()
    monkeypatch.setattr(Meter, "take_overdue", lambda _meter, _now: [])
    answers = waiting_pop(brokers, brokers.leader)
    with pytest.raises(Violation, match="a read waits for quotas no longer than its client expects"):
        send_for(brokers, READ_HOLD_S + 2.0)
    assert answers == []


def send_for(brokers: Brokers, seconds: float) -> None:
    """Let time pass with entries being applied."""
    connection = brokers.connect(brokers.leader)
    for _ in range(round(seconds * 10)):
        brokers.send(connection, TOPIC)
        brokers.run(0.1)
