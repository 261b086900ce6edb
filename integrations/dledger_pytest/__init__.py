"""pytest plugin: clusters of real processes, topics and connected clients as fixtures.

pytest loads this module wherever the package is installed. So it imports nothing of the client, and opens nothing,
before a test asks for a fixture. `clusters` holds the running clusters, and `asyncio_loops` the fixtures that only
pytest-asyncio can run.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from dledger_client import Producer, PushConsumer
    from dledger_client.testing import LocalCluster

    from .clusters import Clusters

_MAX_NODES: Final = 9
_MAX_NAME_CHARS: Final = 80
_CLUSTERS: Final = pytest.StashKey["Clusters"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the key of the ini file."""
    parser.addini("dledger_nodes", f"number of voters of dledger_cluster, 1 to {_MAX_NODES}", default="1")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and the fixtures of pytest-asyncio if that is installed."""
    config.addinivalue_line(
        "markers", "dledger_nodes(number): run the test on a cluster with this number of voters (dledger_cluster)"
    )
    if config.pluginmanager.hasplugin("asyncio"):
        from . import asyncio_loops

        config.pluginmanager.register(asyncio_loops, "dledger-asyncio")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give marked tests a cluster of the size that their marker names."""
    marker = metafunc.definition.get_closest_marker("dledger_nodes")
    if marker is None:
        return
    if len(marker.args) != 1 or marker.kwargs:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: dledger_nodes takes one number, as dledger_nodes(3)")
    nodes = _number_of_nodes(marker.args[0], f"{metafunc.definition.nodeid}: dledger_nodes")
    if "dledger_cluster" in metafunc.fixturenames:
        metafunc.parametrize("dledger_cluster", [nodes], indirect=True, scope="session", ids=[f"{nodes}-nodes"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Start again what a test has killed, before its topic is deleted and before the next test runs."""
    clusters = item.config.stash.get(_CLUSTERS, None)
    failure = None if clusters is None else clusters.mend()
    yield
    if failure is not None:
        pytest.fail(f"the cluster that this test has used does not run any more: {failure}", pytrace=False)


@pytest.fixture(scope="session")
def _dledger_clusters(request: pytest.FixtureRequest) -> Iterator[Clusters]:
    """All clusters of this session, by their number of nodes."""
    from .clusters import Clusters

    with Clusters() as clusters:
        request.config.stash[_CLUSTERS] = clusters
        yield clusters
        del request.config.stash[_CLUSTERS]


@pytest.fixture(scope="session")
def dledger_cluster(request: pytest.FixtureRequest, _dledger_clusters: Clusters) -> LocalCluster:
    """A running cluster: a name server and one voter, or as many as `dledger_nodes` says. It lasts for the session.

    `dledger_cluster.namesrv` is the address for clients. Nodes that a test has killed or paused run again after it.
    """
    nodes: int | None = getattr(request, "param", None)
    if nodes is None:
        nodes = _number_of_nodes(request.config.getini("dledger_nodes"), "dledger_nodes of the ini file")
    return _dledger_clusters.running(nodes)


@pytest.fixture
def dledger_topic(
    request: pytest.FixtureRequest, dledger_cluster: LocalCluster, _dledger_clusters: Clusters
) -> Iterator[str]:
    """Name of a topic that only this test has. It is deleted after the test, with all groups named after it."""
    words = re.sub(r"[^A-Za-z0-9_]+", "-", request.node.name).strip("-")[:_MAX_NAME_CHARS]
    topic = f"{words}-{uuid.uuid4().hex[:8]}"
    _dledger_clusters.create_topic(dledger_cluster, topic)
    yield topic
    _dledger_clusters.delete_topic(dledger_cluster, topic)


@pytest.fixture
def dledger_producer(request: pytest.FixtureRequest) -> Producer:
    """A connected `Producer`, on the event loop of the test."""
    producer: Producer = request.getfixturevalue(_fixture_of_loop(request, "dledger_producer", "SyncProducer"))
    return producer


@pytest.fixture
def dledger_consumer(request: pytest.FixtureRequest) -> PushConsumer:
    """A connected `PushConsumer` of `dledger_topic`, on the event loop of the test, in a group of its own."""
    consumer: PushConsumer = request.getfixturevalue(_fixture_of_loop(request, "dledger_consumer", "SyncConsumer"))
    return consumer


@pytest.fixture
async def _dledger_producer_of_anyio(dledger_cluster: LocalCluster) -> AsyncIterator[Producer]:
    from dledger_client import Producer

    async with Producer(dledger_cluster.namesrv) as producer:
        yield producer


@pytest.fixture
async def _dledger_consumer_of_anyio(dledger_cluster: LocalCluster, dledger_topic: str) -> AsyncIterator[PushConsumer]:
    from dledger_client import PushConsumer

    async with PushConsumer(dledger_cluster.namesrv, f"{dledger_topic}-consumers", dledger_topic) as consumer:
        yield consumer


def _fixture_of_loop(request: pytest.FixtureRequest, name: str, blocking: str) -> str:
    """Return the fixture that connects a client on the loop of the test. Fails in one line if there is no such loop."""
    marker = request.node.get_closest_marker("asyncio")
    by_asyncio = marker is not None and request.config.pluginmanager.hasplugin("dledger-asyncio")
    by_anyio = "anyio_backend" in request.fixturenames
    if by_asyncio and by_anyio:  # pytest-asyncio would run the test, and anyio the fixtures, each on a loop of its own
        problem = (
            "has loops of both pytest-asyncio and anyio in this test: set asyncio_mode = strict, and use one marker"
        )
    elif by_asyncio:
        scope = marker.kwargs.get("loop_scope") or marker.kwargs.get("scope")
        return f"_{name}_in_{scope or request.config.getini('asyncio_default_test_loop_scope')}_loop"
    elif not by_anyio:
        problem = (
            "needs an asynchronous test, run by pytest-asyncio or anyio; "
            f"in other tests use {blocking}(dledger_cluster.namesrv, ...)"
        )
    else:
        backend = request.getfixturevalue("anyio_backend")
        if (backend if isinstance(backend, str) else backend[0]) == "asyncio":
            return f"_{name}_of_anyio"
        problem = f'runs on asyncio only, and this test on {backend}: have the fixture anyio_backend return "asyncio"'
    pytest.fail(f"{name} {problem}", pytrace=False)


def _number_of_nodes(value: object, source: str) -> int:
    """Return a number of voters. Raises `pytest.UsageError` for anything else."""
    try:
        nodes = int(value) if isinstance(value, str) else value
    except ValueError:
        nodes = value
    if not isinstance(nodes, int) or isinstance(nodes, bool) or not 1 <= nodes <= _MAX_NODES:
        raise pytest.UsageError(f"{source} is {value!r}: a number of voters is expected, 1 to {_MAX_NODES}")
    return nodes
