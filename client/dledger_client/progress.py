"""Progress of a consumer in one queue: which offset may be committed."""

from __future__ import annotations

from collections import deque


class QueueProgress:
    """Messages of one queue are delivered in order and acknowledged in any order.

    What may be committed is the lowest offset that is delivered and not acknowledged, or, if all are, the offset that
    the next pull begins with: after a restart nothing is skipped.
    """

    __slots__ = ("_delivered", "_unacknowledged", "next_offset", "outstanding_bytes")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self._delivered: deque[int] = deque()
        self._unacknowledged: dict[int, int] = {}
        """Sizes by offset."""
        self.outstanding_bytes = 0

    @property
    def outstanding(self) -> int:
        """How many messages are delivered and not acknowledged."""
        return len(self._unacknowledged)

    @property
    def span(self) -> int:
        """How many delivered messages lie at or above the committable offset, acknowledged ones included."""
        return len(self._delivered)

    @property
    def offset_span(self) -> int:
        """How many offsets lie between the committable one and the newest delivered one, matching or not."""
        return self._delivered[-1] - self._delivered[0] if self._delivered else 0

    @property
    def committable(self) -> int:
        """The offset to commit now."""
        return self._delivered[0] if self._delivered else self.next_offset

    def deliver(self, offset: int, size_bytes: int = 0) -> None:
        """A message of this size was handed out. Offsets rise from call to call."""
        self._delivered.append(offset)
        self._unacknowledged[offset] = size_bytes
        self.outstanding_bytes += size_bytes

    def advance(self, next_offset: int) -> None:
        """A pull has covered everything below `next_offset`, whether it matched or not."""
        self.next_offset = max(self.next_offset, next_offset)

    def withdraw(self, offset: int) -> None:
        """Take back the deliveries from `offset` on: nobody has seen these messages."""
        while self._delivered and self._delivered[-1] >= offset:
            self.outstanding_bytes -= self._unacknowledged.pop(self._delivered.pop(), 0)
        self.next_offset = offset

    def acknowledge(self, offset: int) -> bool:
        """A message is done with. False if it was not outstanding: acknowledged before, or never delivered."""
        if offset not in self._unacknowledged:
            return False
        self.outstanding_bytes -= self._unacknowledged.pop(offset)
        while self._delivered and self._delivered[0] not in self._unacknowledged:
            self._delivered.popleft()
        return True
