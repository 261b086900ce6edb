"""A proxy in the test's own event loop, in front of a real cluster or of none, and calls to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from grpclib.client import Channel, StreamStreamMethod, UnaryStreamMethod, UnaryUnaryMethod

from dledger_client import SubscriptionGroupConfig, SyncAdmin
from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_proxy.config import build_config
from dledger_proxy.grpc.definition import messaging_pb2 as pb
from dledger_proxy.process import Proxy

NOBODY = "127.0.0.1:1"
"""Address of a name server that is not there."""
METHODS = pb.DESCRIPTOR.services_by_name["MessagingService"].methods_by_name
ENDPOINTS = pb.Endpoints(scheme=pb.IPv4, addresses=[pb.Address(host="127.0.0.1", port=8081)])
_NUMBERS = count()

cluster = local_cluster_fixture(
    scope="session",
    nodes=1,
    config='delay_levels = "1s 1s 1s 1s"\ntransaction_timeout_ms = 500\ntransaction_check_interval_ms = 1000\n',
)


class GrpcClient:
    """A client object of RocketMQ 5, as far as the wire shows it."""

    def __init__(self, address: tuple[str, int], client_id: str, **headers: str) -> None:
        self.channel = Channel(*address)
        self.client_id = client_id
        self.headers = {"x-mq-client-id": client_id, "x-mq-language": "JAVA", "x-mq-client-version": "5.1.2"} | headers

    async def call(self, name: str, timeout: float = 10.0, **fields: Any) -> Any:
        """Make a call with one answer, or return all answers of a stream."""
        method = METHODS[name]
        request, answer = getattr(pb, method.input_type.name)(**fields), getattr(pb, method.output_type.name)
        kind = UnaryStreamMethod if method.server_streaming else UnaryUnaryMethod
        made = kind(self.channel, f"/{method.containing_service.full_name}/{name}", type(request), answer)
        return await made(request, metadata=self.headers, timeout=timeout)

    def telemetry(self) -> Any:
        """Return a Telemetry stream, to be opened as a context."""
        path = f"/{METHODS['Telemetry'].containing_service.full_name}/Telemetry"
        made = StreamStreamMethod(self.channel, path, pb.TelemetryCommand, pb.TelemetryCommand)
        return made.open(metadata=self.headers)

    async def send(self, topic: str, body: bytes = b"x", message_id: str | None = None, **system: Any) -> Any:
        """Send one message. Returns the answer."""
        properties = pb.SystemProperties(message_id=message_id or f"id-{next(_NUMBERS)}", **system)
        message = pb.Message(topic=named(topic), body=body, system_properties=properties)
        return await self.call("SendMessage", messages=[message])

    async def receive(
        self, topic: str, group: str, *, wait_s: int = 5, lease: bool = False, **fields: Any
    ) -> list[Any]:
        """Return the messages of one request."""
        answers = await self.receive_all(topic, group, wait_s=wait_s, lease=lease, **fields)
        return [answer.message for answer in answers if answer.HasField("message")]

    async def receive_all(
        self, topic: str, group: str, *, wait_s: int = 5, lease: bool = False, **fields: Any
    ) -> list[Any]:
        """Return all answers of one request."""
        wanted = receive_fields(topic, group, wait_s=wait_s, lease=lease) | fields
        answers: list[Any] = await self.call("ReceiveMessage", timeout=wait_s + 5.0, **wanted)
        return answers

    async def ack(self, topic: str, group: str, *messages: Any) -> Any:
        """Acknowledge messages. Returns the answer."""
        entries = [
            pb.AckMessageEntry(
                message_id=one.system_properties.message_id, receipt_handle=one.system_properties.receipt_handle
            )
            for one in messages
        ]
        return await self.call("AckMessage", topic=named(topic), group=named(group), entries=entries)


def receive_fields(topic: str, group: str, *, wait_s: int, lease: bool) -> dict[str, Any]:
    """Return the fields of a request for messages."""
    fields: dict[str, Any] = {
        "group": named(group),
        "message_queue": pb.MessageQueue(topic=named(topic), broker=pb.Broker(name="broker-a")),
        "batch_size": 16,
        "auto_renew": lease,
        "long_polling_timeout": Duration(seconds=wait_s),
    }
    return fields if lease else {**fields, "invisible_duration": Duration(seconds=10)}


def receive_request(topic: str, group: str, *, wait_s: int, lease: bool) -> pb.ReceiveMessageRequest:
    """Return a request for messages."""
    return pb.ReceiveMessageRequest(**receive_fields(topic, group, wait_s=wait_s, lease=lease))


def named(name: str) -> pb.Resource:
    """Return a name without a namespace."""
    return pb.Resource(name=name)


StartProxy = Callable[..., Awaitable[Proxy]]


@pytest.fixture
async def start_proxy() -> AsyncIterator[StartProxy]:
    """Return a function that starts a proxy with these keys. It stops with the test."""
    started: list[Proxy] = []

    async def start(namesrv: str = NOBODY, **keys: object) -> Proxy:
        proxy = Proxy(build_config({"namesrv": namesrv, "grpc_port": 0, "drain_timeout_ms": 2000, **keys}))
        await proxy.start()
        started.append(proxy)
        return proxy

    yield start
    for proxy in started:
        await proxy.stop()


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., GrpcClient]]:
    """Return a function that connects a client to a proxy. Its connection is closed with the test."""
    clients: list[GrpcClient] = []

    def make(proxy: Proxy, client_id: str | None = None, **headers: str) -> GrpcClient:
        client = GrpcClient(proxy.port.address, client_id or f"client-{next(_NUMBERS)}", **headers)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.channel.close()


@pytest.fixture
def group_name() -> str:
    """Return the name of a consumer group for this test only."""
    return f"group-{next(_NUMBERS)}"


@pytest.fixture
def make_topic(cluster: LocalCluster) -> Callable[..., Awaitable[str]]:
    """Return a function that makes a topic for messages of a kind."""

    async def make(kind: str | None = "MIXED", queues: int = 2) -> str:
        name = f"topic-{next(_NUMBERS)}"
        attributes = None if kind is None else {"message.type": kind}
        await asyncio.to_thread(_create_topic, cluster.namesrv, name, queues, attributes)
        return name

    return make


@pytest.fixture
def make_group(cluster: LocalCluster) -> Callable[..., Awaitable[None]]:
    """Return a function that makes a consumer group with these settings."""

    async def make(name: str, **settings: Any) -> None:
        await asyncio.to_thread(_create_group, cluster.namesrv, SubscriptionGroupConfig(name, **settings))

    return make


def _create_topic(namesrv: str, name: str, queues: int, attributes: dict[str, str] | None) -> None:
    with SyncAdmin(namesrv) as admin:
        admin.create_topic(name, queues=queues, attributes=attributes)


def _create_group(namesrv: str, config: SubscriptionGroupConfig) -> None:
    with SyncAdmin(namesrv) as admin:
        admin.create_group(config)


@asynccontextmanager
async def telling(client: GrpcClient, settings: pb.Settings) -> AsyncIterator[Any]:
    """Open a Telemetry stream and send settings. Yields the stream, with the answer as its `settings`."""
    async with client.telemetry() as stream:
        await stream.send_message(pb.TelemetryCommand(settings=settings))
        stream.settled = await stream.recv_message()
        yield stream
        await stream.end()


def consumer_settings(topic: str, group: str, kind: pb.ClientType = pb.PUSH_CONSUMER) -> pb.Settings:
    """Return the settings that a consumer sends first."""
    entry = pb.SubscriptionEntry(topic=named(topic), expression=pb.FilterExpression(type=pb.TAG, expression="*"))
    return pb.Settings(client_type=kind, subscription=pb.Subscription(group=named(group), subscriptions=[entry]))


def producer_settings(*topics: str) -> pb.Settings:
    """Return the settings that a producer sends first."""
    return pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[named(topic) for topic in topics]))
