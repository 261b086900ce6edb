"""Members of consumer groups that leave and come back while a producer sends: what several workloads do."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Final

from dledger_client import SendResult

from .base import WorkloadContext, sleep_or_stop
from .sending import RecordedSends

AWAY_SECONDS: Final = (0.0, 3.0)
MAX_BYTES: Final = 500


async def send_on(
    ctx: WorkloadContext,
    sends: RecordedSends,
    rng: random.Random,
    pause_seconds: float,
    acknowledged: Callable[[str, SendResult], None],
) -> None:
    """Send until the end, one message after the other; `acknowledged` is told of each that is."""
    while not ctx.stopping.is_set():
        sent = await sends.send(rng.randint(0, MAX_BYTES))
        if sent is not None:
            acknowledged(*sent)
        await asyncio.sleep(pause_seconds)


async def come_and_go(
    ctx: WorkloadContext,
    rng: random.Random,
    life_seconds: tuple[float, float],
    member: Callable[[], AbstractAsyncContextManager[object]],
) -> None:
    """Let a member live between these bounds, and be away for a little, again and again until the end."""
    while not ctx.stopping.is_set():
        async with member():
            await sleep_or_stop(ctx, rng.uniform(*life_seconds))
        await sleep_or_stop(ctx, rng.uniform(*AWAY_SECONDS))
