"""One consume queue as it stands in memory: where it begins, what is on disk, and the tail that may not be yet."""

from __future__ import annotations

from dledger.invariants import invariant
from dledger_broker.views.units import UNIT_BYTES


class QueueView:
    """The units of one queue; offsets are queue offsets.

    `start` is the first offset held on this replica, units below `written` are in the queue's files, and `tail` holds
    the units from `tail_start` to `end`, at least all those that are not written; new units are added to it.  Of an
    idle queue the tail is empty: it costs no more than this object.  A queue is `dropped` with its topic.
    """

    __slots__ = ("dirty", "dropped", "queue_id", "start", "tail", "tail_start", "topic", "written")

    def __init__(self, topic: str, queue_id: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.dropped = False
        self.start = 0
        self.written = 0
        self.tail_start = 0
        self.tail = bytearray()
        self.dirty = False

    @property
    def end(self) -> int:
        """The offset after the last unit."""
        return self.tail_start + len(self.tail) // UNIT_BYTES

    def reset(self, start: int, end: int) -> None:
        """Hold the units from `start` to `end`, all of them written."""
        self.start = start
        self.written = self.tail_start = end
        self.tail = bytearray()

    def in_memory(self, offset: int, count: int) -> bytes:
        """Up to `count` units from `offset` on, which is in the tail."""
        begin = (offset - self.tail_start) * UNIT_BYTES
        return bytes(self.tail[begin : begin + count * UNIT_BYTES])

    def unwritten(self) -> bytes:
        """The units from `written` to `end`."""
        return bytes(self.tail[(self.written - self.tail_start) * UNIT_BYTES :])

    def mark_written(self, end: int, keep: int) -> None:
        """The files hold all units below `end`; of these the tail keeps the last `keep`."""
        invariant(self.written <= end <= self.end, "only appended units are written", written=end, end=self.end)
        self.written = end
        surplus = end - keep - self.tail_start
        if surplus > 0:
            del self.tail[: surplus * UNIT_BYTES]
            self.tail_start += surplus
