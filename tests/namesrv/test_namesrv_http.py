"""The HTTP port of a name server."""

import asyncio
import socket
import sys

import pytest
from aiohttp import ClientConnectorError, ClientSession
from prometheus_client.parser import text_string_to_metric_families
from served_names import PATIENCE_S, B, connected, serving

from dledger.testing.ports import free_ports
from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.known import FILE_NAME
from dledger_namesrv.metrics import LIMITS
from dledger_namesrv.server import NameServer, StartError
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.headers import BrokerNodeHeader


@pytest.fixture
def http_port() -> int:
    return free_ports(1)[0]


async def get(port: int, path: str) -> tuple[int, str]:
    async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def metrics(port: int) -> dict[tuple[str, str], float]:
    """Return samples by name without `dledger_namesrv_` and by the value of their label, if they have one."""
    _, text = await get(port, "/metrics")
    return {
        (sample.name.removeprefix("dledger_namesrv_"), next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def until(port: int, name: str, label: str, value: float) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await metrics(port)).get((name, label)) != value:
            continue


async def test_health_is_ok_until_silent_brokers_are_not_looked_for(tmp_path, http_port):
    async with serving(tmp_path, http_port=http_port) as server:
        assert await get(http_port, "/healthz") == (200, "ok")
        assert (await get(http_port, "/nothing"))[0] == 404
        server._scanner.cancel()
        await asyncio.wait([server._scanner])
        assert await get(http_port, "/healthz") == (503, "silent brokers are not looked for")
    with pytest.raises(ClientConnectorError):
        await get(http_port, "/healthz")


@pytest.mark.parametrize("task", ["_scanner", "_saver"])
async def test_an_unexpected_error_ends_no_task_and_is_counted(tmp_path, http_port, monkeypatch, task):
    async with serving(tmp_path, http_port=http_port, scan_interval_ms=10) as server, connected(server) as client:

        def fail(*_):
            monkeypatch.undo()
            raise KeyError("nobody expected that")

        monkeypatch.setattr(server.table, "expire" if task == "_scanner" else "known_names", fail)
        await client.register(heartbeat_timeout_millis=1)
        await until(http_port, "task_restarts_total", "", 1)
        assert not getattr(server, task).done()
        assert await get(http_port, "/healthz") == (200, "ok")
        await until(http_port, "nodes_removed_total", "silent", 1)
        known = tmp_path / FILE_NAME
        async with asyncio.timeout(PATIENCE_S):
            while not known.exists() or b"broker-0" not in known.read_bytes():  # noqa: ASYNC110 -- files have no event
                await asyncio.sleep(0.01)


async def test_metrics_count_nodes_topics_and_requests(tmp_path, http_port):
    async with serving(tmp_path, http_port=http_port) as server, connected(server) as client:
        await client.register()
        await client.register(1, B)
        await client.route()
        assert (await client.call(9999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        client.watch("T1", server.table.version)
        await until(http_port, "route_watches", "", 1)
        found = await metrics(http_port)
        for name, value in (("nodes", 2), ("broker_groups", 1), ("topics", 2), ("connections", 1), ("errors_total", 1)):
            assert found[name, ""] == value, name
        requests = {label: value for (name, label), value in found.items() if name == "requests_total"}
        assert requests == {
            "REGISTER_BROKER": 2, "GET_ROUTEINFO_BY_TOPIC": 1, "DLEDGER_ROUTE_WATCH": 1, "unknown": 1,
        }  # fmt: skip
        assert found["process_open_fds", ""] > 0


async def test_metrics_count_registrations_and_why_nodes_are_gone(tmp_path, http_port):
    async with serving(tmp_path, http_port=http_port, scan_interval_ms=10) as server:
        async with connected(server) as client:
            await client.register(term=2)
            assert (await client.register(0, B, term=1)).code == ResponseCode.SYSTEM_ERROR
            await client.call(RequestCode.UNREGISTER_BROKER, BrokerNodeHeader("broker-0", "127.0.0.1:10911", "C", 0))
            await client.register(1, B, term=2, heartbeat_timeout_millis=1)
            await until(http_port, "nodes_removed_total", "silent", 1)
            await client.register(1, B, term=2)
        await until(http_port, "nodes_removed_total", "connection_lost", 1)
        found = await metrics(http_port)
        assert found["registrations_total", ""] == 3
        assert found["registrations_refused_total", ""] == 1
        assert found["nodes_removed_total", "unregistered"] == 1
        assert (found["nodes", ""], found["topics", ""]) == (0, 0)


@pytest.fixture(autouse=True)
def no_page_is_kept(monkeypatch):
    monkeypatch.setattr("dledger_base.metrics_page.SHORTEST_S", 0.0)
    monkeypatch.setattr("dledger_base.metrics_page.REST", 0.0)


async def test_metrics_count_the_limits_that_acted(tmp_path, http_port, logged):
    limits = {"max_connections": 1, "max_in_flight": 1, "idle_timeout_ms": 200, "scan_interval_ms": 10}
    async with serving(tmp_path, http_port=http_port, **limits) as server:
        assert {label for name, label in await metrics(http_port) if name == "limit_reached_total"} == set(LIMITS)
        async with connected(server) as client, connected(server) as one_more:
            await client.call(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            one_more.send(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            assert await one_more.is_closed()
            for _ in range(2):
                client.watch("T1", server.table.version)
            assert (await client.receive()).code == ResponseCode.SYSTEM_BUSY
            await until(http_port, "limit_reached_total", "idle_timeout_ms", 1)
            await logged("nothing was sent or received for 200 ms")
        await until(http_port, "connections", "", 0)
        async with connected(server) as client:
            client.writer.write(b"\xff" * 64)
            assert await client.is_closed()
        found = await metrics(http_port)
        assert found["frames_refused_total", ""] == 1
        for limit in ("max_connections", "max_in_flight", "idle_timeout_ms"):
            assert found["limit_reached_total", limit] == 1, limit


async def test_an_http_port_in_use_is_one_clear_error_and_leaves_nothing(tmp_path, http_port):
    with socket.create_server(("127.0.0.1", http_port)):
        server = NameServer(NameServerConfig(port=0, http_port=http_port, data=tmp_path))
        with pytest.raises(StartError, match=f"http_port {http_port}: 127.0.0.1:{http_port} is in use"):
            await server.start()
    async with serving(tmp_path, http_port=http_port):
        assert (await get(http_port, "/healthz"))[0] == 200


async def test_an_http_port_without_its_package_says_how_to_install_it(tmp_path, http_port, monkeypatch):
    for module in ("dledger_namesrv.http", "dledger_base.metrics_page"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    server = NameServer(NameServerConfig(port=0, http_port=http_port, data=tmp_path))
    with pytest.raises(StartError, match=r"pip install .*'prometheus-client>=.*; or set http_port = 0"):
        await server.start()
