"""Keeper of snapshots: finds rotten snapshots, and replaces them with another replica's copy.

Replicas write a snapshot of the same state at the same mark, so copies are interchangeable. A snapshot that does not
verify is neither trimmed to nor sent. The state in memory is not affected.

On the snapshot copy channel of the bulk lane:

    offset  size  field
         0     1  kind      0 request, 1 bytes, 2 refusal
         1     4  number    of the request, repeated in the answer; big-endian, as all
         5     8  position  of the snapshot
        13     8  offset    in its file
        21     8  size      of the whole file; 0 in a request and in a refusal
        29     n  the bytes, in kind 1: at most `PIECE_BYTES`, fewer only at the end of the file

One request is on its way at a time. A collected copy replaces the rotten file only if all of it verifies and joins this
replica's log.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

from dledger.environment import BACKGROUND, Environment
from dledger.errors import BusyError, CorruptionError, LogFullError, StorageError, TrimmedError
from dledger.net.transport import Transport
from dledger.replica.driver import Driver
from dledger.replica.snapshots.taking import SnapshotTaker
from dledger.replica.standing import ConnectedPeers, Standing
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotCopy, SnapshotStore
from dledger.types import ReplicaId, SnapshotMeta

SNAPSHOT_COPY_CHANNEL = 254
PIECE_BYTES = 256 << 10
ANSWER_TIMEOUT_S = 2.0
"""Time limit for a peer's answer, in seconds, before another peer is asked."""
RETRY_S = 5.0
"""Pause in seconds after every peer was asked in vain."""
SCRUB_BYTES = 1 << 20
"""Number of bytes verified per step, four times a second."""

HEAD = struct.Struct(">BIQQQ")
REQUEST, BYTES, REFUSAL = 0, 1, 2

T = TypeVar("T")

logger = logging.getLogger(__name__)


class _Attempt:
    """One attempt to replace one snapshot, over all peers."""

    __slots__ = ("asked_peers", "copy", "deadline", "file_bytes", "filled_bytes", "known_meta", "peer", "position")

    def __init__(self, position: int, known_meta: SnapshotMeta | None) -> None:
        self.position = position
        self.known_meta = known_meta
        self.asked_peers: set[ReplicaId] = set()
        self.peer: ReplicaId | None = None
        self.copy: SnapshotCopy | None = None
        self.filled_bytes = 0
        self.file_bytes = 0
        """Size of the file, as the peer named it with the first piece."""
        self.deadline = 0.0

    def abort(self) -> None:
        """Drop the collected copy. Blocks."""
        if self.copy is not None:
            self.copy.abort()
            self.copy = None


