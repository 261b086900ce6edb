"""Reads for the pulls of one turn of the event loop, in one call of the native part.

A pull that is read by itself goes through the layers for the units of its queue, and once more for every piece of the
log that its records are. Here the pulls of a turn are gathered once they are checked, and read together. What the page
cache has not got, what is empty, gone or damaged, and what a filter looks into, is read by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from dledger.log import Log
from dledger.native_part import Ask, Found, NativePart
from dledger.store.reader import OpenFile
from dledger_broker.features.pulling import limits
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import QueueState
from dledger_broker.kernel.requests import Request
from dledger_broker.views.reading import GetResult, ReadStatus, units_to_read
from dledger_remoting.filters.subscriptions import MessageFilter
from dledger_remoting.filters.tags import TagFilter
from dledger_remoting.hotpath import PullFields

_MAX_FILES: Final = 4
"""As many files of the log are read for a turn; readers that lie in more of them are read one by one."""
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
        if not low <= offset < high or offset >= view.end:
            return False
        units = most = limits.max_messages(fields)
        codes = None
        if message_filter is not None:
            if not isinstance(message_filter, TagFilter):
                return False
            units = units_to_read(most, message_filter)
            codes = None if message_filter.matches_all else message_filter.codes
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
        for _ in range(_MAX_FILES):
            elsewhere = [(number, one[3]) for number, one in enumerate(found) if one is not None and one[4] is None]
            if not elsewhere:
                break
            self._near = elsewhere[0][1]
            some = self._read_near(part, [asks[number] for number, _ in elsewhere])
            if some is None:
                break
            for (number, _), one in zip(elsewhere, some, strict=True):
                found[number] = one
        return found

    def _read_near(self, part: NativePart, asks: Sequence[Ask]) -> list[Found | None] | None:
        """What lies in the file of what was found last, and where the rest lies; None if that file is not open."""
        if self._near is None:
            return None
        first_position = self._log.first_position
        return self._log.with_open_file(self._near, lambda file: part.read_pulls(asks, file, first_position))


def _result(pull: GatheredPull, found: Found | None) -> tuple[GatheredPull, GetResult | None, bytes | None]:
    if found is None:
        return pull, None, None
    passed, count, size, _, records = found
    next_begin = pull[1].queue_offset + passed
    return pull, GetResult(ReadStatus.FOUND, next_begin, pull[4], pull[5], [], count, size), records
