"""Delayed messages that are in the way of a trim and cannot be moved: when they are given up, and when they are not."""

from typing import Any

import pytest
from served_broker import ServedBroker

from dledger.errors import LogFullError
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.delay.moving import LOOK_S, NEXT_SWEEP_S
from dledger_broker.features.delay.progress import STUCK_S, Progress
from dledger_broker.features.delay.table import NOTHING, STRETCH_BYTES, TIMERS
from dledger_broker.features.retention.policy import DELETE_OLDEST, RetentionPolicy
from dledger_remoting.properties import TIMER_DELAY_MS
from tests.broker.features.delay.delayed_brokers import DAY_MS, Delayed, open_jobs, pending

FULL = RetentionPolicy(max_age_ms=1 << 40, disk_max_used_ratio=-1.0, when_full=DELETE_OLDEST, delete_oldest_ratio=-1.0)
"""Retention policy for which no disk is empty enough."""


@pytest.fixture
def rotten(delayed: Delayed) -> int:
    """Have two messages wait at the log's beginning, and return the first, which the leader cannot read."""
    rotten, _ = delayed.send(DAY_MS), delayed.send(DAY_MS)
    delayed.break_record(rotten)
    delayed.fill_log()
    return rotten


def test_on_a_full_disk_an_immovable_message_is_given_up_after_a_minute(delayed: Delayed, rotten: int) -> None:
    position = delayed.newest_snapshot
    delayed.leader.retention.policy = lambda: FULL
    delayed.run(60.0)
    assert delayed.happened["row moved"] == 1
    assert not delayed.truth.due.lost
    delayed.run(25.0)
    assert delayed.truth.due.lost == {rotten}
    assert delayed.first_position >= position


def test_progress_counts_messages_that_leave_the_lowest_segment() -> None:
    """The position of a trim rises all the time: the messages below it change, although nothing moves."""
    progress = Progress(0.0)
    progress.note((0, 10), 0.0, may_give_up=True)
    progress.note((0, 10), STUCK_S - 1.0, may_give_up=True)
    assert not progress.is_stuck(STUCK_S - 1.0)
    assert progress.is_stuck(STUCK_S)
    progress.note((0, 9), STUCK_S, may_give_up=True)
    assert not progress.is_stuck(STUCK_S + 1.0)
    assert progress.is_stuck(2 * STUCK_S)
    progress.note((65_536, 50), 2 * STUCK_S, may_give_up=True)
    assert not progress.is_stuck(2 * STUCK_S)


def test_the_minute_of_a_stuck_trim_begins_when_the_disk_is_full() -> None:
    progress = Progress(0.0)
    progress.note((0, 10), 0.0, may_give_up=False)
    progress.note((0, 10), 1_000.0, may_give_up=False)
    progress.note((0, 10), 1_001.0, may_give_up=True)
    assert not progress.is_stuck(1_001.0)
    assert progress.is_stuck(1_000.0 + STUCK_S)


