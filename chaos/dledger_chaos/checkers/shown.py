"""Messages as readers were shown them: where, and when first."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_chaos.workloads.records import seen

from .base import RunData
from .messages import Place


@dataclass(frozen=True, slots=True)
class Shown:
    """What readers of one workload were shown of each message at any time of a run, also if it was trimmed later."""

    places: dict[str, set[Place]]
    first_ns: dict[str, int]
    """When the first answer came that showed a message."""
    offsets: dict[str, set[int]]
    """By queue."""

    @classmethod
    def to_readers_of(cls, run: RunData, workload: str) -> Shown:
        """What the pulls and scans of a workload have brought."""
        shown = cls({}, {}, {})
        for operation in run.of(workload, "pull", "scan", outcome="ok"):
            assert operation.complete_ns is not None
            for one in seen(operation):
                shown.places.setdefault(one.value, set()).add((operation.key, one.offset))
                first_ns = min(operation.complete_ns, shown.first_ns.get(one.value, operation.complete_ns))
                shown.first_ns[one.value] = first_ns
                shown.offsets.setdefault(operation.key, set()).add(one.offset)
        return shown

    def are_whole(self, run: RunData, topic: str) -> bool:
        """False if a trim may have taken messages of a topic before any reader saw them."""
        for key, queue in run.messages.queues.items():
            if key.startswith(f"{topic}/") and queue.bounds is not None:
                first, _ = queue.bounds
                if len([offset for offset in self.offsets.get(key, ()) if offset < first]) < first:
                    return False
        return True
