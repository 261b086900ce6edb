"""A proxy that is killed between a pop and its client hides nothing for long, although the client lives on."""

from __future__ import annotations

import asyncio
import re

import pytest
from aiohttp import ClientSession
from conftest import GrpcClient, consumer_settings, receive_request, telling
from raw_client import SECONDS, RawClient, message_frame

from dledger_proxy.process import Proxy
from tests.running_proxy import RunningProxy

pytestmark = pytest.mark.long
HIDDEN_SECONDS = 30
"""Time in seconds for which brokers hide what is not confirmed."""
CLIENT_ID = "raw"


async def test_messages_that_a_killed_proxy_had_for_a_living_client_come_again(
    start_proxy, connect, cluster, make_topic, group_name, tmp_path
):
    """Messages that the client has read stay with it meanwhile."""
    staying = await start_proxy(cluster.namesrv)
    topic, other = await make_topic("NORMAL"), connect(staying)
    await other.receive(topic, group_name, wait_s=0)
    dying = RunningProxy(tmp_path, cluster.namesrv)
    await asyncio.to_thread(dying.start)
    try:
        host, _, port = dying.address.rpartition(":")
        living = connect(staying, CLIENT_ID)
        async with telling(living, consumer_settings(topic, group_name)):
            read = GrpcClient((host, int(port)), CLIENT_ID)
            await other.send(topic, b"read")
            [message] = await read.receive(topic, group_name, lease=True, wait_s=10)
            assert message.body == b"read"
            await _leased(staying)
            unread = RawClient(*await asyncio.open_connection(host, int(port)))
            unread.flush()
            wanted = receive_request(topic, group_name, wait_s=15, lease=True)
            unread.send(unread.request("ReceiveMessage"), message_frame(wanted.SerializeToString()), end=True)
            await other.send(topic, b"unread")
            await _written(unread)
            await asyncio.to_thread(dying.kill)
            unread.close()
            read.channel.close()
            [again] = await other.receive(topic, group_name, wait_s=20) or await other.receive(
                topic, group_name, wait_s=20
            )
            assert again.body == b"unread"
            await other.ack(topic, group_name, again)
            assert await other.receive(topic, group_name, wait_s=HIDDEN_SECONDS - 15) == []
            await living.ack(topic, group_name, message)
    finally:
        await asyncio.to_thread(dying.kill)


async def _leased(proxy: Proxy) -> None:
    """Wait until the broker has a lease."""
    [address] = proxy.backends.core.routes.group("broker-a").addresses
    host, _, port = address.rpartition(":")
    async with asyncio.timeout(SECONDS), ClientSession() as session:
        while True:
            async with session.get(f"http://{host}:{int(port) + 2}/metrics") as page:
                if re.search(r"^dledger_broker_pop_leases(\{.*\})? [1-9]", await page.text(), re.MULTILINE):
                    return
            await asyncio.sleep(0.1)


async def _written(client: RawClient) -> None:
    """Wait until the answer with the message is in the client's memory, where nothing reads it."""
    async with asyncio.timeout(SECONDS):
        while b"unread" not in bytes(client.reader._buffer):  # noqa: ASYNC110 - asyncio reads by itself
            await asyncio.sleep(0.05)
