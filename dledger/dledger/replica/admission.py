"""Admission of ordinary entries: whether there is space for them, and if they are refused, why and what helps.

Privileged entries (no-ops, memberships, trims) may use what is kept back, so they are taken for longer.
"""

from __future__ import annotations

import logging

from dledger.config import ReplicaConfig
from dledger.consensus.engine import Engine
from dledger.consensus.peers import DISK_FULL
from dledger.errors import LogFullError
from dledger.format import HEADER_BYTES, MAX_ENTRY_BODY_BYTES
from dledger.replica.backlog import Backlog
from dledger.replica.proposer import MARK_BYTES
from dledger.replica.reserving import Reserver
from dledger.replica.snapshotting import Snapshotting
from dledger.store.log import LogStore

GOES_ON = "writes then go on by themselves"

logger = logging.getLogger(__name__)


class Admission:
    """Finds space for a leader's entries, and tells an operator when none is found and when there is some again.

    `refusal` is the text, None while entries are taken: on a leader whatever stops its writes, on any other replica
    that its own disk is full.
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
        self._since = 0.0
        self.refusal: str | None = None

    def look(self, now: float, *, leads: bool) -> None:
        """Find out at `now`, in monotonic seconds, whether entries are taken, and log if that has changed."""
        refusal, before = self._look(leads=leads), self.refusal
        self.refusal = refusal
        if refusal is not None and before is None:
            self._since = now
            logger.warning("node=%s event=writes_refused reason=%r", self._config.node_id, refusal)
        elif refusal is None and before is not None:
            logger.info("node=%s event=writes_taken refused_s=%.1f", self._config.node_id, now - self._since)

    def _look(self, *, leads: bool) -> str | None:
        if self._engine.disk_used >= DISK_FULL:  # small entries may still fit, until the segment ends
            return self._own_disk()
        if not leads:
            return None
        try:
            self.require_agreement()
            self.next_position(HEADER_BYTES, privileged=False)
        except LogFullError as error:
            return str(error)
        return None

    def require_agreement(self) -> None:
        """Raise `LogFullError` while the replicas' states differ."""
        if self._snapshotting.disagree:
            raise LogFullError("the replicas' states differ and no majority agrees: writes are stopped, restore a node")

    def next_position(self, size: int, privileged: bool) -> int:
        """Where an entry of `size` bytes goes.

        Raises `LogFullError` for an ordinary one while the disk has no space for it and for what may join it in its
        turn.  Whether that is so is not known yet when little is reserved: the entry may then have to wait.
        """
        store = self._store
        position = store.next_position(size, self._backlog.end_position)
        if not privileged:
            segment_end = position - position % store.segment_bytes + store.segment_bytes
            growth = max(size + MARK_BYTES, HEADER_BYTES + MAX_ENTRY_BODY_BYTES)
            need = store.need_to(min(position + growth, segment_end))
            if not self._reserver.has(need) and self._reserver.is_full:
                raise self.own_disk_is_full()
            self._require_followers_room()
        return position

    def own_disk_is_full(self) -> LogFullError:
        """What an entry is told for which no space was found."""
        return LogFullError(self._own_disk())

    def _own_disk(self) -> str:
        return (
            f"the disk of {self._config.node_id} is full: the file system of {self._config.data_dir or 'its log'} has "
            f"no space beside what reserve_bytes keeps back; make room there, {GOES_ON}"
        )

    def _require_followers_room(self) -> None:
        """Refuse what could not be committed: raises `LogFullError` when too many voters have full disks."""
        engine = self._engine
        membership, progress = engine.membership, engine.progress
        full = [
            peer.node_id for peer in membership.voters if peer in progress and progress[peer].disk_used >= DISK_FULL
        ]
        if len(membership.voters) - len(full) < membership.quorum:
            disks = f"disk of {full[0]} is" if len(full) == 1 else f"disks of {', '.join(sorted(full))} are"
            raise LogFullError(
                f"the {disks} full, so that too few of {len(membership.voters)} nodes could store it; make room there, "
                f"{GOES_ON}"
            )
