"""Brokers in the test's own process, and a client that speaks to them over a socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from dledger.config_keys.declared import ConfigValue
from dledger.testing.ports import free_ports
from dledger_broker.config import BrokerConfig, build_config
from dledger_broker.node import Broker
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command, encode_command
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, encode_heartbeat


def node_config(tmp_path: Path, **keys: ConfigValue) -> BrokerConfig:
    port, peer_port = free_ports(2)
    return build_config(
        {
            "broker_group": "broker-a",
            "node_id": "broker-a-n0",
            "data_dir": str(tmp_path / "data"),
            "port": port,
            "peer_port": peer_port,
            "http_port": 0,
            "alias_port": 0,
            "segment_bytes": 1 << 20,
            "max_message_bytes": 64 << 10,
            "election_min_ms": 100,
            "election_max_ms": 150,
            "heartbeat_ms": 20,
            **keys,
        }
    )


class Client:
    """Speaks to a broker over a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._opaque = 0
        self._answers: list[RemotingCommand] = []
        self.pushed: list[RemotingCommand] = []
        self.received: list[RemotingCommand] = []
        """All that came, in its order."""

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def call(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        self._opaque += 1
        self._writer.write(encode_command(RemotingCommand(code, opaque=self._opaque, ext=ext or {}, body=body)))
        async with asyncio.timeout(20):
            while True:
                for place, answer in enumerate(self._answers):
                    if answer.opaque == self._opaque:
                        return self._answers.pop(place)
                await self._receive()

    def tell(self, code: int, ext: dict[str, str]) -> None:
        """Send a oneway request."""
        self._opaque += 1
        self._writer.write(encode_command(RemotingCommand(code, opaque=self._opaque, flag=FLAG_ONEWAY, ext=ext)))

    async def closed(self) -> None:
        """Wait until the broker has closed the connection."""
        with suppress(ConnectionError):
            while True:
                await self._receive()

    async def _receive(self) -> None:
        data = await self._reader.read(1 << 16)
        if not data:
            raise ConnectionResetError("the broker closed the connection")
        self._decoder.receive_data(data)
        while (frame := self._decoder.next_frame()) is not None:
            command = decode_command(frame)
            self.received.append(command)
            (self._answers if command.is_response else self.pushed).append(command)

    async def next_push(self) -> RemotingCommand:
        """The next request of the broker."""
        async with asyncio.timeout(20):
            while not self.pushed:
                await self._receive()
        return self.pushed.pop(0)

    def close(self) -> None:
        self._writer.close()

    async def send(self, body: bytes, **letters: str) -> RemotingCommand:
        ext = {"a": "PG", "b": "T1", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", **letters}
        return await self.call(310, ext, body)

    async def heartbeat(self, client_id: str, group: str = "CG", **ext: str) -> RemotingCommand:
        consumer = ConsumerData(group, subscription_data_set=[SubscriptionData("T1")])
        return await self.call(34, ext, encode_heartbeat(HeartbeatData(client_id, [ProducerData("PG")], [consumer])))

    async def pull(self, offset: int, **fields: str) -> RemotingCommand:
        return await self.call(
            11,
            {
                "consumerGroup": "CG",
                "topic": "T1",
                "queueId": "0",
                "queueOffset": str(offset),
                "maxMsgNums": "32",
                "sysFlag": "4",
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subVersion": "0",
                "subscription": "*",
                **fields,
            },
        )


@asynccontextmanager
async def running(config: BrokerConfig, *, bootstrap: bool = False) -> AsyncIterator[Broker]:
    broker = Broker(config, bootstrap=bootstrap)
    ready = asyncio.Event()
    broker.group.listeners.append(lambda: ready.set() if broker.group.ready else None)
    await broker.start()
    try:
        async with asyncio.timeout(20):
            await ready.wait()
        yield broker
    finally:
        await broker.stop()
