"""Checking a range of one node's log: every entry, every record, every queue offset.

This runs in tasks, so it imports the standard library only. Formats: `docs/reference/file-format.md`, "Entry", and
`dledger_remoting.record`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from dledger_remoting.checksum import crc32

from ..entries import Span, verify_entries
from ..errors import CorruptDataError, SourceError, WireError
from ..segments import READ_BYTES, READ_RANGE
from ..uncommon import MAGIC_V1, MAGIC_V2
from ..wire import Connection, Response

BEHIND: Final = 20111
BUSY: Final = 2
SILENCE_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.1
_HEAD: Final = Struct(">iIIi4xqqi44xi")
"""Size, magic, body crc, queue id, queue offset, physical offset, sys flag, body length; hosts are IPv4."""
_INT: Final = Struct(">i")
_IPV6_MORE_BYTES: Final = 12
_BODY_CRC_MASK: Final = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class TopicBounds:
    """A topic's present incarnation: its records lie at or behind `created`, with offsets from first to below next."""

    name: str
    created: int
    queues: dict[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class LogRange:
    """Part of a log that one task checks: entries from byte `start` to `end`, at the node with this `address`.

    `previous_chain` is the chain crc before entry `index`, the first; `end_chain`, if known, the one of the last.
    """

    group: str
    node: str
    address: str
    roles: str
    pin: str
    start: int
    end: int
    index: int
    previous_chain: int
    end_chain: int | None
    topics: tuple[TopicBounds, ...]
    timeout_s: float


@dataclass(slots=True)
class QueueRun:
    """A queue's records in a range: `count` of them, from offset `first` to `last`."""

    first: int
    last: int
    count: int


@dataclass(slots=True)
class RangeCheck:
    """Result of the check of a range.

    `invalid` names the violation, `position` its place. `unreadable` is the reason why the node did not give its bytes.
    `other` records belong to deleted topics, or were trimmed, but lie in a segment that is still kept.
    """

    node: str
    start: int
    end: int
    entries: int = 0
    records: int = 0
    other: int = 0
    size_bytes: int = 0
    sha256: str = ""
    queues: dict[tuple[str, int], QueueRun] = field(default_factory=dict)
    position: int = 0
    invalid: str | None = None
    unreadable: str | None = None


def check_range(part: LogRange) -> RangeCheck:
    """Read a range and check it. Violations are in the result, and raise nothing."""
    check = RangeCheck(part.node, part.start, part.end, position=part.start)
    digest = hashlib.sha256()
    records = RecordCheck(part.topics, check)
    index, chain = part.index, part.previous_chain
    try:
        for position, data in read_log(part):
            check.position = position
            digest.update(data)
            entries, chain = verify_entries(data, position, index, chain)
            for entry in entries:
                records.check(data, entry, position)
            index += len(entries)
            check.entries += len(entries)
            check.size_bytes += len(data)
        if part.end_chain is not None and chain != part.end_chain:
            check.position = part.end
            check.invalid = (
                f"the range ends with chain crc {chain:08x}, that of the node planned with {part.end_chain:08x}"
            )
    except CorruptDataError as error:
        check.invalid = str(error)
    except SourceError as error:
        check.unreadable = str(error)
    check.sha256 = digest.hexdigest()
    return check


def read_log(part: LogRange) -> Iterator[tuple[int, bytes]]:
    """Yield the raw entries of a range from this one node, each part with its position.

    Raises `SourceError` if the node does not give them within `timeout_s`.
    """
    position = part.start
    connection: Connection | None = None
    try:
        while position < part.end:
            deadline = time.monotonic() + part.timeout_s
            while True:
                try:
                    connection = connection or Connection(part.address, min(SILENCE_SECONDS, part.timeout_s))
                    response = connection.request(READ_RANGE, _request(part, position))
                    if response.code not in (BEHIND, BUSY) or time.monotonic() >= deadline:
                        break
                except WireError:
                    if connection is not None:
                        connection.close()
                        connection = None
                    if time.monotonic() >= deadline:
                        raise
                time.sleep(PAUSE_SECONDS)
            next_position = _next_position(response, position)
            if response.body:
                yield position, response.body
            position = next_position
    finally:
        if connection is not None:
            connection.close()


def _request(part: LogRange, position: int) -> dict[str, str]:
    return {
        "start": str(position),
        "end": str(part.end),
        "roles": part.roles,
        "maxBytes": str(READ_BYTES),
        "minCommit": str(part.end),
        "pin": part.pin,
    }


def _next_position(response: Response, position: int) -> int:
    """Return the position of the next read. Raises `RefusedError`, `CorruptDataError`."""
    next_position = int(response.check().ext["end"])
    if next_position <= position:
        raise CorruptDataError(f"a read at position {position} does not lead on, but to {next_position}")
    return next_position


class RecordCheck:
    """Checks the records of entries, and that each queue's offsets follow each other."""

    def __init__(self, topics: tuple[TopicBounds, ...], check: RangeCheck) -> None:
        self._topics = {topic.name.encode(): topic for topic in topics}
        self._check = check

    def check(self, data: bytes, entry: Span, position: int) -> None:
        """Check one entry of `data`, which starts at `position` of the log. Raises `CorruptDataError`."""
        place = entry.start
        while place < entry.stop:
            if entry.stop - place < _HEAD.size:
                raise CorruptDataError(
                    f"record at position {position + place}: only {entry.stop - place} bytes are left"
                )
            size, magic, body_crc, queue_id, offset, physical, sys_flag, body_bytes = _HEAD.unpack_from(data, place)
            body = place + _HEAD.size
            if sys_flag & 0x30:
                body += _IPV6_MORE_BYTES * (sys_flag & 0x30).bit_count()
                (body_bytes,) = _INT.unpack_from(data, body - 4)
            name_bytes = 1 if magic == MAGIC_V1 else 2
            name_start = body + body_bytes + name_bytes
            end = place + size
            if magic not in (MAGIC_V1, MAGIC_V2) or body_bytes < 0 or end > entry.stop or name_start > end:
                raise CorruptDataError(
                    f"record at position {position + place}: magic {magic:08x}, size {size}, body length {body_bytes}"
                )
            if physical != position + place:
                raise CorruptDataError(f"record at position {position + place}: it says {physical}")
            if body_bytes and crc32(data[body : body + body_bytes]) & _BODY_CRC_MASK != body_crc:
                raise CorruptDataError(f"record at position {position + place}: the body does not have its crc")
            name = data[name_start : name_start + int.from_bytes(data[name_start - name_bytes : name_start], "big")]
            self._count_record(name, queue_id, offset, physical)
            place = end

    def _count_record(self, name: bytes, queue_id: int, offset: int, physical: int) -> None:
        check = self._check
        check.records += 1
        topic = self._topics.get(name)
        first, following = (0, 0) if topic is None else topic.queues.get(queue_id, (0, 0))
        if topic is None or physical < topic.created or not first <= offset < following:
            check.other += 1
            return
        run = check.queues.get((topic.name, queue_id))
        if run is None:
            check.queues[topic.name, queue_id] = QueueRun(offset, offset, 1)
        elif offset == run.last + 1:
            run.last = offset
            run.count += 1
        else:
            raise CorruptDataError(
                f"record at position {physical}: offset {offset} of {topic.name}/{queue_id} follows {run.last}"
            )
