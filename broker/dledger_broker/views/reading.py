"""Reader of queues for pulls: returns a status, the next offset, and the places of the records in the log."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple

from dledger_base import native_part
from dledger_broker.views.units import READ_UNIT, UNIT_BYTES
from dledger_remoting.filters.tags import TagFilter

MAX_SCANNED_UNITS: Final = 800
"""Maximum number of units that one read checks when a filter rejects them: 16,000 bytes."""


class ReadStatus(StrEnum):
    """Outcome of a read. The names are from RocketMQ's `GetMessageStatus`, except `COLD` and `NOT_REBUILT`."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_RESET = "OFFSET_RESET"
    """The reader's group is to continue at another offset, whatever the queue holds here."""
    COLD = "COLD"
    """The units are not in the page cache. The caller reads again with `get_messages_later`."""
    NOT_REBUILT = "NOT_REBUILT"
    """The units were lost, and this node has not rebuilt them yet. Other nodes have them."""


class GetResult(NamedTuple):
    """Result of a read of one queue.

    `runs` are (position, size) of pieces of the log that hold only matching records, in order. Adjacent records are one
    piece. They have `message_count` records and `size` bytes in all.
    """

    status: ReadStatus
    next_begin: int
    min_offset: int
    max_offset: int
    runs: list[tuple[int, int]]
    message_count: int = 0
    size: int = 0

    @property
    def cold(self) -> bool:
        """True if nothing was read because that needs the disk."""
        return self.status is ReadStatus.COLD


def outside(offset: int, min_offset: int, max_offset: int, view_end: int) -> GetResult | None:
    """Return the result of a read at an offset without a unit, None if there is a unit.

    `view_end` is the offset up to which this node has units for this read (`QueueView.readable_to`).
    """
    if max_offset == 0:
        return GetResult(ReadStatus.NO_MESSAGE_IN_QUEUE, 0, min_offset, max_offset, [])
    if offset < min_offset:
        return GetResult(ReadStatus.OFFSET_TOO_SMALL, min_offset, min_offset, max_offset, [])
    if offset == max_offset:
        return GetResult(ReadStatus.OFFSET_OVERFLOW_ONE, offset, min_offset, max_offset, [])
    if offset > max_offset:
        return GetResult(ReadStatus.OFFSET_OVERFLOW_BADLY, max_offset, min_offset, max_offset, [])
    if offset >= view_end:
        return GetResult(ReadStatus.NOT_REBUILT, offset, min_offset, max_offset, [])
    return None


def units_to_read(max_messages: int, tag_filter: TagFilter | None) -> int:
    """Return the maximum number of units that a read needs."""
    return max_messages if tag_filter is None or tag_filter.matches_all else MAX_SCANNED_UNITS


@lru_cache(maxsize=64)
def _unpack_all(count: int) -> Callable[[bytes], tuple[int, ...]]:
    return Struct(">" + "qiq" * count).unpack


def _whole_run(units: bytes, max_messages: int, max_bytes: int, first_position: int) -> tuple[int, int, int] | None:
    """Return (position, size, number) of the records of all units, None unless all are to be answered and lie back to
    back.

    The records of a busy producer do. The units are then checked all at once instead of one by one.
    """
    count = len(units) // UNIT_BYTES
    if not 0 < count <= max_messages:
        return None
    fields = _unpack_all(count)(units)
    positions, sizes = fields[::3], fields[1::3]
    first, size = positions[0], sum(sizes)
    # Records do not overlap, and have the order of their units. So the records have no gaps if the sum is right.
    if first < first_position or positions[-1] + sizes[-1] - first != size or (size > max_bytes and count > 1):
        return None
    return first, size, count


def select(
    units: bytes,
    offset: int,
    min_offset: int,
    max_offset: int,
    max_messages: int,
    max_bytes: int,
    tag_filter: TagFilter | None,
    first_position: int,
) -> GetResult:
    """Choose the records to answer from the units at `offset`: at least one matching record if any matches.

    Units of records below `first_position` of the log are skipped in an answer of their own, before any records are
    returned.
    """
    codes = tag_filter.codes if tag_filter is not None and not tag_filter.matches_all else None
    part, chosen = native_part.PART, None
    if part is not None:
        chosen = part.select_units(units, max_messages, max_bytes, codes, first_position, tag_filter is None)
    passed, count, size, removed, runs = chosen or choose_units(
        units, max_messages, max_bytes, codes, first_position, whole=tag_filter is None
    )
    if count:
        status = ReadStatus.FOUND
    else:
        status = ReadStatus.MESSAGE_WAS_REMOVING if removed else ReadStatus.NO_MATCHED_MESSAGE
    return GetResult(status, offset + passed, min_offset, max_offset, runs, count, size)


def choose_units(
    units: bytes,
    max_messages: int,
    max_bytes: int,
    codes: frozenset[int] | None,
    first_position: int,
    *,
    whole: bool,
) -> tuple[int, int, int, int, list[tuple[int, int]]]:
    """Return how many units were passed, how many were chosen, the size of the chosen records, and how many were below
    `first_position`. The last item is the pieces of the log that hold the chosen records.

    `codes` are the codes of the tags that match, None if all match. With `whole`, the units may be checked all at once.
    """
    if whole and (run := _whole_run(units, max_messages, max_bytes, first_position)):
        position, size, count = run
        return count, count, size, 0, [(position, size)]
    runs: list[tuple[int, int]] = []
    passed = count = total = removed = 0
    run_start = run_end = -1
    for position, size, code in READ_UNIT.iter_unpack(units):
        if position < first_position:
            removed += 1
        elif removed:
            break
        elif codes is None or code in codes:
            if count and (count >= max_messages or total + size > max_bytes):
                break
            count += 1
            total += size
            if position == run_end:
                run_end += size
            else:
                if run_start >= 0:
                    runs.append((run_start, run_end - run_start))
                run_start, run_end = position, position + size
        passed += 1
    if count:
        runs.append((run_start, run_end - run_start))
    return passed, count, total, removed, runs
