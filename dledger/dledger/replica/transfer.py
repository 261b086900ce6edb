"""Carries snapshots from a leader to followers that need entries it no longer has.

On the snapshot channel of the bulk lane a transfer is: one BEGIN with the meta, CHUNKs in order, one END, then the
core's `InstallSnapshot` message behind them.  Each piece starts with

    offset  size  field
         0     1  kind    0 begin, 1 chunk, 2 end
         1     8  position of the snapshot
         9     4  number of the chunk, from 0; of an END, how many there were

A lost piece makes the receiver ignore the transfer; the leader starts over when the connection does, or when nothing
came of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import msgspec

from dledger.core.messages import InstallSnapshot
from dledger.environment import URGENT, Environment
from dledger.errors import CorruptionError, LogFullError, StorageError
from dledger.net.transport import Lane, Transport
from dledger.store.snapshots import SnapshotStore, SnapshotWriter
from dledger.types import ReplicaId, SnapshotMeta

SNAPSHOT_CHANNEL = 250
MAX_QUEUED_BYTES = 1 << 20
PAUSE_S = 0.01

_PIECE = struct.Struct(">BQI")
_BEGIN, _CHUNK, _END = 0, 1, 2
_decode_meta = msgspec.msgpack.Decoder(SnapshotMeta).decode


class SnapshotSender:
    """Sends one snapshot to one peer; `still_wanted()` is asked before every piece.

    Ends with `sent()` or `broken()`, or with neither once it is not wanted any more; `rotten()` says beforehand that it
    is broken for good.
    """

    def __init__(
        self,
        environment: Environment,
        transport: Transport,
        snapshots: SnapshotStore,
        to: ReplicaId,
        term: int,
        meta: SnapshotMeta,
        *,
        still_wanted: Callable[[], bool],
        sent: Callable[[], None],
        broken: Callable[[], None],
        rotten: Callable[[], None],
    ) -> None:
        self._environment = environment
        self._transport = transport
        self._to = to
        self._term = term
        self._meta = meta
        self._still_wanted = still_wanted
        self._sent = sent
        self._broken = broken
        self._rotten = rotten
        self._chunks: Iterator[bytes] = snapshots.read_chunks(meta)
        self._number = 0

    def start(self) -> None:
        """Send BEGIN and go on chunk by chunk."""
        head = _PIECE.pack(_BEGIN, self._meta.position, 0)
        if self._transport.send_data(self._to.node_id, SNAPSHOT_CHANNEL, (head, msgspec.msgpack.encode(self._meta))):
            self._environment.call_soon(self._next)
        else:
            self._broken()

    def _next(self) -> None:
        if not self._still_wanted():
            return
        if self._transport.queued_bytes(self._to.node_id, Lane.BULK) > MAX_QUEUED_BYTES:
            self._environment.call_later(PAUSE_S, self._next)
            return
        self._environment.run_blocking(URGENT, self._read, self._on_read)

    def _read(self) -> bytes | None:
        return next(self._chunks, None)

    def _on_read(self, chunk: bytes | BaseException | None) -> None:
        if not self._still_wanted():
            return
        if isinstance(chunk, BaseException):
            if isinstance(chunk, CorruptionError | StorageError):
                self._rotten()
            self._broken()
            return
        if chunk is None:
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
            self._broken()

    def _finish(self) -> bool:
        meta = self._meta
        end = _PIECE.pack(_END, meta.position, self._number)
        install = InstallSnapshot(
            self._term,
            meta.position,
            meta.last_index,
            meta.last_term,
            meta.chain_crc,
            meta.membership,
            meta.membership_index,
        )
        return self._transport.send_data(self._to.node_id, SNAPSHOT_CHANNEL, (end,)) and self._transport.send(
            self._to.node_id, Lane.BULK, install
        )


class SnapshotReceiver:
    """Takes one transfer in; a newer BEGIN replaces what was there, unless that is being made durable."""

    def __init__(
        self, environment: Environment, snapshots: SnapshotStore, prepare: Callable[[SnapshotMeta], None]
    ) -> None:
        """`prepare`, called on a worker thread, takes the space that installing the snapshot needs beside its file."""
        self._environment = environment
        self._snapshots = snapshots
        self._prepare = prepare
        self._writer: SnapshotWriter | None = None
        self._sender: ReplicaId | None = None
        self._number = 0
        self._whole = False
        self._finishing = False

    def on_data(self, sender: ReplicaId, data: bytes) -> None:
        """One piece of a transfer."""
        if len(data) < _PIECE.size:
            return
        kind, position, number = _PIECE.unpack_from(data)
        if kind == _BEGIN:
            self._begin(sender, data)
            return
        writer = self._writer
        if writer is None or sender != self._sender or position != writer.meta.position or number != self._number:
            return
        if kind == _END:
            self._whole = True
            return
        try:
            writer.write(memoryview(data)[_PIECE.size :])
        except LogFullError:
            self.abandon()
            return
        self._number += 1

    def _begin(self, sender: ReplicaId, data: bytes) -> None:
        if self._finishing:
            return
        self.abandon()
        try:
            meta = _decode_meta(memoryview(data)[_PIECE.size :])
            self._writer = self._snapshots.begin(meta)
        except (msgspec.MsgspecError, LogFullError):
            return
        self._sender = sender
        self._number = 0
        self._whole = False

    def finish(
        self, sender: ReplicaId, message: InstallSnapshot, done: Callable[[SnapshotMeta | BaseException], None]
    ) -> None:
        """All pieces are here: make the snapshot durable, then call `done`.  An unknown transfer is ignored."""
        writer = self._writer
        if writer is None or sender != self._sender or writer.meta.position != message.position or not self._whole:
            return
        self._writer = None
        self._finishing = True

        def work() -> SnapshotMeta:
            if (writer.meta.last_index, writer.meta.last_term) != (message.last_index, message.last_term):
                raise CorruptionError(f"the snapshot at {message.position} is not the one announced: {writer.meta}")
            self._prepare(writer.meta)
            meta = writer.commit()
            try:
                self._snapshots.verify(meta)
            except CorruptionError:
                self._snapshots.delete(meta.position)  # else a trim would rely on it
                raise
            return meta

        def finished(result: SnapshotMeta | BaseException) -> None:
            self._finishing = False
            if isinstance(result, BaseException):
                writer.abort()
            done(result)

        self._environment.run_blocking(URGENT, work, finished)

    def abandon(self) -> None:
        """Drop a half-received snapshot."""
        if self._writer is not None:
            self._writer.abort()
            self._writer = None