class SnapshotKeeper:
    """Scrubs and replaces, one thing at a time; `tick` is called a few times a second.

    A rotten snapshot above what is applied is not
    fetched: it is written when its mark is applied again. `rest_s` is the pause between two rounds. After a replacement
    the taker tries a due trim again.
    """

    def __init__(
        self,
        node_id: str,
        environment: Environment,
        transport: Transport,
        store: LogStore,
        snapshots: SnapshotStore,
        connected: ConnectedPeers,
        standing: Standing,
        taker: SnapshotTaker,
        driver: Driver,
        *,
        rest_s: float,
    ) -> None:
        self._node_id = node_id
        self._environment = environment
        self._transport = transport
        self._store = store
        self._snapshots = snapshots
        self._connected = connected
        self._standing = standing
        self._taker = taker
        self._driver = driver
        self._round_pause_s = rest_s
        self._attempt: _Attempt | None = None
        self._number = 0
        self._retry_at = 0.0
        self._scrub_at = environment.now() + rest_s
        self._scrubbed_snapshot: SnapshotMeta | None = None
        """The snapshot that is being verified, or that was verified last in this round."""
        self._verify_steps: Generator[int] | None = None
        self._is_working = False
        self._logged_rotten: set[int] = set()
        self._logged_unavailable: set[int] = set()
        self._stopped = False
        self.replaced = 0
        """Number of snapshots replaced by a peer's copy since the start."""

    def tick(self) -> None:
        """Do the next due step."""
        self._log_rotten()
        attempt, now = self._attempt, self._environment.now()
        if self._stopped or self._is_working:
            return
        if attempt is not None:
            if now >= attempt.deadline:
                self._ask_next_peer(attempt)
        elif now >= self._retry_at and self._snapshots.rotten:
            self._begin()
        elif now >= self._scrub_at:
            self._scrub()

    def stop(self) -> None:
        """Do nothing more."""
        self._stopped = True

    def close(self) -> None:
        """Remove the collected copy and stop verifying. No work may be running."""
        self._stop_verifying()
        if self._attempt is not None:
            self._attempt.abort()

    def on_data(self, sender: ReplicaId, data: bytes) -> None:
        """Take a peer's request or answer."""
        if len(data) < HEAD.size or self._stopped:
            return
        kind, number, position, offset, size = HEAD.unpack_from(data)
        if kind == REQUEST:
            self._serve(sender, number, position, offset)
            return
        attempt = self._attempt
        if attempt is None or self._is_working or attempt.peer != sender or number != self._number:
            return
        piece = memoryview(data)[HEAD.size :]
        if kind == BYTES and piece and offset == attempt.filled_bytes:
            self._run(partial(self._collect, attempt, piece, size), partial(self._on_collected, attempt))
        else:
            self._ask_next_peer(attempt)

    # ---------------------------------------------------------------- finding

    def _log_rotten(self) -> None:
        rotten = set(self._snapshots.rotten)
        for position in sorted(rotten - self._logged_rotten):
            logger.error(
                "node=%s event=snapshot_rotten position=%d consequence=%r",
                self._node_id,
                position,
                "it is not sent, and the log is not trimmed to it, until another replica's snapshot has replaced it",
            )
        self._logged_rotten = rotten
        self._logged_unavailable &= rotten

    def _scrub(self) -> None:
        """Verify some more of the present snapshot, or begin with the next one."""
        if self._scrubbed_snapshot is None:
            self._scrub_next(-1)
        elif self._scrubbed_snapshot not in self._snapshots.list():
            self._run(self._stop_verifying, partial(self._on_verified, self._scrubbed_snapshot))
            return
        if self._scrubbed_snapshot is not None:
            self._run(self._verify_some, partial(self._on_verified, self._scrubbed_snapshot))

    def _scrub_next(self, after: int) -> None:
        self._scrubbed_snapshot = next((meta for meta in self._snapshots.list() if meta.position > after), None)
        if self._scrubbed_snapshot is None:
            self._scrub_at = self._environment.now() + self._round_pause_s
        else:
            self._verify_steps = self._snapshots.verify_in_steps(self._scrubbed_snapshot)

    def _verify_some(self) -> bool:
        """Verify some more, on a worker. Returns False once all of the snapshot was verified."""
        budget = SCRUB_BYTES
        try:
            for size in self._verify_steps or ():
                budget -= size
                if budget <= 0:
                    return True
        except BusyError:
            if self._scrubbed_snapshot is not None:
                self._verify_steps = self._snapshots.verify_in_steps(self._scrubbed_snapshot)
            raise
        return False

    def _stop_verifying(self) -> bool:
        """Stop verifying, on a worker: closing the file may take long because it is unlinked.

        Returns False, as after the last step.
        """
        if self._verify_steps is not None:
            self._verify_steps.close()
        return False

    def _on_verified(self, meta: SnapshotMeta, result: bool | BaseException) -> None:
        if isinstance(result, CorruptionError | StorageError):
            logger.error("node=%s event=snapshot_invalid error=%r", self._node_id, str(result))
            if meta in self._snapshots.list():
                self._snapshots.condemn(meta.position)
        elif isinstance(result, BaseException) and not isinstance(result, TrimmedError):
            self._driver.fail(result)
            return
        if result is not True:
            self._scrub_next(meta.position)

    # ---------------------------------------------------------------- replacing

    def _begin(self) -> None:
        first = self._store.first_position
        for position, known_meta in sorted(self._snapshots.rotten.items(), key=lambda item: item[0]):
            if position < first:
                self._run(partial(self._snapshots.delete, position), self._on_deleted)
                return
            if position < self._standing.applied_position:
                self._attempt = attempt = _Attempt(position, known_meta)
                self._ask_next_peer(attempt)
                return
        self._retry_at = self._environment.now() + RETRY_S

    def _on_deleted(self, result: object) -> None:
        if isinstance(result, BaseException):
            self._driver.fail(result)

    def _ask_next_peer(self, attempt: _Attempt) -> None:
        """Ask the next peer for the whole file, from its beginning."""
        attempt.filled_bytes = 0
        if attempt.copy is not None:
            self._run(attempt.abort, lambda _: self._ask_next_peer(attempt))
            return
        if attempt.position in self._snapshots.rotten:
            for peer in sorted(self._connected):
                if peer not in attempt.asked_peers:
                    attempt.asked_peers.add(peer)
                    attempt.peer = peer
                    if self._ask(attempt, peer):
                        return
            self._log_unavailable(attempt.position)
        self._attempt = None
        self._retry_at = self._environment.now() + RETRY_S

    def _ask(self, attempt: _Attempt, peer: ReplicaId) -> bool:
        attempt.deadline = self._environment.now() + ANSWER_TIMEOUT_S
        self._number = (self._number + 1) & 0xFFFFFFFF
        head = HEAD.pack(REQUEST, self._number, attempt.position, attempt.filled_bytes, 0)
        return self._transport.send_data(peer.node_id, SNAPSHOT_COPY_CHANNEL, (head,))

    def _collect(self, attempt: _Attempt, piece: memoryview, file_bytes: int) -> SnapshotMeta | None:
        """Add a piece, on a worker. After the last piece, put the file in place of the rotten one."""
        if attempt.copy is None:
            if file_bytes > self._store.segment_bytes:  # a usual one replaces the rotten one, also on a full disk
                self._store.require_room_beside(file_bytes)
            attempt.copy = self._snapshots.copy(attempt.position)
            attempt.file_bytes = file_bytes
        copy = attempt.copy
        if file_bytes != attempt.file_bytes or copy.filled + len(piece) > file_bytes:
            raise CorruptionError(f"a peer's snapshot at {attempt.position} has changed its size to {file_bytes}")
        copy.write(piece)
        attempt.filled_bytes = copy.filled
        if copy.filled < file_bytes:
            return None
        meta = copy.verify()
        self._check_joins(meta, attempt.known_meta)
        copy.commit(meta)
        attempt.copy = None
        return meta

    def _check_joins(self, meta: SnapshotMeta, known_meta: SnapshotMeta | None) -> None:
        """Raise `CorruptionError` unless the snapshot belongs to this log."""
        store = self._store
        if known_meta is not None and meta != known_meta:
            raise CorruptionError(f"a peer's snapshot at {meta.position} is {meta}, this replica's was {known_meta}")
        if meta.position > store.first_position:
            last_entry = store.meta(meta.last_index)
            if (last_entry.term, last_entry.chain_crc) != (meta.last_term, meta.chain_crc):
                raise CorruptionError(f"a peer's snapshot at {meta.position} is {meta}, the log has {last_entry} there")
        elif known_meta is None and not store.continues(meta):
            raise CorruptionError(f"a peer's snapshot at {meta.position} is {meta}, and the log begins behind another")

    def _on_collected(self, attempt: _Attempt, result: SnapshotMeta | BaseException | None) -> None:
        if isinstance(result, CorruptionError | TrimmedError | LogFullError):
            logger.warning(
                "node=%s event=snapshot_copy_refused peer=%s error=%r", self._node_id, attempt.peer, str(result)
            )
            self._ask_next_peer(attempt)
        elif isinstance(result, BaseException):
            self._driver.retire(result)
        elif result is not None:
            self.replaced += 1
            self._attempt = None
            logger.warning(
                "node=%s event=snapshot_replaced position=%d peer=%s", self._node_id, attempt.position, attempt.peer
            )
            self._taker.retry()
        elif attempt.peer is None or not self._ask(attempt, attempt.peer):
            self._ask_next_peer(attempt)

    def _log_unavailable(self, position: int) -> None:
        if position not in self._logged_unavailable:
            self._logged_unavailable.add(position)
            logger.error(
                "node=%s event=snapshot_missed position=%d again_s=%g reason='no other node has it now'"
                " consequence='a restart before the next snapshot finds no state: let this node run until then'",
                self._node_id,
                position,
                RETRY_S,
            )

    # ---------------------------------------------------------------- serving

    def _serve(self, sender: ReplicaId, number: int, position: int, offset: int) -> None:
        def answer(result: tuple[bytes, int] | BaseException) -> None:
            if self._stopped:
                return
            data, size = (b"", 0) if isinstance(result, BaseException) else result
            if isinstance(result, CorruptionError) and position in self._snapshots.positions():
                self._snapshots.condemn(position)
            head = HEAD.pack(BYTES if data else REFUSAL, number, position, offset, size)
            self._transport.send_data(sender.node_id, SNAPSHOT_COPY_CHANNEL, (head, data))

        if position in self._snapshots.positions():
            read = partial(self._snapshots.read_file, position, offset, PIECE_BYTES)
            self._environment.run_blocking(BACKGROUND, read, answer)
        else:
            answer((b"", 0))

    # ---------------------------------------------------------------- one thing at a time

    def _run(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run one work on a worker. If the lane is full, it is due again with the next tick."""
        self._is_working = True

        def finished(result: T | BaseException) -> None:
            self._is_working = False
            if not self._stopped and not isinstance(result, BusyError):
                done(result)

        self._environment.run_blocking(BACKGROUND, work, finished)
