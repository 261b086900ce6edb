"""Finds snapshots that rotted, and puts another replica's copy in their place.

Replicas write a snapshot of the same state at the same mark, so one can take the place of another.  One that does not
verify is neither trimmed to nor sent to anybody; the state in memory is not touched by it.

On the snapshot copy channel of the bulk lane:

    offset  size  field
         0     1  kind      0 request, 1 bytes, 2 refusal
         1     4  number    of the request, repeated in the answer; big-endian, as all
         5     8  position  of the snapshot
        13     8  offset    in its file
        21     8  size      of the whole file; 0 in a request and in a refusal
        29     n  the bytes, in kind 1: at most `PIECE_BYTES`, fewer only at the end of the file

One request is on its way at a time.  What was collected replaces the rotten file only if all of it verifies and it
joins this replica's log.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import TypeVar

from dledger.environment import BACKGROUND, Environment
from dledger.errors import BusyError, CorruptionError, LogFullError, StorageError, TrimmedError
from dledger.net.transport import Transport
from dledger.replica.applier import Applier
from dledger.replica.driver import Driver
from dledger.replica.snapshotter import Snapshotter
from dledger.store.log import LogStore
from dledger.store.snapshots import SnapshotCopy, SnapshotStore
from dledger.types import ReplicaId, SnapshotMeta

SNAPSHOT_COPY_CHANNEL = 254
PIECE_BYTES = 256 << 10
ANSWER_S = 2.0
"""How long a peer may take to answer before another one is asked."""
RETRY_S = 5.0
"""Pause after every peer was asked in vain."""
SCRUB_BYTES = 1 << 20
"""Verified per step, four times a second."""

_HEAD = struct.Struct(">BIQQQ")
_REQUEST, _BYTES, _REFUSAL = 0, 1, 2

T = TypeVar("T")

logger = logging.getLogger(__name__)


class _Attempt:
    """One try to replace one snapshot, over all peers."""

    __slots__ = ("asked", "copy", "deadline", "filled", "known", "peer", "position")

    def __init__(self, position: int, known: SnapshotMeta | None) -> None:
        self.position = position
        self.known = known
        self.asked: set[ReplicaId] = set()
        self.peer: ReplicaId | None = None
        self.copy: SnapshotCopy | None = None
        self.filled = 0
        self.deadline = 0.0

    def abort(self) -> None:
        """Drop what was collected.  Blocks."""
        if self.copy is not None:
            self.copy.abort()
            self.copy = None


class SnapshotKeeper:
    """Scrubs and replaces, one thing at a time; `tick` is called a few times a second.

    `connected` maps node ids to the incarnation that can be sent to.  A snapshot above what is applied will be written
    once its mark is applied again.  `rest_s` is the pause between two rounds.  The snapshotter looks again for what to
    trim when a snapshot is there again.
    """

    def __init__(
        self,
        node_id: str,
        environment: Environment,
        transport: Transport,
        store: LogStore,
        snapshots: SnapshotStore,
        connected: Mapping[str, ReplicaId],
        applier: Applier,
        snapshotter: Snapshotter,
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
        self._applier = applier
        self._snapshotter = snapshotter
        self._driver = driver
        self._rest_s = rest_s
        self._attempt: _Attempt | None = None
        self._number = 0
        self._retry_at = 0.0
        self._scrub_at = environment.now() + rest_s
        self._scrubbed: SnapshotMeta | None = None
        """The one that is being verified, or was verified last in this round."""
        self._steps: Generator[int] | None = None
        self._working = False
        self._announced: set[int] = set()
        self._missed: set[int] = set()
        self._stopped = False
        self.replaced = 0
        """Snapshots replaced by a peer's since the start."""

    def tick(self) -> None:
        """Go on with whatever is due."""
        self._announce()
        attempt, now = self._attempt, self._environment.now()
        if self._stopped or self._working:
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
        """Remove what was collected, and verify nothing more; no work may be running."""
        self._stop_verifying()
        if self._attempt is not None:
            self._attempt.abort()

    def on_data(self, sender: ReplicaId, data: bytes) -> None:
        """A peer asks or answers."""
        if len(data) < _HEAD.size or self._stopped:
            return
        kind, number, position, offset, size = _HEAD.unpack_from(data)
        if kind == _REQUEST:
            self._serve(sender, number, position, offset)
            return
        attempt = self._attempt
        if attempt is None or self._working or attempt.peer != sender or number != self._number:
            return
        piece = memoryview(data)[_HEAD.size :]
        if kind == _BYTES and piece and offset == attempt.filled:
            self._run(partial(self._collect, attempt, piece, size), partial(self._on_collected, attempt))
        else:
            self._ask_next_peer(attempt)

    # ---------------------------------------------------------------- finding

    def _announce(self) -> None:
        rotten = set(self._snapshots.rotten)
        for position in sorted(rotten - self._announced):
            logger.error(
                "node=%s event=snapshot_rotten position=%d consequence=%r",
                self._node_id,
                position,
                "nothing is trimmed to it and nobody is sent it until another replica's has replaced it",
            )
        self._announced = rotten
        self._missed &= rotten

    def _scrub(self) -> None:
        """Verify some more of the snapshot at hand, or begin with the next one."""
        if self._scrubbed is None:
            self._scrub_next(-1)
        elif self._scrubbed not in self._snapshots.list():
            self._run(self._stop_verifying, partial(self._on_verified, self._scrubbed))
            return
        if self._scrubbed is not None:
            self._run(self._verify_some, partial(self._on_verified, self._scrubbed))

    def _scrub_next(self, after: int) -> None:
        self._scrubbed = next((meta for meta in self._snapshots.list() if meta.position > after), None)
        if self._scrubbed is None:
            self._scrub_at = self._environment.now() + self._rest_s
        else:
            self._steps = self._snapshots.verify_in_steps(self._scrubbed)

    def _verify_some(self) -> bool:
        """On a worker: False once all of it was verified."""
        budget = SCRUB_BYTES
        for size in self._steps or ():
            budget -= size
            if budget <= 0:
                return True
        return False

    def _stop_verifying(self) -> bool:
        """On a worker, which closes the file: it is unlinked by now.  False as all of it was verified."""
        if self._steps is not None:
            self._steps.close()
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
        for position, known in sorted(self._snapshots.rotten.items(), key=lambda item: item[0]):
            if position < first:
                self._run(partial(self._snapshots.delete, position), self._on_deleted)
                return
            if position < self._applier.applied_position:
                self._attempt = attempt = _Attempt(position, known)
                self._ask_next_peer(attempt)
                return
        self._retry_at = self._environment.now() + RETRY_S

    def _on_deleted(self, result: object) -> None:
        if isinstance(result, BaseException):
            self._driver.fail(result)

    def _ask_next_peer(self, attempt: _Attempt) -> None:
        """Ask another peer for the whole file, from its beginning."""
        attempt.filled = 0
        if attempt.copy is not None:
            self._run(attempt.abort, lambda _: self._ask_next_peer(attempt))
            return
        if attempt.position in self._snapshots.rotten:
            for peer in sorted(self._connected.values()):
                if peer not in attempt.asked:
                    attempt.asked.add(peer)
                    attempt.peer = peer
                    if self._ask(attempt, peer):
                        return
            self._say_missed(attempt.position)
        self._attempt = None
        self._retry_at = self._environment.now() + RETRY_S

    def _ask(self, attempt: _Attempt, peer: ReplicaId) -> bool:
        attempt.deadline = self._environment.now() + ANSWER_S
        self._number = (self._number + 1) & 0xFFFFFFFF
        head = _HEAD.pack(_REQUEST, self._number, attempt.position, attempt.filled, 0)
        return self._transport.send_data(peer.node_id, SNAPSHOT_COPY_CHANNEL, (head,))

    def _collect(self, attempt: _Attempt, piece: memoryview, file_bytes: int) -> SnapshotMeta | None:
        """On a worker: add a piece; behind the last one, put the file in the rotten one's place."""
        if attempt.copy is None:
            attempt.copy = self._snapshots.copy(attempt.position)
        copy = attempt.copy
        copy.write(piece)
        attempt.filled = copy.filled
        if copy.filled < file_bytes:
            return None
        meta = copy.verify()
        self._check_joins(meta, attempt.known)
        copy.commit(meta)
        attempt.copy = None
        return meta

    def _check_joins(self, meta: SnapshotMeta, known: SnapshotMeta | None) -> None:
        """Raise `CorruptionError` unless the snapshot is of this log."""
        store = self._store
        if known is not None and meta != known:
            raise CorruptionError(f"a peer's snapshot at {meta.position} is {meta}, this replica's was {known}")
        if meta.position > store.first_position:
            before = store.meta(meta.last_index)
            if (before.term, before.chain_crc) != (meta.last_term, meta.chain_crc):
                raise CorruptionError(f"a peer's snapshot at {meta.position} is {meta}, the log has {before} there")
        elif known is None:
            raise CorruptionError(f"nothing tells what stood before the log, which begins at {meta.position}")

    def _on_collected(self, attempt: _Attempt, result: SnapshotMeta | BaseException | None) -> None:
        if isinstance(result, CorruptionError | TrimmedError | LogFullError):
            logger.warning(
                "node=%s event=snapshot_copy_refused peer=%s error=%r", self._node_id, attempt.peer, str(result)
            )
            self._ask_next_peer(attempt)
        elif isinstance(result, BaseException):
            self._driver.fail(result)
        elif result is not None:
            self.replaced += 1
            self._attempt = None
            logger.warning(
                "node=%s event=snapshot_replaced position=%d peer=%s", self._node_id, attempt.position, attempt.peer
            )
            self._snapshotter.retry()
        elif attempt.peer is None or not self._ask(attempt, attempt.peer):
            self._ask_next_peer(attempt)

    def _say_missed(self, position: int) -> None:
        if position not in self._missed:
            self._missed.add(position)
            logger.error(
                "node=%s event=snapshot_missed position=%d again_s=%g reason='no other node has it now'"
                " consequence='without a later snapshot a restart finds no state: let it run until one was written'",
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
            head = _HEAD.pack(_BYTES if data else _REFUSAL, number, position, offset, size)
            self._transport.send_data(sender.node_id, SNAPSHOT_COPY_CHANNEL, (head, data))

        if position in self._snapshots.positions():
            read = partial(self._snapshots.read_file, position, offset, PIECE_BYTES)
            self._environment.run_blocking(BACKGROUND, read, answer)
        else:
            answer((b"", 0))

    # ---------------------------------------------------------------- one thing at a time

    def _run(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Do one work on a worker; where the lane is full it is due again with the next tick."""
        self._working = True

        def finished(result: T | BaseException) -> None:
            self._working = False
            if not self._stopped and not isinstance(result, BusyError):
                done(result)

        self._environment.run_blocking(BACKGROUND, work, finished)
