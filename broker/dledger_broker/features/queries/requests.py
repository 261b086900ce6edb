"""Requests for single messages: by key (12) and by physical offset (33).

Any node answers with what it finds. If it finds nothing, the leader has to confirm that first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dledger_broker.features.queries.by_key import KeyQueries
from dledger_broker.kernel import rights
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action, Demand, ResourceKind
from dledger_broker.kernel.routes import NO_EFFECT, Needs, Route
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import InvalidParameter, QueryNotFound, ServerError
from dledger_remoting.headers import (
    QueryMessageHeader,
    QueryMessageResponseHeader,
    ViewMessageHeader,
    decode_ext,
    encode_ext,
)
from dledger_remoting.headers_query import UNIQUE_KEY_QUERY_FIELD
from dledger_remoting.record import decode_record
from dledger_remoting.topics import require_readable

MAX_RESULTS: Final = 64
UNIQUE_KEY_RESULTS: Final = 32


class QueryRequests(Part):
    """Handler of queries, in tasks, because they may need the disk."""

    def __init__(self, machine: BrokerMachine, requests: Requests, access: Access) -> None:
        self._access = access
        self._lookup = machine.lookup
        self._by_keys = KeyQueries(machine.keys, machine.lookup)
        self._requests = requests

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.QUERY_MESSAGE: Route(
                self.by_key, Needs.NOTHING, NO_EFFECT, rights=(rights.topic("topic", Action.SUB, Action.GET),)
            ),
            RequestCode.VIEW_MESSAGE_BY_ID: Route(
                self.by_offset,
                Needs.NOTHING,
                NO_EFFECT,
                rights=(rights.later("that of the message", Action.SUB, Action.GET),),
            ),
        }

    def by_key(self, request: Request) -> None:
        """Answer with messages of a topic that have a key (12), newest first, as many as fit into a frame."""
        header = decode_ext(QueryMessageHeader, request.ext)
        if header.max_num < 1:
            raise InvalidParameter(f"maxNum {header.max_num} is below 1")
        require_readable(header.topic)
        unique_only = request.ext.get(UNIQUE_KEY_QUERY_FIELD) in ("true", "TRUE", "1")
        self._requests.spawn(request, self._by_key(request, header, unique_only=unique_only))

    async def _by_key(self, request: Request, header: QueryMessageHeader, *, unique_only: bool) -> None:
        count = UNIQUE_KEY_RESULTS if unique_only else min(header.max_num, MAX_RESULTS)
        result = await self._by_keys.query(
            header.topic,
            header.key,
            count,
            header.begin_timestamp,
            header.end_timestamp,
            max_bytes=self._requests.max_body_bytes,
            unique_only=unique_only,
        )
        if not result.records:
            raise QueryNotFound(
                f"can not find message with key {header.key!r} in topic {header.topic}, maybe it is too old"
            )
        ext = encode_ext(QueryMessageResponseHeader(result.last_update_timestamp, result.last_update_position))
        self._requests.respond(request, b"".join(result.records), ext)

    def by_offset(self, request: Request) -> None:
        """Answer with the record at a physical offset (33)."""
        header = decode_ext(ViewMessageHeader, request.ext)
        self._requests.spawn(request, self._by_offset(request, header.offset))

    async def _by_offset(self, request: Request, position: int) -> None:
        record = await self._lookup.message_at(position) if position >= 0 else None
        if record is not None:
            if self._access.is_on:
                demand = Demand((Action.SUB, Action.GET), ResourceKind.TOPIC, decode_record(record).topic)
                self._access.require(request, demand)
            self._requests.respond(request, record)
        elif request.confirmed:
            raise ServerError(f"can not find message by the offset, {position}")
        else:
            self._requests.confirm(request)
