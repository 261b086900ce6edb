"""Measurement of the gap that this project's own client sees when the leader is killed."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.cluster import BenchCluster
from bench.results import FailoverReport
from dledger_client import Producer
from dledger_client.errors import ClientError

_BODY = bytes(1024)
_SENDS_BETWEEN_KILLS = 50
_GAP_LIMIT_S = 30.0
_AFTER_FAILURE_S = 0.005  # a send that fails at once must not occupy the event loop all the time


class _SteadySender:
    """Sends one message after the other. Remembers when the newest acknowledged send began and was answered."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._progress = asyncio.Condition()
        self.acknowledged = 0
        self.failed = 0
        self.begun_at = self.answered_at = 0.0

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            begun_at = time.monotonic()
            try:
                await self._producer.send(self._topic, _BODY)
            except ClientError:
                self.failed += 1
                await asyncio.sleep(_AFTER_FAILURE_S)
                continue
            async with self._progress:
                self.acknowledged += 1
                self.begun_at, self.answered_at = begun_at, time.monotonic()
                self._progress.notify_all()

    async def await_sends(self, count: int) -> None:
        """Wait for `count` more acknowledgements."""
        wanted = self.acknowledged + count
        async with self._progress:
            await self._progress.wait_for(lambda: self.acknowledged >= wanted)

    async def await_send_begun_after(self, moment: float) -> float:
        """Return when a send that began after `moment` was acknowledged."""
        async with self._progress:
            await self._progress.wait_for(lambda: self.begun_at >= moment)
            return self.answered_at


async def measure_failover(cluster: BenchCluster, topic: str, kills: int) -> FailoverReport:
    """Kill the leader `kills` times, restart it before the next kill, and return the gaps.

    A gap ends with the acknowledgement of a send that began after the kill, because an earlier answer may have been
    under way. Raises `TimeoutError` when a gap lasts longer than 30 s.
    """
    gaps_ms: list[float] = []
    async with Producer(f"127.0.0.1:{cluster.namesrv_port}", group="bench-failover") as producer:
        sender = _SteadySender(producer, topic)
        async with _run_in_background(sender):
            for _ in range(kills):
                await sender.await_sends(_SENDS_BETWEEN_KILLS)
                leader = await asyncio.to_thread(cluster.leader)
                killed_at = time.monotonic()
                cluster.kill(leader)
                async with asyncio.timeout(_GAP_LIMIT_S):
                    answered_at = await sender.await_send_begun_after(killed_at)
                gaps_ms.append(round((answered_at - killed_at) * 1000, 1))
                await asyncio.to_thread(cluster.restart, leader)
                await asyncio.to_thread(cluster.await_equal)
    return FailoverReport(gaps_ms=gaps_ms, failed_sends=sender.failed)


@asynccontextmanager
async def _run_in_background(sender: _SteadySender) -> AsyncIterator[None]:
    task = asyncio.create_task(sender.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
