"""Table of popped queues: what commands, trims and deletions do to it, its digest, and its snapshot."""

from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dledger_broker.features import FEATURES
from dledger_broker.features.groups.table import DeleteGroup, PutGroup
from dledger_broker.features.offsets.table import OFFSETS, CommitOffsets
from dledger_broker.features.pop.commands import (
    NO_ROW,
    Ack,
    AckRow,
    Pop,
    PopQueueKey,
    PopRow,
    ResetPop,
    Revive,
    ReviveRow,
)
from dledger_broker.features.pop.table import POPPED, PopTable
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_broker.kernel.trims import TrimQueues
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig
from tests.broker.kernel.applied_commands import apply

KEY = PopQueueKey("CG", "T1", 0)


class Popping:
    """State with a group, a topic, and messages in the topic's first queue, which the group pops."""

    def __init__(self, messages: int = 100) -> None:
        self.state = BrokerState(FEATURES)
        self.apply(PutGroup(SubscriptionGroupConfig("CG")), PutTopic(TopicConfig("T1", 4, 4), 1))
        queue = self.state.topics["T1"].queue(0)
        queue.next_offset = queue.staged_offset = messages
        self.state.topic_table.queues_changed((queue,))

    def apply(self, *commands: Command) -> None:
        apply(self.state, *commands)

    @property
    def table(self) -> PopTable:
        return self.state.table(POPPED)

    @property
    def created(self) -> int:
        return self.state.topics["T1"].created_position

    @property
    def committed(self) -> int | None:
        return self.state.table(OFFSETS).get(*KEY)

    @property
    def open(self) -> list[int]:
        """The offsets of the messages that are delivered and not acknowledged."""
        queue = self.table.queue(KEY)
        return [] if queue is None else sorted(offset for delivery in queue for offset in delivery.open_offsets)

    def pop(self, time_ms: int, expected: int, *offsets: int, end: int | None = None, again: int = 0) -> Pop:
        next_offset = end if end is not None else offsets[-1] + 1
        row = PopRow("T1", self.created, 0, expected, next_offset, offsets, again)
        return Pop("CG", time_ms, 60_000, (row,), is_ordered=bool(again))

    def ack(self, time_ms: int, bits: int, new_ms: int = 0) -> Ack:
        return Ack((AckRow("CG", "T1", self.created, 0, time_ms, bits, new_ms, 30_000 if new_ms else 0),))

    def revive(self, time_ms: int, bits: int) -> Revive:
        return Revive((ReviveRow("CG", "T1", self.created, 0, time_ms, bits),))

    def reset(self, offset: int, queue_id: int = 0) -> ResetPop:
        return ResetPop("CG", "T1", self.created, queue_id, offset)

    def trim(self, offset: int) -> TrimQueues:
        return TrimQueues(1, (("T1", self.created, 0, offset),))

    def restart(self) -> None:
        """Go on with the state that a snapshot holds."""
        self.state = decode_state(encode_state(self.state, 0.0), 0.0, FEATURES)


@pytest.fixture
def of() -> Popping:
    return Popping()


def test_a_pop_has_no_effect_unless_based_on_the_current_position_of_the_group(of: Popping) -> None:
    of.apply(of.pop(10, 0, 0, 1))
    assert of.table.queue(KEY) is None
    of.apply(of.pop(10, NO_ROW, 0, 1), of.pop(11, 0, 0, 1), of.pop(12, NO_ROW, 0, 1))
    assert (of.open, of.committed) == ([0, 1], 0)
    of.apply(of.pop(12, 2, 2))
    assert of.open == [0, 1, 2]


def test_pop_times_of_a_queue_ascend(of: Popping) -> None:
    of.apply(of.pop(10, NO_ROW, 0), of.pop(10, 1, 1), of.pop(9, 1, 1))
    assert of.open == [0]
    of.apply(of.ack(10, 1, new_ms=10))
    assert of.committed == 0
    of.apply(of.ack(10, 1, new_ms=11))
    assert (of.open, of.table.delivery(KEY, 10)) == ([0], None)


def test_a_pop_of_an_earlier_topic_of_the_same_name_or_of_a_group_that_is_gone_has_no_effect(of: Popping) -> None:
    before = of.pop(10, NO_ROW, 0)
    of.apply(DeleteTopic("T1"))
    of.state.topic_table.put(TopicConfig("T1", 4, 4), 77)
    of.apply(before)
    assert list(of.table) == []
    other = Popping()
    other.apply(DeleteGroup("CG"), other.pop(10, NO_ROW, 0))
    assert list(other.table) == []


def test_a_trim_ends_only_deliveries_below_its_offset(of: Popping) -> None:
    of.apply(of.pop(10, NO_ROW, 3, 5, 7), of.ack(10, 0b001), of.trim(6))
    assert (of.open, of.committed, of.table.ended) == ([7], 7, 1)
    of.apply(of.trim(20))
    assert (of.open, of.committed, of.table.ended) == ([], 20, 2)
    of.apply(of.pop(11, 8, 8, 9))
    assert of.open == []
    of.apply(of.pop(11, 20, 20))
    assert of.open == [20]


def test_a_pop_crossing_a_trim_does_not_move_its_group(of: Popping) -> None:
    of.apply(of.trim(20), of.pop(10, NO_ROW, end=5))
    assert (of.table.queue(KEY), of.committed) == (None, None)
    of.apply(of.pop(10, NO_ROW, end=30))
    assert of.committed == 30


