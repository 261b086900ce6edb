"""Statistics of producers: the connected clients of a group (204), or of all groups on one node (328)."""

from __future__ import annotations

from functools import partial

from dledger.environment import Environment
from dledger_broker.clients.gossip import Gossip
from dledger_broker.clients.tables import ClientRow, shown_id
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.requests import Request, Requests
from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import LanguageCode
from dledger_remoting.errors import ServerError
from dledger_remoting.headers import ProducerGroupHeader, decode_ext
from dledger_remoting.statistics import ClientConnection, ProducerConnection, ProducerInfo, ProducerTable


class ProducerStatistics:
    """Handler of requests about producers, answered from the clients' heartbeats."""

    def __init__(self, env: Environment, group: LeadershipView, gossip: Gossip, requests: Requests) -> None:
        self._env = env
        self._group = group
        self._gossip = gossip
        self._requests = requests

    def connections(self, request: Request) -> None:
        """Answer with the clients of a producer group on all nodes (204)."""
        group = decode_ext(ProducerGroupHeader, request.ext).producer_group
        self._gossip.after_all_tables(partial(self._answer_connections, request, group))

    def _answer_connections(self, request: Request, group: str) -> None:
        if not self._group.ready:  # This node may have lost the leadership while it waited for the other nodes' tables.
            self._requests.pass_on(request)
            return
        rows = self._gossip.merged.producer_rows(group)
        if not rows:
            request.fail(ServerError(f"the producer group[{group}] not exist"))
            return
        connections = [
            ClientConnection(
                row.address, shown_id(row.client_id), LanguageCode.from_wire(row.language).name, row.version
            )
            for row in rows
        ]
        self._requests.respond(request, encode_body(ProducerConnection(connections)))

    def all(self, request: Request) -> None:
        """Answer with the producers connected to this node, and the times of their heartbeats (328)."""
        table: dict[str, list[ProducerInfo]] = {}
        for row, heard_at in self._gossip.local.seen():
            info = self._info(row, heard_at)
            for group in row.producer_groups:
                table.setdefault(group, []).append(info)
        self._requests.respond(request, encode_body(ProducerTable(dict(sorted(table.items())))))

    def _info(self, row: ClientRow, heard_at: float) -> ProducerInfo:
        heard_ms = self._env.wall_ms() - int((self._env.now() - heard_at) * 1000)
        language = LanguageCode.from_wire(row.language).name
        return ProducerInfo(shown_id(row.client_id), language, heard_ms, f"/{row.address}", row.version)
