"""One toxiproxy server for all tests of links, built at its first use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dledger_chaos.ports import API, find_base_port
from dledger_chaos.toxiproxy.build import toxiproxy_server
from dledger_chaos.toxiproxy.server import ToxiproxyServer


@pytest.fixture(scope="module")
def toxiproxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToxiproxyServer]:
    log_file = tmp_path_factory.mktemp("toxiproxy") / "toxiproxy.log"
    with ToxiproxyServer(toxiproxy_server(), find_base_port(1, 3) + API, log_file=log_file) as server:
        yield server
