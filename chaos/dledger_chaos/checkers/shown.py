"""The messages that readers were shown: their places, and the time of the first showing."""

from __future__ import annotations

from dataclasses import dataclass

from dledger_chaos.workloads.records import seen

from .base import RunData
from .messages import Place


@dataclass(frozen=True, slots=True)
class Shown:
    """Messages that readers of one workload were shown at any time of a run, even if they were trimmed later."""

    places: dict[str, set[Place]]
    first_ns: dict[str, int]
    """Time of the first answer that showed a message."""
    offsets: dict[str, set[int]]
    """By queue."""

    @classmethod
    def to_readers_of(cls, run: RunData, workload: str) -> Shown:
        """Collect the results of a workload's pulls and scans."""
        shown = cls({}, {}, {})
        for operation in run.of(workload, "pull", "scan", outcome="ok"):
            assert operation.complete_ns is not None
            for message in seen(operation):
                shown.places.setdefault(message.value, set()).add((operation.key, message.offset))
                first_ns = min(operation.complete_ns, shown.first_ns.get(message.value, operation.complete_ns))
                shown.first_ns[message.value] = first_ns
                shown.offsets.setdefault(operation.key, set()).add(message.offset)
        return shown

    def are_whole(self, run: RunData, topic: str) -> bool:
        """Return False if a trim may have removed messages of a topic before any reader saw them."""
        for key, queue in run.messages.queues.items():
            if key.startswith(f"{topic}/") and queue.bounds is not None:
                first, _ = queue.bounds
                if len([offset for offset in self.offsets.get(key, ()) if offset < first]) < first:
                    return False
        return True
