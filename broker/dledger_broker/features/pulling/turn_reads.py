"""Reads for the pulls of one turn of the event loop, in one call of the native part.

A single read goes through the layers once for the units of its queue, and again for every piece of the log. Here the
pulls of a turn are gathered once they are checked, and read together. A pull is still read by itself if its filter
needs the records. So is a pull whose records are missing, damaged or not in the page cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from dledger.log import Log
from dledger.store.reader import OpenFile
from dledger_base.native_part import Ask, Found, NativePart
from dledger_broker.features.pulling import limits
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.requests import Request
from dledger_broker.views.reading import MAX_SCANNED_UNITS, GetResult, ReadStatus, outside
from dledger_remoting.filters.subscriptions import MessageFilter
from dledger_remoting.filters.tags import TagFilter
from dledger_remoting.hotpath import PullFields

_MAX_FILES: Final = 4
"""Maximum number of log files read for a turn, beside the file read last. Records in further files are read one by
one.
"""
_NOWHERE: Final = OpenFile(-1, 0, -1)
"""File that holds no record."""


GatheredPull: TypeAlias = tuple[Request, PullFields, QueueState, MessageFilter | None, int, int]
"""Pull that may read, with the present first and last offset of its queue. A plain tuple, because each pull makes
one.
"""


class TurnReads:
    """Pulls gathered in this turn."""

    def __init__(self, machine: BrokerMachine, log: Log, part: NativePart | None) -> None:
        self._machine = machine
        self._log = log
        self._part = part
        self._gathers = False
        self._pulls: list[GatheredPull] = []
        self._asks: list[Ask] = []
        self._last_file_position: int | None = None
        """Position at which records were found last. The next records are mostly in the same file."""

    def begin(self) -> None:
        """Gather pulls until `end`, if there is a native part. Pulls gathered already are kept."""
        self._gathers = self._part is not None

    def take(
        self, request: Request, fields: PullFields, queue: QueueState, message_filter: MessageFilter | None
    ) -> bool:
        """Gather a pull. Return False and do nothing if the pull has to be read by itself."""
        if not self._gathers:
            return False
        offset, low, high, view = fields.queue_offset, queue.min_offset, queue.max_offset, queue.view
        if outside(offset, low, high, view.readable_to(offset)) is not None:
            return False
        units = most = limits.max_messages(fields)
        codes = None
        if message_filter is not None:
            if not isinstance(message_filter, TagFilter) or message_filter.matches_all:
                return False
            units, codes = MAX_SCANNED_UNITS, message_filter.codes
        place = self._machine.queues.place(view, offset, units)
        if place is None:
            return False
        self._asks.append((*place, most, limits.max_bytes(fields), codes))
        self._pulls.append((request, fields, queue, message_filter, low, high))
        return True

    def end(self) -> list[tuple[GatheredPull, GetResult | None, bytes | None]]:
        """Read the gathered pulls, in the order of their arrival.

        The result is None for a pull that has to be read by itself.
        """
        self._gathers = False
        if not self._pulls or self._part is None:
            return []
        pulls, asks, self._pulls, self._asks = self._pulls, self._asks, [], []
        found = self._read(self._part, asks)
        return [_result(pull, result) for pull, result in zip(pulls, found, strict=True)]

    def _read(self, part: NativePart, asks: Sequence[Ask]) -> Sequence[Found | None]:
        """Return what each pull gets, or where its records lie.

        Files are read in turn, beginning with the file read last.
        """
        found = self._read_last_file(part, asks) or part.read_pulls(asks, _NOWHERE, self._log.first_position)
        waiting = _places_in_other_files(found, range(len(asks)))
        for _ in range(_MAX_FILES):
            if not waiting:
                break
            first, *others = waiting
            self._last_file_position = waiting[first]
            some = self._read_last_file(part, [asks[number] for number in waiting])
            for number, result in zip(waiting, some or (), strict=some is not None):
                found[number] = result
            # The first pull was searched in its own file. That file is not open, or its records continue in the next
            # file.
            waiting = _places_in_other_files(found, others)
        return found

    def _read_last_file(self, part: NativePart, asks: Sequence[Ask]) -> list[Found | None] | None:
        """Return the result from the file read last, and the place of the remaining records, or None if that file is
        not open.
        """
        if self._last_file_position is None:
            return None
        first_position = self._log.first_position
        return self._log.with_open_file(
            self._last_file_position, lambda file: part.read_pulls(asks, file, first_position)
        )


def _places_in_other_files(found: Sequence[Found | None], numbers: Iterable[int]) -> dict[int, int]:
    """Return the numbers whose records lie in a file that was not read, each with the position there."""
    return {number: result[3] for number in numbers if (result := found[number]) is not None and result[4] is None}


def _result(pull: GatheredPull, found: Found | None) -> tuple[GatheredPull, GetResult | None, bytes | None]:
    if found is None:
        return pull, None, None
    passed, count, size, _, records = found
    next_begin = pull[1].queue_offset + passed
    return pull, GetResult(ReadStatus.FOUND, next_begin, pull[4], pull[5], [], count, size), records
