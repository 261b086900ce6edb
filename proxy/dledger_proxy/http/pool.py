"""Pool of started clients of the cluster, shared by the requests that may use the same one.

A client that nobody has used for a while is closed, and its credentials are forgotten with it. A retired client is
closed once nobody uses it. That is a client whose account a broker has refused, because a guess of a secret must not
leave connections behind. A consumer whose caller is gone is retired, too: it may still receive messages for the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Final, Generic, Protocol, TypeVar

from dledger_client import ClientError, RefusedError
from dledger_remoting.codes import ResponseCode

from .backend import BusyError

IDLE_S: Final = 60.0
"""Time in seconds after which an unused client is closed."""
MAX_CLIENTS: Final = 256
"""Maximum number of clients. A further one displaces the client that has been unused for the longest time."""

_logger = logging.getLogger(__name__)


class Client(Protocol):
    """A client of the cluster."""

    async def start(self) -> None:
        """Open it."""

    async def close(self) -> None:
        """Close it."""


ClientT = TypeVar("ClientT", bound=Client)
LentT = TypeVar("LentT", bound=Client)


class _Entry(Generic[ClientT]):
    """A client of the pool, and the number of requests that use it."""

    def __init__(self, client: ClientT, starting: asyncio.Task[None]) -> None:
        self.client = client
        self.starting = starting
        self.users = 0
        self.is_retired = False
        self.timer: asyncio.TimerHandle | None = None


class Pool(Generic[ClientT]):
    """Clients by key. Keys hold the account, so that no request uses another account's client."""

    def __init__(self, *, idle_s: float = IDLE_S, max_clients: int = MAX_CLIENTS) -> None:
        self._idle_s = idle_s
        self._max_clients = max_clients
        self._entries: dict[Hashable, _Entry[ClientT]] = {}
        """By key. An entry that becomes unused moves to the end, so these are in the order of their last use."""
        self._closing: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        """Return the number of clients."""
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        """Return whether there is a client with this key."""
        return key in self._entries

    @asynccontextmanager
    async def lend(self, key: Hashable, make: Callable[[], LentT]) -> AsyncIterator[LentT]:
        """Lend the client of a key, made and started if there is none.

        Raises `BusyError` if all clients that there may be are in use, and the errors of `make`.
        """
        entry = self._entries.get(key)
        if entry is None:
            self._make_room()
            client = make()
            entry = self._entries[key] = _Entry(client, asyncio.ensure_future(client.start()))  # type: ignore[arg-type]
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None
        entry.users += 1
        try:
            await asyncio.shield(entry.starting)
            yield entry.client  # type: ignore[misc]  # a key belongs to one type of client
        except ClientError as error:
            entry.is_retired = entry.is_retired or _is_denied(error)
            raise
        finally:
            entry.users -= 1
            self._release(key, entry)

    def retire(self, key: Hashable) -> None:
        """Have the client of a key closed once nobody uses it."""
        entry = self._entries.get(key)
        if entry is not None:
            entry.is_retired = True
            self._release(key, entry)

    async def close(self) -> None:
        """Close all clients, also those in use."""
        self._is_closed = True
        for key in list(self._entries):
            self._remove(key)
        if self._closing:
            await asyncio.wait(self._closing)

    def _make_room(self) -> None:
        if self._is_closed:
            raise BusyError("the proxy is stopping: ask another one")
        if len(self._entries) < self._max_clients:
            return
        unused = next((key for key, entry in self._entries.items() if not entry.users), None)
        if unused is None:
            raise BusyError(
                f"{self._max_clients} clients of the cluster are in use, each for an account, group, topic or filter"
            )
        self._remove(unused)

    def _release(self, key: Hashable, entry: _Entry[ClientT]) -> None:
        if entry.users or self._entries.get(key) is not entry:
            return
        has_failed = entry.starting.done() and not entry.starting.cancelled() and entry.starting.exception() is not None
        if entry.is_retired or has_failed:
            self._remove(key)
            return
        self._entries[key] = self._entries.pop(key)
        entry.timer = asyncio.get_running_loop().call_later(self._idle_s, self._remove, key)

    def _remove(self, key: Hashable) -> None:
        entry = self._entries.pop(key)
        if entry.timer is not None:
            entry.timer.cancel()
        task = asyncio.get_running_loop().create_task(entry.client.close(), name="close of an unused client")
        self._closing.add(task)
        task.add_done_callback(self._on_closed)

    def _on_closed(self, task: asyncio.Task[None]) -> None:
        self._closing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _logger.error("event=client_not_closed error=%r", str(error), exc_info=error)


def _is_denied(error: BaseException | None) -> bool:
    """Return whether a broker has refused the account of a request."""
    while error is not None:
        if isinstance(error, RefusedError) and error.code == ResponseCode.NO_PERMISSION:
            return True
        error = error.__cause__
    return False
