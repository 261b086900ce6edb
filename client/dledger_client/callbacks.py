"""Checks of callbacks: a wrong function is refused where the application passes it, not where it would fail.

A handler without `async` would run, and then count as failed. Its message would come again until it ended in the dead
letter topic, although it was processed every time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from .errors import InvalidArgumentError

CallbackT = TypeVar("CallbackT", bound=Callable[..., object])


def check_handler(handler: CallbackT) -> CallbackT:
    """Return the handler. Raises `InvalidArgumentError` unless it is an `async def` that takes one message."""
    _check_parameters("handler", handler, "async def handler(message)", 1)
    if not _is_async(handler):
        raise InvalidArgumentError(
            f"handler={handler!r} is no coroutine function: write 'async def handler(message)', and in it "
            "'await asyncio.to_thread(function, message)' for a function that blocks"
        )
    return handler


def check_strategy(strategy: CallbackT) -> CallbackT:
    """Return the strategy. Raises `InvalidArgumentError` if it is a coroutine function, or takes other arguments."""
    _check_parameters("strategy", strategy, "strategy(client_id, client_ids, queues)", 3)
    if _is_async(strategy):
        raise InvalidArgumentError(f"strategy={strategy!r} is a coroutine function: a plain one is expected")
    return strategy


def check_priority(priority: CallbackT) -> CallbackT:
    """Return the priority function.

    Raises `InvalidArgumentError` if it is a coroutine function, or takes other arguments.
    """
    _check_parameters("priority", priority, "priority(queue)", 1)
    if _is_async(priority):
        raise InvalidArgumentError(f"priority={priority!r} is a coroutine function: a plain one is expected")
    return priority


def check_transaction_check(check: CallbackT, *, blocking: bool) -> CallbackT:
    """Return the check of a transaction producer.

    Raises `InvalidArgumentError` unless it takes one transaction. It must be an `async def`, but a plain function if
    the producer is `blocking`. A wrong function would leave transactions open.
    """
    expected = f"{'def' if blocking else 'async def'} check(transaction)"
    _check_parameters("check", check, expected, 1)
    if blocking and _is_async(check):
        raise InvalidArgumentError(f"check={check!r} is a coroutine function: {expected!r} is expected")
    if not blocking and not _is_async(check):
        raise InvalidArgumentError(
            f"check={check!r} is no coroutine function: write {expected!r}, and in it "
            "'return await asyncio.to_thread(function, transaction)' for a function that blocks"
        )
    return check


def _check_parameters(name: str, callback: Callable[..., object], expected: str, arguments: int) -> None:
    try:
        signature = inspect.signature(callback)
    # The signature is unknown for some functions in C, and for `AsyncMock` before Python 3.11.4.
    except (ValueError, TypeError):
        return
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        raise InvalidArgumentError(f"{name}={callback!r} takes {signature}: {expected!r} is expected") from None


def _is_async(callback: object) -> bool:
    while isinstance(callback, partial):
        callback = callback.func
    call = getattr(callback, "__call__", None)  # noqa: B004 - not whether it can be called
    return inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(call) or _has_coroutine_flag(callback)


def _has_coroutine_flag(callback: object) -> bool:
    """Return whether the code is marked as a coroutine, like `AsyncMock`'s.

    `inspect` of Python 3.11 misses that mark.
    """
    flags = getattr(getattr(callback, "__code__", None), "co_flags", 0)
    return isinstance(flags, int) and bool(flags & inspect.CO_COROUTINE)
