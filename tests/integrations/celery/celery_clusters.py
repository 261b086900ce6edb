"""Connections of kombu to a test's cluster."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import pytest
from kombu import Connection

import dledger_celery  # noqa: F401 -- registers the URL
from dledger_client import Credentials
from dledger_client.testing import LocalCluster


def url_of(cluster: LocalCluster, account: Credentials | None = None) -> str:
    signature = f"{account.access_key}:{quote(account.secret, safe='')}@" if account else ""
    return f"dledger://{signature}{cluster.namesrv}/"


@pytest.fixture(scope="module")
def closing() -> Iterator[ThreadPoolExecutor]:
    """Yield threads on which connections close: each waits up to two seconds for its last request for messages."""
    with ThreadPoolExecutor(64) as executor:
        yield executor


@pytest.fixture
def connect(
    request: pytest.FixtureRequest, cluster: LocalCluster, closing: ThreadPoolExecutor
) -> Iterator[Callable[..., Connection]]:
    """Yield a function that opens a connection with some transport options. It is closed after the test.

    It is for the account `ACCOUNT` of the module, if there is one, unless another is given.
    """
    opened: list[Connection] = []
    default = getattr(request.module, "ACCOUNT", None)

    def open_connection(account: Credentials | None = default, **options: object) -> Connection:
        connection = Connection(url_of(cluster, account), transport_options=options)
        opened.append(connection)
        connection.connect()
        return connection

    yield open_connection
    for connection in opened:
        closing.submit(connection.close)
