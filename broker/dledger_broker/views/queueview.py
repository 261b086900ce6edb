"""One consume queue in memory: its begin, the extent on disk, and the tail that may not be written yet."""

from __future__ import annotations

from dledger_base.invariants import invariant
from dledger_broker.views.units import UNIT_BYTES


class QueueView:
    """The units of one queue. Offsets are queue offsets.

    `start` is the first offset held on this replica. Units below `written` are in the queue's files. `tail` holds the
    units from `tail_start` to `end`, at least all unwritten units, and new units are added to it. The tail of an idle
    queue is empty, so that the queue costs no more than this object. A queue is `dropped` with its topic.

    Records below `created_position` of the log belong to an earlier topic of that name. `seed` is that of the stamps in
    the files. While the view is `damaged` its files are not read: they are being mended.
    """

    __slots__ = (
        "created_position",
        "damaged",
        "dirty",
        "dropped",
        "queue_id",
        "seed",
        "start",
        "tail",
        "tail_start",
        "topic",
        "written",
    )

    def __init__(self, topic: str, queue_id: int, created_position: int = 0, seed: int = 0) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.created_position = created_position
        self.seed = seed
        self.dropped = False
        self.damaged = False
        self.start = 0
        self.written = 0
        self.tail_start = 0
        self.tail = bytearray()
        self.dirty = False

    @property
    def end(self) -> int:
        """The offset after the last unit."""
        return self.tail_start + len(self.tail) // UNIT_BYTES

    def readable_to(self, offset: int) -> int:
        """Return the offset up to which a read at `offset` finds units, `offset` itself if its file is being mended."""
        return offset if self.damaged and offset < self.tail_start else self.end

    def reset(self, start: int, end: int) -> None:
        """Hold the units from `start` to `end`, all of them written."""
        self.damaged = False
        self.start = start
        self.written = self.tail_start = end
        self.tail = bytearray()

    def in_memory(self, offset: int, count: int) -> bytes:
        """Return up to `count` units from `offset` on. The tail must hold `offset`."""
        begin = (offset - self.tail_start) * UNIT_BYTES
        return bytes(self.tail[begin : begin + count * UNIT_BYTES])

    def unwritten(self) -> bytes:
        """Return the units from `written` to `end`."""
        return bytes(self.tail[(self.written - self.tail_start) * UNIT_BYTES :])

    def mark_written(self, end: int, keep: int) -> None:
        """Note that the files hold all units below `end`. Of these the tail keeps the last `keep`."""
        invariant(self.written <= end <= self.end, "only appended units are written", written=end, end=self.end)
        self.written = end
        surplus = end - keep - self.tail_start
        if surplus > 0:
            del self.tail[: surplus * UNIT_BYTES]
            self.tail_start += surplus
