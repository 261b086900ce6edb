"""Transfer of snapshots from a leader to followers that need entries it no longer has.

A transfer on the snapshot channel of the bulk lane is one BEGIN with the meta, CHUNKs in order, and one END. The
engine's message that announces the snapshot follows. The receiver sends TAKENs back. Each piece starts with

    offset  size  field
         0     1  kind    0 begin, 1 chunk, 2 end, 3 taken
         1     8  position of the snapshot
         9     4  number of the chunk, from 0; of an END, how many there were; of a TAKEN, how many were written

At most `WINDOW_CHUNKS` are on their way or wait for the receiver's disk. After a lost piece the receiver ignores the
transfer. The leader starts over when the connection does, or when the transfer led to nothing.
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
from dledger.replica.snapshots.taking import SnapshotJob
from dledger.statemachine import Restore
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotStore, SnapshotWriter
from dledger.types import Lane, ReplicaId, SnapshotMeta

SNAPSHOT_CHANNEL = 250
MAX_QUEUED_BYTES = 1 << 20
PAUSE_S = 0.01
WINDOW_CHUNKS = 16
"""Maximum number of chunks that are sent and not yet written by the receiver.

Each has `dledger.store.snapshots.CHUNK_BYTES`.
"""
STALLED_S = 10.0
"""Seconds without any write by the receiver after which it is assumed to have given the transfer up."""

_PIECE = struct.Struct(">BQI")
_BEGIN, _CHUNK, _END, _TAKEN = 0, 1, 2, 3
_decode_meta = msgspec.msgpack.Decoder(SnapshotMeta).decode


class SnapshotSender:
    """Sends one snapshot to one peer, then the engine's `announcement` of it.

    `is_wanted()` is asked before every piece. The sender ends with `on_sent()` or `on_broken()`, or with neither once
    the snapshot is not wanted any more. `on_rotten()` is called before `on_broken()` if the snapshot itself cannot be
    read.
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
        is_wanted: Callable[[], bool],
        on_sent: Callable[[], None],
        on_broken: Callable[[], None],
        on_rotten: Callable[[], None],
    ) -> None:
        self._environment = environment
        self._transport = transport
        self._peer = to
        self._meta = meta
        self._announcement = announcement
        self._is_wanted = is_wanted
        self._on_sent = on_sent
        self._on_broken = on_broken
        self._on_rotten = on_rotten
        self._chunks = snapshots.read_chunks(meta)
        self._lock = Lock()
        self._is_reading = False
        self._is_ended = False
        self._sent_chunks = 0
        self._taken_chunks = 0
        self._last_taken_at = environment.now()

    def on_data(self, data: bytes) -> None:
        """Take a TAKEN of the receiver: the chunks it has written make room for more."""
        kind, position, taken_chunks = _PIECE.unpack_from(data)
        if (
            kind == _TAKEN
            and position == self._meta.position
            and self._taken_chunks < taken_chunks <= self._sent_chunks
        ):
            self._taken_chunks = taken_chunks
            self._last_taken_at = self._environment.now()

    def start(self) -> None:
        """Send BEGIN, then chunk by chunk."""
        head = _PIECE.pack(_BEGIN, self._meta.position, 0)
        if self._transport.send_data(self._peer.node_id, SNAPSHOT_CHANNEL, (head, msgspec.msgpack.encode(self._meta))):
            self._environment.call_soon(self._next)
        else:
            self._fail()

    def stop(self) -> None:
        """Stop sending. A worker closes the file, which may take long because it may be unlinked by now."""
        with self._lock:
            must_close, self._is_ended = not self._is_ended and not self._is_reading, True
        if must_close:
            self._environment.run_blocking(URGENT, self._chunks.close, _ignore)

    def _fail(self) -> None:
        self.stop()
        self._on_broken()

    def _is_active(self) -> bool:
        if not self._is_ended and not self._is_wanted():
            self.stop()
        return not self._is_ended

    def _next(self) -> None:
        if not self._is_active():
            return
        is_blocked = self._sent_chunks - self._taken_chunks >= WINDOW_CHUNKS
        if is_blocked and self._environment.now() - self._last_taken_at > STALLED_S:
            self._fail()
            return
        if is_blocked or self._transport.queued_bytes(self._peer.node_id, Lane.BULK) > MAX_QUEUED_BYTES:
            self._environment.call_later(PAUSE_S, self._next)
            return
        self._is_reading = True
        self._environment.run_blocking(URGENT, self._read, self._on_read)

    def _read(self) -> bytes | None:
        try:
            return next(self._chunks, None)
        finally:
            with self._lock:
                self._is_reading, is_ended = False, self._is_ended
            if is_ended:
                self._chunks.close()

    def _on_read(self, chunk: bytes | BaseException | None) -> None:
        if not self._is_active():
            return
        if isinstance(chunk, BaseException):
            if isinstance(chunk, CorruptionError | StorageError):
                self._on_rotten()
            self._fail()
            return
        if chunk is None:
            self._is_ended = True
            if self._finish():
                self._on_sent()
            else:
                self._on_broken()
            return
        head = _PIECE.pack(_CHUNK, self._meta.position, self._sent_chunks)
        self._sent_chunks += 1
        if self._transport.send_data(self._peer.node_id, SNAPSHOT_CHANNEL, (head, chunk)):
            self._environment.call_soon(self._next)
        else:
            self._fail()

    def _finish(self) -> bool:
        end = _PIECE.pack(_END, self._meta.position, self._sent_chunks)
        return self._transport.send_data(self._peer.node_id, SNAPSHOT_CHANNEL, (end,)) and self._transport.send(
            self._peer.node_id, self._announcement.lane, self._announcement
        )


