"""A fake cluster, and clients of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from client_fakes import FakeCluster, fake_cluster

from dledger_client import Admin, Producer, PullConsumer


@pytest.fixture
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[FakeCluster]:
    """Run a fake cluster. `CLUSTER` in a module replaces its arguments, by which topic `T` has one queue."""
    async with fake_cluster(**getattr(request.module, "CLUSTER", {"topics": {"T": 1}})) as started:
        yield started


@pytest.fixture
async def producer(cluster: FakeCluster) -> AsyncIterator[Producer]:
    async with Producer(cluster.namesrv) as started:
        yield started


@pytest.fixture
async def admin(cluster: FakeCluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.namesrv) as started:
        yield started


@pytest.fixture
async def puller(cluster: FakeCluster) -> AsyncIterator[PullConsumer]:
    async with PullConsumer(cluster.namesrv, "CG") as started:
        yield started


@pytest.fixture
def threaded_cluster() -> Iterator[FakeCluster]:
    """Run a fake cluster on an event loop in a thread, beside blocking clients."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = fake_cluster(topics={"T": 1})
    yield asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result()
    asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
