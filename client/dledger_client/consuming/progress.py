"""Progress of a consumer in one queue, and the offset that may be committed."""

from __future__ import annotations

from collections import deque


class QueueProgress:
    """Progress in one queue, whose messages are delivered in order and acknowledged in any order.

    The committable offset is the lowest that is delivered and not acknowledged. If all are acknowledged, it is the
    offset of the next pull. A consumer that restarts there skips no unacknowledged message.
    """

    __slots__ = ("_delivered", "_unacknowledged", "next_offset", "outstanding_bytes")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self._delivered: deque[int] = deque()
        self._unacknowledged: dict[int, int] = {}
        """Sizes in bytes by offset."""
        self.outstanding_bytes = 0

    @property
    def outstanding(self) -> int:
        """Number of messages that are delivered and not acknowledged."""
        return len(self._unacknowledged)

    @property
    def span(self) -> int:
        """Number of delivered messages at or above the committable offset, acknowledged ones included."""
        return len(self._delivered)

    @property
    def offset_span(self) -> int:
        """Distance from the committable to the newest delivered offset. It includes messages that did not match."""
        return self._delivered[-1] - self._delivered[0] if self._delivered else 0

    @property
    def committable(self) -> int:
        """The offset that may be committed now."""
        return self._delivered[0] if self._delivered else self.next_offset

    def deliver(self, offset: int, size_bytes: int = 0) -> None:
        """Record the delivery of a message of this size. Offsets rise from call to call."""
        self._delivered.append(offset)
        self._unacknowledged[offset] = size_bytes
        self.outstanding_bytes += size_bytes

    def advance(self, next_offset: int) -> None:
        """Record that pulls have covered all offsets below `next_offset`, whether their messages matched or not."""
        self.next_offset = max(self.next_offset, next_offset)

    def withdraw(self, offset: int) -> None:
        """Take back the deliveries from `offset` on, of messages that the application has not seen; pull from there."""
        while self._delivered and self._delivered[-1] >= offset:
            self.outstanding_bytes -= self._unacknowledged.pop(self._delivered.pop(), 0)
        self.next_offset = offset

    def acknowledge(self, offset: int) -> bool:
        """Record an acknowledgement. Returns False if the message was acknowledged before, or never delivered."""
        if offset not in self._unacknowledged:
            return False
        self.outstanding_bytes -= self._unacknowledged.pop(offset)
        while self._delivered and self._delivered[0] not in self._unacknowledged:
            self._delivered.popleft()
        return True
