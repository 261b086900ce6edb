"""RocketMQ 5's Python client, unmodified, through two proxies: sends and simple consumers of two groups, one in order.

Each consumer receives, acknowledges most messages, hides some anew, and ignores some on purpose. The client repeats
sends that fail at a proxy under the same message id, so brokers store them once. Each topic has one queue, because the
client does not say in which queue a message was stored. At the end the remaining messages are received, and every queue
is read from every node.

Receipt handles have the place of a message, and the history has it from there.
"""

from __future__ import annotations

import asyncio
import base64
import random
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from dledger_base.extras import install_command
from dledger_chaos.history import Invocation, Recorder
from dledger_client import Admin, ClientError, MessageQueue
from dledger_proxy.grpc.tokens import Receipt, decode_token
from dledger_remoting.pop import CheckPoint, Retry, pop_retry_topic
from dledger_remoting.topics import SubscriptionGroupConfig

from .base import PROXIES, WorkloadContext, WorkloadEntry, sleep_or_stop
from .grpc_client import GrpcCallError, GrpcClient, grpc_environment
from .payload import decode_payload, encode_payload
from .popping import PopGroup
from .reading import TopicReader
from .records import Hidden, Popped, Stored
from .tailing import Arrivals

NAME: Final = "grpc"
SHARED: Final = PopGroup("chaos-grpc", "chaos-grpc", is_ordered=False)
ORDERED: Final = PopGroup("chaos-grpc-ordered", "chaos-grpc-ordered", is_ordered=True)
GROUPS: Final = (SHARED, ORDERED)
MEMBERS: Final = 2
"""Number of consumers of each group."""
RETRIES: Final = 10_000
"""Maximum number of redeliveries. It is so large that no message becomes a dead letter."""
INVISIBLE_S: Final = 10
"""Invisible time in seconds, the shortest that the protocol allows."""
HIDDEN_S: Final = (1, 3)
MAX_MESSAGES: Final = 8
LEFT_ALONE_SHARE: Final = 0.05
HIDDEN_SHARE: Final = 0.1
"""Shares of messages that are ignored, or hidden anew and then acknowledged or ignored."""
_ATTEMPTS: Final = 3
_SEND_PAUSE_S: Final = 0.2
_PAUSE_S: Final = 0.1
_FINAL_S: Final = 120.0


class GrpcWorkload:
    """Clients of the workload `grpc`, as the module describes it. Making one installs the client, or fails at once."""

    name = NAME

    def __init__(self) -> None:
        self._python = grpc_environment()
        self._client: GrpcClient | None = None
        self._queues: dict[str, str] = {}
        self._arrivals = Arrivals()
        self._done: set[str] = set()

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make topics and groups, and start the client with its consumers."""
        broker_group = min(node.group for node in ctx.nodes)
        async with Admin(ctx.namesrv) as admin:
            for group in GROUPS:
                kind = {"message.type": "FIFO" if group.is_ordered else "NORMAL"}
                await admin.create_topic(group.topic, queues=1, broker_groups=[broker_group], attributes=kind)
                self._queues[group.topic] = str(MessageQueue(group.topic, broker_group, 0))
                settings = SubscriptionGroupConfig(
                    group.name, retry_max_times=RETRIES, consume_message_orderly=group.is_ordered
                )
                await admin.create_group(settings)
        self._client = GrpcClient(self._python, ";".join(ctx.proxies), ctx.directory)
        await self._client.start()
        for member in self._members(ctx):
            await self._client.call("consume", consumer=member.name, group=member.group.name, topic=member.group.topic)

    async def run(self, ctx: WorkloadContext) -> None:
        """Send, receive and acknowledge until the end."""
        async with asyncio.TaskGroup() as tasks:
            for group in GROUPS:
                tasks.create_task(self._send(ctx, group, random.Random(ctx.rng.random())))
            for member in self._members(ctx):
                tasks.create_task(self._consume(ctx, member, random.Random(ctx.rng.random())))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Receive the remaining messages; read every queue from every node."""
        try:
            async with asyncio.timeout(_FINAL_S), asyncio.TaskGroup() as tasks:
                for member in self._members(ctx):
                    tasks.create_task(self._consume_rest(member))
        except TimeoutError:
            pass  # the checkers judge what is missing
        if self._client is not None:
            await self._client.close()
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            for group in GROUPS:
                await reader.scan(group.topic, ctx)
            await _record_retry_bounds(reader)

    def _members(self, ctx: WorkloadContext) -> list[_Member]:
        assert self._client is not None
        return [
            _Member(self._client, ctx.recorder, f"{group.name}-{number}", group)
            for group in GROUPS
            for number in range(MEMBERS)
        ]

    async def _send(self, ctx: WorkloadContext, group: PopGroup, rng: random.Random) -> None:
        assert self._client is not None
        number = 0
        while not ctx.stopping.is_set():
            number += 1
            value = f"{NAME}.producer-{group.topic}:{number}"
            body = base64.b64encode(encode_payload(value, rng.randint(0, 500))).decode()
            sent = ctx.recorder.invoke(NAME, f"producer-{group.topic}", "send-idempotent", group.topic, value)
            order = "all" if group.is_ordered else None
            try:
                receipt = await self._client.call("send", topic=group.topic, body=body, group=order)
            except GrpcCallError as error:
                sent.info(str(error))
            else:
                sent.ok(**msgspec.structs.asdict(Stored(self._queues[group.topic], receipt["offset"])))
                self._arrivals.expect(value)
            await sleep_or_stop(ctx, _SEND_PAUSE_S)

    async def _consume(self, ctx: WorkloadContext, member: _Member, rng: random.Random) -> None:
        while not ctx.stopping.is_set():
            messages = await member.receive()
            for message in messages:
                chance = rng.random()
                if chance < LEFT_ALONE_SHARE:
                    continue
                if chance < LEFT_ALONE_SHARE + HIDDEN_SHARE:
                    hidden = await member.hide(message, rng.choice(HIDDEN_S))
                    if hidden is None:
                        continue
                    await self._acknowledge(member, hidden)
                else:
                    await self._acknowledge(member, message)
            if not messages:
                await sleep_or_stop(ctx, _PAUSE_S)

    async def _consume_rest(self, member: _Member) -> None:
        while not self._arrivals.complete.is_set():
            for message in await member.receive():
                await self._acknowledge(member, message)

    async def _acknowledge(self, member: _Member, message: _Held) -> None:
        """Acknowledge a message, and repeat this after an unknown outcome. It counts as done unless refused."""
        for _ in range(_ATTEMPTS):
            if await member.ack(message):
                break
        if message.popped.value not in self._done:
            self._done.add(message.popped.value)
            self._arrivals.came(message.popped.value)


