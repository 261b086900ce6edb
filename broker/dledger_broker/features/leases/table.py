"""Table of leases: the clients that have popped messages under a lease, and until when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.features.leases.commands import (
    NAME,
    LeasedPop,
    RenewedLease,
    RenewLeases,
)
from dledger_broker.features.pop.commands import Pop, PopQueueKey
from dledger_broker.features.pop.table import POPPED, PopTable
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, FindTable, Frame, Table, TableKey, in_slices
from dledger_remoting.errors import InvalidParameter

MAX_LEASE_MS: Final = 3 * 3_600_000
"""Maximum time in ms for which messages of one pop stay hidden under a lease. RocketMQ's proxy renews as long."""
MAX_LENGTH_MS: Final = 300_000
"""Maximum length in ms of a lease. Messages of a client that has died are hidden for this long."""
MAX_CLIENT_CHARS: Final = 1_024
_MARK: Final = "\0"
"""Separator of client id and account in the name of an owner. No client id contains it."""


def is_client_id(text: str) -> bool:
    """Return whether a client can have this id, so that it may own a lease."""
    return bool(text.strip()) and len(text) <= MAX_CLIENT_CHARS and _MARK not in text


def lease_owner(client_id: str, account: str) -> str:
    """Return the name of a lease's owner. Raises `InvalidParameter` for an id that no client can have."""
    if not is_client_id(client_id):
        raise InvalidParameter(
            f"the lease names a client id of {len(client_id)} characters: expected 1 to {MAX_CLIENT_CHARS} without NUL"
        )
    return f"{client_id}{_MARK}{account}" if account else client_id


class LeaseFrame(msgspec.Struct, frozen=True, tag="pop-leases"):
    """Snapshot frame of leases."""

    rows: list[RenewedLease]


class LeasedDeliveryFrame(msgspec.Struct, frozen=True, tag="leased-deliveries"):
    """Snapshot frame of leased deliveries: (group, topic, queue id, pop time, client)."""

    rows: list[tuple[str, str, int, int, str]]


class Lease:
    """Lease of a client, which runs until a group time. `deliveries` is the number of its deliveries.

    `renewed_at` is a time of this replica's event loop: when it applied the last renewal or, on the leader, when the
    last heartbeat came. It is not part of the replicated state.
    """

    __slots__ = ("client", "deliveries", "length_ms", "renewed_at", "until_ms")

    def __init__(self, client: str, until_ms: int, length_ms: int) -> None:
        self.client = client
        self.until_ms = until_ms
        self.length_ms = length_ms
        self.deliveries = 0
        self.renewed_at = 0.0

    @property
    def row(self) -> RenewedLease:
        """The lease as stored in a snapshot."""
        return RenewedLease(self.client, self.until_ms, self.length_ms)


class LeaseTable(Table):
    """Table of the clients that have leased messages. A lease is kept while its client has one."""

    __slots__ = ("_leases", "_popped", "_renewed")

    frames = (LeaseFrame, LeasedDeliveryFrame)

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._renewed: list[Lease] = []

    def meet(self, find: FindTable) -> None:
        self._popped: PopTable = find.table(POPPED)
        self._popped.on_lease_ended = self._delivery_ended

    def __len__(self) -> int:
        return len(self._leases)

    @property
    def digest(self) -> int:
        """Digest of the leases, 0 if there is none. That of the deliveries says who leases them."""
        return sum(item_hash("lease", *lease.row) for lease in self._leases.values()) & MASK

    def get(self, client: str) -> Lease | None:
        """Return a client's lease, or None if the client has no leased messages."""
        return self._leases.get(client)

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry, changes
        match command:
            case LeasedPop(pop=pop, client=client):
                self._lease(pop, client)
            case RenewLeases(rows=rows):
                for row in rows:
                    lease = self._leases.get(row.client)
                    if lease is not None:
                        until_ms = max(lease.until_ms, row.until_ms) if row.length_ms else row.until_ms
                        self._renew(lease, until_ms, row.length_ms)

    def _lease(self, pop: Pop, client: str) -> None:
        self._popped.pop(pop, client)
        keys = dict.fromkeys(PopQueueKey(pop.group, row.topic, row.queue_id) for row in pop.rows if row.offsets)
        found = (self._popped.delivery(key, pop.pop_time_ms) for key in keys)
        new = sum(delivery is not None and delivery.client == client for delivery in found)
        self.begin(client, new, pop.pop_time_ms + pop.invisible_ms, pop.invisible_ms)

    def begin(self, client: str, deliveries: int, until_ms: int, length_ms: int) -> None:
        """Note that a number of deliveries came under the lease of a client, which runs at least until a group time."""
        if deliveries:
            lease = self._leases.setdefault(client, Lease(client, 0, length_ms))
            lease.deliveries += deliveries
            self._renew(lease, max(lease.until_ms, until_ms), length_ms)

    def _renew(self, lease: Lease, until_ms: int, length_ms: int) -> None:
        lease.until_ms, lease.length_ms = until_ms, length_ms
        self._renewed.append(lease)

    def _delivery_ended(self, client: str) -> None:
        lease = self._leases[client]
        lease.deliveries -= 1
        if not lease.deliveries:
            del self._leases[client]

    def batch_applied(self, now: Callable[[], float]) -> None:
        """Note the time at which this replica applied renewals."""
        if self._renewed:
            renewed, self._renewed = self._renewed, []
            renewed_at = now()
            for lease in renewed:
                lease.renewed_at = renewed_at

    # ---------------------------------------------------------------- snapshots

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        if not self._leases:
            return {}
        leases = [lease.row for lease in self._leases.values()]
        deliveries = [
            (*queue.key, delivery.pop_time_ms, delivery.client)
            for queue in self._popped
            for delivery in queue
            if delivery.client
        ]
        return {
            "pop-leases": map(LeaseFrame, in_slices(leases)),
            "leased-deliveries": map(LeasedDeliveryFrame, in_slices(deliveries)),
        }

    def restore_frame(self, frame: Frame, now: float) -> None:
        match frame:
            case LeaseFrame(rows=leases):
                for row in leases:
                    lease = self._leases[row.client] = Lease(*row)
                    lease.renewed_at = now
            case LeasedDeliveryFrame(rows=deliveries):
                for group, topic, queue_id, pop_time_ms, client in deliveries:
                    self._popped.lease(PopQueueKey(group, topic, queue_id), pop_time_ms, client)
                    self._leases[client].deliveries += 1


LEASES: Final = TableKey(NAME, LeaseTable)
