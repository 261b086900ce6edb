"""Repairer: finds rotten ranges of the log, and heals them with a peer's bytes.

Corrupt ranges are found by recovery, by the background scrub, and by reads that fail to verify. Nothing is served from
them. Healing needs no leader: any peer that has the bytes sends them. They are accepted only if they verify and their
chain joins both intact ends.

On the repair channel of the bulk lane:

    offset  size  field
         0     1  kind      0 request, 1 bytes, 2 refusal
         1     4  number    of the request, repeated in the answer; big-endian, as all
         5     8  position  in the log; in a refusal: where the sender's log begins
        13     4  size      in bytes, at most `PIECE_BYTES`, inside one segment
        17     n  the bytes, in kind 1

One request is on its way at a time. A peer refuses bytes that it does not have durably, cannot read, or knows to be
corrupt. If a range lies below a peer's log, the group has trimmed it, and it can only be forgotten here, too. If the
state needs that range, this whole log is given up and replaced.
"""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from dledger.consensus.engine import Engine
from dledger.environment import BACKGROUND, URGENT, Environment
from dledger.errors import BusyError, ContradictionError, CorruptionError, LogFullError, StorageError, TrimmedError
from dledger.net.transport import Transport
from dledger.replica.applying.applier import Applier
from dledger.replica.driver import Driver
from dledger.replica.standing import ConnectedPeers, Standing
from dledger.replica.upkeep.forgetting import Forgetter
from dledger.store.damage import CorruptRange
from dledger.store.log import LogStore
from dledger.store.repair import Repaired, Spool
from dledger.types import ReplicaId

REPAIR_CHANNEL = 252
PIECE_BYTES = 256 << 10
ANSWER_TIMEOUT_S = 2.0
"""Time limit for a peer's answer, in seconds, before another peer is asked."""
RETRY_S = 1.0
"""Pause in seconds after every peer was asked in vain."""
MAX_WIDENINGS = 8
MAX_DETECTED = 32
"""Maximum number of corrupt ranges found within `DETECTION_WINDOW_S` while a node runs.

More mean that a disk or controller is dying.
"""
DETECTION_WINDOW_S = 600.0
SCRUB_IDLE_BYTES = 2 << 20
"""Number of bytes verified per step, four times a second, while little is appended."""
SCRUB_BUSY_BYTES = 128 << 10
IDLE_APPENDED_BYTES = 64 << 10
"""Maximum number of bytes appended between two steps for the log to count as idle."""

HEAD = struct.Struct(">BIQI")
REQUEST, BYTES, REFUSAL = 0, 1, 2

logger = logging.getLogger(__name__)


class _Attempt:
    """One attempt to heal one range, over all peers."""

    __slots__ = (
        "asked_peers",
        "damaged",
        "deadline",
        "has_mismatch",
        "is_working",
        "log_starts",
        "peer",
        "size",
        "spool",
    )

    def __init__(self, damaged: CorruptRange, spool: Spool) -> None:
        self.damaged = damaged
        self.spool = spool
        self.asked_peers: set[ReplicaId] = set()
        self.peer: ReplicaId | None = None
        self.size = 0
        self.deadline = 0.0
        self.is_working = False
        self.has_mismatch = False
        self.log_starts: dict[ReplicaId, int] = {}
        """Positions at which the logs of peers that refused begin."""


