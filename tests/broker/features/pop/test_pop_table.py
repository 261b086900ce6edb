"""The table of popped queues: what commands, trims and deletions do to it, its digest, its snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field

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
from dledger_broker.kernel.snapshot import decode_state, encode_state
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.topics import DeleteTopic, PutTopic
from dledger_broker.kernel.trims import TrimQueues
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig
from tests.broker.kernel.applied_commands import apply

KEY = PopQueueKey("CG", "T1", 0)


def fresh(messages: int = 100) -> tuple[BrokerState, PopTable]:
    """A state with a group, a topic, and messages in its first queue."""
    state = BrokerState(FEATURES)
    apply(state, PutGroup(SubscriptionGroupConfig("CG")), PutTopic(TopicConfig("T1", 4, 4), 1))
    queue = state.topics["T1"].queue(0)
    queue.next_offset = queue.staged_offset = messages
    state.topic_table.queues_changed((queue,))
    return state, state.table(POPPED)


def created(state: BrokerState) -> int:
    return state.topics["T1"].created_position


def pop(state: BrokerState, time_ms: int, expected: int, *offsets: int, end: int | None = None, again: int = 0) -> Pop:
    next_offset = end if end is not None else offsets[-1] + 1
    row = PopRow("T1", created(state), 0, expected, next_offset, offsets, again)
    return Pop("CG", time_ms, 60_000, (row,), is_ordered=bool(again))


def ack(state: BrokerState, time_ms: int, bits: int, new_ms: int = 0) -> Ack:
    return Ack((AckRow("CG", "T1", created(state), 0, time_ms, bits, new_ms, 30_000 if new_ms else 0),))


def revive(state: BrokerState, time_ms: int, bits: int) -> Revive:
    return Revive((ReviveRow("CG", "T1", created(state), 0, time_ms, bits),))


def committed(state: BrokerState) -> int | None:
    return state.table(OFFSETS).get(*KEY)


def open_offsets(table: PopTable) -> list[int]:
    queue = table.queue(KEY)
    return [] if queue is None else sorted(offset for delivery in queue for offset in delivery.open_offsets)


def test_a_pop_does_nothing_unless_it_rests_on_how_far_the_group_is() -> None:
    state, table = fresh()
    apply(state, pop(state, 10, 0, 0, 1))
    assert table.queue(KEY) is None
    apply(state, pop(state, 10, NO_ROW, 0, 1), pop(state, 11, 0, 0, 1), pop(state, 12, NO_ROW, 0, 1))
    assert (open_offsets(table), committed(state)) == ([0, 1], 0)
    apply(state, pop(state, 12, 2, 2))
    assert open_offsets(table) == [0, 1, 2]


def test_pop_times_of_a_queue_ascend() -> None:
    state, table = fresh()
    apply(state, pop(state, 10, NO_ROW, 0), pop(state, 10, 1, 1), pop(state, 9, 1, 1))
    assert open_offsets(table) == [0]
    apply(state, ack(state, 10, 1, new_ms=10))
    assert committed(state) == 0
    apply(state, ack(state, 10, 1, new_ms=11))
    assert (open_offsets(table), table.delivery(KEY, 10)) == ([0], None)


def test_an_earlier_topic_of_the_same_name_is_another_one() -> None:
    state, table = fresh()
    before = pop(state, 10, NO_ROW, 0)
    apply(state, DeleteTopic("T1"))
    state.topic_table.put(TopicConfig("T1", 4, 4), 77)
    apply(state, before)
    assert list(table) == []


def test_a_pop_for_a_group_that_is_gone_does_nothing() -> None:
    state, table = fresh()
    popped = pop(state, 10, NO_ROW, 0)
    apply(state, DeleteGroup("CG"), popped)
    assert list(table) == []


def test_revived_messages_are_done_with_and_acknowledged_ones_are_not_revived() -> None:
    state, table = fresh()
    apply(state, pop(state, 10, NO_ROW, 0, 1, 2), ack(state, 10, 0b001), revive(state, 10, 0b011))
    delivery = table.delivery(KEY, 10)
    assert delivery is not None
    assert (delivery.acked, delivery.closed, open_offsets(table), committed(state)) == (0b001, 0b010, [2], 2)
    apply(state, ack(state, 10, 0b010))
    assert (delivery.acked, delivery.closed) == (0b001, 0b010)


def test_commits_of_consumers_do_nothing_in_a_popped_queue_and_all_in_others() -> None:
    state, _ = fresh()
    apply(state, pop(state, 10, NO_ROW, 0))
    apply(state, CommitOffsets((("CG", "T1", 0, 50), ("CG", "T1", 1, 50), ("OTHER", "T1", 0, 50))))
    offsets = state.table(OFFSETS)
    assert (committed(state), offsets.get("CG", "T1", 1), offsets.get("OTHER", "T1", 0)) == (0, 50, 50)


def test_a_reset_ends_deliveries_and_goes_on_elsewhere() -> None:
    state, table = fresh()
    apply(state, pop(state, 10, NO_ROW, 0, 1), ResetPop("CG", "T1", created(state), 0, 40))
    assert (open_offsets(table), committed(state), table.ended) == ([], 40, 2)
    apply(state, ack(state, 10, 0b11), pop(state, 11, 40, 40))
    assert (open_offsets(table), committed(state)) == ([40], 40)


def test_a_trim_ends_what_is_gone_and_only_that() -> None:
    state, table = fresh()
    apply(state, pop(state, 10, NO_ROW, 3, 5, 7), ack(state, 10, 0b001))
    apply(state, TrimQueues(1, (("T1", created(state), 0, 6),)))
    assert (open_offsets(table), committed(state), table.ended) == ([7], 7, 1)
    apply(state, TrimQueues(1, (("T1", created(state), 0, 20),)))
    assert (open_offsets(table), committed(state), table.ended) == ([], 20, 2)
    apply(state, pop(state, 11, 8, 8, 9))
    assert open_offsets(table) == []
    apply(state, pop(state, 11, 20, 20))
    assert open_offsets(table) == [20]


def test_a_pop_that_passes_over_what_a_trim_takes_meanwhile_moves_no_group_behind_it() -> None:
    state, table = fresh()
    before = pop(state, 10, NO_ROW, end=5)
    apply(state, TrimQueues(1, (("T1", created(state), 0, 20),)), before)
    assert (table.queue(KEY), committed(state)) == (None, None)
    apply(state, pop(state, 10, NO_ROW, end=30))
    assert committed(state) == 30


def test_a_queue_that_its_topic_loses_ends_its_deliveries_and_begins_again_at_the_lowest_open_message() -> None:
    state, table = fresh()
    apply(state, pop(state, 10, NO_ROW, 0, 1, 2), ack(state, 10, 0b001))
    apply(state, PutTopic(TopicConfig("T1", 4, 4, perm=4), 1))
    assert open_offsets(table) == [1, 2]
    apply(state, PutTopic(TopicConfig("T1", 0, 4), 1))
    assert (open_offsets(table), committed(state), table.ended) == ([], 1, 2)
    apply(state, PutTopic(TopicConfig("T1", 4, 4), 1), pop(state, 11, 1, 1))
    assert open_offsets(table) == [1]


def test_deletions_drop_rows_and_count_what_was_open() -> None:
    for deletion in (DeleteTopic("T1"), DeleteGroup("CG", clean_offsets=True)):
        state, table = fresh()
        apply(state, pop(state, 10, NO_ROW, 0, 1), deletion)
        assert (list(table), table.ended, committed(state)) == ([], 2, None)


def test_a_delivery_that_is_popped_again_is_a_new_one() -> None:
    state, table = fresh()
    apply(state, pop(state, 10, NO_ROW, 0, 1), ack(state, 10, 0b01), pop(state, 20, 2, 1, end=2, again=10))
    delivery = table.delivery(KEY, 20)
    assert delivery is not None
    assert (table.delivery(KEY, 10), delivery.attempt, open_offsets(table), committed(state)) == (None, 2, [1], 1)


def test_a_snapshot_holds_all_deliveries() -> None:
    state, table = fresh(10_000)
    apply(state, pop(state, 1, NO_ROW, 0, 2, 4))
    for number in range(1, 600):
        apply(state, pop(state, number + 1, 5 * number, 5 * number, 5 * number + 3, end=5 * number + 5))
    apply(state, ack(state, 7, 0b01), revive(state, 8, 0b10), ResetPop("CG", "T1", created(state), 1, 5))
    restored = decode_state(encode_state(state, 0.0), 0.0, FEATURES)
    assert restored.digest() == state.digest()
    again = restored.table(POPPED)
    assert (open_offsets(again), again.open_count) == (open_offsets(table), table.open_count)
    last = again.queue(KEY)
    assert last is not None
    assert (last.last_pop_ms, last.lowest_open) == (600, 0)
    apply(restored, CommitOffsets((("CG", "T1", 0, 50),)))
    assert committed(restored) == 0


def test_a_table_that_equals_an_empty_one_writes_no_frame_so_that_older_nodes_read_the_snapshot() -> None:
    state, table = fresh()
    assert (table.capture_frames(0.0), table.digest) == ({}, 0)
    apply(state, pop(state, 10, NO_ROW, 0))
    assert table.capture_frames(0.0).keys() == {"pop-queues", "deliveries"}
    apply(state, ack(state, 10, 1))
    assert table.capture_frames(0.0).keys() == {"pop-queues"}
    apply(state, DeleteGroup("CG"))
    assert (table.capture_frames(0.0), table.digest) == ({}, 0)


@dataclass
class ModelDelivery:
    offsets: tuple[int, ...]
    open: set[int] = field(default_factory=set)


class PopTableModel(RuleBasedStateMachine):
    """Any commands, beside a model of sets."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.table = fresh()
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
        apply(self.state, pop(self.state, self.time, expected, *offsets, end=at))
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
            apply(self.state, ack(self.state, time, bits, new_ms=self.time))
            if chosen & delivery.open:
                self.deliveries[self.time] = ModelDelivery(tuple(chosen), chosen & delivery.open)
        else:
            apply(self.state, (ack if kind == "ack" else revive)(self.state, time, bits))
        delivery.open -= chosen

    @precondition(lambda self: self.has_row)
    @rule(ahead=st.integers(0, 5))
    def trims(self, ahead: int) -> None:
        lowest = min((min(d.open) for d in self.deliveries.values() if d.open), default=self.next)
        self.first = max(self.first, min(lowest + ahead, 100))
        apply(self.state, TrimQueues(1, (("T1", created(self.state), 0, self.first),)))
        self.next = max(self.next, self.first)
        for delivery in self.deliveries.values():
            delivery.open = {offset for offset in delivery.open if offset >= self.first}

    @rule(offset=st.integers(0, 120))
    def resets(self, offset: int) -> None:
        apply(self.state, ResetPop("CG", "T1", created(self.state), 0, offset))
        if self.has_row:
            self.next = max(offset, self.first)
            self.deliveries.clear()

    @rule()
    def restarts(self) -> None:
        self.state = decode_state(encode_state(self.state, 0.0), 0.0, FEATURES)
        self.table = self.state.table(POPPED)

    @precondition(lambda self: self.next > 90)
    @rule()
    def begins_anew(self) -> None:
        self.__init__()  # type: ignore[misc]

    @invariant()
    def equals_its_model(self) -> None:
        expected = sorted(offset for delivery in self.deliveries.values() for offset in delivery.open)
        assert open_offsets(self.table) == expected
        assert self.table.open_count == len(expected)
        if self.has_row:
            assert committed(self.state) == min(expected, default=self.next)


TestPopTableModel = PopTableModel.TestCase
