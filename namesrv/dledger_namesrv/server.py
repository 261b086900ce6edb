"""Name server on a port, with its connections, timers and data directory."""

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

from dledger_base.accepting import Port
from dledger_base.certificates import Renewal, Watched
from dledger_base.doorman import DoorCounters
from dledger_base.errors import ConfigError
from dledger_base.extras import install_command
from dledger_base.invariants import known
from dledger_base.names import first_address
from dledger_base.port_bounds import PortBounds, PortLimits
from dledger_base.request_turns import RequestTurns
from dledger_base.room import FULL
from dledger_base.supervision import supervise
from dledger_base.tls import TlsContext
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand

from .access import NameServerAccess, keep_fact
from .answers import Behind
from .config import NameServerConfig, read_files
from .connection import Connection
from .known import KnownGroupsFile
from .kv import KVStore
from .metrics import CONNECTION_LOST, SILENT, NameServerCounters
from .places import Places
from .processors import Processors
from .records import TableLimits
from .table import RouteTable

if TYPE_CHECKING:
    from aiohttp.web import AppRunner

log = logging.getLogger("dledger.namesrv")

LOOPBACK_HOSTS: Final = frozenset({"127.0.0.1", "::1", "localhost"})

STOP_GRACE_S: Final = 1.0
"""Time limit in seconds for clients to read answers when the server stops."""


class StartError(Exception):
    """The server cannot start. The text is one line with the thing, what was found and what to do."""


