"""A name server on a port: connections, timers, data directory."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import logging
import os
import time
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dledger.errors import ConfigError
from dledger.extras import install_command
from dledger.net.names import first_address
from dledger.net.tls import TlsContext
from dledger.store.disk import FULL
from dledger.supervision import supervise
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand
from dledger_serving.certificates import Renewal
from dledger_serving.doorman import Door, DoorCounters
from dledger_serving.request_memory import RequestMemory, RequestMemoryLimits

from .access import NameServerAccess
from .config import NameServerConfig
from .connection import Connection
from .known import KnownGroupsFile
from .kv import KVStore
from .metrics import CONNECTION_LOST, SILENT, NameServerCounters
from .places import Places
from .processors import Processors
from .records import TableLimits
from .start_files import read_files
from .table import RouteTable

if TYPE_CHECKING:
    from aiohttp.web import AppRunner

log = logging.getLogger("dledger.namesrv")

LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "::1", "localhost"})

STOP_GRACE_S: Final = 1.0
"""How long a stop waits for clients to read what has been answered."""


class StartError(Exception):
    """The server cannot start; one line that names the thing, what was found and what to do."""


class NameServer:
    """One name server. `await start()`, then it serves until `await stop()`.

    `start` raises `StartError` if the port is taken or the data directory cannot be used, `ConfigError` if a file that
    the configuration names cannot, and leaves nothing behind.
    """

    def __init__(self, config: NameServerConfig) -> None:
        self.config = config
        self.counters = NameServerCounters()
        self._known = KnownGroupsFile(config.data)
        self._table = RouteTable()
        self._connections: set[Connection] = set()
        self._places = Places(self._connections, config, self.counters, self._max_per_host)
        self.request_memory: RequestMemory
        self._next_number = 0
        self._is_stopping = False
        self._processors: Processors | None = None
        self._server: asyncio.Server | None = None
        self._door: Door | None = None
        self.tls: TlsContext | None = None
        """What the port speaks TLS with, None if it does not."""
        self.http_tls: TlsContext | None = None
        self._renewal = Renewal((), self.counters.count_restart)
        self._scanner: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._directory: _DataDirectory | None = None
        self._http: AppRunner | None = None

    @property
    def port(self) -> int:
        """The port it listens on."""
        assert self._server is not None, "the server has not been started"
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def table(self) -> RouteTable:
        """The registry, for reading."""
        return self._table

    @property
    def connection_count(self) -> int:
        """Connections that are open."""
        return len(self._connections)

    @property
    def door_counters(self) -> DoorCounters:
        """What happened to clients before they were connected over TLS."""
        return DoorCounters() if self._door is None else self._door.counters

    @property
    def watch_count(self) -> int:
        """Route watches that wait."""
        return len(self._processors.watches) if self._processors is not None else 0

    @property
    def watch_bytes(self) -> int:
        """What the requests of route watches take that wait."""
        return self._processors.watches.held_bytes if self._processors is not None else 0

    def _max_per_host(self) -> int:
        """The limit that was set last: it may be set while the server runs."""
        config = self.config if self._processors is None else self._processors.config
        return config.max_connections_per_host

    @property
    def failure(self) -> str:
        """Why the server no longer does its work, empty while it does."""
        return "silent brokers are not looked for" if self._scanner is None or self._scanner.done() else ""

    async def start(self) -> None:
        """Take the data directory and the ports, and serve.

        Raises `dledger_namesrv.config.ConfigError`, `StartError`, `KVStoreError`, `KnownGroupsError`.
        """
        files = read_files(self.config)
        self._access = NameServerAccess(files.access_keys)
        self.tls, self.http_tls = files.tls, files.http_tls
        try:
            await first_address("host", self.config.host)
        except ConfigError as error:
            raise StartError(str(error)) from error
        self._directory = _DataDirectory(self.config.data)
        self.request_memory = self._make_request_memory()
        if self.tls is not None:
            self._door = self._make_door(self.tls)
        self._renewal = Renewal(files.contexts, self.counters.count_restart)
        try:
            self._table = RouteTable(
                first_version=time.time_ns() // 1_000_000,
                delete_missing_topics=self.config.delete_topic_with_broker_registration,
                absent=self._known.load(),
                limits=TableLimits(
                    max_nodes=self.config.max_nodes,
                    max_routes=self.config.max_routes,
                    max_absent_groups=self.config.max_absent_groups,
                ),
            )
            kv = KVStore(self.config.data, self.config.max_stored_bytes)
            self._processors = Processors(self.config, self._table, kv, _now_ms, self.counters, self._access)
            if self.config.http_port:
                self._http = await self._start_http()
            self._server = await asyncio.get_running_loop().create_server(
                self._new_connection, self.config.host, self.config.port
            )
        except (OSError, UnicodeError) as error:  # UnicodeError: no name can be such a host
            await self._release()
            address = f"{self.config.host}:{self.config.port}"
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                raise StartError(f"{address} is already in use: stop what uses it or choose another port") from error
            why = error.strerror if isinstance(error, OSError) else "no host has such a name"
            raise StartError(f"cannot listen on {address}: {why or error}") from error
        except BaseException:
            await self._release()
            raise
        self._renewal.start()
        count = self.counters.count_restart
        self._scanner = asyncio.create_task(supervise(self._scan, "look for silent nodes", count))
        self._keeper = asyncio.create_task(
            supervise(partial(self._known.keep, self._table), "keep known groups", count)
        )
        if self.config.host not in LOOPBACK_HOSTS and not self._access.is_on:
            log.warning(
                "event=no_access_control host=%s consequence='whoever can connect can change routes'", self.config.host
            )

    async def stop(self) -> None:
        """Answer pending watches, close the port and all connections, give the data directory back."""
        self._is_stopping = True
        if self._server is not None:
            self._server.close()
        if self._door is not None:
            self._door.close()
        self._renewal.stop()
        if self._scanner is not None:
            self._scanner.cancel()
            self.request_memory.close()
        if self._processors is not None:
            self._processors.watches.release()
        await asyncio.gather(*(connection.finish(STOP_GRACE_S) for connection in self._connections))
        if self._server is not None:
            try:
                async with asyncio.timeout(STOP_GRACE_S):
                    await self._server.wait_closed()
            except TimeoutError:
                for connection in list(self._connections):
                    connection.abort("the server stops")
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            await asyncio.to_thread(self._known.save, self._table.known_groups())
        if self._processors is not None:
            await self._processors.close()
        await self._release()

    def admit(self, connection: Connection) -> bool:
        """Count a new connection; False if there are too many, in all or from its host, or if the server stops."""
        return not self._is_stopping and self._places.admit(connection)

    def may_ask(self, connection: Connection, code: int) -> bool:
        """Whether a connection that sends a request of this code may stay."""
        return self._places.may_ask(connection, code)

    def handle(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand | Coroutine[None, None, RemotingCommand]:
        """Answer a request. Raises `RemotingError`."""
        assert self._processors is not None
        answer = self._processors.handle(request, connection.number, str(connection.address))
        if request.code == RequestCode.REGISTER_BROKER:
            self._places.keep(connection)
        return answer

    def connection_lost(self, connection: Connection) -> None:
        """Forget a connection, and at once the nodes that registered over it."""
        if self._places.lost(connection):
            for key in self._table.drop_connection(connection.number):
                self.counters.removals[CONNECTION_LOST] += 1
                log.warning(
                    "event=node_removed address=%s cluster=%s reason='connection lost'", key.address, key.cluster
                )
            self._notify()

    def _new_connection(self) -> asyncio.Protocol:
        self._next_number += 1
        connection = Connection(self, self._next_number)
        return connection if self._door is None else self._door.doorman(connection)

    async def _scan(self) -> None:
        """Look for silent nodes and idle connections, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.config.scan_interval_ms / 1000)
            for key in self._table.expire(_now_ms()):
                self.counters.removals[SILENT] += 1
                log.warning("event=node_removed address=%s cluster=%s reason=silent", key.address, key.cluster)
            self._notify()
            idle_since = loop.time() - self.config.idle_timeout_ms / 1000
            for connection in [one for one in self._connections if one.last_active < idle_since]:
                self.counters.limits["idle_timeout_ms"] += 1
                connection.abort(f"idle for more than {self.config.idle_timeout_ms} ms")

    def _make_request_memory(self) -> RequestMemory:
        config = self.config
        return RequestMemory(
            self._connections,
            asyncio.get_running_loop(),
            RequestMemoryLimits(config.max_partial_bytes, config.max_frame_bytes, config.slow_sender_timeout_ms / 1000),
            on_shortage=self.counters.count_shortage,
            on_timeout=self.counters.count_slow_sender,
        )

    def _make_door(self, tls: TlsContext) -> Door:
        config = self.config
        return Door(
            tls,
            takes_plain=config.tls == "permissive",
            max_connections=config.max_connections + config.broker_places,
            open_connections=self._connections.__len__,
            idle_timeout_s=config.idle_timeout_ms / 1000,
        )

    async def _start_http(self) -> AppRunner:
        try:
            from .http import start_http
        except ImportError as error:
            raise StartError(
                f"http_port = {self.config.http_port} needs {error.name}: {install_command('broker')}; "
                "or set http_port = 0"
            ) from error
        try:
            return await start_http(self)
        except ConfigError as error:
            raise StartError(str(error)) from error

    async def _release(self) -> None:
        """Give back what `start` took before it listened."""
        if self._http is not None:
            await self._http.cleanup()
            self._http = None
        if self._directory is not None:
            self._directory.release()

    def _notify(self) -> None:
        if self._processors is not None:
            self._processors.watches.notify()


class _DataDirectory:
    """A data directory held by a lock for as long as the server runs, with its process id in the file `pid`.

    The lock goes with the process, so that a file left by a dead one does no harm.
    """

    def __init__(self, path: Path) -> None:
        self._pid_file = path / "pid"
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._pid_file, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StartError(f"data directory {path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._descriptor, 32).decode(errors="replace").strip()
            os.close(self._descriptor)
            raise StartError(
                f"data directory {path} is in use by process {holder or '?'}; stop it or choose another directory"
            ) from error
        written = b"%d\n" % os.getpid()
        try:  # in this order: whoever reads the file meanwhile, to stop this server, finds a process id
            os.pwrite(self._descriptor, written, 0)
            os.ftruncate(self._descriptor, len(written))
        except OSError as error:
            self.release()
            remedy = "; make room there, then start it again" if error.errno in FULL else ""
            raise StartError(f"data directory {path} cannot be used: {error.strerror}{remedy}") from error

    def release(self) -> None:
        """Remove the file and the lock; further calls do nothing."""
        if self._descriptor >= 0:
            self._pid_file.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
