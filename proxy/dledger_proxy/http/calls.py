"""A request under way, as handlers see it, and the encoder of their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from aiohttp import web

from dledger_base.openapi import JSON, Operation
from dledger_remoting.ids import UniqueKeyGenerator

from .backend import Backend, Caller
from .config import HttpKeys
from .limits import Limits
from .metrics import HttpMetrics

_encoder: Final = msgspec.json.Encoder()
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Front:
    """State that all requests of a front share. `stopping` is set once the front stops."""

    config: HttpKeys
    backend: Backend
    metrics: HttpMetrics
    limits: Limits
    unique_keys: UniqueKeyGenerator
    stopping: asyncio.Event

    async def unless_stopped(self, work: Coroutine[Any, Any, ResultT], default: ResultT) -> ResultT:
        """Return the result of work that waits for something, or `default` if the front stops meanwhile."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stop.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
        return default if task.cancelled() else task.result()


@dataclass(frozen=True, slots=True)
class Call:
    """One request: its operation, its caller and its body, which is empty for an operation without one."""

    front: Front
    operation: Operation
    request: web.Request
    caller: Caller
    body: bytes
    trace_parent: str | None


Handler: TypeAlias = Callable[[Call], Awaitable[web.StreamResponse]]


def encoded(answer: object) -> bytes:
    """Return an object as JSON."""
    return _encoder.encode(answer)


def answered(answer: object) -> web.Response:
    """Return the response with an answer's JSON, which ends its line, as terminals like it."""
    return web.Response(body=encoded(answer) + b"\n", content_type=JSON)
