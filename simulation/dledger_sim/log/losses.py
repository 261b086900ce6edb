"""Judge of losses: power failures may take entries from a group that acknowledges before it syncs.

With `flush = "async"` an acknowledgement rests on page caches. When a host goes down, its node may have lost entries
that it acknowledged. That node is in doubt. It casts no vote until a leader has made the loss good, or an operator has
accepted it.

Only an accepted loss allows committed entries to be missing from a leader's log. They must lie behind the log of a node
whose loss was accepted: a majority of the others held everything below, and still has it.

An entry is permanently lost once a leader that lacks it commits another entry in its place. The entries behind it are
void, too. A replica that still holds void entries as committed is astray until a leader contradicts it.
"""

from __future__ import annotations

from dledger.types import ReplicaId
from dledger_sim.log.violation import require

Identity = tuple[int, int, int]
"""Identity of an entry: (term, position, chain crc)."""


class Losses:
    """State of all losses: members in doubt, accepted losses, and lost entries."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        """Position at which each loss began, in the order in which the losses became certain."""
        self._acknowledged_indexes: dict[ReplicaId, int] = {}
        """Highest index that a member had acknowledged when its host went down."""
        self._first_losable: int | None = None
        """Index from which committed entries may be lost, or None."""
        self._accepted_ends: dict[ReplicaId, int] = {}
        """Last index of each member whose loss was accepted. Its older acknowledgements may name higher entries."""
        self._void_entries: dict[int, set[Identity]] = {}

    def power_lost(self, member: ReplicaId, acknowledged: int) -> None:
        """Note that the host of a member went down. The member had acknowledged entries up to an index."""
        self._acknowledged_indexes[member] = max(acknowledged, self._acknowledged_indexes.get(member, -1))

    def accepted(self, member: ReplicaId, last_index: int) -> None:
        """Note that an operator lets a member vote although its log ends at an index."""
        self._acknowledged_indexes.pop(member, None)
        self._accepted_ends[member] = min(last_index, self._accepted_ends.get(member, last_index))
        self._first_losable = (
            last_index + 1 if self._first_losable is None else min(self._first_losable, last_index + 1)
        )

    def is_in_doubt(self, member: ReplicaId) -> bool:
        """Return whether a member may lack entries that it acknowledged, and no leader has made that good."""
        return member in self._acknowledged_indexes

    def made_good(self, member: ReplicaId) -> int | None:
        """Note that a member's loss is made good, so that it votes again.

        Return the index up to which it must hold committed entries, or None without a doubt.
        """
        return self._acknowledged_indexes.pop(member, None)

    def settled(self) -> None:
        """Note that the group is whole: all nodes have all committed entries, and no entry can be lost any more."""
        self._first_losable = None
        self._accepted_ends.clear()

    def excuses(self, member: ReplicaId, index: int) -> bool:
        """Return whether a member may have acknowledged an entry that it does not hold any more."""
        return member in self._acknowledged_indexes or index > self._accepted_ends.get(member, index)

    def may_lose(self, index: int) -> bool:
        """Return whether a committed entry may be lost."""
        return self._first_losable is not None and index >= self._first_losable

    def must_hold(self, last_index: int) -> int:
        """Return the index up to which a new leader must hold the committed entries."""
        return last_index if self._first_losable is None else min(last_index, self._first_losable - 1)

    @property
    def are_possible(self) -> bool:
        """True if a replica may hold entries as committed that the others do not hold."""
        return self._first_losable is not None or bool(self._void_entries)

    def lose(self, first_index: int, entries: list[Identity]) -> None:
        """Note that committed entries from an index on are permanently lost: another entry is committed there."""
        require(
            self.may_lose(first_index),
            "committed entries are lost only if an operator accepts the loss",
            first=first_index,
        )
        self.positions.append(entries[0][1])
        for index, entry in enumerate(entries, first_index):
            self.add_void(index, entry)

    def add_void(self, index: int, entry: Identity) -> None:
        """Note that an entry is void, even if a replica holds it as committed."""
        self._void_entries.setdefault(index, set()).add(entry)

    def is_void(self, index: int, chain_crc: int) -> bool:
        """Return whether the entry with this chain crc was lost."""
        return any(entry[2] == chain_crc for entry in self._void_entries.get(index, ()))
