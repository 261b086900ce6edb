"""Delayed messages in the way of a trim that cannot be moved: when they are given up, and when they are not."""

from __future__ import annotations

import pytest
from served_broker import ServedBroker

from dledger.errors import LogFullError
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.delay.moving import LOOK_S, NEXT_SWEEP_S
from dledger_broker.features.delay.progress import STUCK_S, Progress
from dledger_broker.features.delay.table import NOTHING, TIMERS
from dledger_broker.features.retention.policy import RetentionPolicy
from dledger_remoting.properties import TIMER_DELAY_MS
from tests.broker.features.delay.delayed_brokers import Delayed

FULL = RetentionPolicy(max_age_ms=1 << 40, disk_max_used_ratio=-1.0)
"""No disk is empty enough."""
DAY_MS = 86_400_000


def with_a_record_that_cannot_be_read() -> tuple[Delayed, int, int]:
    """Two messages wait at the log's beginning; the leader cannot read the first one."""
    delayed = Delayed()
    rotten, readable = delayed.send(DAY_MS), delayed.send(DAY_MS)
    delayed.break_record(rotten)
    delayed.fill_log()
    return delayed, rotten, readable


def test_on_a_full_disk_what_cannot_be_moved_is_given_up_after_a_minute() -> None:
    delayed, rotten, _ = with_a_record_that_cannot_be_read()
    position = delayed.newest_snapshot
    delayed.leader.retention.policy = lambda: FULL
    delayed.brokers.run(60.0)
    assert delayed.truth.happened["row moved"] == 1
    assert not delayed.truth.due.lost
    delayed.brokers.run(25.0)
    assert delayed.truth.due.lost == {rotten}
    assert delayed.leader.broker.log.first_position >= position


def test_on_a_disk_with_room_it_is_given_up_after_ten_minutes_alone() -> None:
    delayed, rotten, _ = with_a_record_that_cannot_be_read()
    position = delayed.newest_snapshot
    delayed.brokers.run(580.0)
    assert delayed.truth.happened["row moved"] == 1
    assert delayed.truth.happened["row cancelled"] == 0
    assert delayed.leader.broker.log.first_position < position
    delayed.brokers.run(60.0)
    assert delayed.truth.happened["row cancelled"] == 1
    assert delayed.leader.broker.log.first_position >= position
    assert {gauge.name: gauge.read() for gauge in delayed.due_messages.gauges}["timers_lost"] == 1
    assert delayed.truth.due.lost == {rotten}


def test_what_is_gone_from_the_lowest_segment_counts_whatever_is_wanted_meanwhile() -> None:
    """The position of a trim rises all the time: what is below it changes, and nothing moves."""
    progress = Progress(0.0)
    progress.note((0, 10), 0.0, must_go=True)
    progress.note((0, 10), STUCK_S - 1.0, must_go=True)
    assert not progress.is_stuck(STUCK_S - 1.0)
    assert progress.is_stuck(STUCK_S)
    progress.note((0, 9), STUCK_S, must_go=True)
    assert not progress.is_stuck(STUCK_S + 1.0)
    assert progress.is_stuck(2 * STUCK_S)
    progress.note((65_536, 50), 2 * STUCK_S, must_go=True)
    assert not progress.is_stuck(2 * STUCK_S)


def test_the_minute_begins_when_the_disk_is_full() -> None:
    progress = Progress(0.0)
    progress.note((0, 10), 0.0, must_go=False)
    progress.note((0, 10), 1_000.0, must_go=False)
    progress.note((0, 10), 1_001.0, must_go=True)
    assert not progress.is_stuck(1_001.0)
    assert progress.is_stuck(1_000.0 + STUCK_S)


@pytest.fixture
def moving(broker: ServedBroker) -> ServedBroker:
    """A broker that moves what is in the way of a trim; its time index knows what is applied from now on."""
    machine, due_messages = broker.memory.machine, broker.service.parts[DueMessages]
    broker.memory.run(due_messages.index.rows.follower.fold())
    machine.jobs.open([due_messages.fires, due_messages.moves], broker.memory.node, broker.memory.writer)
    broker.settle()
    return broker


def send_delayed(broker: ServedBroker, delay_ms: int) -> None:
    sent = broker.client().send_message("T1", b"later", i=f"{TIMER_DELAY_MS}\x01{delay_ms}\x02")
    assert sent.code == 0


def try_on_a_full_log(broker: ServedBroker) -> None:
    """Have what waits moved while the log takes no records, until just before the next look."""
    broker.service.parts[DueMessages].moves.want(broker.memory.log.end, disk_full=False)
    broker.memory.node.stage_error = LogFullError("the disk is full")
    broker.advance(LOOK_S)


def test_a_log_that_was_full_when_nothing_is_wanted_any_more_gives_nothing_up_later(moving: ServedBroker) -> None:
    """Room was made meanwhile."""
    moves, state = moving.service.parts[DueMessages].moves, moving.memory.machine.state
    send_delayed(moving, DAY_MS)
    try_on_a_full_log(moving)
    moves.want(0, disk_full=False)
    moving.memory.node.stage_error = None
    moving.advance(2 * STUCK_S)
    moves.want(moving.memory.log.end, disk_full=False)
    moving.advance(2 * LOOK_S)
    assert (moves.moved, state.table(TIMERS).lost, state.table(TIMERS).total.rows) == (1, 0, 1)


def test_nor_does_it_once_what_waited_then_is_delivered(moving: ServedBroker) -> None:
    moves, state = moving.service.parts[DueMessages].moves, moving.memory.machine.state
    send_delayed(moving, 1_100)
    try_on_a_full_log(moving)
    moving.memory.node.stage_error = None
    moving.advance(NEXT_SWEEP_S)
    assert state.table(TIMERS).total == NOTHING
    send_delayed(moving, DAY_MS)
    moves.want(moving.memory.log.end, disk_full=False)
    moving.advance(2 * LOOK_S)
    assert (moves.moved, state.table(TIMERS).lost, state.table(TIMERS).total.rows) == (1, 0, 1)


def test_what_the_log_has_no_room_for_while_it_is_wanted_is_given_up(moving: ServedBroker) -> None:
    table = moving.memory.machine.state.table(TIMERS)
    send_delayed(moving, DAY_MS)
    try_on_a_full_log(moving)
    moving.advance(2 * LOOK_S)
    assert (table.lost, table.total.rows) == (1, 0)
