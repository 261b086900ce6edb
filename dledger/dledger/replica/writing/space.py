"""Space for entries: whether there is enough, its reservation before entries are written, and refusals.

Space is reserved on workers. Entries that arrive too early wait: a leader's entries sealed
(`dledger.replica.writing.leading`), a follower's appends in the inbox. That is rare, because more space is reserved as
soon as little is left.

Privileged entries (no-ops, memberships, trims) may use space that is kept back, so they are accepted for longer. A
refusal says why there is no space, and what an operator can do.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from dledger.config import ReplicaConfig
from dledger.consensus.engine import Engine
from dledger.consensus.peers import DISK_FULL, DISK_SHORT
from dledger.environment import URGENT, Environment
from dledger.errors import LogFullError
from dledger.format import HEADER_BYTES, MAX_ENTRY_BODY_BYTES
from dledger.replica.driver import Driver
from dledger.replica.snapshots.marks import SnapshotMarks
from dledger.replica.standing import Standing
from dledger.replica.writing.proposer import MARK_BYTES, Backlog, Claim
from dledger.store.log import LogStore
from dledger.store.space import Need
from dledger.types import EntryMeta

WRITES_RESUME = "writes then resume by themselves"
AHEAD_S = 4.0
"""Additional seconds for a reservation that nothing waits for yet. A file system may have to write zeros for it."""

logger = logging.getLogger(__name__)


class Admission:
    """Finds space for a leader's entries, and logs when space is lacking and when it is available again.

    `refusal` is the reason why writes are refused, or None. On a leader it covers every cause. On other replicas it
    only says that the replica's own disk is full.
    """

    def __init__(
        self,
        config: ReplicaConfig,
        store: LogStore,
        reserver: Reserver,
        backlog: Backlog,
        marks: SnapshotMarks,
        engine: Engine,
    ) -> None:
        self._config = config
        self._store = store
        self._reserver = reserver
        self._backlog = backlog
        self._marks = marks
        self._engine = engine
        self._refused_since = 0.0
        self.refusal: str | None = None

    def check(self, now: float, *, leads: bool) -> None:
        """Check at `now`, in monotonic seconds, whether entries are taken, and log if that has changed."""
        refusal, previous_refusal = self._find_refusal(leads=leads), self.refusal
        self.refusal = refusal
        if refusal is not None and previous_refusal is None:
            self._refused_since = now
            logger.warning("node=%s event=writes_refused reason=%r", self._config.node_id, refusal)
        elif refusal is None and previous_refusal is not None:
            logger.info("node=%s event=writes_taken refused_s=%.1f", self._config.node_id, now - self._refused_since)

    def _find_refusal(self, *, leads: bool) -> str | None:
        if self._engine.disk_used >= DISK_FULL:  # small entries may still fit until the segment ends
            return self._disk_full_reason()
        if not leads:
            return None
        try:
            self.require_agreement()
            self.next_position(HEADER_BYTES, Claim.ORDINARY)
        except LogFullError as error:
            return str(error)
        return None

    def require_agreement(self) -> None:
        """Raise `LogFullError` while the replicas' states differ."""
        if self._marks.has_dispute:
            raise LogFullError("the replicas' states differ and no majority agrees: writes are stopped, restore a node")

    def next_position(self, size: int, claim: Claim) -> int:
        """Return the position where an entry of `size` bytes goes.

        Raises `LogFullError` while the disk lacks space for the entry and for all that may join it in the same turn. An
        entry that may use the reserve is never refused. While little is reserved it is not known yet whether space is
        lacking: the entry may then have to wait. On a disk that is short of space, ordinary entries are refused, so
        that the rest is left for entries that free space.
        """
        store = self._store
        position = store.next_position(size, self._backlog.end_position)
        if claim is not Claim.RESERVE:
            if claim is Claim.ORDINARY and self._engine.disk_used == DISK_SHORT:
                raise self.disk_full_error()
            segment_end = position - position % store.segment_bytes + store.segment_bytes
            growth = max(size + MARK_BYTES, HEADER_BYTES + MAX_ENTRY_BODY_BYTES)
            end = min(position + growth, segment_end)
            if not store.has_to(end) and not self._reserver.has(store.need_to(end)) and self._reserver.is_full:
                raise self.disk_full_error()
            self._require_followers_room(claim)
        return position

    def disk_full_error(self) -> LogFullError:
        """Return the error for an entry for which no space was found."""
        return LogFullError(self._disk_full_reason())

    def _disk_full_reason(self) -> str:
        reserved_for = "reserve_bytes keeps back"
        if self._engine.disk_used == DISK_SHORT:
            reserved_for = "is kept for trims, snapshots and messages that are written again"
        return (
            f"the disk of {self._config.node_id} is full: the file system of {self._config.data_dir or 'its log'} has "
            f"no space beside what {reserved_for}; make room there, {WRITES_RESUME}"
        )

    def _require_followers_room(self, claim: Claim) -> None:
        """Raise `LogFullError` if too many voters have full disks, so that the entry could not be committed.

        Voters that are only short of space still store privileged entries, which free space.
        """
        engine = self._engine
        progress = engine.progress
        for known in progress.values():
            if known.disk_used >= DISK_FULL:
                break
        else:
            return  # the usual case, for every entry
        membership = engine.membership
        full = [
            peer.node_id
            for peer in membership.voters
            if peer in progress
            and progress[peer].disk_used >= DISK_FULL
            and (claim is Claim.ORDINARY or progress[peer].disk_used != DISK_SHORT)
        ]
        if len(membership.voters) - len(full) < membership.quorum:
            disks = f"disk of {full[0]} is" if len(full) == 1 else f"disks of {', '.join(sorted(full))} are"
            raise LogFullError(
                f"the {disks} full, so that too few of {len(membership.voters)} nodes could store it; make room there, "
                f"{WRITES_RESUME}"
            )


