"""List of delayed messages for operators (20033): what waits, and until when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from dledger.environment import called_back
from dledger_broker.features.delay.records import real_of
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.views.timeindex import TimeIndex
from dledger_broker.views.timerows import Row
from dledger_remoting.bodies import encode_body
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.headers import decode_ext
from dledger_remoting.properties import UNIQUE_KEY, find_property
from dledger_remoting.waiting import MAX_ROWS, DelayedRow, DelayedRows, ListDelayedHeader

_UNIQUE_KEY: Final = UNIQUE_KEY.encode()


class DelayedListing:
    """Handler of 20033 on the leader. `pending` returns the number of all messages that wait."""

    def __init__(
        self, machine: BrokerMachine, index: TimeIndex, requests: Requests, pending: Callable[[], int]
    ) -> None:
        self._machine = machine
        self._index = index
        self._requests = requests
        self._pending = pending

    def handle(self, request: Request) -> None:
        """Answer with the delayed messages that are due next (20033). Raises `InvalidParameter` for a wrong number."""
        header = decode_ext(ListDelayedHeader, request.ext)
        if not 1 <= header.max_rows <= MAX_ROWS:
            raise InvalidParameter(f"maxRows {header.max_rows} is outside 1..{MAX_ROWS}")
        self._requests.spawn(request, self._tell(request, header))

    async def _tell(self, request: Request, header: ListDelayedHeader) -> None:
        after = header.after_due_ms, header.after_position
        found: Sequence[Row] = await called_back(partial(self._index.next, after, header.max_rows))
        rows = [row for one in found if (row := await self._describe(one)) is not None]
        self._requests.respond(request, encode_body(DelayedRows(rows, self._pending())))

    async def _describe(self, row: Row) -> DelayedRow | None:
        """Return a row with what its record says, None if the record is gone or cannot be read."""
        found = await self._machine.lookup.record_at(row.position)
        real = None if found is None else real_of(found[1])
        if found is None or real is None:
            return None
        unique_key = (find_property(found[1].properties, _UNIQUE_KEY) or b"").decode(errors="replace")
        return DelayedRow(real.topic, real.queue_id, row.due_ms, unique_key, row.position, row.size)
