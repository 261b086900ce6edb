"""Bugs of popped messages."""

from __future__ import annotations

from collections.abc import Sequence

from dledger.errors import LogError
from dledger_broker.features.leases import times
from dledger_broker.features.leases.requests import LeaseRequests
from dledger_broker.features.leases.times import LeaseTimes
from dledger_broker.features.pop import revival
from dledger_broker.features.pop.acks import AckRequests
from dledger_broker.features.pop.changes import AckDone, PopChanges
from dledger_broker.features.pop.choosing import Choice, PopQuery
from dledger_broker.features.pop.commands import AckRow, Pop, PopQueueKey
from dledger_broker.features.pop.counts import OrderedCounts
from dledger_broker.features.pop.deliveries import Delivery, PopQueue
from dledger_broker.features.pop.requests import PopRequests
from dledger_broker.features.pop.revival import Dues
from dledger_broker.features.pop.table import PopTable
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.units import NewRecord
from dledger_remoting.pop_bodies import BatchAck
from dledger_sim.brokers.schedules import pops
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("pops")


def _tell_at_once(self: PopChanges, command: Pop, done: Done, proposed: Command | None = None) -> None:
    _real_pop(self, command, lambda _: None, proposed)
    done(None)


def _believe(
    self: PopRequests, request: Request, query: PopQuery, choice: Choice, command: Pop, error: LogError | None
) -> None:
    real, PopTable.delivery = PopTable.delivery, lambda *_: True  # type: ignore[assignment,method-assign]
    try:
        _real_popped(self, request, query, choice, command, error)
    finally:
        PopTable.delivery = real  # type: ignore[method-assign]


_real_pop = PopChanges.pop
_real_popped = PopRequests._on_popped  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "popped-when-proposed",
    "a pop is answered from the applied state, never from a proposal",
    (PopChanges, "pop", _tell_at_once),
    (PopRequests, "_on_popped", _believe),
    schedule=pops.pop_at_a_leader_that_is_cut_off,
)


def _all_that_is_open(_self: PopChanges, _queue: PopQueue, delivery: Delivery) -> int:
    return delivery.open_bits


CATALOGUE.add(
    "revived-while-acknowledged",
    "a popped message is delivered again only if nothing is in flight for it",
    (PopChanges, "free_bits", _all_that_is_open),
    schedule=pops.acknowledgement_that_meets_what_comes_again,
)


def _by_group_time(_self: Dues, delivery: Delivery, now_ms: int) -> int:
    return delivery.due_ms - now_ms


CATALOGUE.add(
    "revived-by-group-time-alone",
    "a message that a leader has delivered stays hidden for its whole time by the leader's own clock",
    (Dues, "left_ms", _by_group_time),
    schedule=pops.message_hidden_while_all_clocks_jump,
)

CATALOGUE.add(
    "commit-moves-a-popped-queue",
    "a commit has no effect in a queue that its group pops",
    (PopTable, "has_queue", lambda *_: False),
    schedule=pops.commit_in_a_popped_queue,
)


def _told_at_once(self: PopChanges, row: AckRow, done: AckDone) -> None:
    _real_ack(self, row, lambda *_: None)
    done(None, row.new_pop_time_ms)


_real_ack = PopChanges.ack

CATALOGUE.add(
    "acknowledged-when-collected",
    "the acknowledgement of a popped message is answered once it is applied",
    (PopChanges, "ack", _told_at_once),
)


def _all_of_the_delivery(self: AckRequests, ack: BatchAck) -> tuple[AckRow | None, int]:
    row, unknown = _real_row_of(self, ack)
    if row is None:
        return row, unknown
    delivery = self._changes.table.delivery(PopQueueKey(row.group, row.topic, row.queue_id), row.pop_time_ms)
    return row._replace(bits=row.bits if delivery is None else delivery.open_bits), unknown


_real_row_of = AckRequests._row_of  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "batch-acknowledges-its-delivery",
    "a batch acknowledges only the messages that it names: other messages of their delivery are delivered again",
    (AckRequests, "_row_of", _all_of_the_delivery),
)


def _all_but_one(self: revival._Unit, queue: PopQueue, delivery: Delivery, bit: int, copy: NewRecord) -> None:
    _real_add(self, queue, delivery, bit, copy)
    if len(self.copies) > 1:
        self.copies.pop()


_real_add = revival._Unit.add  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "one-copy-for-a-unit",
    "each redelivered message has its copy in the unit that ends its delivery",
    (revival._Unit, "add", _all_but_one),  # noqa: SLF001 - patches private names
)


def _all_as_the_first(
    self: OrderedCounts, key: PopQueueKey, offsets: Sequence[int], new_from: int, *, is_same: bool
) -> tuple[int, ...]:
    counts = _real_counts(self, key, offsets, new_from, is_same=is_same)
    return tuple(counts[0] if offset < new_from else 0 for offset in offsets)


_real_counts = OrderedCounts.of


CATALOGUE.add(
    "counted-as-the-first",
    "a message that joins behind a redelivered message has its own count of deliveries",
    (OrderedCounts, "of", _all_as_the_first),
)


def _only_at_the_leader(self: LeaseRequests, request: Request, owner: str, *, has_left: bool) -> None:
    if self._group.ready:
        _real_report(self, request, owner, has_left=has_left)


_real_report = LeaseRequests._report  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "lease-renewed-at-the-leader-alone",
    "a heartbeat to any node renews a lease",
    (LeaseRequests, "_report", _only_at_the_leader),
    schedule=pops.leased_message_of_a_client_that_lives_and_dies,
)


def _for_ever(_self: LeaseTimes, _delivery: Delivery, _now: float, _now_ms: int, _ready_at: float) -> int:
    return 1_000


CATALOGUE.add(
    "lease-that-never-ends",
    "messages under a lease come again within its length after the last heartbeat",
    (LeaseTimes, "left_ms", _for_ever),
    schedule=pops.leased_message_of_a_client_that_lives_and_dies,
)

CATALOGUE.add(
    "lease-ends-with-its-leader",
    "a new leader waits for heartbeats before it ends leases",
    (times, "NEW_LEADER_S", 0.0),
    schedule=pops.lease_whose_leader_dies_before_the_next_heartbeat,
)


def _lease_by_group_time(self: LeaseTimes, delivery: Delivery, _now: float, now_ms: int, _ready_at: float) -> int:
    lease = self._leases.get(delivery.client)
    return 0 if lease is None else lease.until_ms - now_ms


CATALOGUE.add(
    "lease-by-group-time-alone",
    "a lease lasts for its length after a heartbeat by the leader's own clock",
    (LeaseTimes, "left_ms", _lease_by_group_time),
    schedule=pops.lease_of_a_living_client_while_all_clocks_jump,
)

CATALOGUE.add(
    "lease-begins-with-its-pop",
    "a lease begins only once its messages have reached their client",
    (LeaseRequests, "awaits_confirmation", lambda _self, _request: False),
    schedule=pops.messages_lost_with_their_proxy,
)

CATALOGUE.add(
    "confirmation-counts-when-applied",
    "a confirmation counts from its arrival at the leader",
    (LeaseTimes, "hides", lambda _self, delivery: bool(delivery.client)),
    schedule=pops.confirmation_at_the_end_of_the_invisible_time,
)
