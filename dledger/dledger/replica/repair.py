"""Finds what rotted in the log, and heals it with a peer's bytes.

Corrupt ranges come from recovery, from the background scrub, and from verified reads that failed.  Nothing is served
from them.  A range is healed without a leader: any peer that has its bytes sends them, and they are accepted only if
they verify and their chain joins both intact ends.

On the repair channel of the bulk lane:

    offset  size  field
         0     1  kind      0 request, 1 bytes, 2 refusal
         1     4  number    of the request, repeated in the answer; big-endian, as all
         5     8  position  in the log; in a refusal: where the sender's log begins
        13     4  size      in bytes, at most `PIECE_BYTES`, inside one segment
        17     n  the bytes, in kind 1

One request is on its way at a time.  A peer refuses what it does not have durable, or knows to be corrupt itself.  A
range that lies below a peer's log was trimmed by the group, and can only be forgotten here, too; where the state needs
it, all of this log is given up for another one.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from dledger.consensus.engine import Engine
from dledger.environment import BACKGROUND, URGENT, Environment
from dledger.errors import BusyError, ContradictionError, CorruptionError, LogFullError, StorageError, TrimmedError
from dledger.net.transport import Transport
from dledger.replica.applier import Applier
from dledger.replica.driver import Driver
from dledger.replica.forgetting import Forgetter
from dledger.store.damage import CorruptRange
from dledger.store.log import LogStore
from dledger.store.repair import Repaired, Spool
from dledger.types import ReplicaId

REPAIR_CHANNEL = 252
PIECE_BYTES = 256 << 10
ANSWER_S = 2.0
"""How long a peer may take to answer before another one is asked."""
RETRY_S = 1.0
"""Pause after every peer was asked in vain."""
MAX_WIDENINGS = 8
SCRUB_IDLE_BYTES = 2 << 20
"""Verified per step, four times a second, while little is appended."""
SCRUB_BUSY_BYTES = 128 << 10
IDLE_APPENDED_BYTES = 64 << 10
"""What may be appended between two steps of an idle log."""

_HEAD = struct.Struct(">BIQI")
_REQUEST, _BYTES, _REFUSAL = 0, 1, 2

logger = logging.getLogger(__name__)


class _Attempt:
    """One try to heal one range, over all peers."""

    __slots__ = ("asked", "damaged", "deadline", "mismatched", "peer", "size", "spool", "starts", "working")

    def __init__(self, damaged: CorruptRange, spool: Spool) -> None:
        self.damaged = damaged
        self.spool = spool
        self.asked: set[ReplicaId] = set()
        self.peer: ReplicaId | None = None
        self.size = 0
        self.deadline = 0.0
        self.working = False
        self.mismatched = False
        self.starts: dict[ReplicaId, int] = {}
        """The position at which the log of a peer that refused begins."""


class Repairer:
    """Scrubs and repairs, one thing at a time; `tick` is called a few times a second.

    `connected` maps node ids to the incarnation that can be sent to.  `forgetter` may drop a range that the group has
    trimmed, some time later.  `rest_s` is the pause between two verifications of the whole log.
    """

    def __init__(
        self,
        node_id: str,
        environment: Environment,
        transport: Transport,
        store: LogStore,
        connected: Mapping[str, ReplicaId],
        applier: Applier,
        forgetter: Forgetter,
        engine: Engine,
        driver: Driver,
        *,
        rest_s: float,
    ) -> None:
        self._node_id = node_id
        self._environment = environment
        self._transport = transport
        self._store = store
        self._connected = connected
        self._applier = applier
        self._forgetter = forgetter
        self._engine = engine
        self._driver = driver
        self._rest_s = rest_s
        self._attempt: _Attempt | None = None
        self._number = 0
        self._tried = -1
        self._retry_at = 0.0
        self._widenings = 0
        self._suspect: int | None = None
        self._scanning = False
        self._scrub_at = 0.0
        self._appended_to = store.end_position
        self._announced: set[CorruptRange] = set()
        self._stopped = False
        self.repairs = 0
        """Ranges healed since the start."""

    @property
    def corrupt_bytes(self) -> int:
        """Bytes that are not served now because they do not verify."""
        return sum(known.end - known.start for known in self._store.corrupt_ranges)

    def tick(self) -> None:
        """Go on with whatever is due."""
        self._announce()
        if self._scanning or self._stopped:
            return
        attempt, now = self._attempt, self._environment.now()
        if attempt is not None:
            if not attempt.working and now >= attempt.deadline:
                self._ask_next_peer(attempt)
        elif self._suspect is not None:
            self._examine(self._suspect)
        elif now >= self._retry_at and self._certain():
            self._begin()
        elif now >= self._scrub_at:
            self._scrub()

    def _certain(self) -> list[CorruptRange]:
        """The corrupt ranges of committed entries: others may be truncated, and replaced, while a repair writes."""
        next_index = self._engine.commit_index + 1
        return [bad for bad in self._store.corrupt_ranges if bad.next_index <= next_index]

    def suspect(self, index: int) -> None:
        """A read from entry `index` on failed: find out what is corrupt there, unless that is known."""
        known = any(bad.first_index <= index < bad.next_index for bad in self._store.corrupt_ranges)
        if not known and index <= self._engine.commit_index:
            self._suspect = index
            self.tick()

    def read_failed(self, position: int) -> None:
        """A read from `position` on did not succeed: find out what is corrupt there.

        If the index has rotted, too, the scrub finds it; what the group has trimmed needs no finding.
        """

        def found(index: int | BaseException) -> None:
            if isinstance(index, int):
                self.suspect(index)

        self._environment.run_blocking(URGENT, partial(self._store.index_at, position), found)

    def stop(self) -> None:
        """Do nothing more."""
        self._stopped = True

    def close(self) -> None:
        """Remove what was collected; no work may be running."""
        if self._attempt is not None:
            self._attempt.spool.close()
            self._attempt = None

    def on_data(self, sender: ReplicaId, data: bytes) -> None:
        """A peer asks or answers."""
        if len(data) < _HEAD.size or self._stopped:
            return
        kind, number, position, size = _HEAD.unpack_from(data)
        if kind == _REQUEST:
            self._serve(sender, number, position, size)
            return
        attempt = self._attempt
        if attempt is None or attempt.working or attempt.peer != sender or number != self._number:
            return
        piece = memoryview(data)[_HEAD.size :]
        if kind == _BYTES and len(piece) == attempt.size:
            attempt.working = True
            self._environment.run_blocking(
                URGENT, partial(attempt.spool.write, piece), partial(self._on_written, attempt)
            )
        else:
            if kind == _REFUSAL:
                attempt.starts[sender] = position
            self._ask_next_peer(attempt)

    # ---------------------------------------------------------------- finding

    def _announce(self) -> None:
        ranges = set(self._store.corrupt_ranges)
        for bad in ranges - self._announced:
            logger.error(
                "node=%s event=corruption start=%d end=%d first_index=%d next_index=%d consequence=%r",
                self._node_id,
                *bad,
                "not served until a peer's bytes have replaced it",
            )
        self._announced = ranges

    def _examine(self, index: int) -> None:
        self._suspect = None
        self._scan(URGENT, partial(self._store.examine, index, self._engine.commit_index))

    def _scrub(self) -> None:
        store = self._store
        idle = store.end_position - self._appended_to < IDLE_APPENDED_BYTES
        self._appended_to = store.end_position
        committed = self._engine.commit_index
        if committed > store.last_index:
            return  # the log is being replaced by the position of a snapshot
        try:
            # Segments are scrubbed whole, so it is enough to know where the first one with uncommitted entries begins.
            before = store.segment_start(committed + 1)
        except TrimmedError:
            return  # the same, and its segments are gone already
        self._scan(BACKGROUND, partial(store.scrub_step, SCRUB_IDLE_BYTES if idle else SCRUB_BUSY_BYTES, before))

    def _scan(self, lane: str, work: Callable[[], Sequence[CorruptRange]]) -> None:
        self._scanning = True
        self._environment.run_blocking(lane, work, self._on_scanned)

    def _on_scanned(self, result: Sequence[CorruptRange] | BaseException) -> None:
        self._scanning = False
        if self._stopped:
            return
        if isinstance(result, BaseException):
            if not isinstance(result, BusyError | CorruptionError | TrimmedError):
                self._driver.fail(result)
            return
        if self._store.scrub_between_rounds:
            self._scrub_at = self._environment.now() + self._rest_s
        if result:
            self.tick()

    # ---------------------------------------------------------------- healing

    def _begin(self) -> None:
        ranges = self._certain()
        damaged = next((bad for bad in ranges if bad.start > self._tried), ranges[0])
        self._tried = damaged.start
        self._attempt = _Attempt(damaged, self._store.spool(damaged))
        self._ask_next_peer(self._attempt)

    def _ask_next_peer(self, attempt: _Attempt) -> None:
        """Ask another peer for the whole range, from its beginning."""
        for peer in sorted(self._connected.values()):
            if peer not in attempt.asked:
                attempt.asked.add(peer)
                attempt.peer = peer
                attempt.spool.restart()
                if self._ask(attempt, peer):
                    return
        self._give_up(attempt)

    def _ask(self, attempt: _Attempt, peer: ReplicaId) -> bool:
        damaged, segment_bytes = attempt.damaged, self._store.segment_bytes
        position = damaged.start + attempt.spool.filled
        attempt.size = min(PIECE_BYTES, damaged.end - position, segment_bytes - position % segment_bytes)
        attempt.deadline = self._environment.now() + ANSWER_S
        self._number = (self._number + 1) & 0xFFFFFFFF
        head = _HEAD.pack(_REQUEST, self._number, position, attempt.size)
        return self._transport.send_data(peer.node_id, REPAIR_CHANNEL, (head,))

    def _on_written(self, attempt: _Attempt, result: BaseException | None) -> None:
        attempt.working = False
        if self._stopped or attempt is not self._attempt:
            return
        if isinstance(result, BaseException):
            self._drop(attempt)
            self._rest(f"its bytes could not be collected: {result}", attempt.damaged)
        elif attempt.spool.filled < attempt.spool.size:
            if attempt.peer is None or not self._ask(attempt, attempt.peer):
                self._ask_next_peer(attempt)
        else:
            attempt.working = True
            work = partial(self._store.repair, attempt.damaged.start, attempt.spool)
            self._environment.run_blocking(URGENT, work, partial(self._on_repaired, attempt))

    def _on_repaired(self, attempt: _Attempt, result: Repaired | BaseException) -> None:
        attempt.working = False
        if self._stopped:
            return
        damaged = attempt.damaged
        if isinstance(result, CorruptionError) and damaged in self._store.corrupt_ranges:
            attempt.mismatched = True
            logger.warning("node=%s event=repair_refused peer=%s error=%r", self._node_id, attempt.peer, str(result))
            self._ask_next_peer(attempt)
            return
        self._drop(attempt)
        if isinstance(result, StorageError):
            self._driver.fail(result)
        elif isinstance(result, LogFullError):
            self._rest(str(result), damaged)
        elif isinstance(result, BaseException):
            logger.info("node=%s event=repair_void start=%d error=%r", self._node_id, damaged.start, str(result))
        else:
            self.repairs += 1
            self._widenings = 0
            logger.warning(
                "node=%s event=repaired start=%d end=%d peer=%s",
                self._node_id,
                damaged.start,
                damaged.end,
                attempt.peer,
            )
            self._tell(damaged, result)
            self.tick()

    def _tell(self, healed: CorruptRange, found: Repaired) -> None:
        """Have the engine know what a healed range holds, and what waits for its entries applied."""
        first, following = healed.first_index, healed.next_index
        self._store.learn_terms(healed, found.term_runs)
        self._driver.run(partial(self._engine.repaired, first, following, found.memberships, found.term_runs))
        self._applier.retry()

    def _give_up(self, attempt: _Attempt) -> None:
        """No peer's bytes could be had, or none fitted: what joins the range may itself be corrupt."""
        self._drop(attempt)
        damaged = attempt.damaged
        if not attempt.mismatched:
            self._rest("no connected peer has its bytes", damaged)
            trimmed_to = max(attempt.starts.values(), default=0)
            if trimmed_to >= damaged.end and not self._forgetter.begin_behind(damaged, trimmed_to):
                self._require_obtainable(attempt)
            return
        self._rest("no peer's bytes join it", damaged)
        if damaged.next_index <= self._engine.commit_index + 1 and self._widenings < MAX_WIDENINGS:
            self._widenings += 1
            widen = partial(self._store.widen, damaged)
            self._environment.run_blocking(URGENT, widen, partial(self._on_widened, damaged))

    def _require_obtainable(self, attempt: _Attempt) -> None:
        """End this replica, so that it comes back without its log, if its state needs entries that nobody has any more.

        1. An entry rots. 2. The disk is full: it cannot be healed, and no snapshot is written. 3. The others trim it.
        4. This node starts, from a snapshot below it. It has all that is committed, so no leader sends it a snapshot.

        Only if every other voter says so: who is away may have it, and a group without this log, too, no majority.
        """
        damaged, following = attempt.damaged, self._applier.applied_index + 1
        others = [voter for voter in self._engine.membership.voters if voter.node_id != self._node_id]
        gone = bool(others) and all(attempt.starts.get(voter, 0) >= damaged.end for voter in others)
        if gone and damaged.first_index <= following < damaged.next_index:
            self._driver.fail(
                ContradictionError(
                    f"entry {following} is to be applied next, has rotted here, and the others trimmed it"
                )
            )

    def _on_widened(self, damaged: CorruptRange, result: CorruptRange | BaseException) -> None:
        if isinstance(result, CorruptionError | TrimmedError):
            logger.warning("node=%s event=repair_narrow start=%d error=%r", self._node_id, damaged.start, str(result))
        elif isinstance(result, BaseException) and not self._stopped:
            self._driver.fail(result)

    def _drop(self, attempt: _Attempt) -> None:
        self._attempt = None
        self._environment.run_blocking(URGENT, attempt.spool.close, lambda _: None)

    def _rest(self, why: str, damaged: CorruptRange) -> None:
        self._retry_at = self._environment.now() + RETRY_S
        logger.info("node=%s event=repair_waits start=%d end=%d why=%r", self._node_id, damaged.start, damaged.end, why)

    # ---------------------------------------------------------------- serving

    def _serve(self, sender: ReplicaId, number: int, position: int, size: int) -> None:
        store = self._store
        inside = store.first_position <= position and position + size <= store.durable_position
        in_one_segment = position % store.segment_bytes + size <= store.segment_bytes

        def answer(result: bytes | BaseException) -> None:
            if self._stopped:
                return
            if isinstance(result, BaseException):
                if isinstance(result, StorageError):
                    self._driver.fail(result)
                result = b""
            if result:
                head = _HEAD.pack(_BYTES, number, position, size)
            else:
                head = _HEAD.pack(_REFUSAL, number, store.first_position, size)
            self._transport.send_data(sender.node_id, REPAIR_CHANNEL, (head, result))

        if 0 < size <= PIECE_BYTES and inside and in_one_segment:
            self._environment.run_blocking(URGENT, partial(store.read, position, size), answer)
        else:
            answer(b"")