class _Held(msgspec.Struct, frozen=True):
    """A message with the handle that its consumer has."""

    handle: str
    popped: Popped


class _Member:
    """The recorded requests of one consumer: one process of the history."""

    def __init__(self, client: GrpcClient, recorder: Recorder, name: str, group: PopGroup) -> None:
        self.name = name
        self.group = group
        self._client = client
        self._recorder = recorder

    async def receive(self) -> list[_Held]:
        """Return messages, none after an unknown outcome."""
        hidden = Hidden(INVISIBLE_S * 1000)
        received = self._invoke("pop", [], hidden)
        try:
            answer = await self._client.call("receive", consumer=self.name, max=MAX_MESSAGES, invisible_s=INVISIBLE_S)
        except GrpcCallError as error:
            received.info(str(error))
            await asyncio.sleep(_PAUSE_S)
            return []
        messages = [self._held(one) for one in answer]
        received.ok([one.popped for one in messages])
        return messages

    async def ack(self, message: _Held) -> bool:
        """Acknowledge a message. Returns False after an unknown outcome."""
        acked = self._invoke("ack", [message.popped])
        try:
            await self._client.call("ack", consumer=self.name, handle=message.handle)
        except GrpcCallError as error:
            acked.info(str(error))
            return False
        acked.ok()
        return True

    async def hide(self, message: _Held, seconds: int) -> _Held | None:
        """Hide a message for a time from now on. Returns it with its next handle, None unless it is hidden."""
        hidden = self._invoke("hide", message.popped, Hidden(seconds * 1000))
        try:
            answer = await self._client.call("hide", consumer=self.name, handle=message.handle, seconds=seconds)
        except GrpcCallError as error:
            hidden.info(str(error))
            return None
        point = self._point(answer["handle"])
        held = _Held(answer["handle"], message.popped._replace(pop_time_ms=point.pop_time_ms))
        hidden.ok(held.popped)
        return held

    def _held(self, answer: dict[str, Any]) -> _Held:
        point = self._point(answer["handle"])
        stored = pop_retry_topic(self.group.name, self.group.topic, point.retry)
        queue = str(MessageQueue(stored, point.broker_name, point.queue_id))
        value = decode_payload(base64.b64decode(answer["body"]))
        popped = Popped(queue, point.queue_offset, value, answer["attempt"] - 1, point.pop_time_ms)
        return _Held(answer["handle"], popped)

    def _point(self, handle: str) -> CheckPoint:
        return decode_token(Receipt, handle, self.group.name, self.group.topic).point

    def _invoke(self, f: str, value: object, hidden: Hidden | None = None) -> Invocation:
        extras = {} if hidden is None else msgspec.structs.asdict(hidden)
        return self._recorder.invoke(NAME, self.name, f, self.group.topic, value, **extras)


async def _record_retry_bounds(reader: TopicReader) -> None:
    """Record the bounds of the retry topic's queues. Trimmed messages need not have been acknowledged."""
    try:
        queues = await reader.wait_for_queues(pop_retry_topic(SHARED.name, SHARED.topic, Retry.V1))
    except ClientError:
        return  # no message was delivered again
    for queue in queues:
        await reader.bounds(queue, f="kept")


def _find_obstacle() -> str:
    return "" if find_spec("grpclib") is not None else f"a proxy needs grpclib: {install_command('proxy')}"


ENTRY: Final = WorkloadEntry(
    NAME,
    "RocketMQ 5's Python client through two proxies: two groups, one in order, whose members ignore some messages",
    "broker",
    GrpcWorkload,
    needs=frozenset({PROXIES}),
    unavailable=_find_obstacle,
)
