"""Members of consumer groups that leave and come back while a producer sends, and the time that their handlers take."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final

from dledger_client import SendResult

from .base import WorkloadContext, sleep_or_stop
from .sending import RecordedSends

AWAY_SECONDS: Final = (0.0, 3.0)
MAX_BYTES: Final = 500
SLOW_SHARE: Final = 0.003
"""Share of the messages that a handler takes `SLOW_SECONDS` for, which is longer than a rebalancing."""
SLOW_SECONDS: Final = (2.0, 12.0)


async def work(ctx: WorkloadContext, rng: random.Random, usual_seconds: float) -> None:
    """Sleep for up to `usual_seconds`, and sometimes so long that the queue gets another owner meanwhile.

    A long sleep ends once the cluster is whole. From then on the run judges how long messages take to reach a group.
    A slow handler would exceed that bound.
    """
    if rng.random() >= SLOW_SHARE:
        await asyncio.sleep(rng.random() * usual_seconds)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(rng.uniform(*SLOW_SECONDS)):
            await ctx.healed.wait()


async def send_on(
    ctx: WorkloadContext,
    sends: RecordedSends,
    rng: random.Random,
    pause_seconds: float,
    acknowledged: Callable[[str, SendResult], None],
) -> None:
    """Send messages one after another until the end; call `acknowledged` for each acknowledged message."""
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
    """Run members one after another until the end, each for a random time within `life_seconds`, with pauses between.

    After healing the present member stays. A new member would revive a queue that this member does not read, and hide
    the fault.
    """
    while not ctx.stopping.is_set():
        async with member():
            await sleep_or_stop(ctx, rng.uniform(*life_seconds))
            if ctx.healed.is_set():
                await ctx.stopping.wait()
        await sleep_or_stop(ctx, rng.uniform(*AWAY_SECONDS))
