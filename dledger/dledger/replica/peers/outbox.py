"""Outbox: sends the messages that the engine asks for, and reads entries back that have left memory.

Messages to a peer stay in order on the bulk lane: messages behind a run of entries that is still being read wait for
it. Messages that reflect term and vote wait until these are durable.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from dledger.consensus.effects import SendCatchUp, SendEntries, SendMessage
from dledger.consensus.engine import Engine
from dledger.consensus.messages import Message
from dledger.environment import HARD_STATE, URGENT, Environment
from dledger.errors import CorruptionError, StorageError
from dledger.net.transport import Transport
from dledger.replica.driver import Driver
from dledger.replica.snapshots.sending import SnapshotSender
from dledger.replica.standing import ConnectedPeers
from dledger.replica.storing.recent import RecentEntries
from dledger.replica.writing.leading import Leading
from dledger.store.hardstate import HardStateFile
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotStore
from dledger.types import EntryMeta, HardState, Lane, ReplicaId

Send = SendMessage | SendEntries | SendCatchUp

COPY_WAIT_S = 10.0
"""Seconds for which another replica's snapshot may replace a rotten one, before a peer is sent a later snapshot."""
HANDOVER_INTERVAL_S = 30.0
RESIGN_INTERVAL_S = 5.0
"""Minimum seconds between two resignations.

Perhaps no other node can lead either; then this leader at least answers reads.
"""

logger = logging.getLogger(__name__)


class Outbox:
    """Sends to the connected peers, and notes who is connected.

    Entries that do not verify are sent once they can be read again. If no other node may have them, the leader resigns,
    because it could commit nothing behind them. If a peer needs a snapshot and all snapshots here have rotted, the
    leader hands over: another voter may have an intact one.
    """

    def __init__(
        self,
        environment: Environment,
        transport: Transport,
        store: LogStore,
        snapshots: SnapshotStore,
        recent: RecentEntries,
        connected: ConnectedPeers,
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
        self._sends_behind_read: dict[ReplicaId, deque[Send]] = {}
        self._snapshot_senders: dict[ReplicaId, SnapshotSender] = {}
        self._next_handover_at = 0.0
        self._next_resignation_at = 0.0
        self._expected_copy: tuple[int, float] | None = None
        """Position of a rotten snapshot that a peer needed, and until when another replica's copy was expected."""

    def connect(self, peer: ReplicaId) -> None:
        """Note that a peer can be sent to."""
        self._connected.note_connected(peer)
        self._sends_behind_read.pop(peer, None)

    def disconnect(self, peer: ReplicaId) -> None:
        """Note that a peer was lost."""
        self._connected.note_lost(peer)
        self._sends_behind_read.pop(peer, None)

    def send(self, send: Send) -> None:
        """Send now, or behind entries that are being read for the same peer. Dropped if the peer is not connected."""
        to = send.to
        if to not in self._connected:
            return
        if isinstance(send, SendMessage) and send.message.lane is Lane.CONTROL:
            self._transport.send(to.node_id, Lane.CONTROL, send.message)
        elif (waiting := self._sends_behind_read.get(to)) is not None:
            waiting.append(send)
        else:
            self._send_bulk(send)

    def _send_bulk(self, send: Send) -> None:
        to, engine = send.to, self._engine
        term = send.term if isinstance(send, SendCatchUp) else send.message.term
        if not engine.is_leader or engine.term != term:
            return  # the log may have changed since, so its bytes may not be those of this term's leader
        if isinstance(send, SendCatchUp):
            read = partial(self._read_from, send.first_index, send.max_bytes)
            self._read(to, term, send.first_index, None, read)
        elif isinstance(send, SendMessage):
            self._note_send_result(to, self._transport.send(to.node_id, Lane.BULK, send.message))
        else:
            entries = send.message.entries
            assert entries is not None
            first, count = entries.prev_index + 1, entries.count
            recent = self._recent.get(first, count)
            if recent is None:
                self._read(to, term, first, send.message, partial(self._read_run, first, count))
            else:
                data = [data for _, data in recent]
                self._note_send_result(to, self._transport.send(to.node_id, Lane.BULK, send.message, data))

    def _read_from(self, first: int, max_bytes: int) -> tuple[list[EntryMeta], bytes]:
        """Return entries from `first` on; only that entry if a later one does not verify."""
        try:
            return self._store.read_entries(first, max_bytes, verify=True)
        except CorruptionError:
            return self._store.read_entries(first, 1, verify=True)

    def _read_run(self, first: int, count: int) -> tuple[list[EntryMeta], bytes]:
        """Return the entries of a run.

        It continues in the next segment if one of its entries exactly fills a segment.
        """
        metas: list[EntryMeta] = []
        parts: list[bytes] = []
        end = self._store.meta(first + count - 1).end
        while len(metas) < count:
            next_index = first + len(metas)
            run, data = self._store.read_entries(next_index, end - self._store.position_at(next_index), verify=True)
            metas += run
            parts.append(data)
        return metas, b"".join(parts) if len(parts) > 1 else parts[0]

    def _note_send_result(self, to: ReplicaId, accepted: bool) -> None:
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
        self._sends_behind_read[to] = waiting

        def done(result: tuple[list[EntryMeta], bytes] | BaseException) -> None:
            if self._sends_behind_read.get(to) is not waiting:
                return
            del self._sends_behind_read[to]
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
            catch_up = engine.catch_up_message(term, metas)
            if catch_up is None:
                # A trim may have removed the entries before these since they were read: the peer needs a snapshot now.
                engine.peer_disconnected(to)
            else:
                accepted = self._transport.send(to.node_id, Lane.BULK, message or catch_up, (data,))
                self._note_send_result(to, accepted)
                if message is None and accepted:
                    engine.catch_up_sent(to, term, metas[-1].index, len(data), self._environment.now())
            while waiting and to not in self._sends_behind_read:
                self._send_bulk(waiting.popleft())
            if waiting:
                self._sends_behind_read[to].extend(waiting)
            self._driver.pump()

        self._environment.run_blocking(URGENT, read, done)

    def _resign(self, error: CorruptionError) -> None:
        now = self._environment.now()
        if now >= self._next_resignation_at:
            self._next_resignation_at = now + RESIGN_INTERVAL_S
            logger.warning("event=resigned error=%r consequence=%r", str(error), "another node may lead")
            self._engine.resign(now)
            self._driver.pump()

    def send_snapshot(self, to: ReplicaId, term: int) -> None:
        """Send the snapshot that the log starts behind, in place of any that is still being sent.

        If that snapshot has rotted, another replica's copy may replace it within `COPY_WAIT_S`. After that the next
        intact snapshot is sent, and the peer's log begins later.
        """
        first = self._store.first_position
        meta = next((meta for meta in self._snapshots.list() if meta.position >= first), None)
        awaits_copy = meta is not None and self._awaits_copy(first)
        if meta is None or awaits_copy or to not in self._connected:
            self._engine.peer_disconnected(to)
            if meta is None and self._snapshots.rotten and self._environment.now() >= self._next_handover_at:
                self._next_handover_at = self._environment.now() + HANDOVER_INTERVAL_S
                self._environment.call_soon(partial(self._driver.run, partial(self._leading.transfer, None)))
            return

        def is_wanted() -> bool:
            return (
                self._snapshot_senders.get(to) is sender
                and self._engine.wants_snapshot(to, term)
                and to in self._connected
            )

        def on_sent() -> None:
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
            is_wanted=is_wanted,
            on_sent=on_sent,
            on_broken=partial(self._engine.peer_disconnected, to),
            on_rotten=partial(self._snapshots.condemn, meta.position),
        )
        sender.start()

    def _awaits_copy(self, first: int) -> bool:
        """Return whether to wait for another replica's copy of the first snapshot, which has rotted here.

        That is the snapshot that the log starts behind. A copy that rots as well does not extend the wait.
        """
        if first not in self._snapshots.rotten or len(self._connected) < 2:
            return False
        if self._expected_copy is None or self._expected_copy[0] != first:
            self._expected_copy = first, self._environment.now() + COPY_WAIT_S
        return self._environment.now() < self._expected_copy[1]

    def stop(self) -> None:
        """Stop sending snapshots."""
        for sender in self._snapshot_senders.values():
            sender.stop()

    def on_snapshot_taken(self, sender: ReplicaId, data: bytes) -> None:
        """Note that a peer has written a part of the snapshot that it is being sent."""
        if sender in self._snapshot_senders:
            self._snapshot_senders[sender].on_data(data)


