"""Delayed messages on simulated nodes: each is delivered once, when it is due, whichever node leads then."""

from collections.abc import Callable
from random import Random

import pytest

from dledger.errors import LogFullError
from dledger_remoting.properties import TIMER_DELAY_MS
from dledger_sim.brokers.schedules.brokers import TOPIC
from dledger_sim.brokers.schedules.pops import codes
from tests.broker.features.delay.delayed_brokers import DAY_MS, Delayed


@pytest.mark.parametrize(
    ("send", "too_early_s"),
    [(lambda delayed: delayed.send(2_000), 1.5), (lambda delayed: delayed.send_level(2), 4.5)],
    ids=["a delay", "a delay level"],
)
def test_a_message_is_delivered_when_it_is_due(
    delayed: Delayed, send: Callable[[Delayed], int], too_early_s: float
) -> None:
    operation = send(delayed)
    delayed.run(too_early_s)
    assert not delayed.is_delivered(operation)
    assert delayed.waiting == [1, 1, 1]
    delayed.run(0.6)
    assert delayed.is_delivered(operation)
    delayed.run(1.0)
    assert delayed.waiting == [0, 0, 0]
    assert delayed.due_messages.fires.late_ms == 0


def test_timers_late_ms_tells_how_late_a_hanging_delivery_is(delayed: Delayed, monkeypatch: pytest.MonkeyPatch) -> None:
    delayed.send(2_000)
    monkeypatch.setattr(delayed.due_messages.reads, "read", lambda rows, done: None)
    delayed.run(5.0)
    assert delayed.gauge("timers_late_ms") == pytest.approx(3_300, abs=100)


def test_a_message_recalled_while_the_log_was_full_does_not_count_as_late(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: object, **__: object) -> None:
        raise LogFullError("the disk is full")

    operation, handle = delayed.send_with_handle(1_000)
    fires = delayed.due_messages.fires
    with monkeypatch.context() as patched:
        patched.setattr(fires._handle, "write", is_full)
        delayed.run(2.0)
        assert fires.late_ms > 500
        assert delayed.recall(operation, handle) == 0
    assert delayed.waiting == [0, 0, 0]
    assert fires.late_ms == 0


def test_a_due_message_is_delivered_after_a_failed_deletion_of_its_topic(
    delayed: Delayed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deletion is staged when the message is due, and then dropped. A message without a copy would be lost."""
    operations = [delayed.send(1_500), delayed.send(1_700)]
    being_deleted = {TOPIC}
    monkeypatch.setattr(delayed.leader.broker.proposals, "topic_deleting", being_deleted.__contains__)
    delayed.run(3.0)
    assert delayed.delivered(*operations) == {False}
    assert delayed.waiting == [2, 2, 2]
    being_deleted.clear()
    delayed.run(1.5)
    assert delayed.delivered(*operations) == {True}
    assert delayed.waiting == [0, 0, 0]


def test_messages_are_delivered_in_the_order_in_which_they_are_due(delayed: Delayed) -> None:
    late, soon = delayed.send(3_000), delayed.send(1_500)
    delayed.run(4.0)
    stored = delayed.truth.stored
    assert stored[soon].position < stored[late].position


def test_delayed_messages_survive_a_kill_of_all_nodes(delayed: Delayed) -> None:
    """Each node derives its time index from the log, also if the index lacks its last transactions."""
    operation = delayed.send(6_000)
    for change, seconds in ((delayed.group.kill, 0.5), (delayed.group.start, 6.0)):
        for name in list(delayed.group.nodes):
            change(name)
        delayed.run(seconds)
    assert delayed.is_delivered(operation)


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
def test_a_clock_that_jumps_a_day_either_way_for_a_moment_changes_nothing(delayed: Delayed, jump_ms: int) -> None:
    operation = delayed.send(20_000)
    for node in delayed.group.nodes.values():
        node.wall_offset_ms = jump_ms
        delayed.run(2.0)
        assert not delayed.is_delivered(operation)
        node.wall_offset_ms = 0
        delayed.run(1.0)
    delayed.run(10.5)
    assert not delayed.is_delivered(operation)
    delayed.run(0.6)
    assert delayed.is_delivered(operation)


@pytest.mark.parametrize("jump_ms", [DAY_MS, -DAY_MS])
@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_clock_that_stays_a_day_wrong_changes_nothing(delayed: Delayed, whose: str, jump_ms: int) -> None:
    """This holds for messages from before and after the jump, and also under the leader that follows."""
    before = delayed.send(70_000)
    delayed.group.nodes[getattr(delayed.brokers, whose)].wall_offset_ms = jump_ms
    delayed.run(61.7)
    assert not delayed.is_delivered(before)
    after = delayed.send(8_000)
    delayed.run(7.5)
    assert delayed.delivered(before, after) == {False}
    delayed.run(0.9)
    assert delayed.delivered(before, after) == {True}
    left = delayed.send(9_000)
    delayed.kill_leader()
    delayed.run(8.2)
    assert not delayed.is_delivered(left)
    delayed.run(1.5)
    assert delayed.is_delivered(left)


def test_a_send_waits_until_the_clocks_of_a_majority_are_known(delayed: Delayed) -> None:
    """A leader that has just begun may not have heard any other clock."""
    delayed.await_leader(other_than=delayed.kill_leader())
    operation, answers = delayed.ask(delayed.brokers.connect(delayed.brokers.leader), {TIMER_DELAY_MS: "1000"})
    delayed.run(2.0)
    assert codes(answers) == [0]
    delayed.run(1.0)
    assert delayed.is_delivered(operation)


def test_delayed_messages_are_delivered_once_and_not_early_over_fifty_leader_kills(delayed: Delayed) -> None:
    """`Truth` judges each record: no record is in its topic before it is due, and no record is there twice."""
    random = Random(29)
    operations: list[int] = []
    leaders: list[str] = []
    for _ in range(50):
        operations += [delayed.send(random.choice((1, 400, 1_100, 2_500, 6_000))) for _ in range(3)]
        delayed.run(random.uniform(0.0, 0.8))
        leaders.append(delayed.kill_leader())
        delayed.await_leader(other_than=leaders[-1])
        delayed.run(random.uniform(0.0, 1.0))
        delayed.group.start(leaders[-1])
        delayed.run(0.5)
    delayed.run(8.0)
    assert [operation for operation in operations if not delayed.is_delivered(operation)] == []
    assert delayed.happened["delayed message delivered"] == len(operations)
    assert delayed.waiting == [0, 0, 0]
    assert len(set(leaders)) > 1