def test_a_removed_queue_ends_its_deliveries_and_restarts_at_the_lowest_open_message(of: Popping) -> None:
    of.apply(of.pop(10, NO_ROW, 0, 1, 2), of.ack(10, 0b001), PutTopic(TopicConfig("T1", 4, 4, perm=4), 1))
    assert of.open == [1, 2]
    of.apply(PutTopic(TopicConfig("T1", 0, 4), 1))
    assert (of.open, of.committed, of.table.ended) == ([], 1, 2)
    of.apply(PutTopic(TopicConfig("T1", 4, 4), 1), of.pop(11, 1, 1))
    assert of.open == [1]


@pytest.mark.parametrize("deletion", [DeleteTopic("T1"), DeleteGroup("CG", clean_offsets=True)])
def test_deletions_of_topics_and_groups_drop_rows_and_count_open_messages(of: Popping, deletion: Command) -> None:
    of.apply(of.pop(10, NO_ROW, 0, 1), deletion)
    assert (list(of.table), of.table.ended, of.committed) == ([], 2, None)


def test_a_snapshot_holds_all_deliveries() -> None:
    of = Popping(10_000)
    of.apply(of.pop(1, NO_ROW, 0, 2, 4))
    for number in range(1, 600):
        of.apply(of.pop(number + 1, 5 * number, 5 * number, 5 * number + 3, end=5 * number + 5))
    of.apply(of.ack(7, 0b01), of.revive(8, 0b10), of.reset(5, queue_id=1))
    before = (of.state.digest(), of.open, of.table.open_count)
    of.restart()
    assert (of.state.digest(), of.open, of.table.open_count) == before
    last = of.table.queue(KEY)
    assert last is not None
    assert (last.last_pop_ms, last.lowest_open) == (600, 0)
    of.apply(CommitOffsets((("CG", "T1", 0, 50),)))
    assert of.committed == 0


def test_an_empty_pop_table_writes_no_frame(of: Popping) -> None:
    frames = []
    for commands in ((), (of.pop(10, NO_ROW, 0),), (of.ack(10, 1),), (DeleteGroup("CG"),)):
        of.apply(*commands)
        frames.append(of.table.capture_frames(0.0).keys())
        assert (of.table.digest == 0) == (not frames[-1])
    assert frames == [set(), {"pop-queues", "deliveries"}, {"pop-queues"}, set()]


@dataclass
class ModelDelivery:
    offsets: tuple[int, ...]
    open: set[int] = field(default_factory=set)


class PopTableModel(RuleBasedStateMachine):
    """State machine of any commands, compared with a model of sets."""

    def __init__(self) -> None:
        super().__init__()
        self.of = Popping()
        self.next = 0
        self.has_row = False
        self.first = 0
        self.time = 0
        self.deliveries: dict[int, ModelDelivery] = {}

    @rule(data=st.data(), skipped=st.integers(0, 3), count=st.integers(0, 4))
    def pops(self, data: st.DataObject, skipped: int, count: int) -> None:
        offsets: list[int] = []
        at = self.next + skipped
        for _ in range(count):
            offsets.append(at)
            at += data.draw(st.integers(1, 3))
        self.time += 1
        expected = self.next if self.has_row else NO_ROW
        self.of.apply(self.of.pop(self.time, expected, *offsets, end=at))
        self.has_row, self.next = True, at
        if offsets:
            self.deliveries[self.time] = ModelDelivery(tuple(offsets), set(offsets))

    @precondition(lambda self: self.deliveries)
    @rule(data=st.data(), bits=st.integers(1, 15), kind=st.sampled_from(["ack", "revive", "hide"]))
    def settles(self, data: st.DataObject, bits: int, kind: str) -> None:
        time = data.draw(st.sampled_from(sorted(self.deliveries)))
        delivery = self.deliveries[time]
        bits &= (1 << len(delivery.offsets)) - 1
        if kind == "hide":
            bits &= -bits
        chosen = {offset for number, offset in enumerate(delivery.offsets) if bits >> number & 1}
        if not chosen:
            return
        if kind == "hide":
            self.time += 1
            self.of.apply(self.of.ack(time, bits, new_ms=self.time))
            if chosen & delivery.open:
                self.deliveries[self.time] = ModelDelivery(tuple(chosen), chosen & delivery.open)
        else:
            self.of.apply((self.of.ack if kind == "ack" else self.of.revive)(time, bits))
        delivery.open -= chosen

    @precondition(lambda self: self.has_row)
    @rule(ahead=st.integers(0, 5))
    def trims(self, ahead: int) -> None:
        lowest = min((min(d.open) for d in self.deliveries.values() if d.open), default=self.next)
        self.first = max(self.first, min(lowest + ahead, 100))
        self.of.apply(self.of.trim(self.first))
        self.next = max(self.next, self.first)
        for delivery in self.deliveries.values():
            delivery.open = {offset for offset in delivery.open if offset >= self.first}

    @rule(offset=st.integers(0, 120))
    def resets(self, offset: int) -> None:
        self.of.apply(self.of.reset(offset))
        if self.has_row:
            self.next = max(offset, self.first)
            self.deliveries.clear()

    @rule()
    def restarts(self) -> None:
        self.of.restart()

    @precondition(lambda self: self.next > 90)
    @rule()
    def begins_anew(self) -> None:
        self.__init__()  # type: ignore[misc]

    @invariant()
    def equals_its_model(self) -> None:
        expected = sorted(offset for delivery in self.deliveries.values() for offset in delivery.open)
        assert self.of.open == expected
        assert self.of.table.open_count == len(expected)
        if self.has_row:
            assert self.of.committed == min(expected, default=self.next)


TestPopTableModel = PopTableModel.TestCase