class NameServer:
    """One name server. It serves from `await start()` until `await stop()`.

    `start` raises `StartError` if the port is taken or the data directory cannot be used. It raises `ConfigError` if a
    file that the configuration names cannot be used. After an error it holds neither port nor directory.
    """

    def __init__(self, config: NameServerConfig) -> None:
        self.config = config
        self.counters = NameServerCounters()
        self._known = KnownGroupsFile(config.data)
        self._table = RouteTable()
        self._connections: set[Connection] = set()
        self._places = Places(self._connections, config, self.counters, self._max_per_host)
        self.turns: RequestTurns
        self._next_connection_number = 0
        self._is_stopping = False
        self._all_connections_lost = asyncio.Event()
        self._processors: Processors | None = None
        self._port: Port | None = None
        self._bounds: PortBounds | None = None
        self.tls: TlsContext | None = None
        """TLS context of the port, None if it speaks no TLS."""
        self.http_tls: TlsContext | None = None
        self.metrics_token: str | None = None
        self._renewal = Renewal((), self.counters.count_restart)
        self._scanner: asyncio.Task[None] | None = None
        self._saver: asyncio.Task[None] | None = None
        self._directory: _DataDirectory | None = None
        self._http: AppRunner | None = None

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        assert self._port is not None, "the server has not been started"
        return self._port.address[1]

    @property
    def table(self) -> RouteTable:
        """The registry, for reading."""
        return self._table

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    @property
    def door_counters(self) -> DoorCounters:
        """Counters of clients before they were connected over TLS."""
        return DoorCounters() if self._bounds is None else self._bounds.door.counters

    @property
    def bounds(self) -> PortBounds:
        """Bounds of the port, once the server has been started."""
        return known(self._bounds, "the server has been started")

    @property
    def watch_count(self) -> int:
        """Number of waiting route watches."""
        return len(self._processors.watches) if self._processors is not None else 0

    @property
    def watch_bytes(self) -> int:
        """Size of the waiting route watches, in bytes."""
        return self._processors.watches.held_bytes if self._processors is not None else 0

    def _max_per_host(self) -> int:
        """Return the limit that was set last: it may be set while the server runs."""
        config = self.config if self._processors is None else self._processors.config
        return config.max_connections_per_host

    @property
    def failure(self) -> str:
        """Reason why the server no longer does its work, empty while it does."""
        return "silent brokers are not looked for" if self._scanner is None or self._scanner.done() else ""

    async def start(self) -> None:
        """Take the data directory and the ports, and serve.

        Raises `dledger_namesrv.config.ConfigError`, `StartError`, `KVStoreError`, `KnownGroupsError`.
        """
        files = read_files(self.config)
        keys = () if files.access_keys is None else files.access_keys.keys
        self._access = NameServerAccess(keys, self.config.access_mode)
        watched: list[Watched] = [*files.contexts]
        if files.access_keys is not None:
            # `replace` sets all keys in one assignment, so no request sees only some of them
            files.access_keys.on_change = self._access.replace
            watched.append(files.access_keys)
        self.tls, self.http_tls, self.metrics_token = files.tls, files.http_tls, files.metrics_token
        try:
            await first_address("host", self.config.host)
        except ConfigError as error:
            raise StartError(str(error)) from error
        self._directory = _DataDirectory(self.config.data)
        self.turns = RequestTurns(asyncio.get_running_loop())
        self._bounds = PortBounds(self._connections, port_limits(self.config), self.counters, self.tls)
        self._renewal = Renewal(watched, self.counters.count_restart)
        try:
            await asyncio.to_thread(keep_fact, self.config)
            self._table = RouteTable(
                first_version=time.time_ns(),  # above earlier versions: no table makes one in each nanosecond
                delete_missing_topics=self.config.delete_topic_with_broker_registration,
                absent=self._known.load(),
                limits=TableLimits(
                    max_nodes=self.config.max_nodes,
                    max_routes=self.config.max_routes,
                    max_absent_groups=self.config.max_absent_groups,
                ),
            )
            kv = KVStore(self.config.data, self.config.max_stored_bytes)
            self._processors = Processors(
                *(self.config, self._table, kv, _now_ms, self.counters, self._access), turns=lambda: self.turns
            )
            self._processors.audit_log.open(self.config.data / "log", self.config.audit_days)
            if self.config.http_port:
                self._http = await self._start_http()
            self._port = await Port.bind(
                self.config.host, self.config.port, self._make_doorman, self.bounds.door.make_room
            )
            self._port.start_serving()
        except (OSError, UnicodeError) as error:  # UnicodeError: the host cannot be a name
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
        self._saver = asyncio.create_task(supervise(partial(self._known.keep, self._table), "keep known groups", count))
        if self.config.host not in LOOPBACK_HOSTS and not self._access.is_on:
            log.warning(
                "event=no_access_control host=%s consequence='whoever can connect can change routes'", self.config.host
            )

    async def stop(self) -> None:
        """Answer pending watches, close the port and all connections, and release the data directory."""
        self._is_stopping = True
        if not self._connections:
            self._all_connections_lost.set()
        if self._port is not None:
            self._port.close()
        if self._bounds is not None:
            self._bounds.close()
        self._renewal.stop()
        if self._scanner is not None:
            self._scanner.cancel()
        if self._processors is not None:
            self._processors.watches.release()
        await asyncio.gather(*(connection.finish(STOP_GRACE_S) for connection in self._connections))
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await self._all_connections_lost.wait()
        except TimeoutError:
            for connection in list(self._connections):
                connection.drop("the server stops")
        if self._saver is not None:
            self._saver.cancel()
            await asyncio.gather(self._saver, return_exceptions=True)
            await asyncio.to_thread(self._known.save, self._table.known_groups())
        if self._processors is not None:
            await self._processors.close()
        await self._release()

    @property
    def limit_counters(self) -> NameServerCounters:
        """Counters of the limits of connections."""
        return self.counters

    @property
    def judges(self) -> bool:
        """True if access control is on."""
        return self._access.is_on

    def admit(self, connection: Connection) -> bool:
        """Count a new connection; False if there are too many, in all or from its host, or if the server stops."""
        return not self._is_stopping and self._places.admit(connection)

    def may_ask(self, connection: Connection, code: int) -> bool:
        """Return whether a connection that sends a request of this code may stay."""
        return self._places.may_ask(connection, code)

    def handle(
        self, request: RemotingCommand, connection: Connection
    ) -> RemotingCommand | Coroutine[None, None, RemotingCommand]:
        """Answer a request. Raises `RemotingError`."""
        assert self._processors is not None
        answer = self._processors.handle(
            request, connection.number, str(connection.address), partial(self._prove, connection)
        )
        if request.code != RequestCode.REGISTER_BROKER:
            return answer
        if not isinstance(answer, RemotingCommand):
            return Behind(answer, partial(self._keep_place_behind, connection))
        self._places.keep(connection)
        return answer

    def _prove(self, connection: Connection) -> None:
        if connection.prove():
            self._places.prove(connection)

    async def _keep_place_behind(
        self, connection: Connection, answer: Coroutine[None, None, RemotingCommand]
    ) -> RemotingCommand:
        answered = await answer
        self._places.keep(connection)
        return answered

    def connection_lost(self, connection: Connection) -> None:
        """Forget a connection, and at once the nodes that registered over it."""
        if self._places.lost(connection):
            for key in self._table.drop_connection(connection.number):
                self.counters.removals[CONNECTION_LOST] += 1
                log.warning(
                    "event=node_removed address=%s cluster=%s reason='connection lost'", key.address, key.cluster
                )
            self._notify()
        if self._is_stopping and not self._connections:
            self._all_connections_lost.set()

    def _make_doorman(self, _host: str) -> asyncio.Protocol:
        return self.bounds.door.doorman(self._new_connection)

    def _new_connection(self) -> Connection:
        self._next_connection_number += 1
        return Connection(self, self._next_connection_number)

    async def _scan(self) -> None:
        """Remove silent nodes and close idle connections, again and again."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.config.scan_interval_ms / 1000)
            for key in self._table.expire(_now_ms()):
                self.counters.removals[SILENT] += 1
                log.warning("event=node_removed address=%s cluster=%s reason=silent", key.address, key.cluster)
            self._notify()
            while self._table.tidy():  # noqa: ASYNC110 -- a turn for others between the slices
                await asyncio.sleep(0)
            idle_since = loop.time() - self.config.idle_timeout_ms / 1000
            idle = [connection for connection in self._connections if connection.last_active < idle_since]
            for connection in idle:
                connection.end_silence(self.config.idle_timeout_ms)

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
        """Close the HTTP port, and release the data directory."""
        if self._http is not None:
            await self._http.cleanup()
            self._http = None
        if self._directory is not None:
            self._directory.release()

    def _notify(self) -> None:
        if self._processors is not None:
            self._processors.watches.notify()


def port_limits(config: NameServerConfig) -> PortLimits:
    """Return the limits of a name server's port."""
    return PortLimits(
        max_connections=config.max_connections + config.broker_places,
        max_frame_bytes=config.max_frame_bytes,
        max_partial_bytes=config.max_partial_bytes,
        slow_sender_timeout_ms=config.slow_sender_timeout_ms,
        unread_bytes=config.max_write_buffer_bytes,
        max_unread_bytes=config.max_unread_bytes,
        slow_reader_timeout_ms=config.slow_reader_timeout_ms,
        idle_timeout_ms=config.idle_timeout_ms,
        takes_plain=config.tls != "enforcing",
    )


