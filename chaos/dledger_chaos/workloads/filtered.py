"""Consumer groups that filter a topic's messages: by SQL92, by tags, and by a class filter.

The members of each group come and go while messages are sent. The properties of a message follow from its number. The
producer writes traces. At the end one more member of each group stays until all acknowledged messages that match its
filter have been delivered. Then the traces are read.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from dledger_client import (
    Admin,
    ClassFilter,
    ClientError,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SendResult,
    Sql,
)
from dledger_client.subscriptions import Filter
from dledger_remoting.traces import SendTrace, decode_traces

from .base import SQL_FILTERS, WorkloadContext, WorkloadEntry
from .members import come_and_go, send_on
from .payload import decode_payload, encode_payload
from .reading import READER_GROUP, TopicReader
from .records import Traced, position_of, seen_of
from .sending import RecordedSends
from .tailing import Arrivals

NAME: Final = "filtered"
TOPIC: Final = "chaos-filtered"
TRACE_TOPIC: Final = "chaos-filtered-traces"
QUEUES: Final = 4
MEMBERS: Final = 2
LIGHT: Final = "chaos.Light"
"""Name of `class_filter.is_light` at the brokers."""

_TAGS: Final = ("red", "green", "blue")
_SEND_PAUSE_SECONDS: Final = 0.01
_LIFE_SECONDS: Final = (3.0, 12.0)
_FINAL_SECONDS: Final = 90.0
_TRACES_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class Taker:
    """A consumer group and its filter. `wants` repeats the filter independently, for the value of a message."""

    group: str
    filter: Filter
    wants: Callable[[str], bool]


def tag_of(value: str) -> str:
    """Return the tag of a message."""
    return _TAGS[_parse_number(value) % len(_TAGS)]


def weight_of(value: str) -> int | None:
    """Return the property `weight` of a message, None for every fifth message: no comparison holds for it."""
    number = _parse_number(value)
    return number % 10 if number % 5 else None


TAKERS: Final = {
    "sql": Taker(
        "chaos-filtered-sql",
        Sql("weight > 4 AND TAGS IN ('red', 'green')"),
        lambda value: (weight_of(value) or 0) > 4 and tag_of(value) != "blue",
    ),
    "tags": Taker("chaos-filtered-tags", "red || blue", lambda value: tag_of(value) != "green"),
    "class": Taker("chaos-filtered-class", ClassFilter(LIGHT), lambda value: (weight_of(value) or 0) < 5),
}
"""The consumer groups, by the prefix of their members' names."""


class FilteredWorkload:
    """Clients of the workload `filtered`, as the module describes it."""

    name = NAME

    def __init__(self) -> None:
        self._producer: Producer | None = None
        self._arrivals = {name: Arrivals() for name in TAKERS}

    async def setup(self, ctx: WorkloadContext) -> None:
        """Make the topics and start the producer."""
        async with Admin(ctx.namesrv) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES)
            await admin.create_topic(TRACE_TOPIC, queues=1)
        self._producer = Producer(ctx.namesrv, group="chaos-filtered-producer", retry_unknown=False, trace=TRACE_TOPIC)
        await self._producer.start()

    async def run(self, ctx: WorkloadContext) -> None:
        """Send and consume until the end."""
        assert self._producer is not None
        sends = RecordedSends(ctx.recorder, NAME, "producer", self._producer, TOPIC, message=_make_message)
        async with asyncio.TaskGroup() as tasks:
            rng = random.Random(ctx.rng.random())
            tasks.create_task(send_on(ctx, sends, rng, _SEND_PAUSE_SECONDS, self._on_acknowledged))
            for name in TAKERS:
                for number in range(MEMBERS):
                    consumer = partial(self._make_consumer, ctx, name, str(number))
                    tasks.create_task(come_and_go(ctx, random.Random(ctx.rng.random()), _LIFE_SECONDS, consumer))

    async def finish(self, ctx: WorkloadContext) -> None:
        """Wait until everything is delivered; read every queue from every node, and the traces."""
        if self._producer is not None:
            await self._producer.close()
        await asyncio.gather(*(self._deliver_rest(ctx, name) for name in TAKERS))
        async with TopicReader(ctx.namesrv, ctx.recorder, NAME) as reader:
            await reader.scan(TOPIC, ctx)
        await _read_traces(ctx)

    def _on_acknowledged(self, value: str, _: SendResult) -> None:
        for name, taker in TAKERS.items():
            if taker.wants(value):
                self._arrivals[name].expect(value)

    async def _deliver_rest(self, ctx: WorkloadContext, name: str) -> None:
        ctx.recorder.invoke(NAME, f"{name}-last", "stay", f"{name}-").ok()
        async with self._make_consumer(ctx, name, "last"):
            await self._arrivals[name].wait(_FINAL_SECONDS)

    def _make_consumer(self, ctx: WorkloadContext, name: str, member: str) -> PushConsumer:
        async def handle(message: ReceivedMessage) -> None:
            ctx.recorder.invoke(NAME, f"{name}-{member}", "deliver", str(message.queue)).ok(seen_of(message))
            self._arrivals[name].came(decode_payload(message.body))

        taker = TAKERS[name]
        return PushConsumer(
            ctx.namesrv, taker.group, TOPIC, handle, filter=taker.filter, concurrency=1, start_timeout=None
        )


async def _read_traces(ctx: WorkloadContext) -> None:
    """Record the trace of each send."""
    reading = ctx.recorder.invoke(NAME, "final", "read-traces", TRACE_TOPIC)
    try:
        async with PullConsumer(ctx.namesrv, READER_GROUP) as consumer:
            await consumer.assign(await consumer.queues(TRACE_TOPIC))
            await consumer.seek_to_begin()
            while messages := await consumer.poll(_TRACES_AT_ONCE):
                for message in messages:
                    _record_traces(ctx, message.body)
    except ClientError as error:
        reading.fail(str(error))
    else:
        reading.ok()


def _record_traces(ctx: WorkloadContext, body: bytes) -> None:
    for trace in decode_traces(body).traces:
        if isinstance(trace, SendTrace):
            traced = Traced(trace.succeeded, position_of(trace.offset_message_id) if trace.succeeded else -1)
            ctx.recorder.invoke(NAME, "final", "traced", trace.keys).ok(traced)


def _make_message(value: str, size_bytes: int) -> Message:
    weight = weight_of(value)
    properties = {} if weight is None else {"weight": str(weight)}
    return Message(encode_payload(value, size_bytes), key=value, tags=tag_of(value), properties=properties)


def _parse_number(value: str) -> int:
    """Return the number at the end of a value."""
    return int(value.rpartition(":")[2])


ENTRY: Final = WorkloadEntry(
    NAME,
    "consumer groups that filter by SQL92, by tags and by class, and a producer that writes traces",
    "broker",
    FilteredWorkload,
    needs=frozenset({SQL_FILTERS}),
    config=f'class_filters."{LIGHT}" = "dledger_chaos.class_filter:is_light"\n',
)
