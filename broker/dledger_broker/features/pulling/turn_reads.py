"""Reads for the pulls of one turn of the event loop, in one call of the native part.

A pull that is read by itself goes through the layers for the units of its queue, and once more for every piece of the
log that its records are. Here the pulls of a turn are gathered once they are checked, and read together. What the page
cache has not got, what is empty, gone or damaged, and what a filter looks into, is read by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from dledger.log import Log
from dledger.native_part import Ask, Found, NativePart
from dledger.store.reader import OpenFile
from dledger_broker.features.pulling import limits
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.requests import Request
from dledger_broker.views.reading import MAX_SCANNED_UNITS, GetResult, ReadStatus, outside
from dledger_remoting.filters.subscriptions import MessageFilter
from dledger_remoting.filters.tags import TagFilter
from dledger_remoting.hotpath import PullFields

_MAX_FILES: Final = 4
"""So many of the log's are read for a turn, beside the one that was read last. What lies in others is read alone."""
_NOWHERE: Final = OpenFile(-1, 0, -1)
"""No record is in it."""


GatheredPull: TypeAlias = tuple[Request, PullFields, QueueState, MessageFilter | None, int, int]
"""A pull that may read, and the first and last offset of its queue as they are now: a plain tuple, for one is made with
every pull."""


class TurnReads:
    """The pulls that have been gathered in this turn, if it gathers any."""

    def __init__(self, machine: BrokerMachine, log: Log, part: NativePart | None) -> None:
        self._machine = machine
        self._log = log
        self._part = part
        self._gathers = False
        self._pulls: list[GatheredPull] = []
        self._asks: list[Ask] = []
        self._near: int | None = None
        """Where records were found: the next ones lie in the same file, mostly."""

    def begin(self) -> None:
        """Gather pulls until `end`, if there is a native part. Those that are gathered already stay."""
        self._gathers = self._part is not None

    def take(
        self, request: Request, fields: PullFields, queue: QueueState, message_filter: MessageFilter | None
    ) -> bool:
        """Gather a pull; False, and nothing done, if it has to be read by itself."""
        if not self._gathers:
            return False
        offset, low, high, view = fields.queue_offset, queue.min_offset, queue.max_offset, queue.view
        if outside(offset, low, high, view.end) is not None:
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
        """Read what was gathered, in the order in which it came; what has to be read by itself gets None."""
        self._gathers = False
        if not self._pulls or self._part is None:
            return []
        pulls, asks, self._pulls, self._asks = self._pulls, self._asks, [], []
        found = self._read(self._part, asks)
        return [_result(pull, one) for pull, one in zip(pulls, found, strict=True)]

    def _read(self, part: NativePart, asks: Sequence[Ask]) -> Sequence[Found | None]:
        """What each gets, file by file, first from the one that was read last; or where it lies."""
        found = self._read_near(part, asks) or part.read_pulls(asks, _NOWHERE, self._log.first_position)
        waiting = _elsewhere(found, range(len(asks)))
        for _ in range(_MAX_FILES):
            if not waiting:
                break
            first, *others = waiting
            self._near = waiting[first]
            some = self._read_near(part, [asks[number] for number in waiting])
            for number, one in zip(waiting, some or (), strict=some is not None):
                found[number] = one
            # The first was looked for in its own file: that is not open, or its records lie in the next one, too.
            waiting = _elsewhere(found, others)
        return found

    def _read_near(self, part: NativePart, asks: Sequence[Ask]) -> list[Found | None] | None:
        """What lies in the file of what was found last, and where the rest lies; None if that file is not open."""
        if self._near is None:
            return None
        first_position = self._log.first_position
        return self._log.with_open_file(self._near, lambda file: part.read_pulls(asks, file, first_position))


def _elsewhere(found: Sequence[Found | None], numbers: Iterable[int]) -> dict[int, int]:
    """Those of some numbers whose records lie in a file that was not read, and where."""
    return {number: one[3] for number in numbers if (one := found[number]) is not None and one[4] is None}


def _result(pull: GatheredPull, found: Found | None) -> tuple[GatheredPull, GetResult | None, bytes | None]:
    if found is None:
        return pull, None, None
    passed, count, size, _, records = found
    next_begin = pull[1].queue_offset + passed
    return pull, GetResult(ReadStatus.FOUND, next_begin, pull[4], pull[5], [], count, size), records
