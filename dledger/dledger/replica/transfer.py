"""Carries snapshots from a leader to followers that need entries it no longer has.

On the snapshot channel of the bulk lane a transfer is: one BEGIN with the meta, CHUNKs in order, one END, then the
engine's message that announces the snapshot behind them.  Back come TAKENs.  Each piece starts with

    offset  size  field
         0     1  kind    0 begin, 1 chunk, 2 end, 3 taken
         1     8  position of the snapshot
         9     4  number of the chunk, from 0; of an END, how many there were; of a TAKEN, how many were written

No more than `WINDOW_CHUNKS` are on their way or wait for the receiver's disk.  A lost piece makes the receiver ignore
the transfer; the leader starts over when the connection does, or when nothing came of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import NamedTuple

import msgspec

from dledger.consensus.messages import Message
from dledger.environment import URGENT, Environment
from dledger.errors import CorruptionError, LogFullError, StorageError
from dledger.net.transport import Transport
from dledger.replica.driver import Driver
from dledger.replica.feed import MachineFeed
from dledger.replica.snapshot_job import SnapshotJob
from dledger.statemachine import Restore
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotStore, SnapshotWriter
from dledger.types import Lane, ReplicaId, SnapshotMeta

SNAPSHOT_CHANNEL = 250
MAX_QUEUED_BYTES = 1 << 20
PAUSE_S = 0.01
WINDOW_CHUNKS = 16
"""Of `dledger.store.snapshots.CHUNK_BYTES` each."""
STALLED_S = 10.0
"""A receiver that has written nothing for so long, of what was sent to it, has given this transfer up."""

_PIECE = struct.Struct(">BQI")
_BEGIN, _CHUNK, _END, _TAKEN = 0, 1, 2, 3
_decode_meta = msgspec.msgpack.Decoder(SnapshotMeta).decode


class SnapshotSender:
    """Sends one snapshot to one peer, then the engine's `announcement` of it.

    `still_wanted()` is asked before every piece.

    Ends with `sent()` or `broken()`, or with neither once it is not wanted any more; `rotten()` says beforehand that it
    is broken for good.
    """

    def __init__(
        self,
        environment: Environment,
        transport: Transport,
        snapshots: SnapshotStore,
        to: ReplicaId,
        meta: SnapshotMeta,
        announcement: Message,
        *,
        still_wanted: Callable[[], bool],
        sent: Callable[[], None],
        broken: Callable[[], None],
        rotten: Callable[[], None],
    ) -> None:
        self._environment = environment
        self._transport = transport
        self._to = to
        self._meta = meta
        self._announcement = announcement
        self._still_wanted = still_wanted
        self._sent = sent
        self._broken = broken
        self._rotten = rotten
        self._chunks = snapshots.read_chunks(meta)
        self._lock = Lock()
        self._reading = False
        self._ended = False
        self._number = 0
        self._taken = 0
        self._taken_at = environment.now()

    def on_data(self, data: bytes) -> None:
        """A piece from the receiver: what it has written makes room for more."""
        kind, position, taken = _PIECE.unpack_from(data)
        if kind == _TAKEN and position == self._meta.position and self._taken < taken <= self._number:
            self._taken = taken
            self._taken_at = self._environment.now()

    def start(self) -> None:
        """Send BEGIN and go on chunk by chunk."""
        head = _PIECE.pack(_BEGIN, self._meta.position, 0)
        if self._transport.send_data(self._to.node_id, SNAPSHOT_CHANNEL, (head, msgspec.msgpack.encode(self._meta))):
            self._environment.call_soon(self._next)
        else:
            self._break()

    def stop(self) -> None:
        """Send no more.  The file may be unlinked by now, so that closing it takes long: a worker does that."""
        with self._lock:
            closes, self._ended = not self._ended and not self._reading, True
        if closes:
            self._environment.run_blocking(URGENT, self._chunks.close, _ignore)

    def _break(self) -> None:
        self.stop()
        self._broken()

    def _goes_on(self) -> bool:
        if not self._ended and not self._still_wanted():
            self.stop()
        return not self._ended

    def _next(self) -> None:
        if not self._goes_on():
            return
        waits = self._number - self._taken >= WINDOW_CHUNKS
        if waits and self._environment.now() - self._taken_at > STALLED_S:
            self._break()
            return
        if waits or self._transport.queued_bytes(self._to.node_id, Lane.BULK) > MAX_QUEUED_BYTES:
            self._environment.call_later(PAUSE_S, self._next)
            return
        self._reading = True
        self._environment.run_blocking(URGENT, self._read, self._on_read)

    def _read(self) -> bytes | None:
        try:
            return next(self._chunks, None)
        finally:
            with self._lock:
                self._reading, ended = False, self._ended
            if ended:
                self._chunks.close()

    def _on_read(self, chunk: bytes | BaseException | None) -> None:
        if not self._goes_on():
            return
        if isinstance(chunk, BaseException):
            if isinstance(chunk, CorruptionError | StorageError):
                self._rotten()
            self._break()
            return
        if chunk is None:
            self._ended = True
            if self._finish():
                self._sent()
            else:
                self._broken()
            return
        head = _PIECE.pack(_CHUNK, self._meta.position, self._number)
        self._number += 1
        if self._transport.send_data(self._to.node_id, SNAPSHOT_CHANNEL, (head, chunk)):
            self._environment.call_soon(self._next)
        else:
            self._break()

    def _finish(self) -> bool:
        end = _PIECE.pack(_END, self._meta.position, self._number)
        return self._transport.send_data(self._to.node_id, SNAPSHOT_CHANNEL, (end,)) and self._transport.send(
            self._to.node_id, self._announcement.lane, self._announcement
        )


class _Transfer:
    """One snapshot that is being received: its pieces wait here for the worker that writes them."""

    __slots__ = ("install", "job", "number", "sender", "waiting", "whole")

    def __init__(self, job: SnapshotJob, sender: ReplicaId) -> None:
        self.job = job
        self.sender = sender
        self.number = 0
        self.waiting: list[memoryview] = []
        self.whole = False
        self.install: _Install | None = None


class Received(NamedTuple):
    """A snapshot that is durable here, and what puts its state in place."""

    meta: SnapshotMeta
    restore: Restore


class _Install(NamedTuple):
    """What the message behind a transfer's pieces announces, and who is told that the snapshot is here."""

    announced: SnapshotMeta
    done: Callable[[Received | BaseException], None]


