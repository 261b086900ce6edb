"""Measure of transactions: commits in a second, and the cost of transactions that stay open.

    .venv/bin/python -m bench.transactions [TRANSACTIONS] [OPEN]

One producer of the project's own client keeps 64 requests in flight. It takes turns in plain sends and in half messages
that are committed at once. The cost of each for the leader is measured. Then OPEN half messages stay open. The leader's
CPU time is measured while they wait, and while they are checked; nobody answers the checks.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from bench.usage import anonymous_rss_mb, cpu_seconds
from dledger_client import Decision, OpenTransaction, Producer, TransactionProducer
from dledger_client.testing import LocalCluster

TOPIC: Final = "transactions"
BODY: Final = b"x" * 1024
IN_FLIGHT: Final = 64
TURNS: Final = 3
WATCHED_S: Final = 20.0
CONFIG: Final = "transaction_timeout_ms = 60000\n"


class Leader:
    """The process of a cluster's leader, and its usage so far."""

    def __init__(self, cluster: LocalCluster) -> None:
        pid = cluster.pid(cluster.leader())
        if pid is None:
            raise RuntimeError("the leader does not run")
        self._pid = pid

    @property
    def cpu_s(self) -> float:
        """CPU time of all its threads, in seconds."""
        return cpu_seconds(self._pid)

    @property
    def memory_mb(self) -> float:
        """Its anonymous memory, in MB."""
        return anonymous_rss_mb(self._pid)


async def run_many(count: int, one: Callable[[], Awaitable[object]]) -> float:
    """Call `one` `count` times, `IN_FLIGHT` at a time. Returns the seconds that this took."""
    remaining = count

    async def worker() -> None:
        nonlocal remaining
        while remaining > 0:
            remaining -= 1
            await one()

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return time.perf_counter() - began


async def unknown(_transaction: OpenTransaction) -> Decision:
    """Answer a check without a decision."""
    return "unknown"


async def measure(cluster: LocalCluster, count: int, open_count: int) -> None:
    """Measure and print the figures."""
    leader = Leader(cluster)
    async with (
        Producer(cluster.namesrv, group="plain", compress_over_bytes=None) as producer,
        TransactionProducer(cluster.namesrv, group="transacting", check=unknown) as transactions,
    ):

        async def send() -> None:
            await producer.send(TOPIC, BODY)

        async def transact() -> None:
            await transactions.commit(await transactions.begin(TOPIC, BODY))

        kinds = {"plain sends": send, "transactions": transact}
        rates: dict[str, list[float]] = {name: [] for name in kinds}
        costs: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(TURNS):
            for name, call in kinds.items():
                cpu_s_before = leader.cpu_s
                rates[name].append(count / await run_many(count, call))
                costs[name].append((leader.cpu_s - cpu_s_before) / count * 1e6)
        for name in kinds:
            print(f"{statistics.median(rates[name]):>9,.0f}/s {statistics.median(costs[name]):>6.0f} us  {name}")
        memory_mb = leader.memory_mb
        await run_many(open_count, lambda: transactions.begin(TOPIC, b"x"))
        print(f"{leader.memory_mb - memory_mb:>9,.1f} MB  {open_count:,} open halves")
    for phase in ("not due", "being checked"):
        cpu_s_before = leader.cpu_s
        await asyncio.sleep(WATCHED_S)
        print(f"{(leader.cpu_s - cpu_s_before) / WATCHED_S:>9.1%} of a core  while they are {phase}", flush=True)
        await asyncio.sleep(60.0 if phase == "not due" else 0.0)


def main(arguments: Sequence[str]) -> None:
    """Start a cluster, fill it and measure."""
    count = int(arguments[0]) if arguments else 20_000
    open_count = int(arguments[1]) if len(arguments) > 1 else 100_000
    with LocalCluster(config=CONFIG) as cluster:
        asyncio.run(measure(cluster, count, open_count))


if __name__ == "__main__":
    main(sys.argv[1:])
