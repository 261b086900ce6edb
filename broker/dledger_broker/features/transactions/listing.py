"""List of open halves for operators (20034): transactions without an outcome, and the checks of each."""

from __future__ import annotations

from itertools import islice
from typing import Final

from dledger_broker.features.transactions.table import HALVES, Half
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request, Requests
from dledger_remoting.bodies import encode_body
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.headers import decode_ext
from dledger_remoting.properties import REAL_TOPIC, UNIQUE_KEY, find_property
from dledger_remoting.waiting import MAX_ROWS, HalfRow, HalfRows, ListHalvesHeader

_UNIQUE_KEY: Final = UNIQUE_KEY.encode()
_REAL_TOPIC: Final = REAL_TOPIC.encode()


class HalfListing:
    """Handler of 20034 on a confirmed leader."""

    def __init__(self, machine: BrokerMachine, requests: Requests) -> None:
        self._machine = machine
        self._requests = requests

    def handle(self, request: Request) -> None:
        """Answer with open halves, the oldest first (20034). Raises `InvalidParameter` for a wrong number."""
        header = decode_ext(ListHalvesHeader, request.ext)
        if not 1 <= header.max_rows <= MAX_ROWS:
            raise InvalidParameter(f"maxRows {header.max_rows} is outside 1..{MAX_ROWS}")
        halves = self._machine.state.table(HALVES).open
        chosen = list(
            islice((half for half in halves.values() if half.position > header.after_position), header.max_rows)
        )
        self._requests.spawn(request, self._tell(request, chosen, len(halves)))

    async def _tell(self, request: Request, chosen: list[Half], pending: int) -> None:
        rows = [row for half in chosen if (row := await self._describe(half)) is not None]
        self._requests.respond(request, encode_body(HalfRows(rows, pending)))

    async def _describe(self, half: Half) -> HalfRow | None:
        found = await self._machine.lookup.record_at(half.position)
        if found is None:
            return None
        record = found[1]
        topic, key = (
            (find_property(record.properties, name) or b"").decode(errors="replace")
            for name in (_REAL_TOPIC, _UNIQUE_KEY)
        )
        return HalfRow(
            topic, half.group, key, record.born_timestamp, half.checks, half.next_check_ms, half.position, half.size
        )
