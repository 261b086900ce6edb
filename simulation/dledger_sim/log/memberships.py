"""Judge of memberships: what the log says of them is what leaders, snapshots and installs go by."""

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
    """The memberships of the committed log, and who claims which."""

    def __init__(self) -> None:
        self._indexes = [-1]
        self._memberships = [Membership()]

    def found(self, initial: Membership) -> None:
        """The group begins with these members."""
        self._memberships[0] = initial

    def committed(self, meta: EntryMeta, data: bytes) -> None:
        """An entry was committed."""
        if meta.kind == EntryKind.MEMBERSHIP:
            self._indexes.append(meta.index)
            self._memberships.append(_decode(data[HEADER_BYTES:]))

    def lost(self, first_index: int) -> None:
        """Entries from an index on were lost, as an operator accepted."""
        while self._indexes[-1] >= first_index:
            self._indexes.pop()
            self._memberships.pop()

    def at(self, index: int) -> tuple[int, Membership]:
        """The membership, with its entry's index, in force at a committed index."""
        place = bisect_right(self._indexes, index) - 1
        return self._indexes[place], self._memberships[place]

    def check_snapshot(self, node: str, meta: SnapshotMeta | InstallSnapshot, last_committed: int) -> None:
        """A snapshot was listed, or is on its way."""
        require(meta.last_index <= last_committed, "a snapshot holds what is committed", node=node, snapshot=meta)
        require(
            (meta.membership_index, meta.membership) == self.at(meta.last_index),
            "a snapshot holds the membership of its last entry",
            node=node,
            snapshot=meta,
            right=self.at(meta.last_index),
        )

    def check_replica(self, life: Life, last_committed: int) -> None:
        """What a replica takes for the membership in force at its commit index is what the log says.

        But for who has all entries and is no founder: it learns the first membership only when that changes.
        """
        engine = life.replica.engine
        index = min(engine.commit_index, last_committed)
        found = engine.membership_at(index)
        if life.astray or life.node.rotten or found[0] < 0 or not engine.membership_is_known:
            return
        require(
            found == self.at(index),
            "a replica goes by the membership that the log says",
            node=life.node.name,
            index=index,
            found=found,
            right=self.at(index),
        )

    @staticmethod
    def check_leaves(life: Life) -> None:
        """A replica has committed something: it does not lead if that took it out."""
        engine = life.replica.engine
        require(
            engine.is_voter or not engine.is_leader or engine.membership_index > engine.commit_index,
            "a leader that is out leads no more once that is committed",
            node=life.node.name,
            membership=engine.membership,
        )

    def check_leader(self, life: Life, last_committed: int) -> None:
        """A leader goes by another membership than before."""
        engine = life.replica.engine
        index = engine.membership_index
        if index <= last_committed:
            return
        before_index, before = engine.membership_at(index - 1)
        require(
            before_index <= last_committed,
            "a membership change waits for the one before",
            leader=life.node.name,
            changes=(before_index, index),
            committed=last_committed,
        )
        changed = set(before.voters) ^ set(engine.membership.voters)
        require(len(changed) <= 1, "one voter changes at a time", leader=life.node.name, changed=_names(changed))


def _names(members: Iterable[object]) -> list[str]:
    return sorted(map(str, members))
