"""Brokers in the test's own process, and a client that speaks to them over a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from dledger.testing.ports import free_ports
from dledger_base.config_keys.declared import ConfigValue
from dledger_broker.config import KEYS, BrokerConfig, build_config
from dledger_broker.node import Broker
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, decode_command, encode_command
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, encode_heartbeat
from tests.broker.served_broker import pull_ext
from tests.broker.telling import tell
from tests.waiting import until  # noqa: F401 - tests import it from here


def node_config(tmp_path: Path, **keys: ConfigValue) -> BrokerConfig:
    port, peer_port = free_ports(2)
    limits = {name: keys.pop(name) for name in list(keys) if name in KEYS.by_name and KEYS.by_name[name].about.is_limit}
    config = build_config(
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
    changed = replace(config, **limits)  # type: ignore[arg-type] # a file cannot set limits
    changed.remember(config.said, config.ignored)
    return changed


def toml_of(config: BrokerConfig) -> str:
    """Return the configuration file of a process with the identity, ports and sizes of this configuration."""
    texts = {key: str(getattr(config, key)) for key in ("broker_group", "node_id", "data_dir", "flush")}
    ports = ("port", "peer_port", "http_port", "alias_port", "segment_bytes")
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in texts.items()) + "".join(
        f"{key} = {getattr(config, key)}\n" for key in ports
    )


class Client:
    """Client that speaks to a broker over a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()
        self._opaque = 0
        self._answers: dict[int, RemotingCommand] = {}
        self.pushed: list[RemotingCommand] = []
        self.received: list[RemotingCommand] = []
        """Everything that was received, in order."""

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def call(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        self._opaque += 1
        self._writer.write(encode_command(RemotingCommand(code, opaque=self._opaque, ext=ext or {}, body=body)))
        async with asyncio.timeout(20):
            while (answer := self._answers.pop(self._opaque, None)) is None:
                await self._receive()
        return answer

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
            if command.is_response:
                self._answers[command.opaque] = command
            else:
                self.pushed.append(command)

    async def next_push(self) -> RemotingCommand:
        """Return the next request of the broker."""
        async with asyncio.timeout(20):
            while not self.pushed:
                await self._receive()
        return self.pushed.pop(0)

    def close(self) -> None:
        self._writer.close()

    async def send(self, body: bytes, **letters: str) -> RemotingCommand:
        usual = dict(zip("abcdefgh", ("PG", "T1", "TBW102", "4", "0", "0", "1", "0"), strict=True))
        return await self.call(310, usual | letters, body)

    async def heartbeat(self, client_id: str, group: str = "CG", **ext: str) -> RemotingCommand:
        consumer = ConsumerData(group, subscription_data_set=[SubscriptionData("T1")])
        return await self.call(34, ext, encode_heartbeat(HeartbeatData(client_id, [ProducerData("PG")], [consumer])))

    async def pull(self, offset: int, **fields: str) -> RemotingCommand:
        return await self.call(11, pull_ext("T1", offset=offset) | fields)

    async def create_topic(self, topic: str, queues: int = 2, perm: str = "6") -> RemotingCommand:
        ext = {"topic": topic, "defaultTopic": "TBW102", "perm": perm, "topicFilterType": "SINGLE_TAG"}
        return await self.call(17, ext | dict.fromkeys(("readQueueNums", "writeQueueNums"), str(queues)))


@asynccontextmanager
async def running(config: BrokerConfig, *, bootstrap: bool = False) -> AsyncIterator[Broker]:
    broker = Broker(config, bootstrap=bootstrap)
    ready = asyncio.Event()
    tell(broker.group.events, "leader_changed", lambda: ready.set() if broker.group.ready else None)
    await broker.start()
    try:
        async with asyncio.timeout(20):
            await ready.wait()
        yield broker
    finally:
        await broker.stop()
