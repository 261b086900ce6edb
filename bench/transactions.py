"""Measure of transactions: how many are committed in a second, and what those cost that stay open.

    .venv/bin/python -m bench.transactions [TRANSACTIONS] [OPEN]

One producer of the project's own client, 64 in flight: plain sends and halves that are committed at once, in turns, and
what each costs the leader. Then so many halves stay open, and the leader's CPU is measured while they wait, and while
they are checked; nobody answers.
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
    """The process of a cluster's leader; its figures until now."""

    def __init__(self, cluster: LocalCluster) -> None:
        pid = cluster.pid(cluster.leader())
        if pid is None:
            raise RuntimeError("the leader does not run")
        self._pid = pid

    @property
    def cpu_s(self) -> float:
        """CPU time of all its threads."""
        return cpu_seconds(self._pid)

    @property
    def memory_mb(self) -> float:
        """Its anonymous memory."""
        return anonymous_rss_mb(self._pid)


async def run_many(count: int, one: Callable[[], Awaitable[object]]) -> float:
    """Do something so often, `IN_FLIGHT` at a time; returns the seconds that it took."""
    left = count

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await one()

    began = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return time.perf_counter() - began


async def unknown(_transaction: OpenTransaction) -> Decision:
    """A check that decides nothing."""
    return "unknown"


async def measure(cluster: LocalCluster, count: int, open_count: int) -> None:
    """Print what was measured."""
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
            for name, one in kinds.items():
                before = leader.cpu_s
                rates[name].append(count / await run_many(count, one))
                costs[name].append((leader.cpu_s - before) / count * 1e6)
        for name in kinds:
            print(f"{statistics.median(rates[name]):>9,.0f}/s {statistics.median(costs[name]):>6.0f} us  {name}")
        memory_mb = leader.memory_mb
        await run_many(open_count, lambda: transactions.begin(TOPIC, b"x"))
        print(f"{leader.memory_mb - memory_mb:>9,.1f} MB  {open_count:,} open halves")
    for what in ("not due", "being checked"):
        before = leader.cpu_s
        await asyncio.sleep(WATCHED_S)
        print(f"{(leader.cpu_s - before) / WATCHED_S:>9.1%} of a core  while they are {what}", flush=True)
        await asyncio.sleep(60.0 if what == "not due" else 0.0)


def main(arguments: Sequence[str]) -> None:
    """Fill a cluster of its own and measure."""
    count = int(arguments[0]) if arguments else 20_000
    open_count = int(arguments[1]) if len(arguments) > 1 else 100_000
    with LocalCluster(config=CONFIG) as cluster:
        asyncio.run(measure(cluster, count, open_count))


if __name__ == "__main__":
    main(sys.argv[1:])
