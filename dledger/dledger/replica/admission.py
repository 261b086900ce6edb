"""Admission of ordinary entries: whether there is space for them, and if not, why and what an operator can do.

Privileged entries (no-ops, memberships, trims) may use space that is kept back, so they are accepted for longer.
"""

from __future__ import annotations

import logging

from dledger.config import ReplicaConfig
from dledger.consensus.engine import Engine
from dledger.consensus.peers import DISK_FULL, DISK_SHORT
from dledger.errors import LogFullError
from dledger.format import HEADER_BYTES, MAX_ENTRY_BODY_BYTES
from dledger.replica.backlog import Backlog
from dledger.replica.proposer import MARK_BYTES, Claim
from dledger.replica.reserving import Reserver
from dledger.replica.snapshotting import Snapshotting
from dledger.store.log import LogStore

WRITES_RESUME = "writes then resume by themselves"

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
        snapshotting: Snapshotting,
        engine: Engine,
    ) -> None:
        self._config = config
        self._store = store
        self._reserver = reserver
        self._backlog = backlog
        self._snapshotting = snapshotting
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
        if self._snapshotting.has_dispute:
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
        membership, progress = engine.membership, engine.progress
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