class Moving:
    """Broker that moves what is in the way of a trim."""

    def __init__(self, broker: ServedBroker) -> None:
        open_jobs(broker, moves_too=True)
        self.broker = broker
        self.moves = broker.service.parts[DueMessages].moves

    def send(self, delay_ms: int = DAY_MS) -> None:
        """Send a message that waits."""
        sent = self.broker.client().send_message("T1", b"later", i=f"{TIMER_DELAY_MS}\x01{delay_ms}\x02")
        assert sent.code == 0

    def request(self, *, give_up: bool = True) -> None:
        """Ask for a trim of everything."""
        self.moves.request(self.broker.memory.log.end, disk_full=True, give_up=give_up)

    def try_on_a_full_log(self, *, give_up: bool = True) -> None:
        """Have the waiting messages moved while the log takes no records, until just before the next look."""
        self.request(give_up=give_up)
        self.broker.memory.node.stage_error = LogFullError("the disk is full")
        self.broker.advance(LOOK_S)

    def make_room(self) -> None:
        self.broker.memory.node.stage_error = None

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of messages that were moved, are lost, and wait."""
        return self.moves.moved, self.broker.table(TIMERS).lost, pending(self.broker)


@pytest.fixture
def moving(broker: ServedBroker) -> Moving:
    return Moving(broker)


def test_a_message_that_cannot_be_read_is_moved_once_it_can(moving: Moving) -> None:
    """It is tried again and again, and never given up, while its log must not be trimmed."""
    log, failed, table = moving.broker.memory.log, moving.broker.memory.node.failed_reads, moving.broker.table(TIMERS)
    moving.send(2 * DAY_MS)
    place = log.data.index(b"later")
    log.data[place] ^= 1
    moving.moves.request(log.end, disk_full=False)
    moving.broker.advance(3_600.0)
    assert (moving.counts, moving.moves.lost) == ((0, 0, 1), 0)
    assert set(failed) == {table.lowest + failed[0] % STRETCH_BYTES}, "it is to be repaired"
    log.data[place] ^= 1
    moving.broker.advance(NEXT_SWEEP_S + LOOK_S)
    assert moving.counts == (1, 0, 1)


@pytest.mark.parametrize(
    ("first_position", "silent_ms", "is_gone"),
    [(1 << 40, 0, True), (0, 0, False), (-1, 0, False), (1 << 40, 60_000, False)],
)
@pytest.mark.parametrize("begins", [STRETCH_BYTES, STRETCH_BYTES - 1])
def test_messages_below_the_beginning_of_every_nodes_log_end_and_are_counted(
    moving: Moving, monkeypatch: pytest.MonkeyPatch, begins: int, first_position: int, silent_ms: int, is_gone: bool
) -> None:
    reads = moving.broker.service.parts[DueMessages].reads
    monkeypatch.setattr(reads, "read", lambda rows, done: done([(row, None) for row in rows]))
    moving.send()
    moving.broker.see_peer(first_position, silent_ms)
    moving.broker.memory.log.first_position = begins
    moving.moves.request(2 * STRETCH_BYTES, disk_full=False)
    moving.broker.advance(STUCK_S)
    _, lost, waiting = moving.counts
    assert (waiting, lost + moving.moves.lost) == ((0, 1) if is_gone else (1, 0))


def test_an_earlier_full_log_gives_up_no_message_once_the_trim_was_withdrawn(moving: Moving) -> None:
    """Nothing is wanted any more, because room was made meanwhile."""
    moving.send()
    moving.try_on_a_full_log()
    moving.moves.request(0, disk_full=False)
    moving.make_room()
    moving.broker.advance(2 * STUCK_S)
    moving.request()
    moving.broker.advance(2 * LOOK_S)
    assert moving.counts == (1, 0, 1)


def test_an_earlier_full_log_gives_up_no_message_once_the_waiting_message_is_delivered(moving: Moving) -> None:
    moving.send(1_100)
    moving.try_on_a_full_log()
    moving.make_room()
    moving.broker.advance(NEXT_SWEEP_S)
    assert moving.broker.table(TIMERS).total == NOTHING
    moving.send()
    moving.request()
    moving.broker.advance(2 * LOOK_S)
    assert moving.counts == (1, 0, 1)


def test_with_when_full_refuse_a_message_waits_until_the_log_has_room(moving: Moving) -> None:
    """No waiting message is given up, however long the disk stays full."""
    moving.send()
    moving.try_on_a_full_log(give_up=False)
    moving.broker.advance(10 * STUCK_S)
    assert moving.counts == (0, 0, 1)
    moving.make_room()
    moving.broker.advance(NEXT_SWEEP_S + LOOK_S)
    assert moving.counts == (1, 0, 1)


def test_a_waiting_message_is_written_again_in_the_room_that_sends_leave(
    moving: Moving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is so full that the log takes only units that make room."""
    moving.send()
    node = moving.broker.memory.node
    stage = node.stage

    def refuse_others(*arguments: Any, privileged: bool = False, **keywords: Any) -> int:
        if not privileged:
            raise LogFullError("the disk is full")
        return stage(*arguments, privileged=privileged, **keywords)

    monkeypatch.setattr(node, "stage", refuse_others)
    moving.request(give_up=False)
    moving.broker.advance(LOOK_S + NEXT_SWEEP_S)
    assert moving.counts == (1, 0, 1)
