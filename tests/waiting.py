"""Waits for conditions whose change is no event that a test could wait for."""

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Let other tasks run until a condition holds. Fail after a time limit."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.001)


def wait_until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait in a thread as `until` does."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)
