"""Places in the queues of a topic, and the offsets that they stand for in each queue."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from dledger_client import MessageQueue


class Edge(Enum):
    """The beginning or the end of a queue as it is now."""

    BEGINNING = "beginning"
    END = "end"


@dataclass(frozen=True, slots=True)
class Offset:
    """The message with this offset, in each queue."""

    offset: int


@dataclass(frozen=True, slots=True)
class FromEnd:
    """A number of messages before the end of each queue."""

    messages: int


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first message stored at or after a time."""

    ms: int


Position: TypeAlias = Edge | Offset | FromEnd | AtTime


class Cursor(Protocol):
    """The part of `PullConsumer` that finds places."""

    @property
    def positions(self) -> dict[MessageQueue, int]:
        """The offset that is read next in each assigned queue."""

    async def seek_to_begin(self) -> None:
        """Go to the first kept message of all queues."""

    async def seek_to_end(self) -> None:
        """Go behind the last message of all queues."""

    async def seek_to_time(self, timestamp_ms: int) -> None:
        """Go to the first messages stored at or after a time."""


async def find(cursor: Cursor, position: Position) -> dict[MessageQueue, int]:
    """Return the offset of a place in each assigned queue. The cursor may have moved afterwards.

    An `Offset` is returned as it is, even if no message has it now.
    """
    match position:
        case Edge.BEGINNING:
            await cursor.seek_to_begin()
        case Edge.END:
            await cursor.seek_to_end()
        case AtTime(ms):
            await cursor.seek_to_time(ms)
        case Offset(offset):
            return dict.fromkeys(cursor.positions, offset)
        case FromEnd(messages):
            await cursor.seek_to_begin()
            firsts = cursor.positions
            await cursor.seek_to_end()
            return {queue: max(end - messages, firsts[queue]) for queue, end in cursor.positions.items()}
    return cursor.positions
