"""The gRPC port: a door that takes clients with and without TLS, and grpclib's service behind it.

Health (`grpc.health.v1`) and reflection stand beside the service. A drain stops accepting, tells clients to connect
elsewhere, answers the requests under way, and then closes what is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any, Final

from grpclib.encoding.proto import ProtoCodec
from grpclib.events import _DispatchServerEvents
from grpclib.health.check import ServiceStatus
from grpclib.health.service import OVERALL, Health
from grpclib.reflection.service import ServerReflection
from grpclib.server import Handler

from dledger_base.accepting import Port
from dledger_base.doorman import Door
from dledger_base.tls import TlsContext

from ..counters import ProxyCounters
from .clients import Clients
from .definition import messaging_pb2 as pb
from .service import Service
from .transport import BoundedProtocol, Limits

COMMAND_SECONDS: Final = 1.0
"""Time limit in seconds for clients to take the last command before they are told to send no more requests."""

logger = logging.getLogger(__name__)


class GrpcPort:
    """The port of a service. `takes_plain` says whether a port with TLS takes clients without it, too."""

    def __init__(
        self,
        service: Service,
        clients: Clients,
        counters: ProxyCounters,
        *,
        tls: TlsContext | None,
        takes_plain: bool,
        max_connections: int,
        max_request_bytes: int,
        max_requests_bytes: int,
    ) -> None:
        self._clients = clients
        self._status = ServiceStatus()
        self._status.set(True)
        services: Collection[Any] = [service, Health({OVERALL: [self._status], service: [self._status]})]
        self._mapping = {
            path: handler for one in ServerReflection.extend(services) for path, handler in one.__mapping__().items()
        }
        self._limits = Limits(max_request_bytes, max_requests_bytes, counters.count_limit)
        self._opened: set[BoundedProtocol] = set()
        self._max_connections = max_connections
        self._counters = counters
        self._door = Door(
            tls, takes_plain=takes_plain, max_connections=max_connections, open_connections=self._opened.__len__
        )
        self._port: Port | None = None
        counters.gauges["connections"] = ("Open connections of gRPC clients", self._opened.__len__)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port on which it listens."""
        assert self._port is not None, "the port has been started"
        return self._port.address

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises `OSError`."""
        self._port = await Port.bind(host, port, self._make_doorman, self._door.make_room)
        self._port.start_serving()

    async def drain(self, limit_seconds: float) -> None:
        """Take no more clients, and wait until the requests under way are answered, up to a time limit."""
        self._status.set(False)
        if self._port is not None:
            self._port.close()
        self._door.close()
        for channel in self._clients.channels:
            channel.send(pb.TelemetryCommand(reconnect_endpoints_command=pb.ReconnectEndpointsCommand(nonce="drain")))
        try:
            async with asyncio.timeout(min(COMMAND_SECONDS, limit_seconds)):
                await asyncio.gather(*(channel.commands.join() for channel in self._clients.channels))
        except TimeoutError:
            logger.info("event=drain_unheard clients=%d", len(self._clients))
        for connection in list(self._opened):
            connection.drain()
        try:
            async with asyncio.timeout(limit_seconds):
                await self._counters.idle.wait()
        except TimeoutError:
            logger.warning("event=drain_cut_off requests=%d", self._counters.under_way + self._counters.polls)

    async def close(self) -> None:
        """Close all connections."""
        if self._port is not None:
            self._port.close()
        self._door.close()
        for connection in list(self._opened):
            connection.close()
        await asyncio.sleep(0)

    def _make_doorman(self, _host: str) -> asyncio.Protocol:
        return self._door.doorman(self._make_connection)

    def _make_connection(self) -> asyncio.Protocol:
        if len(self._opened) >= self._max_connections:
            self._counters.count_limit("max_connections")
            return _Refused()
        handler = Handler(self._mapping, ProtoCodec(), None, _DispatchServerEvents())
        return BoundedProtocol(handler, self._limits, self._opened)


class _Refused(asyncio.Protocol):
    """A connection beyond the limit, which is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
