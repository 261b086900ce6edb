"""Judge of what waits in a replica: operations that were proposed, and reads.

Each gets exactly one answer while its replica lives: an operation is applied or dropped, and dropped at the latest when
its leader leads no more; a read is answered once everything that was committed before it is applied, or refused.
"""

from __future__ import annotations

from dledger.errors import LogError
from dledger.loop_guard import excepted
from dledger.replica.replica import Replica
from dledger_sim.log.violation import require


class Waiting:
    """What one replica has been asked and has not answered yet."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._node = replica.config.node_id
        self._operations: set[int] = set()
        self._reads: dict[int, int] = {}
        self._number = 0

    def proposing(self, operation: int) -> None:
        """An operation is about to be proposed."""
        self._operations.add(operation)

    def refused(self, operation: int) -> None:
        """It was not: nothing is to come of it."""
        self._operations.discard(operation)

    def is_too_much(self) -> bool | None:
        """Whether what waits for a majority is more than a leader is to take; None if that cannot be read."""
        replica, limit = self._replica, self._replica.config.max_uncommitted_bytes
        committed = replica.engine.commit_index
        if committed > replica.store.last_index:
            return None  # the log is being truncated, and what follows is held back
        known = committed >= replica.store.first_index
        try:
            with excepted("the judge is no part of the node"):
                end = replica.store.meta(committed).end if known else replica.store.first_position
        except LogError:
            return None
        return replica.leading.end_position - end > limit

    def settled(self, operation: int) -> None:
        """An operation was applied or dropped."""
        require(
            operation in self._operations,
            "an operation is applied or dropped once",
            node=self._node,
            operation=operation,
        )
        self._operations.remove(operation)

    def reading(self, last_committed: int) -> int:
        """A read begins, when so much was committed; returns its number."""
        self._number += 1
        self._reads[self._number] = last_committed
        return self._number

    def read(self, number: int, error: Exception | None, last_committed: int) -> None:
        """A read is answered. Less may be committed than when it began, where an accepted loss became certain."""
        replica = self._replica
        require(number in self._reads, "a read is answered once", node=self._node, read=number)
        committed = min(self._reads.pop(number), last_committed)
        require(
            error is not None or replica.applied_index >= committed,
            "a read waits until what was committed before it is applied",
            node=self._node,
            applied=replica.applied_index,
            committed=committed,
        )

    def observe(self) -> None:
        """Something happened on the node."""
        if self._operations:
            require(
                self._replica.engine.is_leader,
                "who leads no more drops what it had proposed",
                node=self._node,
                kept=sorted(self._operations)[:5],
            )

    def require_nothing(self, when: str) -> None:
        """Everything must have been answered by now."""
        require(not self._operations, f"operations are answered {when}", left=sorted(self._operations)[:5])
        require(not self._reads, f"reads are answered {when}", left=len(self._reads))
