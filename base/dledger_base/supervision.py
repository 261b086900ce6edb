"""Supervision of tasks that must not end: each is started again after an unexpected exception.

A task whose exception nobody awaits ends in silence. Then a peer is no longer dialled, a name server no longer
informed, or a queue no longer read, until the process ends. With supervision the exception only costs a growing pause,
one log line with the traceback, and a count.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Final

from dledger_base.invariants import InvariantError

FIRST_PAUSE_S: Final = 0.05
MAX_PAUSE_S: Final = 5.0
STABLE_S: Final = 30.0
"""Minimum seconds without an exception after which the next pause is the first one again."""

_log = logging.getLogger(__name__)


async def supervise(
    run: Callable[[], Coroutine[object, object, None]],
    name: str,
    on_restart: Callable[[], None],
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Coroutine[object, object, None]] = asyncio.sleep,
) -> None:
    """Await `run()` until it returns or this task is cancelled. Call it again after an exception.

    Between two runs there is a pause, doubled from `FIRST_PAUSE_S` to `MAX_PAUSE_S`. `run` must first clean up after an
    unfinished run. `on_restart` counts. A broken invariant is also passed to the event loop's exception handler, which
    ends a process that must not continue. `now` and `sleep` may be other clocks.

    A `CancelledError` from `run` while this task is not being cancelled counts as any other exception. It may be from a
    future that other code cancelled.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        started_at = now()
        try:
            return await run()
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                raise
            if now() - started_at >= STABLE_S:
                pause_s = FIRST_PAUSE_S
            _report(name, error, pause_s)
            on_restart()
        await sleep(pause_s)
        pause_s = min(pause_s * 2, MAX_PAUSE_S)


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _report(name: str, error: BaseException, pause_s: float) -> None:
    _log.error("event=task_restarted task=%r error=%r again_s=%g", name, error, pause_s, exc_info=error)
    if isinstance(error, InvariantError):
        asyncio.get_running_loop().call_exception_handler({"message": f"{name} failed", "exception": error})
