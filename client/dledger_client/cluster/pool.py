"""Pool of connections by address, opened on demand."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable
from typing import Final

from dledger_base.addresses import addresses_of, connect, connect_to, is_address
from dledger_base.tls import TlsContext, handshake_failure
from dledger_remoting.signatures import Credentials

from ..errors import ClientClosedError, ClientError, ConnectError, TlsError
from ..tls import Tls
from .connection import Connection, RequestHandler, split_address
from .surroundings import workers

logger = logging.getLogger(__name__)

_MAX_THREADS: Final = 4
"""Maximum number of threads that look up names and read certificates."""


class _Opening:
    """A connection that is being opened, and the callers that wait for it."""

    __slots__ = ("task", "waiters")

    def __init__(self, task: asyncio.Task[Connection]) -> None:
        self.task = task
        self.waiters: list[asyncio.Future[Connection]] = []


class ConnectionPool:
    """Pool of connections, at most one per address. A connection is opened on demand, also after it was lost.

    `on_connected` is called with each new connection before any caller gets it, `on_lost` with each that ended. Waiting
    callers get a connection in the order of their calls, and before later callers.
    """

    def __init__(
        self,
        on_request: RequestHandler,
        *,
        on_connected: Callable[[Connection], None] | None = None,
        on_lost: Callable[[Connection], None] | None = None,
        connect_timeout: float = 3.0,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._credentials = credentials
        self._tls = None if tls is None else tls.context()
        self._on_request = on_request
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._connect_timeout = connect_timeout
        self._threads = workers(_MAX_THREADS)
        self._open: dict[str, Connection] = {}
        self._opening: dict[str, _Opening] = {}
        self._closed = False

    def peek(self, address: str) -> Connection | None:
        """Return the open connection to `address`, None if there is none."""
        connection = self._open.get(address)
        return connection if connection is not None and connection.is_open else None

    def connections(self) -> list[Connection]:
        """Return all open connections."""
        return [connection for connection in self._open.values() if connection.is_open]

    async def get(self, address: str, deadline: float) -> Connection:
        """Return the connection to `address`, opened if need be.

        Raises `ConnectError` when that fails or takes too long.
        """
        opening = self._opening.get(address)
        if opening is None:
            connection = self.peek(address)
            if connection is not None:
                return connection
            if self._closed:
                raise ClientClosedError("the client is closed")
            opening = self._opening[address] = _Opening(
                asyncio.create_task(self._connect(address), name=f"connect {address}")
            )
            opening.task.add_done_callback(lambda _: self._hand_out(address))
        waiter: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        opening.waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                return await waiter
        except TimeoutError:
            raise ConnectError(address, "not connected before the call's deadline") from None

    async def close(self) -> None:
        """Close all connections and wait until their transports are closed."""
        self._closed = True
        for opening in list(self._opening.values()):
            opening.task.cancel()
        for connection in list(self._open.values()):
            connection.close()
        self._threads.close()
        await asyncio.sleep(0)

    async def _connect(self, address: str) -> Connection:
        host, port = split_address(address)
        try:
            async with asyncio.timeout(self._connect_timeout):
                connection = await self._dial(address, host, port)
        except TimeoutError:
            raise ConnectError(address, f"no connection within {self._connect_timeout:g} s") from None
        except OSError as error:
            raise self._make_connect_error(address, error) from error
        self._open[address] = connection
        if self._on_connected is not None:
            self._on_connected(connection)
        return connection

    def _make_connect_error(self, address: str, error: OSError) -> ConnectError:
        """Return the error for an address that cannot be connected to.

        A server that resets a handshake may be about to stop.
        """
        tls_reason = None if self._tls is None else handshake_failure(error)
        kind = TlsError if isinstance(error, ssl.SSLError) else ConnectError
        return kind(address, tls_reason or _describe_error(error))

    async def _dial(self, address: str, host: str, port: int) -> Connection:
        def make_connection() -> Connection:
            return Connection(address, self._on_request, self._on_connection_lost, self._credentials)

        context = None if self._tls is None else await self._refresh_context(self._tls)
        if is_address(host):
            return (await connect(make_connection, host, port, context))[1]
        return (await connect_to(make_connection, host, await self._threads.run(addresses_of, host, port), context))[1]

    async def _refresh_context(self, tls: TlsContext) -> ssl.SSLContext:
        """Return the context of the files as they are now.

        They are read on a thread, so the event loop does not wait.
        """
        await self._threads.run(tls.refresh)
        return tls.context

    def _hand_out(self, address: str) -> None:
        """Give the waiting callers the result of the opening.

        This repeats in each turn until no new caller has come. Callers that came before are resumed only in the next
        turn, and a later caller must not overtake them.
        """
        opening = self._opening[address]
        waiters, opening.waiters = opening.waiters, []
        task = opening.task
        error = ClientClosedError("the client is closed") if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ClientError):
            logger.error("connecting to %s failed unexpectedly", address, exc_info=error)
        if waiters and error is None and task.result().is_open:
            asyncio.get_running_loop().call_soon(self._hand_out, address)
        else:
            del self._opening[address]
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(task.result())
            else:
                waiter.set_exception(error)

    def _on_connection_lost(self, connection: Connection) -> None:
        if self._open.get(connection.address) is connection:
            del self._open[connection.address]
        if self._on_lost is not None:
            self._on_lost(connection)


def _describe_error(error: OSError) -> str:
    """Return the reason of an error, without the address that asyncio adds to the text."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    return os.strerror(error.errno)
