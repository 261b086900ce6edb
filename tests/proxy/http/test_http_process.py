"""A proxy process serves HTTP beside gRPC, and ends in order."""

from __future__ import annotations

import asyncio
import ssl
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from cluster_fronts import send
from http_fronts import Caller, basic
from running_proxy import RunningProxy

from dledger_base.issuing import Authority
from dledger_client.testing import LocalCluster
from dledger_client.testing.ports import find_free_block
from dledger_proxy.config import ConfigError, build_config


async def test_a_proxy_serves_http_over_tls_shows_its_metrics_and_ends_tails_when_it_stops(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    authority = Authority("a test", timedelta(days=1))
    authority.issue("front", ["127.0.0.1"]).write(tmp_path / "front.crt", tmp_path / "front.key")
    base = find_free_block(range(2))
    config = (
        f'http_port = {base}\nmetrics_port = {base + 1}\ntls = "enforcing"\n'
        f'tls_cert_file = "{tmp_path / "front.crt"}"\ntls_key_file = "{tmp_path / "front.key"}"\n'
    )
    trusting = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=authority.certificate.decode()))
    with RunningProxy(tmp_path, cluster.namesrv, config) as running:
        async with aiohttp.ClientSession(connector=trusting) as session, asyncio.timeout(60):
            caller = Caller(session, f"https://127.0.0.1:{base}")
            await send(caller, "by-process", "a", headers=basic("bob", "secret"))
            with pytest.raises(aiohttp.ClientError):
                await session.get(f"http://127.0.0.1:{base}/v1/topics")
            async with session.get(f"http://127.0.0.1:{base + 1}/metrics") as response:
                metrics = await response.text()
            assert 'dledger_proxy_http_messages_total{direction="in"} 1.0' in metrics
            assert "rocketmq_proxy_up 1.0" in metrics
            async with session.get(f"{caller.url}/v1/topics/by-process/tail?start=first") as tail:
                await tail.content.readuntil(b"event: message\n")
                stopping = asyncio.create_task(asyncio.to_thread(running.stop))
                await tail.content.read()  # it ends in order: an aborted one would raise
            assert await stopping == 0


def test_two_ports_of_a_proxy_are_different() -> None:
    with pytest.raises(ConfigError, match="http_port = 9001 and metrics_port = 9001: expected two different ports"):
        build_config({"http_port": 9001, "metrics_port": 9001})
    assert build_config({"grpc_port": 0}).http_port == 0
