"""pytest plugin: clusters of real processes, topics and connected clients as fixtures.

pytest loads this module wherever the package is installed. So it imports nothing of the client, and opens nothing,
before a test asks for a fixture. `clusters` holds the running clusters, and `asyncio_loops` the fixtures that only
pytest-asyncio can run.
"""

from __future__ import annotations

import inspect
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
_ASYNCIO_FIXTURES: Final = "dledger-asyncio"
"""Name under which the fixtures for pytest-asyncio are registered."""
_CLUSTERS: Final = pytest.StashKey["Clusters"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the key of the ini file."""
    parser.addini("dledger_nodes", f"number of voters of dledger_cluster, 1 to {_MAX_NODES}", default="1")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and the fixtures of pytest-asyncio if that is installed."""
    config.addinivalue_line(
        "markers", "dledger_nodes(number): run the test on a cluster with this number of voters (dledger_cluster)"
    )
    try:
        _number_of_nodes(config.getini("dledger_nodes"))
    except ValueError as error:
        raise pytest.UsageError(f"dledger_nodes of the ini file is {error}") from error
    if config.getoption("asyncio_mode", "not installed") == "not installed":
        return
    import pytest_asyncio

    if "loop_scope" in inspect.signature(pytest_asyncio.fixture).parameters:  # from version 0.24 on
        from . import asyncio_loops

        config.pluginmanager.register(asyncio_loops, _ASYNCIO_FIXTURES)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give marked tests a cluster of the size that their marker names."""
    marker = metafunc.definition.get_closest_marker("dledger_nodes")
    if marker is None:
        return
    test = metafunc.definition.nodeid
    if len(marker.args) != 1 or marker.kwargs:
        pytest.fail(f"{test}: dledger_nodes takes one number, as dledger_nodes(3)", pytrace=False)
    try:
        nodes = _number_of_nodes(marker.args[0])
    except ValueError as error:
        pytest.fail(f"{test}: dledger_nodes is {error}", pytrace=False)
    if "dledger_cluster" in metafunc.fixturenames:
        metafunc.parametrize("dledger_cluster", [nodes], indirect=True, scope="session", ids=[f"{nodes}-nodes"])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Start again what a test has killed, before its topic is deleted and before the next test runs."""
    clusters = item.config.stash.get(_CLUSTERS, None)
    failure = None if clusters is None else clusters.mend()
    yield
    if failure is not None and "dledger_cluster" in getattr(item, "fixturenames", ()):
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
    return _dledger_clusters.running(
        _number_of_nodes(request.config.getini("dledger_nodes")) if nodes is None else nodes
    )


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
    by_asyncio = marker is not None and request.config.pluginmanager.hasplugin(_ASYNCIO_FIXTURES)
    by_anyio = "anyio_backend" in request.fixturenames
    if by_asyncio and by_anyio:  # pytest-asyncio would run the test, and anyio the fixtures, each on a loop of its own
        problem = (
            "has loops of both pytest-asyncio and anyio in this test: set asyncio_mode = strict, and use one marker"
        )
    elif by_asyncio:
        scope = marker.kwargs.get("loop_scope") or marker.kwargs.get("scope")
        return f"_{name}_in_{scope or _default_loop_scope(request.config)}_loop"
    elif not by_anyio:
        problem = (
            "needs an asynchronous test, run by pytest-asyncio (from 0.24 on) or anyio; "
            f"in other tests use {blocking}(dledger_cluster.namesrv, ...)"
        )
    else:
        backend = request.getfixturevalue("anyio_backend")
        if (backend if isinstance(backend, str) else backend[0]) == "asyncio":
            return f"_{name}_of_anyio"
        problem = f'runs on asyncio only, and this test on {backend}: have the fixture anyio_backend return "asyncio"'
    pytest.fail(f"{name} {problem}", pytrace=False)


def _default_loop_scope(config: pytest.Config) -> str:
    """Return the scope of the loop of tests whose marker names none. Before pytest-asyncio 0.26 there was no choice."""
    try:
        return str(config.getini("asyncio_default_test_loop_scope"))
    except ValueError:
        return "function"


def _number_of_nodes(value: object) -> int:
    """Return a number of voters, perhaps from a text. Raises `ValueError` for anything else."""
    if isinstance(value, str) and value.isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_NODES:
        raise ValueError(f"{value!r}: a number of voters is expected, 1 to {_MAX_NODES}")
    return value