class SnapshotReceiver:
    """Takes one transfer in; a newer BEGIN replaces what was there, unless that is being made durable."""

    def __init__(
        self,
        environment: Environment,
        transport: Transport,
        store: LogStore,
        feed: MachineFeed,
        driver: Driver,
        *,
        taken: Callable[[ReplicaId, bytes], None],
    ) -> None:
        """`taken` is given each TAKEN, which is for this node's `SnapshotSender`."""
        self._environment = environment
        self._transport = transport
        self._snapshots = store.snapshots
        self._store = store
        self._feed = feed
        self._driver = driver
        self._taken = taken
        self._transfer: _Transfer | None = None

    def on_data(self, sender: ReplicaId, data: bytes) -> None:
        """One piece of a transfer."""
        if len(data) < _PIECE.size:
            return
        kind, position, number = _PIECE.unpack_from(data)
        if kind == _BEGIN:
            self._begin(sender, data)
            return
        if kind == _TAKEN:
            self._taken(sender, data)
            return
        transfer = self._transfer
        if transfer is None or sender != transfer.sender or transfer.whole:
            return
        if position != transfer.job.meta.position or number != transfer.number:
            return
        if kind == _END:
            transfer.whole = True
            return
        transfer.number += 1
        transfer.waiting.append(memoryview(data)[_PIECE.size :])
        self._go_on(transfer)
        if len(transfer.waiting) > 2 * WINDOW_CHUNKS:  # a TAKEN of an earlier transfer may have made room once more
            self.abandon()

    def _begin(self, sender: ReplicaId, data: bytes) -> None:
        if self._transfer is not None and self._transfer.install is not None:
            return
        self.abandon()
        try:
            meta = _decode_meta(memoryview(data)[_PIECE.size :])
        except msgspec.MsgspecError:
            return
        self._transfer = _Transfer(SnapshotJob(self._environment, URGENT, self._snapshots.begin(meta)), sender)

    def finish(
        self, sender: ReplicaId, announced: SnapshotMeta, done: Callable[[Received | BaseException], None]
    ) -> None:
        """All pieces are here: make the snapshot durable and decode it, then call `done`.

        An unknown transfer is ignored.
        """
        transfer = self._transfer
        if transfer is None or transfer.install is not None or not transfer.whole:
            return
        if sender == transfer.sender and announced.position == transfer.job.meta.position:
            transfer.install = _Install(announced, done)
            self._go_on(transfer)

    def abandon(self) -> None:
        """Drop a half-received snapshot."""
        if self._transfer is not None:
            self._transfer.job.drop()
            self._transfer = None

    def _go_on(self, transfer: _Transfer) -> None:
        """Have a worker write what has arrived, and at the end make it durable."""
        if transfer.job.busy:
            return
        if transfer.waiting:
            pieces, transfer.waiting = transfer.waiting, []
            transfer.job.write(pieces, partial(self._written, transfer, transfer.number))
        elif transfer.install is not None:
            work = partial(self._take_in, transfer.install.announced)
            transfer.job.run(work, partial(self._ended, transfer))

    def _written(self, transfer: _Transfer, number: int, error: BaseException | None) -> None:
        if error is None:
            head = _PIECE.pack(_TAKEN, transfer.job.meta.position, number)
            self._transport.send_data(transfer.sender.node_id, SNAPSHOT_CHANNEL, (head,))
            self._go_on(transfer)
        else:
            self._ended(transfer, error)

    def _take_in(self, announced: SnapshotMeta, writer: SnapshotWriter) -> Received:
        if (writer.meta.last_index, writer.meta.last_term) != (announced.last_index, announced.last_term):
            raise CorruptionError(f"the snapshot at {announced.position} is not the one announced: {writer.meta}")
        self._store.files.prepare_reset(writer.meta)  # the space that installing it needs beside its file
        meta = writer.commit()
        try:
            self._snapshots.verify(meta)
        except CorruptionError:
            self._snapshots.delete(meta.position)  # else a trim would rely on it
            raise
        try:
            return Received(meta, self._feed.decode(meta))
        except CorruptionError as error:  # to be sent it again would not help
            raise StorageError(f"the snapshot at {meta.position} holds no state for this version: {error}") from error

    def _ended(self, transfer: _Transfer, result: Received | BaseException) -> None:
        self._transfer = None
        if isinstance(result, BaseException):
            transfer.job.drop()
        if transfer.install is not None:
            transfer.install.done(result)
        elif isinstance(result, BaseException) and not isinstance(result, LogFullError):
            self._driver.fail(result)


def _ignore(_result: object) -> None:
    """What could not be closed is closed at the end of the process."""
