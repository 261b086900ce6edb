"""Checks of callbacks: an application's functions are refused where they are given, not where they would fail.

A handler that is no `async def` would run, and then be taken for failed: its message would come again until it ends in
the dead letter topic, although it was processed every time.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeVar

from .errors import InvalidArgumentError

CallbackT = TypeVar("CallbackT", bound=Callable[..., object])


def check_handler(handler: CallbackT) -> CallbackT:
    """The handler itself. Raises `InvalidArgumentError` unless it is an `async def` that takes one message."""
    _check_parameters("handler", handler, "async def handler(message)", 1)
    if not _is_async(handler):
        raise InvalidArgumentError(
            f"handler={handler!r} is no coroutine function: write 'async def handler(message)', and in it "
            "'await asyncio.to_thread(function, message)' for a function that blocks"
        )
    return handler


def check_strategy(strategy: CallbackT) -> CallbackT:
    """The strategy itself. Raises `InvalidArgumentError` if it is a coroutine function, or takes other arguments."""
    _check_parameters("strategy", strategy, "strategy(client_id, client_ids, queues)", 3)
    if _is_async(strategy):
        raise InvalidArgumentError(f"strategy={strategy!r} is a coroutine function: a plain one is expected")
    return strategy


def check_priority(priority: CallbackT) -> CallbackT:
    """The function itself. Raises `InvalidArgumentError` if it is a coroutine function, or takes other arguments."""
    _check_parameters("priority", priority, "priority(queue)", 1)
    if _is_async(priority):
        raise InvalidArgumentError(f"priority={priority!r} is a coroutine function: a plain one is expected")
    return priority


def check_transaction_check(check: CallbackT, *, blocking: bool) -> CallbackT:
    """The check of a transaction producer. Raises `InvalidArgumentError` unless it takes one transaction and is an
    `async def`, or, for a producer that is `blocking`, none. One that decides nothing leaves transactions open.
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
    except ValueError:  # of some functions in C nothing is known
        return
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        raise InvalidArgumentError(f"{name}={callback!r} takes {signature}: {expected!r} is expected") from None


def _is_async(callback: object) -> bool:
    return inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(getattr(callback, "__call__", None))  # noqa: B004 - not whether it can be called