class Repairer:
    """Scrubs and repairs, one thing at a time; `tick` is called a few times a second.

    `forgetter` may later drop a range that the group
    has trimmed. `rest_s` is the pause between two verifications of the whole log.
    """

    def __init__(
        self,
        node_id: str,
        environment: Environment,
        transport: Transport,
        store: LogStore,
        connected: ConnectedPeers,
        applier: Applier,
        standing: Standing,
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
        self._standing = standing
        self._forgetter = forgetter
        self._engine = engine
        self._driver = driver
        self._round_pause_s = rest_s
        self._attempt: _Attempt | None = None
        self._number = 0
        self._last_tried_start = -1
        self._retry_at = 0.0
        self._widenings = 0
        self._suspect_index: int | None = None
        self._scanning = False
        self._scrub_at = 0.0
        self._previous_end = store.end_position
        self._logged_ranges: set[CorruptRange] = set()
        self._recovery_ranges = frozenset(store.corrupt_ranges)
        """Ranges found by recovery, which reads much at once. They do not count as signs of a dying disk."""
        self._detection_times: deque[float] = deque(maxlen=MAX_DETECTED + 1)
        self._stopped = False
        self.repairs = 0
        """Number of ranges healed since the start."""

    @property
    def corrupt_bytes(self) -> int:
        """Number of bytes that are not served now because they do not verify."""
        return sum(corrupt.end - corrupt.start for corrupt in self._store.corrupt_ranges)

    def tick(self) -> None:
        """Do the next due step."""
        self._log_corrupt_ranges()
        if self._scanning or self._stopped:
            return
        attempt, now = self._attempt, self._environment.now()
        if attempt is not None:
            if not attempt.is_working and now >= attempt.deadline:
                self._ask_next_peer(attempt)
        elif self._suspect_index is not None:
            self._examine(self._suspect_index)
        elif now >= self._retry_at and self._committed_ranges():
            self._begin()
        elif now >= self._scrub_at:
            self._scrub()

    def _committed_ranges(self) -> list[CorruptRange]:
        """Return the corrupt ranges of committed entries.

        Other entries may be truncated and replaced while a repair writes.
        """
        next_index = self._engine.commit_index + 1
        return [corrupt for corrupt in self._store.corrupt_ranges if corrupt.next_index <= next_index]

    def suspect(self, index: int) -> None:
        """Find out what is corrupt from entry `index` on, where a read failed, unless that is known."""
        is_known = any(corrupt.first_index <= index < corrupt.next_index for corrupt in self._store.corrupt_ranges)
        if not is_known and index <= self._engine.commit_index:
            self._suspect_index = index
            self.tick()

    def read_failed(self, position: int) -> None:
        """Find out what is corrupt from `position` on, where a read failed.

        If the index has rotted, too, the scrub finds that. Ranges that the group has trimmed do not matter.
        """

        def found(index: int | BaseException) -> None:
            if isinstance(index, int):
                self.suspect(index)

        self._environment.run_blocking(URGENT, partial(self._store.index_at, position), found)

    def stop(self) -> None:
        """Do nothing more."""
        self._stopped = True

    def close(self) -> None:
        """Remove the collected bytes. No work may be running."""
        if self._attempt is not None:
            self._attempt.spool.close()
            self._attempt = None

    def on_data(self, sender: ReplicaId, data: bytes) -> None:
        """Take a peer's request or answer."""
        if len(data) < HEAD.size or self._stopped:
            return
        kind, number, position, size = HEAD.unpack_from(data)
        if kind == REQUEST:
            self._serve(sender, number, position, size)
            return
        attempt = self._attempt
        if attempt is None or attempt.is_working or attempt.peer != sender or number != self._number:
            return
        piece = memoryview(data)[HEAD.size :]
        if kind == BYTES and len(piece) == attempt.size:
            attempt.is_working = True
            self._environment.run_blocking(
                URGENT, partial(attempt.spool.write, piece), partial(self._on_written, attempt)
            )
        else:
            if kind == REFUSAL:
                attempt.log_starts[sender] = position
            self._ask_next_peer(attempt)

    # ---------------------------------------------------------------- finding

    def _log_corrupt_ranges(self) -> None:
        ranges = set(self._store.corrupt_ranges)
        for corrupt in ranges - self._logged_ranges:
            logger.error(
                "node=%s event=corruption start=%d end=%d first_index=%d next_index=%d consequence=%r",
                self._node_id,
                *corrupt,
                "not served until a peer's bytes have replaced it",
            )
            if corrupt not in self._recovery_ranges:
                self._detection_times.append(self._environment.now())
        self._logged_ranges = ranges
        if (
            len(self._detection_times) > MAX_DETECTED
            and self._detection_times[-1] - self._detection_times[0] <= DETECTION_WINDOW_S
        ):
            self._driver.retire(
                StorageError(
                    f"more than {MAX_DETECTED} ranges of the log became corrupt or unreadable within"
                    f" {DETECTION_WINDOW_S:g} s: this disk or its controller is failing; replace it"
                )
            )

    def _examine(self, index: int) -> None:
        self._suspect_index = None
        self._scan(URGENT, partial(self._store.examine, index, self._engine.commit_index))

    def _scrub(self) -> None:
        store = self._store
        idle = store.end_position - self._previous_end < IDLE_APPENDED_BYTES
        self._previous_end = store.end_position
        committed = self._engine.commit_index
        if committed > store.last_index:
            return  # the log is being replaced by one that begins at a snapshot's position
        try:
            # Segments are scrubbed whole, so it is enough to know where the first one with uncommitted entries begins.
            end = store.segment_start(committed + 1)
        except TrimmedError:
            return  # the log is being replaced, and its segments are gone already
        self._scan(BACKGROUND, partial(store.scrub_step, SCRUB_IDLE_BYTES if idle else SCRUB_BUSY_BYTES, end))

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
            self._scrub_at = self._environment.now() + self._round_pause_s
        if result:
            self.tick()

    # ---------------------------------------------------------------- healing

    def _begin(self) -> None:
        ranges = self._committed_ranges()
        damaged = next((corrupt for corrupt in ranges if corrupt.start > self._last_tried_start), ranges[0])
        self._last_tried_start = damaged.start
        self._attempt = _Attempt(damaged, self._store.spool(damaged))
        self._ask_next_peer(self._attempt)

    def _ask_next_peer(self, attempt: _Attempt) -> None:
        """Ask the next peer for the whole range, from its beginning."""
        for peer in sorted(self._connected):
            if peer not in attempt.asked_peers:
                attempt.asked_peers.add(peer)
                attempt.peer = peer
                attempt.spool.restart()
                if self._ask(attempt, peer):
                    return
        self._give_up(attempt)

    def _ask(self, attempt: _Attempt, peer: ReplicaId) -> bool:
        damaged, segment_bytes = attempt.damaged, self._store.segment_bytes
        position = damaged.start + attempt.spool.filled
        attempt.size = min(PIECE_BYTES, damaged.end - position, segment_bytes - position % segment_bytes)
        attempt.deadline = self._environment.now() + ANSWER_TIMEOUT_S
        self._number = (self._number + 1) & 0xFFFFFFFF
        head = HEAD.pack(REQUEST, self._number, position, attempt.size)
        return self._transport.send_data(peer.node_id, REPAIR_CHANNEL, (head,))

    def _on_written(self, attempt: _Attempt, result: BaseException | None) -> None:
        attempt.is_working = False
        if self._stopped or attempt is not self._attempt:
            return
        if isinstance(result, BaseException):
            self._drop(attempt)
            self._pause(f"its bytes could not be collected: {result}", attempt.damaged)
        elif attempt.spool.filled < attempt.spool.size:
            if attempt.peer is None or not self._ask(attempt, attempt.peer):
                self._ask_next_peer(attempt)
        else:
            attempt.is_working = True
            work = partial(self._store.repair, attempt.damaged.start, attempt.spool)
            self._environment.run_blocking(URGENT, work, partial(self._on_repaired, attempt))

    def _on_repaired(self, attempt: _Attempt, result: Repaired | BaseException) -> None:
        attempt.is_working = False
        if self._stopped:
            return
        damaged = attempt.damaged
        if isinstance(result, CorruptionError) and damaged in self._store.corrupt_ranges:
            attempt.has_mismatch = True
            logger.warning("node=%s event=repair_refused peer=%s error=%r", self._node_id, attempt.peer, str(result))
            self._ask_next_peer(attempt)
            return
        self._drop(attempt)
        if isinstance(result, StorageError):
            self._driver.retire(result)
        elif isinstance(result, LogFullError):
            self._pause(str(result), damaged)
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
            self._report_repaired(damaged, result)
            self.tick()

    def _report_repaired(self, healed: CorruptRange, content: Repaired) -> None:
        """Tell the engine what a healed range holds, and have the applier read again if it waits for these entries."""
        first_index, next_index = healed.first_index, healed.next_index
        self._store.learn_terms(healed, content.term_runs)
        self._driver.run(
            partial(self._engine.repaired, first_index, next_index, content.memberships, content.term_runs)
        )
        self._applier.retry()

    def _give_up(self, attempt: _Attempt) -> None:
        """End an attempt: no peer had the bytes, or none fitted.

        If none fitted, the ends that the range must join may be corrupt themselves; then the range is widened.
        """
        self._drop(attempt)
        damaged = attempt.damaged
        if not attempt.has_mismatch:
            self._pause("no connected peer has its bytes", damaged)
            trimmed_to = max(attempt.log_starts.values(), default=0)
            if trimmed_to >= damaged.end and not self._forgetter.begin_behind(damaged, trimmed_to):
                self._require_obtainable(attempt)
            return
        self._pause("no peer's bytes join the log around it", damaged)
        if damaged.next_index <= self._engine.commit_index + 1 and self._widenings < MAX_WIDENINGS:
            self._widenings += 1
            widen = partial(self._store.widen, damaged)
            self._environment.run_blocking(URGENT, widen, partial(self._on_widened, damaged))

    def _require_obtainable(self, attempt: _Attempt) -> None:
        """End this replica if its state needs entries that nobody has any more. It then comes back without its log.

        1. An entry rots.
        2. The disk is full: the entry cannot be healed, and no snapshot is written.
        3. The other nodes trim it.
        4. This node starts, from a snapshot below it. It has everything committed, so no leader sends it a snapshot.

        This happens only if every other voter has trimmed the entry. An absent voter may still have it, and without
        this log the group may lose its majority.
        """
        damaged, next_index = attempt.damaged, self._standing.applied_index + 1
        others = [voter for voter in self._engine.membership.voters if voter.node_id != self._node_id]
        is_trimmed_everywhere = bool(others) and all(
            attempt.log_starts.get(voter, 0) >= damaged.end for voter in others
        )
        if is_trimmed_everywhere and damaged.first_index <= next_index < damaged.next_index:
            self._driver.fail(
                ContradictionError(
                    f"entry {next_index} is to be applied next, has rotted here, and the others trimmed it"
                )
            )

    def _on_widened(self, damaged: CorruptRange, result: CorruptRange | BaseException) -> None:
        if isinstance(result, BusyError | CorruptionError | TrimmedError):
            logger.warning("node=%s event=repair_narrow start=%d error=%r", self._node_id, damaged.start, str(result))
        elif isinstance(result, BaseException) and not self._stopped:
            self._driver.fail(result)

    def _drop(self, attempt: _Attempt) -> None:
        self._attempt = None
        self._environment.run_blocking(URGENT, attempt.spool.close, lambda _: None)

    def _pause(self, reason: str, damaged: CorruptRange) -> None:
        self._retry_at = self._environment.now() + RETRY_S
        logger.info(
            "node=%s event=repair_waits start=%d end=%d why=%r", self._node_id, damaged.start, damaged.end, reason
        )

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
                elif isinstance(result, CorruptionError):
                    self.read_failed(position)
                result = b""
            if result:
                head = HEAD.pack(BYTES, number, position, size)
            else:
                head = HEAD.pack(REFUSAL, number, store.first_position, size)
            self._transport.send_data(sender.node_id, REPAIR_CHANNEL, (head, result))

        if 0 < size <= PIECE_BYTES and inside and in_one_segment:
            self._environment.run_blocking(URGENT, partial(store.read, position, size), answer)
        else:
            answer(b"")
