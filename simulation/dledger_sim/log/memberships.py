"""Judge of memberships: replicas, leaders and snapshots must have the memberships that the log records."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import msgspec

from dledger.core.messages import InstallSnapshot
from dledger.format import HEADER_BYTES
from dledger.types import EntryKind, EntryMeta, Membership, SnapshotMeta
from dledger_sim.log.life import Life
from dledger_sim.log.violation import require

_decode = msgspec.msgpack.Decoder(Membership).decode


class CommittedMemberships:
    """Memberships of the committed log, with the checks against them."""

    def __init__(self) -> None:
        self._indexes = [-1]
        self._memberships = [Membership()]

    def found(self, initial: Membership) -> None:
        """Set the members with which the group begins."""
        self._memberships[0] = initial

    def committed(self, meta: EntryMeta, data: bytes) -> None:
        """Note that an entry was committed."""
        if meta.kind == EntryKind.MEMBERSHIP:
            self._indexes.append(meta.index)
            self._memberships.append(_decode(data[HEADER_BYTES:]))

    def lost(self, first_index: int) -> None:
        """Note that the entries from an index on were lost after an operator accepted the loss."""
        while self._indexes[-1] >= first_index:
            self._indexes.pop()
            self._memberships.pop()

    def at(self, index: int) -> tuple[int, Membership]:
        """Return the membership in force at a committed index, after the index of its entry."""
        place = bisect_right(self._indexes, index) - 1
        return self._indexes[place], self._memberships[place]

    def check_snapshot(self, node: str, meta: SnapshotMeta | InstallSnapshot, last_committed: int) -> None:
        """Check a snapshot that was listed or is being sent."""
        require(meta.last_index <= last_committed, "a snapshot holds only committed entries", node=node, snapshot=meta)
        require(
            (meta.membership_index, meta.membership) == self.at(meta.last_index),
            "a snapshot holds the membership of its last entry",
            node=node,
            snapshot=meta,
            right=self.at(meta.last_index),
        )

    def check_replica(self, life: Life, last_committed: int) -> None:
        """Check that a replica's membership at its commit index is the membership in the log.

        A replica that has seen no membership entry is exempt: only founders know the initial membership from the start.
        Replicas with lost or unreadable entries are exempt, too.
        """
        engine = life.replica.engine
        index = min(engine.commit_index, last_committed)
        found = engine.membership_at(index)
        if life.astray or life.node.rotten or found[0] < 0 or not engine.membership_is_known:
            return
        require(
            found == self.at(index),
            "a replica uses the membership of its log",
            node=life.node.name,
            index=index,
            found=found,
            right=self.at(index),
        )

    @staticmethod
    def check_leaves(life: Life) -> None:
        """Check that a leader steps down once it has committed its own removal."""
        engine = life.replica.engine
        require(
            engine.is_voter or not engine.is_leader or engine.membership_index > engine.commit_index,
            "a removed leader stops leading once its removal is committed",
            node=life.node.name,
            membership=engine.membership,
        )

    def check_leader(self, life: Life, last_committed: int) -> None:
        """Check the membership to which a leader has just switched."""
        engine = life.replica.engine
        index = engine.membership_index
        if index <= last_committed:
            return
        before_index, before = engine.membership_at(index - 1)
        require(
            before_index <= last_committed,
            "a membership change waits for the previous change",
            leader=life.node.name,
            changes=(before_index, index),
            committed=last_committed,
        )
        changed = set(before.voters) ^ set(engine.membership.voters)
        require(len(changed) <= 1, "one voter changes at a time", leader=life.node.name, changed=_names(changed))


def _names(members: Iterable[object]) -> list[str]:
    return sorted(map(str, members))
