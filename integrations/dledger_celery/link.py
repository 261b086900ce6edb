"""Link of one kombu connection to a cluster: an event loop in a thread, its clients, and what they have received.

A link opens with its first use in a process. A forked process opens clients of its own, and has none of its parent's
sockets or messages.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Final, NamedTuple, ParamSpec, TypeVar

from dledger_client import ClientError
from dledger_client.blocking import Blocking, evaluate

from .broadcasts import Broadcasts
from .cluster import Cluster, ClusterUnavailableError, kombus_errors
from .envelopes import Payload
from .settings import Settings

MAX_UNDELIVERED: Final = 32
"""Number of messages that wait to be taken at which no more are fetched, if a channel has no other limit."""

ResultT = TypeVar("ResultT")
ParamsP = ParamSpec("ParamsP")


class Inbox:
    """Messages and errors for the thread that drains events.

    That thread waits in `take`, or watches the file of `fileno`, which is readable while there is something to take.
    """

    def __init__(self) -> None:
        self._items: deque[tuple[str, Payload] | ClientError] = deque()
        self._condition = threading.Condition()
        self._pipe: tuple[int, int] | None = None

    def fileno(self) -> int:
        """Return the number of the file to watch."""
        with self._condition:
            if self._pipe is None:
                self._pipe = os.pipe()
                if self._items:
                    self._wake()
            return self._pipe[0]

    def close(self) -> None:
        """Close the file."""
        with self._condition:
            for number in self._pipe or ():
                os.close(number)
            self._pipe = None

    def deliver(self, queue: str, payload: Payload) -> None:
        """Add a message of a queue, from any thread."""
        self._add((queue, payload))

    def fail(self, error: ClientError) -> None:
        """Add an error, from any thread."""
        self._add(error)

    def _add(self, item: tuple[str, Payload] | ClientError) -> None:
        with self._condition:
            self._items.append(item)
            if len(self._items) == 1:
                self._wake()
            self._condition.notify()

    def _wake(self) -> None:
        """Make the file readable. Called when the first item comes, with the lock held."""
        if self._pipe is not None:
            os.write(self._pipe[1], b"!")

    def _rest(self) -> None:
        """Make the file unreadable. Called when the last item is gone, with the lock held."""
        if self._pipe is not None:
            os.read(self._pipe[0], 1)

    def has_room(self) -> bool:
        """Return whether few messages wait."""
        return len(self._items) < MAX_UNDELIVERED

    def take(self, timeout: float | None) -> tuple[str, Payload] | ClientError | None:
        """Return the oldest item, None if there is none within `timeout` seconds; without a limit if that is None."""
        with self._condition:
            self._condition.wait_for(self._items.__len__, timeout)
            if not self._items:
                return None
            item = self._items.popleft()
            if not self._items:
                self._rest()
            return item

    def discard(self, queue: str) -> list[Payload]:
        """Remove the messages of a queue, and return them."""
        with self._condition:
            found = [item[1] for item in self._items if isinstance(item, tuple) and item[0] == queue]
            rest = [item for item in self._items if not isinstance(item, tuple) or item[0] != queue]
            if self._items and not rest:
                self._rest()
            self._items = deque(rest)
        return found


class _Opened(NamedTuple):
    """The clients of one process, and the thread whose event loop they are on."""

    process_id: int
    cluster: Cluster
    broadcasts: Broadcasts
    blocking: Blocking
    loop: asyncio.AbstractEventLoop


class Link:
    """Clients of one connection, in whatever process it is used."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.inbox = Inbox()
        self._opened: _Opened | None = None
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """True if clients are open in this process."""
        return self._opened is not None and self._opened.process_id == os.getpid()

    @property
    def cluster(self) -> Cluster:
        """The clients of this process."""
        return self._open().cluster

    @property
    def broadcasts(self) -> Broadcasts:
        """The transient queues of this process."""
        return self._open().broadcasts

    def run(
        self,
        work: Callable[ParamsP, Coroutine[None, None, ResultT]],
        *args: ParamsP.args,
        **kwargs: ParamsP.kwargs,
    ) -> ResultT:
        """Call a coroutine function on the event loop, and wait for its result. Raises errors as kombu knows them."""
        with kombus_errors():
            return self._open().blocking.run(work(*args, **kwargs))

    def call(self, function: Callable[ParamsP, ResultT], *args: ParamsP.args, **kwargs: ParamsP.kwargs) -> ResultT:
        """Call a function on the event loop, and wait for its result."""
        return self.run(evaluate, lambda: function(*args, **kwargs))

    def call_soon(self, function: Callable[ParamsP, object], *args: ParamsP.args, **kwargs: ParamsP.kwargs) -> None:
        """Call a function on the event loop, and do not wait. Does nothing if no client is open in this process."""
        if self._opened is not None and self.is_open:
            with suppress(RuntimeError):  # another thread closes the loop
                self._opened.loop.call_soon_threadsafe(lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Close the clients of this process for good, once what is under way has ended."""
        self._is_closed = True
        self.inbox.close()
        opened, self._opened = self._opened, None
        if opened is not None and opened.process_id == os.getpid():
            opened.blocking.finish(_close(opened.cluster, opened.broadcasts))

    def _open(self) -> _Opened:
        """Return the clients of this process, and make them if there are none."""
        if self._opened is not None and self.is_open:
            return self._opened
        if self._is_closed:
            raise ClusterUnavailableError("the connection is closed")
        self.inbox.close()  # of the parent process, if this one was forked
        self.inbox = Inbox()
        with kombus_errors():
            cluster = Cluster(self.settings)
            broadcasts = Broadcasts(cluster, self.inbox)
            blocking = Blocking("dledger kombu", cluster.start(), lambda: _close(cluster, broadcasts))
            self._opened = _Opened(os.getpid(), cluster, broadcasts, blocking, blocking.run(_running_loop()))
        return self._opened


async def _close(cluster: Cluster, broadcasts: Broadcasts) -> None:
    await broadcasts.close()
    await cluster.close()


async def _running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()
