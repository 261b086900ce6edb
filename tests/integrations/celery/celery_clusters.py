"""Connections of kombu to a test's cluster."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kombu import Connection

import dledger_celery  # noqa: F401 -- registers the URL
from dledger_client.testing import LocalCluster


def url_of(cluster: LocalCluster) -> str:
    return f"dledger://{cluster.namesrv}/"


@pytest.fixture(scope="module")
def closing() -> Iterator[ThreadPoolExecutor]:
    """Yield threads on which connections close: each waits up to two seconds for its last request for messages."""
    with ThreadPoolExecutor(64) as executor:
        yield executor


@pytest.fixture
def connect(cluster: LocalCluster, closing: ThreadPoolExecutor) -> Iterator[Callable[..., Connection]]:
    """Yield a function that opens a connection with some transport options. It is closed after the test."""
    opened: list[Connection] = []

    def open_connection(**options: object) -> Connection:
        connection = Connection(url_of(cluster), transport_options=options)
        opened.append(connection)
        connection.connect()
        return connection

    yield open_connection
    for connection in opened:
        closing.submit(connection.close)
