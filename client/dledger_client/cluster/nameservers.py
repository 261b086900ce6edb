"""The name servers of a cluster. Any of them can answer, so a request goes to the next one when one fails.

Before any has answered, the next one is asked a little later as well, as RFC 8305 does for the addresses of a host. A
server that accepts connections and sends nothing then delays no caller, and several silent servers delay no more than
one server.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.speakers import Speaker

from ..errors import (
    ClientError,
    ConnectError,
    ConnectionLostError,
    InvalidArgumentError,
    NoNameServerError,
    RequestTimeoutError,
    SilentServerError,
    TlsError,
    WrongServerError,
)
from .connection import Connection, split_address
from .pool import ConnectionPool
from .under_way import STOOD_STILL_SECONDS

ATTEMPT_SECONDS: Final = 3.0
"""Time limit in seconds for one name server's answer, before the next one is asked."""

FIRST_ANSWER_SECONDS: Final = 1.75
"""Time limit in seconds for the first answer of an address, after which the address is considered wrong."""

_HALF_CLOSE_SECONDS: Final = 0.25
"""Last part of that time, in seconds: the client has closed its sending side and still waits for an answer.

A server of another protocol may wait for the end of a line or of all input. It answers then, and is recognized.
"""

_NAME_SERVER_CODES: Final = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    }
)
"""Codes that every name server understands, and no broker."""

_ATTEMPT_DELAY_SECONDS: Final = 0.1
"""Time in seconds for which a name server is asked alone, while none has answered yet."""

_PAUSE_SECONDS: Final = 0.1
"""Pause between two rounds through all name servers, in seconds."""


