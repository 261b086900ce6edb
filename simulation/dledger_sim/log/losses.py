"""Judge of losses: what power failures may take from a group whose acknowledgements do not wait for the disk.

With `flush = "async"` an acknowledgement rests on page caches.  A host that goes down may lose what its node
acknowledged, so that node is in doubt: it votes for nobody until a leader has made it good, or an operator has accepted
the loss.  Only from then on may committed entries be missing from a leader's log, and only those behind the log of some
node whose loss was accepted: a majority of the others held what lies below, and has it still.

An entry is lost for good once a leader that lacks it commits another one in its place.  What followed it is void: who
still holds it as committed is astray, until a leader contradicts it.
"""

from __future__ import annotations

from dledger.types import ReplicaId
from dledger_sim.log.violation import require

Identity = tuple[int, int, int]
"""(term, position, chain crc) of an entry."""


class Losses:
    """Who is in doubt, what was accepted, and what is lost."""

    def __init__(self) -> None:
        self.positions: list[int] = []
        """Where each loss began, in the order in which they became certain."""
        self._owed: dict[ReplicaId, int] = {}
        """The highest index that a member had acknowledged when its host went down."""
        self._floor: int | None = None
        """Committed entries from this index on may be lost."""
        self._accepted: dict[ReplicaId, int] = {}
        """Where the log ended of members whose loss was accepted: older acknowledgements of theirs may say more."""
        self._void: dict[int, set[Identity]] = {}

    def power_lost(self, member: ReplicaId, acknowledged: int) -> None:
        """The host of a member went down, which had acknowledged entries up to an index."""
        self._owed[member] = max(acknowledged, self._owed.get(member, -1))

    def accepted(self, member: ReplicaId, last_index: int) -> None:
        """An operator lets a member vote although its log ends there."""
        self._owed.pop(member, None)
        self._accepted[member] = min(last_index, self._accepted.get(member, last_index))
        self._floor = last_index + 1 if self._floor is None else min(self._floor, last_index + 1)

    def is_in_doubt(self, member: ReplicaId) -> bool:
        """Whether a member may lack what it acknowledged, and no leader has made that good."""
        return member in self._owed

    def made_good(self, member: ReplicaId) -> int | None:
        """A member votes again; returns up to where its log must hold what is committed, None if it was in no doubt."""
        return self._owed.pop(member, None)

    def settled(self) -> None:
        """The group is whole: all that is committed is everywhere, and nothing more can be lost."""
        self._floor = None
        self._accepted.clear()

    def excuses(self, member: ReplicaId, index: int) -> bool:
        """Whether a member may have acknowledged an entry that it does not hold any more."""
        return member in self._owed or index > self._accepted.get(member, index)

    def may_lose(self, index: int) -> bool:
        """Whether a committed entry may be lost."""
        return self._floor is not None and index >= self._floor

    def must_hold(self, last_index: int) -> int:
        """Up to which of the committed entries a new leader must hold them."""
        return last_index if self._floor is None else min(last_index, self._floor - 1)

    @property
    def are_possible(self) -> bool:
        """Whether some replica may hold as committed what the others do not."""
        return self._floor is not None or bool(self._void)

    def lose(self, first_index: int, entries: list[Identity]) -> None:
        """Committed entries from an index on are lost for good: another one is committed there."""
        require(
            self.may_lose(first_index), "what is committed is lost only if an operator accepts it", first=first_index
        )
        self.positions.append(entries[0][1])
        for index, entry in enumerate(entries, first_index):
            self.add_void(index, entry)

    def add_void(self, index: int, entry: Identity) -> None:
        """An entry is void, whatever a replica takes it for."""
        self._void.setdefault(index, set()).add(entry)

    def is_void(self, index: int, chain_crc: int) -> bool:
        """Whether an entry was lost, which the chain crc identifies."""
        return any(entry[2] == chain_crc for entry in self._void.get(index, ()))
