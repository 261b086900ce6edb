"""Surroundings of a client besides its event loop: the wall clock, random bits, and threads for what blocks.

A client takes its time, timers and connections from the event loop it runs on. The rest comes from here. A simulator
gives a client other surroundings: it enters them in the context (`contextvars`) of the client's tasks.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, ParamSpec, Protocol, TypeVar

ResultT = TypeVar("ResultT")
Parameters = ParamSpec("Parameters")


class Workers(Protocol):
    """Run functions that would block the event loop."""

    async def run(
        self, function: Callable[Parameters, ResultT], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> ResultT:
        """Return what a function returns, once it has run elsewhere."""

    def close(self) -> None:
        """Begin nothing more."""


class WorkerThreads:
    """At most `count` threads, each begun when it is needed. They end with this object.

    They do what would block the event loop: names, certificates, files. The event loop's default executor belongs to
    the application. Handlers that run `asyncio.to_thread` may fill it without a time limit. A client that waited behind
    them could not connect to anything.
    """

    def __init__(self, count: int) -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix="dledger client")

    async def run(
        self, function: Callable[Parameters, ResultT], *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> ResultT:
        """Return the result of a function, called on one of the threads."""
        return await asyncio.wrap_future(self._executor.submit(function, *args, **kwargs))

    def close(self) -> None:
        """Stop starting functions. Running functions continue."""
        self._executor.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Functions by which a client reaches its surroundings.

    `wall_ns` returns the time in ns since 1970. `random_bits` and `workers` return the given number of each.
    """

    wall_ns: Callable[[], int] = time.time_ns
    random_bits: Callable[[int], int] = secrets.randbits
    workers: Callable[[int], Workers] = WorkerThreads


_CURRENT: Final[ContextVar[Surroundings]] = ContextVar("surroundings of a client", default=Surroundings())  # noqa: B039


def wall_ms() -> int:
    """Return the time in ms since 1970."""
    return _CURRENT.get().wall_ns() // 1_000_000


def random_bits(bits: int) -> int:
    """Return a number of `bits` random bits."""
    return _CURRENT.get().random_bits(bits)


def workers(count: int) -> Workers:
    """Return workers that run at most `count` functions at a time."""
    return _CURRENT.get().workers(count)


def use(surroundings: Surroundings) -> None:
    """Give the clients that are made in this context from now on, and their tasks, other surroundings."""
    _CURRENT.set(surroundings)