class _DataDirectory:
    """A data directory held by a lock while the server runs, with its process id in the file `pid`.

    The lock ends with the process, so a file left by a dead process does no harm.
    """

    def __init__(self, path: Path) -> None:
        self._pid_file = path / "pid"
        self._descriptor = self._lock(path)
        while not self._is_in_place():
            # A server that stopped has removed the file after it was opened here and before it was locked. A lock on a
            # removed file keeps no other server out.
            os.close(self._descriptor)
            self._descriptor = self._lock(path)
        content = b"%d\n" % os.getpid()
        try:  # in this order: a reader that is to stop this server always finds a process id
            os.pwrite(self._descriptor, content, 0)
            os.ftruncate(self._descriptor, len(content))
        except OSError as error:
            self.release()
            remedy = "; make room there, then start it again" if error.errno in FULL else ""
            raise StartError(f"data directory {path} cannot be used: {error.strerror}{remedy}") from error

    def _lock(self, path: Path) -> int:
        """Return the descriptor of the locked file. Raises `StartError`."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._pid_file, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StartError(f"data directory {path} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 32).decode(errors="replace").strip()
            os.close(descriptor)
            raise StartError(
                f"data directory {path} is in use by process {holder or '?'}; stop it or choose another directory"
            ) from error
        return descriptor

    def _is_in_place(self) -> bool:
        try:
            return os.path.samestat(os.stat(self._pid_file), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Remove the file and the lock; further calls do nothing."""
        if self._descriptor >= 0:
            self._pid_file.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
