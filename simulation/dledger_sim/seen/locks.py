"""Check of queue locks, as the members of a consumer group saw them.

| operation | process | key | times |
|---|---|---|---|
| `lock` | member | queue | sent, and granted, if the outcome is `ok` |
| `unlock` | member | queue | sent: the member relies on the lock no more |

A member that dies unlocks in the history, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from dledger_sim.seen.findings import Findings, Judgement
from dledger_sim.seen.history import Operation


@dataclass(frozen=True, slots=True)
class _Belief:
    """The belief of a member, until `until_ns`, that it has the lock of a queue."""

    granted: Operation
    until_ns: int


class Owners:
    """Members that rely on the locks of queues. Operations come in the order in which they take effect for members.

    A member relies on a lock from the answer that grants it, until `belief_ns` after it sent the request.
    """

    def __init__(self, belief_ns: int) -> None:
        self._belief_ns = belief_ns
        self._beliefs: dict[str, _Belief] = {}

    def owner(self, queue: str) -> str | None:
        """Return the member that was granted a queue last, unless it has unlocked the queue."""
        belief = self._beliefs.get(queue)
        return None if belief is None else belief.granted.process

    def unlock(self, operation: Operation) -> None:
        """Note that a member relies on a lock no more."""
        if self.owner(operation.key) == operation.process:
            del self._beliefs[operation.key]

    def grant(self, operation: Operation) -> str:
        """Note a grant. Return what is wrong with it, an empty text if nothing is."""
        now_ns, until_ns = operation.complete_ns, operation.invoke_ns + self._belief_ns
        assert now_ns is not None
        belief = self._beliefs.get(operation.key)
        wrong = ""
        if belief is not None and belief.granted.process != operation.process and now_ns < belief.until_ns:
            wrong = (
                f"{operation.key} was granted to {operation.process} (operation {operation.id}), and "
                f"{belief.granted.process} relies on the lock for {(belief.until_ns - now_ns) / 1e9:.1f} s more "
                f"(operation {belief.granted.id})"
            )
        elif belief is not None and belief.granted.process == operation.process:
            until_ns = max(until_ns, belief.until_ns)
        self._beliefs[operation.key] = _Belief(operation, until_ns)
        return wrong


def check_owners(operations: Iterable[Operation], belief_ns: int) -> Judgement:
    """Check that no two members rely on the lock of one queue at the same time.

    Without an answer a member does not rely on the lock.
    """
    moments: list[tuple[int, Operation]] = []
    for operation in operations:
        if operation.f == "unlock":
            moments.append((operation.invoke_ns, operation))
        elif operation.outcome == "ok":
            assert operation.complete_ns is not None
            moments.append((operation.complete_ns, operation))
    findings, checked, owners = Findings(), 0, Owners(belief_ns)
    for _, operation in sorted(moments, key=lambda moment: (moment[0], moment[1].f != "unlock")):
        if operation.f == "unlock":
            owners.unlock(operation)
            continue
        checked += 1
        if wrong := owners.grant(operation):
            findings.violation(wrong)
    members = {operation.process for _, operation in moments}
    return findings.judged(checked, "grants of locks", members=len(members))
