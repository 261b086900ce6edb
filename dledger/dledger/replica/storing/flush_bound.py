"""Bound of `flush = "async"`: how much acknowledged data a power failure of several nodes may take.

Acknowledgements do not wait for the disks. But a leader stops acknowledging if an acknowledged entry has lacked a
majority of disks for `BOUND_S`, or if `BOUND_BYTES` of such entries do. It then holds committed entries back, because
entries are acknowledged when they are applied.

So each member reports to the leader after each sync what its disk has. On the durability channel of the bulk lane:

    offset  size  field
         0     8  index  of the last durable entry; signed, big-endian
         8     4  chain  crc of that entry, which tells that the leader has the same log up to there

A member of a build without these reports counts as if its disk had everything that it acknowledged.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from dledger.consensus.engine import Engine
from dledger.environment import Environment
from dledger.net.transport import Transport
from dledger.replica.driver import Driver
from dledger.store.log import LogStore
from dledger.types import ReplicaId

DURABLE_CHANNEL = 255
BOUND_S = 0.1
BOUND_BYTES = 16 << 20

_DURABLE_MESSAGE = struct.Struct(">qI")
_NOTHING_DURABLE = _DURABLE_MESSAGE.pack(-1, 0)
"""Message of a member whose log was just replaced.

It shows that the member reports its durability, whatever its disk has.
"""


class _Acknowledged(NamedTuple):
    """Entries up to `last_index` that were acknowledged at the same time. Positions are bytes of the log."""

    acknowledged_at: float
    last_index: int
    begin_position: int
    end_position: int


class FlushBound:
    """Limits what a leader applies: it asks `apply_limit` right before it applies.

    `advance` is called once the disks catch up.

    With `sync` nothing is bounded or reported, because acknowledgements wait for the disks.
    """

    def __init__(
        self,
        me: ReplicaId,
        environment: Environment,
        transport: Transport,
        store: LogStore,
        engine: Engine,
        driver: Driver,
        advance: Callable[[int], None],
        *,
        sync: bool,
    ) -> None:
        self._me = me
        self._environment = environment
        self._transport = transport
        self._store = store
        self._engine = engine
        self._driver = driver
        self._advance = advance
        self._sync = sync
        self._durable_indexes: dict[ReplicaId, int] = {}
        self._informed_leader: ReplicaId | None = None
        self._acknowledged: deque[_Acknowledged] = deque()
        self._apply_limit = -1
        self._holds_allowed = False
        """True if entries up to `_apply_limit` may have to wait after all."""

    def apply_limit(self, commit_index: int) -> int:
        """Return the last entry, at most `commit_index`, that may be applied now; -1 if none may.

        A leader acknowledges entries by applying them. It asks again for entries that it had to read first: the disks
        may have fallen behind meanwhile.
        """
        engine = self._engine
        if self._sync or not engine.is_leader or commit_index <= engine.term_start:
            return commit_index
        now = self._environment.now()
        if self._extend_within_bound(commit_index, now):
            return commit_index
        durable_index = self._durable_on_majority()
        while self._acknowledged and self._acknowledged[0].last_index <= durable_index:
            self._acknowledged.popleft()
        previous_limit = self._apply_limit = max(self._apply_limit, engine.term_start)
        self._holds_allowed = bool(self._acknowledged) and now - self._acknowledged[0].acknowledged_at >= BOUND_S
        if self._holds_allowed:
            return -1
        if commit_index <= previous_limit:
            return commit_index
        begin_position = self._end_position_of(previous_limit)
        end_position = self._end_position_of(self._extend_limit(previous_limit, commit_index, durable_index))
        if self._apply_limit > previous_limit:
            self._acknowledged.append(_Acknowledged(now, self._apply_limit, begin_position, end_position))
        return self._apply_limit

    def _extend_within_bound(self, commit_index: int, now: float) -> bool:
        """Acknowledge entries up to `commit_index` if that is allowed even if no disk has anything since the oldest of
        `_acknowledged`. Return whether it is.

        Most batches are so small that the disks need not be looked at.
        """
        if not self._acknowledged or commit_index <= self._apply_limit:
            return False
        oldest, newest = self._acknowledged[0], self._acknowledged[-1]
        meta = self._store.held_meta(commit_index)
        if meta is None or now - oldest.acknowledged_at >= BOUND_S or meta.end - oldest.begin_position > BOUND_BYTES:
            return False
        self._acknowledged.append(_Acknowledged(now, commit_index, newest.end_position, meta.end))
        self._apply_limit = commit_index
        return True

    def _extend_limit(self, previous_limit: int, commit_index: int, durable_index: int) -> int:
        """Return the last entry that may be acknowledged, given the bytes that the disks would lack.

        It becomes `_apply_limit`.
        """
        if self._acknowledged:
            durable_end = self._acknowledged[0].begin_position
        else:
            durable_end = self._end_position_of(max(previous_limit, durable_index))
        meta = self._store.held_meta(durable_index)
        if meta is not None:
            durable_end = max(durable_end, meta.end)
        index = previous_limit
        while index < commit_index:
            next_meta = self._store.held_meta(index + 1)
            exceeds_bound = next_meta is not None and next_meta.end - durable_end > BOUND_BYTES
            if exceeds_bound and (self._acknowledged or index > previous_limit):
                break
            index += 1
        self._apply_limit = index
        return index

    def _end_position_of(self, index: int) -> int:
        meta = self._store.held_meta(index)
        return 0 if meta is None else meta.end

    def _durable_on_majority(self) -> int:
        progress, voters = self._engine.progress, self._engine.membership.voters
        durable_indexes = sorted((self._durable_index_of(voter, progress.get(voter)) for voter in voters), reverse=True)
        return durable_indexes[len(durable_indexes) // 2] if durable_indexes else -1

    def _durable_index_of(self, voter: ReplicaId, peer: object) -> int:
        if voter == self._me:
            return self._store.durable
        return self._durable_indexes.get(voter, getattr(peer, "match_index", -1))

    def recheck(self) -> None:
        """Continue with entries held back, as far as the disks allow. Report to a leader that has no report yet."""
        if self._sync:
            return
        if self._engine.leader != self._informed_leader:
            self.synced()
        self._advance_applier()

    def _advance_applier(self) -> None:
        index = self._engine.commit_index
        if self._engine.is_leader and (index > self._apply_limit or self._holds_allowed):
            self._advance(self.apply_limit(index))
            self._driver.pump()

    def synced(self) -> None:
        """Act on a sync: this replica's disk has more now."""
        if self._sync:
            return
        leader = self._informed_leader = self._engine.leader
        if self._engine.is_leader:
            self._advance_applier()
            return
        meta = self._store.held_meta(self._store.durable)
        if leader is not None:
            message = _NOTHING_DURABLE if meta is None else _DURABLE_MESSAGE.pack(meta.index, meta.chain_crc)
            if not self._transport.send_data(leader.node_id, DURABLE_CHANNEL, (message,)):
                self.connected()

    def connected(self) -> None:
        """Tell the leader again, which may not have heard the last message."""
        self._informed_leader = None

    def on_data(self, sender: ReplicaId, data: bytes) -> None:
        """Take a member's message about what its disk has."""
        if len(data) < _DURABLE_MESSAGE.size or self._sync:
            return
        index, chain = _DURABLE_MESSAGE.unpack_from(data)
        meta = self._store.held_meta(index)
        is_same_log = meta is not None and meta.chain_crc == chain
        self._durable_indexes[sender] = (
            max(index, self._durable_indexes.get(sender, -1)) if is_same_log else self._durable_indexes.get(sender, -1)
        )
        self._advance_applier()

    def role_changed(self) -> None:
        """Start anew: another leader, or none, acknowledges now.

        Members' messages were about the log as it was before.
        """
        self._acknowledged.clear()
        self._holds_allowed = False
        self._durable_indexes = dict.fromkeys(self._durable_indexes, -1)
        self._informed_leader = None
        self._apply_limit = -1
        if not self._engine.is_leader:
            self._advance(self._engine.commit_index)
            # report before another message of this replica reaches the leader, which would take it for durable
            self.synced()