class Reserver:
    """Reservations of disk space: what is reserved, and whether the disk had space for more."""

    def __init__(self, environment: Environment, store: LogStore, standing: Standing, driver: Driver) -> None:
        self._environment = environment
        self._store = store
        self._standing = standing
        self._driver = driver
        self._missing_space: Need | None = None
        """The space that could not be reserved at the last attempt."""
        self._is_reserving = False
        self._began_at = 0.0
        self._wait_started_at: dict[int, float] = {}
        """Start times of the reservations that entries wait for, by number."""
        self._wait_number = 0

    @property
    def outstanding_s(self) -> float:
        """Seconds for which entries have waited for the disk, or will have soon; 0 if the disk answers.

        Everything that delays a reservation counts: a step of zeros, or the renaming of a recycled segment.
        """
        now = self._environment.now()
        waited_s = now - min(self._wait_started_at.values()) if self._wait_started_at else 0.0
        return max(0.0, waited_s, now - self._began_at - AHEAD_S if self._is_reserving else 0.0)

    @property
    def is_full(self) -> bool:
        """True if the disk had no space at the last reservation."""
        return self._missing_space is not None

    def has(self, need: Need) -> bool:
        """Return whether so much is reserved. If not, have a worker reserve it."""
        if self._store.has(need):
            return True
        self._start_reserving(need)
        return False

    def has_room(self, end: int) -> bool:
        """Return whether ordinary entries can follow those that end at `end`, as far as that is known."""
        return self._store.has_room_behind(end) or self.has(self._store.room_behind(end)) or not self.is_full

    def wait(
        self, metas: Sequence[EntryMeta], done: Callable[[LogFullError | None], None], *, privileged: bool
    ) -> None:
        """Call `done(None)` once there is space for entries, or `done(error)` if there is none.

        By then another entry may have taken the space, or the log may have been rewritten.
        """
        need = self._store.need_for(metas, privileged=privileged)
        self._wait_number += 1
        self._wait_started_at[self._wait_number] = self._environment.now()
        reserved = partial(self._on_wait_done, self._wait_number, done)
        self._environment.run_blocking(URGENT, partial(self._store.reserve, need), reserved)

    def _on_wait_done(self, number: int, done: Callable[[LogFullError | None], None], result: object) -> None:
        del self._wait_started_at[number]
        if self._standing.is_stopped:
            return
        if isinstance(result, BaseException) and not isinstance(result, LogFullError):
            self._driver.fail(result)
            return
        done(result if isinstance(result, LogFullError) else None)

    def retry(self) -> None:
        """Try again to reserve the space that was lacking."""
        if self._missing_space is not None:
            self._start_reserving(self._missing_space)

    def _start_reserving(self, need: Need) -> None:
        """Have the space reserved, unless a worker is busy. The caller asks for it again."""
        if not self._is_reserving:
            self._is_reserving = True
            self._began_at = self._environment.now()
            work = partial(self._store.reserve, need)
            self._environment.run_blocking(URGENT, work, partial(self._on_reserved, need))

    def _on_reserved(self, need: Need, result: object) -> None:
        self._is_reserving = False
        if isinstance(result, LogFullError):
            self._missing_space = need
        elif isinstance(result, BaseException):
            self._driver.fail(result)
        elif self._missing_space is not None and (need == self._missing_space or self._store.has(self._missing_space)):
            self._missing_space = None
