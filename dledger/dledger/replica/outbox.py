"""Sends what the engine asks for, reading entries back where they left memory.

Per peer the bulk lane stays in order: what follows a run that is still being read waits for it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from dledger.consensus.effects import SendCatchUp, SendEntries, SendMessage
from dledger.consensus.engine import Engine
from dledger.consensus.messages import Message
from dledger.environment import URGENT, Environment
from dledger.errors import CorruptionError, StorageError
from dledger.net.transport import Transport
from dledger.replica.driver import Driver
from dledger.replica.leading import Leading
from dledger.replica.recent import RecentEntries
from dledger.replica.transfer import SnapshotSender
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotStore
from dledger.types import EntryMeta, Lane, ReplicaId

Send = SendMessage | SendEntries | SendCatchUp

HAND_OVER_EVERY_S = 30.0
RESIGN_EVERY_S = 5.0
"""Nobody else may be able to lead either; then this one at least answers reads."""

logger = logging.getLogger(__name__)


class Outbox:
    """Keeps `connected`, which maps node ids to the incarnation at the other end; others are not sent to.

    Entries that do not verify are sent once they can be read again.  If nobody else may have them the leader resigns,
    for it could commit nothing behind them.  Where all snapshots have rotted and a peer needs one, it hands over:
    another voter may have it whole.
    """

    def __init__(
        self,
        environment: Environment,
        transport: Transport,
        store: LogStore,
        snapshots: SnapshotStore,
        recent: RecentEntries,
        connected: dict[str, ReplicaId],
        leading: Leading,
        engine: Engine,
        driver: Driver,
    ) -> None:
        self._environment = environment
        self._transport = transport
        self._store = store
        self._snapshots = snapshots
        self._recent = recent
        self._connected = connected
        self._leading = leading
        self._engine = engine
        self._driver = driver
        self._reading: dict[ReplicaId, deque[Send]] = {}
        self._snapshot_senders: dict[ReplicaId, SnapshotSender] = {}
        self._hand_over_at = 0.0
        self._resign_at = 0.0

    def connect(self, peer: ReplicaId) -> None:
        """A peer can be sent to."""
        self._connected[peer.node_id] = peer
        self._reading.pop(peer, None)

    def disconnect(self, peer: ReplicaId) -> None:
        """A peer was lost."""
        if self._connected.get(peer.node_id) == peer:
            del self._connected[peer.node_id]
        self._reading.pop(peer, None)

    def send(self, send: Send) -> None:
        """Send now, or behind what is being read for the same peer; dropped if the peer is not connected."""
        to = send.to
        if self._connected.get(to.node_id) != to:
            return
        if isinstance(send, SendMessage) and send.message.lane is Lane.CONTROL:
            self._transport.send(to.node_id, Lane.CONTROL, send.message)
        elif (waiting := self._reading.get(to)) is not None:
            waiting.append(send)
        else:
            self._send_bulk(send)

    def _send_bulk(self, send: Send) -> None:
        to, engine = send.to, self._engine
        term = send.term if isinstance(send, SendCatchUp) else send.message.term
        if not engine.is_leader or engine.term != term:
            return  # the log may have changed since: its bytes are not this leader's any more
        if isinstance(send, SendCatchUp):
            read = partial(self._read_some, send.first_index, send.max_bytes)
            self._read(to, term, send.first_index, None, read)
        elif isinstance(send, SendMessage):
            self._note(to, self._transport.send(to.node_id, Lane.BULK, send.message))
        else:
            entries = send.message.entries
            assert entries is not None
            first, count = entries.prev_index + 1, entries.count
            recent = self._recent.get(first, count)
            if recent is None:
                self._read(to, term, first, send.message, partial(self._read_run, first, count))
            else:
                data = [data for _, data in recent]
                self._note(to, self._transport.send(to.node_id, Lane.BULK, send.message, data))

    def _read_some(self, first: int, max_bytes: int) -> tuple[list[EntryMeta], bytes]:
        """Entries from `first` on; that one alone if one behind it does not verify."""
        try:
            return self._store.read_entries(first, max_bytes, verify=True)
        except CorruptionError:
            return self._store.read_entries(first, 1, verify=True)

    def _read_run(self, first: int, count: int) -> tuple[list[EntryMeta], bytes]:
        """The entries of a run, which goes on into the next segment if one of them fills the one before it exactly."""
        metas: list[EntryMeta] = []
        parts: list[bytes] = []
        end = self._store.meta(first + count - 1).end
        while len(metas) < count:
            at = first + len(metas)
            run, data = self._store.read_entries(at, end - self._store.position_at(at), verify=True)
            metas += run
            parts.append(data)
        return metas, b"".join(parts) if len(parts) > 1 else parts[0]

    def _note(self, to: ReplicaId, accepted: bool) -> None:
        if not accepted:
            self._engine.peer_disconnected(to)

    def _read(
        self,
        to: ReplicaId,
        term: int,
        first: int,
        message: Message | None,
        read: Callable[[], tuple[list[EntryMeta], bytes]],
    ) -> None:
        waiting: deque[Send] = deque()
        self._reading[to] = waiting

        def done(result: tuple[list[EntryMeta], bytes] | BaseException) -> None:
            if self._reading.get(to) is not waiting:
                return
            del self._reading[to]
            engine = self._engine
            if isinstance(result, BaseException):
                if isinstance(result, StorageError):
                    self._driver.fail(result)
                engine.peer_disconnected(to)
                if isinstance(result, CorruptionError):
                    self._driver.suspect(first)
                    if engine.is_leader and engine.term == term and first > engine.commit_index:
                        self._resign(result)
                return
            metas, data = result
            made = engine.catch_up_message(term, metas)
            if made is None:
                # A trim may have taken what goes ahead of them since they were read: the peer needs a snapshot now.
                engine.peer_disconnected(to)
            else:
                accepted = self._transport.send(to.node_id, Lane.BULK, message or made, (data,))
                self._note(to, accepted)
                if message is None and accepted:
                    engine.catch_up_sent(to, term, metas[-1].index, len(data), self._environment.now())
            while waiting and to not in self._reading:
                self._send_bulk(waiting.popleft())
            if waiting:
                self._reading[to].extend(waiting)
            self._driver.pump()

        self._environment.run_blocking(URGENT, read, done)

    def _resign(self, error: CorruptionError) -> None:
        now = self._environment.now()
        if now >= self._resign_at:
            self._resign_at = now + RESIGN_EVERY_S
            logger.warning("event=resigned error=%r consequence=%r", str(error), "another node may lead")
            self._engine.resign(now)
            self._driver.pump()

    def send_snapshot(self, to: ReplicaId, term: int) -> None:
        """Send the snapshot that the log starts behind, instead of any that is still being sent.

        If that one has rotted, the next one that has not: the peer's log then begins later.
        """
        first = self._store.first_position
        meta = next((meta for meta in self._snapshots.list() if meta.position >= first), None)
        if meta is None or self._connected.get(to.node_id) != to:
            self._engine.peer_disconnected(to)
            if meta is None and self._snapshots.rotten and self._environment.now() >= self._hand_over_at:
                self._hand_over_at = self._environment.now() + HAND_OVER_EVERY_S
                self._environment.call_soon(partial(self._driver.run, partial(self._leading.transfer, None)))
            return

        def still_wanted() -> bool:
            return (
                self._snapshot_senders.get(to) is sender
                and self._engine.wants_snapshot(to, term)
                and self._connected.get(to.node_id) == to
            )

        def sent() -> None:
            self._engine.snapshot_sent(to, term, self._environment.now())

        if to in self._snapshot_senders:
            self._snapshot_senders[to].stop()
        sender = self._snapshot_senders[to] = SnapshotSender(
            self._environment,
            self._transport,
            self._snapshots,
            to,
            meta,
            self._engine.snapshot_message(term, meta),
            still_wanted=still_wanted,
            sent=sent,
            broken=partial(self._engine.peer_disconnected, to),
            rotten=partial(self._snapshots.condemn, meta.position),
        )
        sender.start()

    def stop(self) -> None:
        """Send no more of any snapshot."""
        for sender in self._snapshot_senders.values():
            sender.stop()

    def on_snapshot_taken(self, sender: ReplicaId, data: bytes) -> None:
        """A peer has written some of the snapshot that it is being sent."""
        if sender in self._snapshot_senders:
            self._snapshot_senders[sender].on_data(data)
