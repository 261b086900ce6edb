"""Threads of the client for work that would block its event loop: names, certificates, files.

The event loop's default executor belongs to the application. Handlers that run `asyncio.to_thread` may fill it without
a time limit. A client that waited behind them could not connect to anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

ResultT = TypeVar("ResultT")
Parameters = ParamSpec("Parameters")


class WorkerThreads:
    """At most `count` threads, each begun when it is needed. They end with this object."""

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