def parse_addresses(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses in `host:port;host:port`, `host:port,host:port` or a list. Raises `InvalidArgumentError`."""
    parts = addresses.replace(",", ";").split(";") if isinstance(addresses, str) else addresses
    parsed = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not parsed:
        raise InvalidArgumentError("no name server address given, expected 'host:port' or 'host:port;host:port'")
    for address in parsed:
        try:
            split_address(address)
        except ConnectError as error:
            raise InvalidArgumentError(f"name server address {address!r} is not host:port") from error
    return parsed


_WRONG_ADDRESS_ERRORS: Final = (WrongServerError, SilentServerError, TlsError)
"""Errors of an address that is most likely not that of a name server."""


class NameServers:
    """Sends requests to one name server at a time, once one has answered, and stays with it until it fails.

    A server that has answered before may be silent because it is paused or overloaded, so its answer is awaited. An
    address that never answered is most likely wrong, and the caller is told at once.
    """

    def __init__(self, addresses: tuple[str, ...], pool: ConnectionPool) -> None:
        self.addresses = addresses
        self._pool = pool
        self._current = 0
        self._answered_addresses: set[str] = set()

    @property
    def current(self) -> str:
        """The name server that is asked first."""
        return self.addresses[self._current]

    async def call(
        self, command: RemotingCommand, deadline: float, *, attempt_seconds: float = ATTEMPT_SECONDS
    ) -> RemotingCommand:
        """Return the first answer of any name server, with any code.

        Raises `NoNameServerError` if none answers by `deadline`, a time of the event loop's clock. As soon as every
        address has turned out to be wrong, one of three errors is raised. `WrongServerError`: something else has
        answered. `TlsError`: TLS fails. `SilentServerError`: nothing has answered.
        """
        loop = asyncio.get_running_loop()
        failures = wrong_count = 0
        closing_since: dict[str, float] = {}
        if not self._answered_addresses and len(self.addresses) > 1:
            answer = await self._race_first_answer(command, deadline, attempt_seconds, closing_since)
            if answer is not None:
                return answer
        while True:
            index = self._current
            try:
                return await self._ask_server(self.addresses[index], command, deadline, attempt_seconds, closing_since)
            except ClientError as error:
                wrong_count = wrong_count + 1 if isinstance(error, _WRONG_ADDRESS_ERRORS) else 0
                if wrong_count == len(self.addresses) or not (error.retryable or wrong_count):
                    raise
                if self._current == index:
                    self._current = (index + 1) % len(self.addresses)
                failures += 1
                pause = _PAUSE_SECONDS if failures % len(self.addresses) == 0 else 0.0
                if loop.time() + pause >= deadline:
                    raise NoNameServerError(self.addresses, error) from error
                await asyncio.sleep(pause)

    async def _race_first_answer(
        self, command: RemotingCommand, deadline: float, attempt_seconds: float, closing_since: dict[str, float]
    ) -> RemotingCommand | None:
        """Return the answer of the first name server that gives one; None if all have failed, some of which may still
        recover.

        Raises the last error if every address is wrong. An error that repeating cannot change is raised at once.
        """
        first, wrong_count = self._current, 0
        remaining = deque((first + step) % len(self.addresses) for step in range(len(self.addresses)))
        attempts: dict[asyncio.Task[RemotingCommand], int] = {}
        try:
            while remaining or attempts:
                if remaining:
                    index = remaining.popleft()
                    attempt = self._ask_server(self.addresses[index], command, deadline, attempt_seconds, closing_since)
                    attempts[asyncio.create_task(attempt, name=f"first question to {self.addresses[index]}")] = index
                done, _ = await asyncio.wait(
                    attempts, timeout=_ATTEMPT_DELAY_SECONDS if remaining else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    index = attempts.pop(task)
                    error = task.exception()
                    if error is None:
                        self._current = index
                        return task.result()
                    wrong_count += isinstance(error, _WRONG_ADDRESS_ERRORS)
                    if wrong_count == len(self.addresses) or not (
                        isinstance(error, _WRONG_ADDRESS_ERRORS) or _is_retryable(error)
                    ):
                        raise error
            return None
        finally:
            for task in attempts:
                task.cancel()
            await asyncio.gather(*attempts, return_exceptions=True)

    async def _ask_server(
        self,
        address: str,
        command: RemotingCommand,
        deadline: float,
        attempt_seconds: float,
        closing_since: dict[str, float],
    ) -> RemotingCommand:
        """Return the answer of one name server. Raises `ClientError`."""
        attempt_deadline = min(deadline, asyncio.get_running_loop().time() + attempt_seconds)
        connection = await self._pool.get(address, attempt_deadline)
        # with a longer limit, the server may hold the request before it answers
        if address in self._answered_addresses or attempt_seconds > ATTEMPT_SECONDS:
            response = await connection.call(command, deadline, attempt_seconds=attempt_seconds)
        else:
            response = await self._first_call(connection, command, deadline, closing_since)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and command.code in _NAME_SERVER_CODES:
            raise WrongServerError(address, Speaker.BROKER)
        self._answered_addresses.add(address)
        return response

    @staticmethod
    async def _first_call(
        connection: Connection, command: RemotingCommand, deadline: float, closing_since: dict[str, float]
    ) -> RemotingCommand:
        """Return the answer of a server that has given none before.

        A server that closes its connections may be stopping, or have too many. It is tried again until it has done so
        for `FIRST_ANSWER_SECONDS`. `closing_since` has, by address, the time of the first such attempt.
        """
        loop = asyncio.get_running_loop()
        half_close = _HalfClose(connection)
        try:
            return await connection.call(command, deadline, attempt_seconds=FIRST_ANSWER_SECONDS)
        except (ConnectError, ConnectionLostError, RequestTimeoutError) as error:
            if connection.speaker is Speaker.OTHER:
                raise WrongServerError(connection.address, Speaker.OTHER) from error
            if connection.speaker is None and half_close.is_done:
                connection.close()
                raise SilentServerError(connection.address, FIRST_ANSWER_SECONDS) from error
            first_attempt_at = closing_since.setdefault(connection.address, half_close.started_at)
            if connection.speaker is None and loop.time() - first_attempt_at >= FIRST_ANSWER_SECONDS:
                raise SilentServerError(connection.address, FIRST_ANSWER_SECONDS, closes=True) from error
            raise
        finally:
            half_close.cancel()

    async def check(self, deadline: float) -> None:
        """Return once a name server has answered. Raises the errors of `call`."""
        await self.call(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), deadline)


class _HalfClose:
    """Closes the sending side of a connection `_HALF_CLOSE_SECONDS` before the time limit for the first answer.

    The time limit begins when the request is written. A program that blocks the event loop delays the writing.
    """

    def __init__(self, connection: Connection) -> None:
        self.is_done = False
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self.started_at = self._loop.time()
        self._arm_timer()

    def _arm_timer(self) -> None:
        self._timer = self._loop.call_at(
            self.started_at + FIRST_ANSWER_SECONDS - _HALF_CLOSE_SECONDS, self._end_writing
        )

    def _end_writing(self) -> None:
        if self.started_at + STOOD_STILL_SECONDS <= self._connection.written_at:
            self.started_at = self._connection.written_at
            self._arm_timer()
        else:
            self.is_done = True
            self._connection.end_writing()

    def cancel(self) -> None:
        """Leave the sending side open."""
        self._timer.cancel()


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, ClientError) and error.retryable
