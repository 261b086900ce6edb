"""Table of readers: who asked this node last for messages of each queue, for each consumer group.

Shares of queues are computed by the members of a group, and no broker is told of them. What a broker sees is who pulls.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from dledger_broker.kernel.requests import Origin

KEEP_S: Final = 120.0
"""Who has not asked for so long reads no more: twice as long as a pull waits."""

_LEAST: Final = 4_096
"""The table is cleared of old entries when it has grown to twice what was left, or to this."""


Reader: TypeAlias = tuple[Origin, float, int]
"""The channel that a pull came through, when, and at which offset: a plain tuple, for one is made with every pull."""


class Readers:
    """The newest pull of each queue by each group; of queues that nobody pulls any more entries go in time."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str, int], Reader] = {}
        self._limit = _LEAST

    def note(self, group: str, topic: str, queue_id: int, origin: Origin, now: float, offset: int) -> None:
        """Take in a pull at an offset."""
        self._last[group, topic, queue_id] = (origin, now, offset)
        if len(self._last) > self._limit:
            self._last = {key: reader for key, reader in self._last.items() if _reads(reader, now)}
            self._limit = max(_LEAST, 2 * len(self._last))

    def of(self, group: str, now: float) -> Iterator[tuple[str, int, Reader]]:
        """Topic, queue id and reader of the queues that a group reads."""
        for (name, topic, queue_id), reader in self._last.items():
            if name == group and _reads(reader, now):
                yield topic, queue_id, reader

    def pulled(self, group: str, topic: str, queue_id: int, now: float) -> int:
        """Up to which offset a group that reads has pulled a queue from this node, 0 if that is not known."""
        reader = self._last.get((group, topic, queue_id))
        return reader[2] if reader is not None and _reads(reader, now) else 0


def _reads(reader: Reader, now: float) -> bool:
    origin, at, _ = reader
    return origin.is_open and now - at <= KEEP_S
