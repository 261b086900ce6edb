"""Judge of requests that wait in a replica: proposed operations, and reads.

Each gets exactly one answer while its replica lives. An operation is applied or dropped, at the latest when its leader
steps down. A read is answered once everything that was committed before it is applied, or it is refused.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.errors import LogError
from dledger.replica.replica import Replica
from dledger_base.loop_guard import excepted
from dledger_sim.log.violation import require


class Waiting:
    """Requests to a replica that it has not answered yet."""

    def __init__(self, replica: Replica, clock: Callable[[], float]) -> None:
        self._replica = replica
        self._clock = clock
        self._node = replica.config.node_id
        self._operations: dict[int, float] = {}
        """Time of proposal of each operation."""
        self._reads: dict[int, int] = {}
        self._number = 0

    def proposing(self, operation: int) -> None:
        """Note an operation that is about to be proposed."""
        self._operations[operation] = self._clock()

    def refused(self, operation: int) -> None:
        """Note that an operation was not proposed: it must have no effect."""
        self._operations.pop(operation, None)

    def is_too_much(self) -> bool | None:
        """Return whether more waits for a majority than a leader may take. Return None if the number cannot be read."""
        replica, limit = self._replica, self._replica.config.max_uncommitted_bytes
        committed = replica.engine.commit_index
        if committed > replica.store.last_index:
            return None  # the log is being truncated, and the entries behind are held back
        known = committed >= replica.store.first_index
        try:
            with excepted("the judge is no part of the node"):
                end = replica.store.meta(committed).end if known else replica.store.first_position
        except LogError:
            return None
        return replica.leading.end_position - end > limit

    def settled(self, operation: int) -> None:
        """Check an operation that was applied or dropped."""
        require(
            operation in self._operations,
            "an operation is applied or dropped once",
            node=self._node,
            operation=operation,
        )
        del self._operations[operation]

    @property
    def oldest_s(self) -> float:
        """Time for which the oldest operation has waited, in seconds."""
        return self._clock() - min(self._operations.values(), default=self._clock())

    def reading(self, last_committed: int) -> int:
        """Note that a read begins, with the last committed index. Return the read's number."""
        self._number += 1
        self._reads[self._number] = last_committed
        return self._number

    def read(self, number: int, error: Exception | None, last_committed: int) -> None:
        """Check a read that is answered.

        Fewer entries may be committed than at its beginning, if an accepted loss became certain.
        """
        replica = self._replica
        require(number in self._reads, "a read is answered once", node=self._node, read=number)
        committed = min(self._reads.pop(number), last_committed)
        require(
            error is not None or replica.applied_index >= committed,
            "a read waits until the entries that were committed before it are applied",
            node=self._node,
            applied=replica.applied_index,
            committed=committed,
        )

    def observe(self) -> None:
        """Check the replica after an event."""
        if self._operations:
            require(
                self._replica.engine.is_leader,
                "a leader that steps down drops its proposals",
                node=self._node,
                kept=sorted(self._operations)[:5],
            )

    def require_nothing(self, when: str) -> None:
        """Check that everything has been answered."""
        require(not self._operations, f"operations are answered {when}", left=sorted(self._operations)[:5])
        require(not self._reads, f"reads are answered {when}", left=len(self._reads))
