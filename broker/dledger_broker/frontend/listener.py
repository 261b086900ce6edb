"""The client port, and the alias port beside it: accepts connections, holds their limits, and writes what a turn of the
event loop has collected.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Final

from dledger.loop_holds import ANSWERS, REQUESTS, LoopHolds
from dledger.net.tls import TlsContext
from dledger_broker.errors import StartError
from dledger_broker.frontend.connection import ClientConnection
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.requests import Read
from dledger_remoting.frame import FrameBounds
from dledger_serving.admission import Admission
from dledger_serving.doorman import Door, DoorCounters
from dledger_serving.request_memory import RequestMemory, RequestMemoryLimits

TURN_BYTES: Final = 256 << 10
"""What a turn of the event loop has received is handled at its end, or as soon as it is this much."""
LISTEN_BACKLOG: Final = 1024
IDLE_SCANS: Final = 8
"""How often per idle timeout connections are looked at: a silent one lives at most 1/8 longer than the timeout."""

_KEYS: Final = ("port", "alias_port")
"""The configuration keys of the ports, in the order in which they are bound."""


class Listener:
    """All connections of clients to this node: those that are open are in `connections`.

    `on_reads` gets what all connections have received in a turn, and says whether answers may be written at once.
    `on_lost` is told of every connection that had been admitted, after everything that came over it. With `tls` both
    ports speak TLS, as the configuration says. `holds` is told what holds the loop.
    """

    def __init__(
        self,
        node_id: str,
        live: LiveConfig,
        counters: BrokerCounters,
        connections: set[ClientConnection],
        on_reads: Callable[[Sequence[Read]], bool],
        on_lost: Callable[[ClientConnection], None],
        tls: TlsContext | None = None,
        holds: LoopHolds | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        holds = holds or LoopHolds()
        self._handling = holds.part(REQUESTS)
        self._answering = holds.part(ANSWERS)
        self.node_id = node_id
        self.limits = live.own
        self.counters = counters
        self._on_reads = on_reads
        self._reads: list[tuple[ClientConnection, bytes, list[FrameBounds]]] = []
        self._read_bytes = 0
        self._on_lost = on_lost
        self._connections = connections
        self._live = live
        limits = live.own
        self._admission = Admission(
            connections,
            counters,
            max_connections=limits.max_connections,
            max_per_host=self._max_per_host,
        )
        self.request_memory = RequestMemory(
            self._connections,
            self.loop,
            RequestMemoryLimits(limits.max_partial_bytes, limits.max_frame_bytes, limits.slow_sender_timeout_ms / 1000),
            on_shortage=counters.count_shortage,
            on_timeout=counters.count_slow_sender,
        )
        self.door: Final = None if tls is None else self._make_door(tls)
        self._unwritten: list[ClientConnection] = []
        self._is_handling = False
        """What is answered meanwhile is written, or scheduled, right behind that."""
        self._servers: list[asyncio.Server] = []
        self._idle_timer: asyncio.TimerHandle | None = None
        self.is_deaf = False
        """No connection is read any more, as the node stops."""

    @property
    def port(self) -> int:
        """The client port, 0 before `bind`."""
        return int(self._servers[0].sockets[0].getsockname()[1]) if self._servers and self._servers[0].sockets else 0

    @property
    def door_counters(self) -> DoorCounters:
        """What happened to clients before they were connected over TLS."""
        return DoorCounters() if self.door is None else self.door.counters

    async def bind(self, host: str, port: int, alias: int | None = None) -> None:
        """Take a port: the client port first, then, with its number, the alias port.

        Raises `StartError` if it is in use or the address is not this machine's.
        """
        door = self.door

        def accept() -> asyncio.Protocol:
            connection = ClientConnection(self, alias)
            return connection if door is None else door.doorman(connection)

        try:
            server = await self.loop.create_server(accept, host, port, backlog=LISTEN_BACKLOG, start_serving=False)
        except OSError as error:
            raise _not_bindable(_KEYS[len(self._servers)], host, port, error) from error
        self._servers.append(server)

    async def serve(self) -> None:
        """Accept connections. Raises `StartError` if somebody took the same port at the same time."""
        for key, server in zip(_KEYS, self._servers, strict=False):
            host, port = server.sockets[0].getsockname()[:2]
            try:
                await server.start_serving()
            except OSError as error:
                raise _not_bindable(key, host, port, error) from error
        self._arm_idle_timer()

    def stop_reading(self) -> None:
        """Close the port and read nothing more; what has been read is handled, and answers are still written."""
        self.is_deaf = True
        self._stop_accepting()
        self.request_memory.close()
        for connection in self._connections:
            connection.update_reading()
        self.handle_reads()

    async def close(self) -> None:
        """Close the port and every connection, after what is queued was handed to the kernel."""
        self.is_deaf = True
        self._stop_accepting()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self.request_memory.close()
        for connection in list(self._connections):
            connection.close()

    def admit(self, connection: ClientConnection) -> bool:
        """Take a new connection; False if there are too many already, in all or from its host."""
        if self.is_deaf or not self._admission.admit(connection):
            return False
        self.counters.connections_accepted += 1
        return True

    def received(self, connection: ClientConnection, data: bytes, frames: list[FrameBounds]) -> None:
        """Have the whole frames in `data` handled at the end of this turn."""
        if not self._reads:
            self.loop.call_soon(self.handle_reads)
        self._reads.append((connection, data, frames))
        self._read_bytes += len(data)
        if self._read_bytes >= TURN_BYTES:
            self.handle_reads()

    def handle_reads(self) -> None:
        """Handle what has been received, in the order in which it came."""
        reads, self._reads = self._reads, []
        self._read_bytes = 0
        if not reads:
            return
        self._is_handling, writes_now = True, False
        try:
            with self._handling:
                writes_now = self._on_reads(reads)
        except BaseException:
            for connection, _, _ in reads:
                connection.drop("a request of its turn broke this node")  # no client waits for an answer in vain
            raise
        finally:
            self._is_handling = False
            if self._unwritten and writes_now:
                self.flush()
            elif self._unwritten:
                self.loop.call_soon(self.flush)
        most = self.limits.max_in_flight
        for connection, _, _ in reads:
            if connection.in_flight > most:
                connection.too_much_in_flight()

    def lost(self, connection: ClientConnection) -> None:
        """A connection is gone."""
        try:
            self.handle_reads()
        finally:
            if self._admission.lost(connection):
                self._on_lost(connection)

    def schedule_flush(self, connection: ClientConnection) -> None:
        """Write what `connection` has collected: behind what is being handled, or at the end of this turn."""
        if not self._unwritten and not self._is_handling:
            self.loop.call_soon(self.flush)
        self._unwritten.append(connection)

    def flush(self) -> None:
        """Write what all connections have collected, one call for each."""
        connections, self._unwritten = self._unwritten, []
        with self._answering:
            for connection in connections:
                connection.flush()

    def _max_per_host(self) -> int:
        return self._live.config.max_connections_per_host

    def _make_door(self, tls: TlsContext) -> Door:
        limits = self.limits
        return Door(
            tls,
            takes_plain=limits.tls == "permissive",
            max_connections=limits.max_connections,
            open_connections=self._connections.__len__,
            idle_timeout_s=limits.idle_timeout_ms / 1000,
        )

    def _stop_accepting(self) -> None:
        """Close the ports; open connections stay."""
        if self.door is not None:
            self.door.close()
        for server in self._servers:
            server.close()
        self._servers = []

    def _arm_idle_timer(self) -> None:
        self._idle_timer = self.loop.call_later(self.limits.idle_timeout_ms / 1000 / IDLE_SCANS, self._scan_idle)

    def _scan_idle(self) -> None:
        self._arm_idle_timer()  # first: what raises below must not be the last scan
        now = self.loop.time()
        for connection in list(self._connections):
            if connection.active:
                connection.active = False
                connection.idle_since = now
            elif (now - connection.idle_since) * 1000 >= self.limits.idle_timeout_ms:
                connection.close_idle()


def require_bindable(key: str, host: str, port: int) -> None:
    """Raise `StartError` naming `key` if a port cannot be listened on, before anything else is touched."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise _not_bindable(key, host, port, error) from error


def _not_bindable(key: str, host: str, port: int, error: OSError) -> StartError:
    if error.errno == errno.EADDRINUSE:
        return StartError(
            f"{key} {port} on {host} is in use by another process: stop that one, or set another {key} (nothing was "
            "changed)"
        )
    return StartError(
        f"cannot listen on {host}:{port} for {key} ({error.strerror or error}): the host must be an address of this "
        "machine"
    )
