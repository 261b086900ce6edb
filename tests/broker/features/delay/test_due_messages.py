"""Delayed messages on simulated nodes: delivered once, when they are due, whoever leads then."""

from __future__ import annotations

import pytest

from dledger.errors import LogFullError
from dledger_remoting.properties import TIMER_DELAY_MS
from dledger_sim.brokers.schedules.brokers import TOPIC
from tests.broker.features.delay.delayed_brokers import Delayed

DAY_MS = 86_400_000


def test_a_message_is_delivered_when_it_is_due() -> None:
    delayed = Delayed()
    operation = delayed.send(2_000)
    delayed.brokers.run(1.5)
    assert not delayed.is_delivered(operation)
    assert [table.total.rows for table in delayed.tables()] == [1, 1, 1]
    delayed.brokers.run(0.6)
    assert delayed.is_delivered(operation)
    delayed.brokers.run(1.0)
    assert [table.total.rows for table in delayed.tables()] == [0, 0, 0]


def test_how_late_it_is_is_told_while_its_delivery_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    delayed = Delayed()
    delayed.send(2_000)
    monkeypatch.setattr(delayed.due_messages.reads, "read", lambda rows, done: None)
    delayed.brokers.run(5.0)
    late_ms = {gauge.name: gauge.read for gauge in delayed.due_messages.gauges}["timers_late_ms"]
    assert late_ms() == pytest.approx(3_300, abs=100)


def test_it_is_not_late_once_it_is_delivered() -> None:
    delayed = Delayed()
    delayed.send(1_000)
    delayed.brokers.run(1.5)
    assert delayed.due_messages.fires.late_ms == 0


def test_what_was_recalled_while_the_log_had_no_room_for_it_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_full(*_: object, **__: object) -> None:
        raise LogFullError("the disk is full")

    delayed = Delayed()
    operation, handle = delayed.send_with_handle(1_000)
    fires = delayed.due_messages.fires
    with monkeypatch.context() as patched:
        patched.setattr(fires._handle, "write", is_full)
        delayed.brokers.run(2.0)
        assert fires.late_ms > 500
        answers = delayed.recall(operation, handle)
        delayed.brokers.run(1.0)
    assert [answer.code for answer in answers if answer] == [0]
    assert [table.total.rows for table in delayed.tables()] == [0, 0, 0]
    assert fires.late_ms == 0


def test_a_level_is_a_delay() -> None:
    delayed = Delayed()
    operation = delayed.send_level(2)
    delayed.brokers.run(4.5)
    assert not delayed.is_delivered(operation)
    delayed.brokers.run(0.6)
    assert delayed.is_delivered(operation)


def test_a_later_leader_delivers_what_an_earlier_one_has_taken() -> None:
    delayed = Delayed()
    brokers = delayed.brokers
    operations = [delayed.send(3_000) for _ in range(3)]
    old = brokers.leader
    brokers.group.kill(old)
    brokers.run(1.8)
    assert brokers.leader != old
    assert not any(map(delayed.is_delivered, operations))
    brokers.run(2.0)
    assert all(map(delayed.is_delivered, operations))
    brokers.group.start(old)
    brokers.run(3.0)
    assert [table.total.rows for table in delayed.tables()] == [0, 0, 0]


def test_a_message_waits_while_its_topic_may_be_deleted_and_is_delivered_if_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The deletion is staged when the message is due, and then dropped: fired without a copy, it would be lost."""
    delayed = Delayed()
    operation, later = delayed.send(1_500), delayed.send(1_700)
    proposals = delayed.leader.broker.proposals
    being_deleted = {TOPIC}
    monkeypatch.setattr(proposals, "topic_deleting", being_deleted.__contains__)
    delayed.brokers.run(3.0)
    assert not delayed.is_delivered(operation)
    assert [table.total.rows for table in delayed.tables()] == [2, 2, 2]
    being_deleted.clear()
    delayed.brokers.run(1.5)
    assert delayed.is_delivered(operation)
    assert delayed.is_delivered(later)
    assert [table.total.rows for table in delayed.tables()] == [0, 0, 0]


def test_messages_are_delivered_in_the_order_in_which_they_are_due() -> None:
    delayed = Delayed()
    late, soon = delayed.send(3_000), delayed.send(1_500)
    delayed.brokers.run(4.0)
    stored = delayed.truth.stored
    assert stored[soon].position < stored[late].position


def test_a_node_that_comes_back_with_nothing_delivers_what_waits() -> None:
    """Its time index is derived from the log that it gets."""
    delayed = Delayed()
    brokers, group = delayed.brokers, delayed.brokers.group
    operation = delayed.send(6_000)
    for name in list(group.nodes):
        group.kill(name)
    brokers.run(0.5)
    for name in list(group.nodes):
        group.start(name)
    brokers.run(6.0)
    assert delayed.is_delivered(operation)


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
def test_a_clock_that_jumps_a_day_either_way_for_a_moment_changes_nothing(jump_ms: int) -> None:
    delayed = Delayed()
    group = delayed.brokers.group
    operation = delayed.send(20_000)
    for name in group.nodes:
        group.nodes[name].wall_offset_ms = jump_ms
        delayed.brokers.run(2.0)
        assert not delayed.is_delivered(operation)
        group.nodes[name].wall_offset_ms = 0
        delayed.brokers.run(1.0)
    delayed.brokers.run(10.5)
    assert not delayed.is_delivered(operation)
    delayed.brokers.run(0.6)
    assert delayed.is_delivered(operation)


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_clock_that_stays_a_day_wrong_changes_nothing(whose: str, jump_ms: int) -> None:
    """Neither for what waited before the jump nor for what is sent after it, nor under the leader that follows."""
    delayed = Delayed()
    brokers = delayed.brokers
    before = delayed.send(70_000)
    brokers.group.nodes[getattr(brokers, whose)].wall_offset_ms = jump_ms
    brokers.run(61.7)
    assert not delayed.is_delivered(before)
    after = delayed.send(8_000)
    brokers.run(7.5)
    assert not delayed.is_delivered(before)
    assert not delayed.is_delivered(after)
    brokers.run(0.9)
    assert delayed.is_delivered(before)
    assert delayed.is_delivered(after)
    old = brokers.leader
    left = delayed.send(9_000)
    brokers.group.kill(old)
    brokers.run(8.2)
    assert not delayed.is_delivered(left)
    brokers.run(1.5)
    assert delayed.is_delivered(left)


def test_a_send_waits_until_the_clocks_of_a_majority_are_known() -> None:
    """A leader that has just begun may not have heard any other clock."""
    delayed = Delayed()
    brokers = delayed.brokers
    old = brokers.leader
    brokers.group.kill(old)
    while brokers.group.leader is None or brokers.leader == old:
        brokers.run(0.01)
    operation, answers = delayed.ask(brokers.connect(brokers.leader), {TIMER_DELAY_MS: "1000"})
    brokers.run(2.0)
    assert [answer.code for answer in answers if answer] == [0]
    brokers.run(1.0)
    assert delayed.is_delivered(operation)
