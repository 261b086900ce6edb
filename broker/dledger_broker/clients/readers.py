"""Table of readers: for each queue and consumer group, the client that last pulled from this node.

The members of a group compute their shares of the queues themselves and report them to no broker. A broker sees only
who pulls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from dledger_broker.kernel.requests import Origin

KEEP_S: Final = 120.0
"""Time in seconds after its last pull for which a client counts as a reader: twice as long as a pull waits."""

_MIN_LIMIT: Final = 4_096
"""Minimum number of entries at which old entries are removed. The next removal happens once the table has doubled."""


Reader: TypeAlias = tuple[Origin, float, int, int]
"""The channel of a pull, the time, the offset, and the creation of the topic that it read.

A plain tuple, because every pull makes one.
"""


class Readers:
    """The newest pull of each queue by each group. Entries of queues that nobody pulls any more are removed in time."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, int], Reader] = {}
        self._limit = _MIN_LIMIT

    def note(
        self, group: str, topic: str, queue_id: int, origin: Origin, now: float, offset: int, created: int
    ) -> bool:
        """Record a pull at an offset, and return True. Return False, and record nothing, if the same client last pulled
        an earlier creation of the topic. The caller then informs the client and calls `forget`.
        """
        key = (group, topic, queue_id)
        last = self._last.get(key)
        if last is not None and last[3] != created and offset > 0 and _is_same_client(last[0], origin):
            return False
        self._last[key] = (origin, now, offset, created)
        if len(self._last) > self._limit:
            self._last = {key: reader for key, reader in self._last.items() if _reads(reader, now)}
            self._limit = max(_MIN_LIMIT, 2 * len(self._last))
        return True

    def forget(self, group: str, topic: str, queue_id: int) -> None:
        """Forget the last pull of a queue."""
        self._last.pop((group, topic, queue_id), None)

    def read_earlier_creation(self, group: str, topic: str, queue_id: int, origin: Origin, created: int) -> bool:
        """Return whether the client last pulled an earlier creation of the topic, so that what it says of the queue is
        outdated.
        """
        last = self._last.get((group, topic, queue_id))
        return last is not None and last[3] != created and _is_same_client(last[0], origin)

    def of(self, group: str, now: float) -> Iterator[tuple[str, int, Reader]]:
        """Yield topic, queue id and reader of each queue that a group reads."""
        for (name, topic, queue_id), reader in self._last.items():
            if name == group and _reads(reader, now):
                yield topic, queue_id, reader

    def pulled(self, group: str, topic: str, queue_id: int, now: float) -> int:
        """Return the offset at which a group last pulled a queue from this node, 0 if no pull is recorded."""
        reader = self._last.get((group, topic, queue_id))
        return reader[2] if reader is not None and _reads(reader, now) else 0


def _is_same_client(first: Origin, second: Origin) -> bool:
    return first is second or first.key == second.key or not first.client_ids.isdisjoint(second.client_ids)


def _reads(reader: Reader, now: float) -> bool:
    origin, pulled_at, _, _ = reader
    return origin.is_open and now - pulled_at <= KEEP_S
