"""Tasks that must not end: each is started again after an exception that nobody expected.

A task whose exception nobody awaits ends in silence, and with it what it was there for: the dialling of one peer, the
registration with one name server, the reading of one queue, for as long as the process lives. Here that costs a pause,
which grows, one log line with the traceback, and a count.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Final

from dledger.invariants import InvariantError

FIRST_PAUSE_S: Final = 0.05
MAX_PAUSE_S: Final = 5.0
SETTLED_S: Final = 30.0
"""After so long without an exception the pause is the first one again."""

_log = logging.getLogger(__name__)


async def supervise(
    run: Callable[[], Coroutine[object, object, None]],
    name: str,
    on_restart: Callable[[], None],
    *,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Coroutine[object, object, None]] = asyncio.sleep,
) -> None:
    """Await `run()` until it returns or this task is cancelled; call it again after an exception.

    Between two runs there is a pause, doubled from `FIRST_PAUSE_S` to `MAX_PAUSE_S`, so `run` has to begin with
    whatever an unfinished run may have left behind. `on_restart` counts. A broken invariant is also given to the event
    loop's exception handler, by which a process that must not go on ends. `now` and `sleep` may be other clocks.

    A `CancelledError` that comes out of `run` while nobody cancels this task, as from a future that somebody else
    cancelled, is an exception like any other.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        began = now()
        try:
            return await run()
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_being_cancelled():
                raise
            if now() - began >= SETTLED_S:
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