class HardStateSaver:
    """Saves in order, on a thread of its own.

    The engine is notified of each state that has become durable. The outbox gets the messages that waited for it.
    """

    def __init__(
        self, environment: Environment, file: HardStateFile, outbox: Outbox, engine: Engine, driver: Driver
    ) -> None:
        self._environment = environment
        self._file = file
        self._outbox = outbox
        self._engine = engine
        self._driver = driver
        self._started_saves = 0
        self._completed_saves = 0
        self._held_sends: deque[tuple[int, Send]] = deque()
        self._stopped = False
        self._save_start_times: deque[float] = deque()

    @property
    def outstanding_s(self) -> float:
        """Seconds that the oldest save has taken so far; 0 if none is under way."""
        return self._environment.now() - self._save_start_times[0] if self._save_start_times else 0.0

    def save(self, state: HardState) -> None:
        """Begin to make `state` durable."""
        self._started_saves += 1
        number = self._started_saves
        self._save_start_times.append(self._environment.now())

        def done(result: object) -> None:
            self._save_start_times.popleft()
            if isinstance(result, BaseException):
                self._driver.fail(result)
            elif not self._stopped:
                self._completed_saves = number
                self._on_saved(state)

        self._environment.run_blocking(HARD_STATE, partial(self._file.save, state), done)

    def _on_saved(self, state: HardState) -> None:
        self._engine.hard_state_saved(state, self._environment.now())
        self.release()
        self._driver.pump()

    def hold(self, sends: Sequence[Send]) -> None:
        """Send once everything begun so far is durable, which may be at once."""
        for send in sends:
            self._held_sends.append((self._started_saves, send))
        self.release()

    def release(self) -> None:
        """Send the messages that need not wait any longer, in order."""
        held = self._held_sends
        while held and held[0][0] <= self._completed_saves:
            self._outbox.send(held.popleft()[1])

    def stop(self) -> None:
        """Stop reporting and sending."""
        self._stopped = True
        self._held_sends.clear()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
