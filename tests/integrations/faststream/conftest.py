"""One cluster for all tests of this folder, and brokers that run on it or in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from waiting import until

from dledger_client.testing import LocalCluster
from dledger_faststream import DledgerBroker, TestDledgerBroker

_numbers = itertools.count()


@pytest.fixture(scope="session")
def started_cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as started:
        yield started


@pytest.fixture
def cluster(started_cluster: LocalCluster) -> LocalCluster:
    """Return the cluster with all its nodes, also if an earlier test has killed one."""
    for node_id in started_cluster.node_ids:
        if started_cluster.pid(node_id) is None:
            started_cluster.restart(node_id)
    return started_cluster


@pytest.fixture(params=["in memory", "on a cluster"])
def on_cluster(request: pytest.FixtureRequest) -> bool:
    """Run a test twice, on both kinds of broker."""
    return request.param == "on a cluster"


@pytest.fixture
def broker(on_cluster: bool, request: pytest.FixtureRequest) -> DledgerBroker:
    """Return a broker that is not started."""
    return DledgerBroker(request.getfixturevalue("cluster").namesrv if on_cluster else "127.0.0.1:1", logger=None)


@pytest.fixture
def run(on_cluster: bool) -> Callable[..., TestDledgerBroker[Any]]:
    """Return what runs brokers while a block runs."""

    def run(*brokers: DledgerBroker) -> TestDledgerBroker[Any]:
        return TestDledgerBroker(*brokers, with_real=on_cluster, connect_only=False)

    return run


@pytest.fixture
def real_broker(cluster: LocalCluster) -> DledgerBroker:
    """Return a broker on the cluster, not started."""
    return DledgerBroker(cluster.namesrv, logger=None)


@pytest.fixture
def topic() -> str:
    """Return the name of a topic for this test only."""
    return f"faststream-{next(_numbers)}"


@pytest.fixture
def group() -> str:
    """Return the name of a group for this test only."""
    return f"readers-{next(_numbers)}"


class Seen(list[Any]):
    """Notes of handlers, in their order."""

    async def come(self, count: int) -> list[Any]:
        """Wait for so many notes, and return all."""
        await until(lambda: len(self) >= count)
        return list(self)


@pytest.fixture
def seen() -> Seen:
    return Seen()
