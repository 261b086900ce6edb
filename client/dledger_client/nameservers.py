"""The name servers of a cluster: any of them answers, so a request goes to the next one when one fails.

Before any has answered, the next one is asked a little later as well, as RFC 8305 has it for the addresses of a host:
one that takes connections and says nothing holds nobody up, and several cost no more than one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.speakers import Speaker

from .connection import Connection, ConnectionPool, split_address
from .errors import (
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

ATTEMPT_SECONDS: Final = 3.0
"""How long one name server has for an answer before the next one is asked."""

FIRST_ANSWER_SECONDS: Final = 1.75
"""How long an address that has never answered has for its first answer before it is taken for a wrong one."""

_LAST_WORDS_SECONDS: Final = 0.25
"""Of these, how long a server that waits for the end of a line or of all input has to answer what it has got."""

_KNOWN_TO_ALL: Final = frozenset(
    {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    }
)
"""What every name server understands, and no broker."""

_NEXT_SECONDS: Final = 0.1
"""How long a name server is asked alone before the next one is asked, too, while none has answered yet."""

_PAUSE_SECONDS: Final = 0.1
"""Between two rounds through all name servers."""


def parse_addresses(addresses: str | Sequence[str]) -> tuple[str, ...]:
    """The addresses in `host:port;host:port`, `host:port,host:port` or a list. Raises `InvalidArgumentError`."""
    parts = addresses.replace(",", ";").split(";") if isinstance(addresses, str) else addresses
    found = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not found:
        raise InvalidArgumentError("no name server address given, expected 'host:port' or 'host:port;host:port'")
    for address in found:
        try:
            split_address(address)
        except ConnectError as error:
            raise InvalidArgumentError(f"name server address {address!r} is not host:port") from error
    return found


_WRONG: Final = (WrongServerError, SilentServerError, TlsError)
"""An address that is most likely not that of a name server."""


class NameServers:
    """Sends requests to one name server at a time, once one has answered, and stays with it until it fails.

    One that has answered before is waited for when it is silent, for it may be paused or overloaded. An address that
    never has is most likely a wrong one, and whoever mistyped it is told at once.
    """

    def __init__(self, addresses: tuple[str, ...], pool: ConnectionPool) -> None:
        self.addresses = addresses
        self._pool = pool
        self._current = 0
        self._answered: set[str] = set()

    @property
    def current(self) -> str:
        """The name server that is asked first."""
        return self.addresses[self._current]

    async def call(
        self, command: RemotingCommand, deadline: float, *, attempt_seconds: float = ATTEMPT_SECONDS
    ) -> RemotingCommand:
        """The first answer of any name server, whatever its code.

        Raises `NoNameServerError` if none answers by `deadline`, a time of the event loop's clock; as soon as there is
        no right server at any address, `WrongServerError` if something else has answered, `TlsError` if TLS
        fails, `SilentServerError` if nothing has answered.
        """
        loop = asyncio.get_running_loop()
        failures = wrong = 0
        closing_since: dict[str, float] = {}
        if not self._answered and len(self.addresses) > 1:
            answer = await self._first_contact(command, deadline, attempt_seconds, closing_since)
            if answer is not None:
                return answer
        while True:
            index = self._current
            try:
                return await self._ask(self.addresses[index], command, deadline, attempt_seconds, closing_since)
            except ClientError as error:
                wrong = wrong + 1 if isinstance(error, _WRONG) else 0
                if wrong == len(self.addresses) or not (error.retryable or wrong):
                    raise
                if self._current == index:
                    self._current = (index + 1) % len(self.addresses)
                failures += 1
                pause = _PAUSE_SECONDS if failures % len(self.addresses) == 0 else 0.0
                if loop.time() + pause >= deadline:
                    raise NoNameServerError(self.addresses, error) from error
                await asyncio.sleep(pause)

    async def _first_contact(
        self, command: RemotingCommand, deadline: float, attempt_seconds: float, closing_since: dict[str, float]
    ) -> RemotingCommand | None:
        """The answer of the first name server that gives one; None if all have failed, some of which may come yet.

        Raises the last one's error if there is no right server at any address, or at once one that repeating changes
        nothing about.
        """
        first, wrong = self._current, 0
        waiting = deque((first + step) % len(self.addresses) for step in range(len(self.addresses)))
        asked: dict[asyncio.Task[RemotingCommand], int] = {}
        try:
            while waiting or asked:
                if waiting:
                    index = waiting.popleft()
                    attempt = self._ask(self.addresses[index], command, deadline, attempt_seconds, closing_since)
                    asked[asyncio.create_task(attempt, name=f"first question to {self.addresses[index]}")] = index
                done, _ = await asyncio.wait(
                    asked, timeout=_NEXT_SECONDS if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    index = asked.pop(task)
                    error = task.exception()
                    if error is None:
                        self._current = index
                        return task.result()
                    wrong += isinstance(error, _WRONG)
                    if wrong == len(self.addresses) or not (isinstance(error, _WRONG) or _is_retryable(error)):
                        raise error
            return None
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)

    async def _ask(
        self,
        address: str,
        command: RemotingCommand,
        deadline: float,
        attempt_seconds: float,
        closing_since: dict[str, float],
    ) -> RemotingCommand:
        """The answer of one name server. Raises `ClientError`."""
        attempt_deadline = min(deadline, asyncio.get_running_loop().time() + attempt_seconds)
        connection = await self._pool.get(address, attempt_deadline)
        if address in self._answered or attempt_seconds > ATTEMPT_SECONDS:  # the latter may be held
            response = await connection.call(command, attempt_deadline)
        else:
            response = await self._first_call(connection, command, attempt_deadline, closing_since)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and command.code in _KNOWN_TO_ALL:
            raise WrongServerError(address, Speaker.BROKER)
        self._answered.add(address)
        return response

    @staticmethod
    async def _first_call(
        connection: Connection, command: RemotingCommand, deadline: float, closing_since: dict[str, float]
    ) -> RemotingCommand:
        """The answer of a server that has given none before. One that closes its connections, as one does that stops or
        has too many, is tried again for a while: `closing_since` says from when on, by address.
        """
        loop = asyncio.get_running_loop()
        limit = loop.time() + FIRST_ANSWER_SECONDS
        last_words = loop.call_at(limit - _LAST_WORDS_SECONDS, connection.end_writing)
        try:
            return await connection.call(command, min(deadline, limit))
        except (ConnectError, ConnectionLostError, RequestTimeoutError) as error:
            if connection.speaker is Speaker.OTHER:
                raise WrongServerError(connection.address, Speaker.OTHER) from error
            if connection.speaker is None and loop.time() >= last_words.when():
                connection.close()
                raise SilentServerError(connection.address, FIRST_ANSWER_SECONDS) from error
            began = closing_since.setdefault(connection.address, limit - FIRST_ANSWER_SECONDS)
            if connection.speaker is None and loop.time() - began >= FIRST_ANSWER_SECONDS:
                raise SilentServerError(connection.address, FIRST_ANSWER_SECONDS, closes=True) from error
            raise
        finally:
            last_words.cancel()

    async def check(self, deadline: float) -> None:
        """Return once a name server has answered. Raises what `call` raises."""
        await self.call(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), deadline)


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, ClientError) and error.retryable