class _Transfer:
    """One snapshot that is being received. Its pieces wait here for the worker that writes them."""

    __slots__ = ("install", "is_complete", "job", "number", "pending_pieces", "sender")

    def __init__(self, job: SnapshotJob, sender: ReplicaId) -> None:
        self.job = job
        self.sender = sender
        self.number = 0
        self.pending_pieces: list[memoryview] = []
        self.is_complete = False
        self.install: _Install | None = None


class Received(NamedTuple):
    """A snapshot that is durable here, and the call that puts its state in place."""

    meta: SnapshotMeta
    restore: Restore


class _Install(NamedTuple):
    """The snapshot that the message after a transfer announces, and the callback for its result."""

    announced: SnapshotMeta
    done: Callable[[Received | BaseException], None]


class SnapshotReceiver:
    """Receives one transfer at a time. A newer BEGIN replaces it, unless its snapshot is already being made durable."""

    def __init__(
        self,
        environment: Environment,
        transport: Transport,
        store: LogStore,
        feed: MachineFeed,
        driver: Driver,
        *,
        on_taken: Callable[[ReplicaId, bytes], None],
    ) -> None:
        """Make a receiver. `on_taken` is given each TAKEN, which is for this node's `SnapshotSender`."""
        self._environment = environment
        self._transport = transport
        self._snapshots = store.snapshots
        self._store = store
        self._feed = feed
        self._driver = driver
        self._on_taken = on_taken
        self._transfer: _Transfer | None = None

    def on_data(self, sender: ReplicaId, data: bytes) -> None:
        """Take one piece of a transfer."""
        if len(data) < _PIECE.size:
            return
        kind, position, number = _PIECE.unpack_from(data)
        if kind == _BEGIN:
            self._begin(sender, data)
            return
        if kind == _TAKEN:
            self._on_taken(sender, data)
            return
        transfer = self._transfer
        if transfer is None or sender != transfer.sender or transfer.is_complete:
            return
        if position != transfer.job.meta.position or number != transfer.number:
            return
        if kind == _END:
            transfer.is_complete = True
            return
        transfer.number += 1
        transfer.pending_pieces.append(memoryview(data)[_PIECE.size :])
        self._write_pending(transfer)
        # a TAKEN of an earlier transfer may have let the sender send more
        if len(transfer.pending_pieces) > 2 * WINDOW_CHUNKS:
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
        """Make the snapshot durable and decode it once all pieces are here, then call `done`.

        An unknown transfer is ignored.
        """
        transfer = self._transfer
        if transfer is None or transfer.install is not None or not transfer.is_complete:
            return
        if sender == transfer.sender and announced.position == transfer.job.meta.position:
            transfer.install = _Install(announced, done)
            self._write_pending(transfer)

    def abandon(self) -> None:
        """Drop a half-received snapshot."""
        if self._transfer is not None:
            self._transfer.job.drop()
            self._transfer = None

    def _write_pending(self, transfer: _Transfer) -> None:
        """Have a worker write the pieces that have arrived, and at the end make the snapshot durable."""
        if transfer.job.busy:
            return
        if transfer.pending_pieces:
            pieces, transfer.pending_pieces = transfer.pending_pieces, []
            transfer.job.write(pieces, partial(self._on_written, transfer, transfer.number))
        elif transfer.install is not None:
            work = partial(self._commit_snapshot, transfer.install.announced)
            transfer.job.run(work, partial(self._finish_transfer, transfer))

    def _on_written(self, transfer: _Transfer, number: int, error: BaseException | None) -> None:
        if error is None:
            head = _PIECE.pack(_TAKEN, transfer.job.meta.position, number)
            self._transport.send_data(transfer.sender.node_id, SNAPSHOT_CHANNEL, (head,))
            self._write_pending(transfer)
        else:
            self._finish_transfer(transfer, error)

    def _commit_snapshot(self, announced: SnapshotMeta, writer: SnapshotWriter) -> Received:
        if (writer.meta.last_index, writer.meta.last_term) != (announced.last_index, announced.last_term):
            raise CorruptionError(f"the snapshot at {announced.position} is not the one announced: {writer.meta}")
        # reserves the space that installing needs beside the snapshot's file
        self._store.files.prepare_reset(writer.meta)
        meta = writer.commit()
        try:
            self._snapshots.verify(meta)
        except CorruptionError:
            self._snapshots.delete(meta.position)  # otherwise a trim would rely on it
            raise
        try:
            return Received(meta, self._feed.decode(meta))
        except CorruptionError as error:  # receiving it again would not help
            raise StorageError(f"the snapshot at {meta.position} holds no state for this version: {error}") from error

    def _finish_transfer(self, transfer: _Transfer, result: Received | BaseException) -> None:
        self._transfer = None
        if isinstance(result, BaseException):
            transfer.job.drop()
        if transfer.install is not None:
            transfer.install.done(result)
        elif isinstance(result, BaseException) and not isinstance(result, LogFullError):
            self._driver.fail(result)


def _ignore(_result: object) -> None:
    """Do nothing. A file that could not be closed is closed at the end of the process."""
