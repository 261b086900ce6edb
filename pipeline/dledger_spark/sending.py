"""Sending the rows of one task: many at a time, each acknowledged by a majority before the task ends."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dledger_client import Admin, MessageQueue, NoRouteError, Producer

from .errors import OptionError, SourceError
from .identity import RowIdentities
from .offsets import QUEUES_PER_GROUP
from .options import WriteOptions
from .pacing import Pace
from .plans import groups_by_ordinal
from .schema import NAMES
from .signing import client_credentials, client_tls

if TYPE_CHECKING:
    import pyarrow as pa

SINK_COLUMNS: Final = ("key", "value", "topic", "partition", "headers", "tags")
"""The columns that a write uses; the others of a read's columns may be there and mean nothing."""
MAX_IN_FLIGHT: Final = 1024

_VOID: Final = "void"
_TEXT: Final = r"(string|varchar|char)\b.*"
_BYTES: Final = rf"binary|{_TEXT}"
_SINK_TYPES: Final = {
    "key": (_BYTES, "BINARY or STRING"),
    "value": (_BYTES, "BINARY or STRING"),
    "topic": (_TEXT, "STRING"),
    "partition": ("tinyint|smallint|int|bigint", "INT"),
    "headers": (rf"array<struct<key:string,value:({_BYTES})>>", "ARRAY<STRUCT<key: STRING, value: BINARY>>"),
    "tags": (_TEXT, "STRING"),
}
"""A pattern for the short names of the types that a column may have, and what is said where it has another."""


class OutgoingRow(NamedTuple):
    """One row as a message; `partition` names its queue, None lets its identity choose."""

    topic: str
    body: bytes
    key: str | None
    tags: str | None
    properties: dict[str, str]
    partition: int | None


def check_columns(columns: Mapping[str, str], topic: str | None) -> None:
    """Raise `OptionError` if the columns of a write, their types by name, make no messages.

    Types are Spark's short names, such as `array<struct<key:string,value:binary>>`. A column of nulls alone is `void`.
    """
    if unknown := [name for name in columns if name not in NAMES]:
        raise OptionError("columns", unknown[0], f"a write takes {', '.join(SINK_COLUMNS)}")
    if "value" not in columns:
        raise OptionError("columns", ", ".join(columns), "a write needs the column value, BINARY or STRING")
    for name, (pattern, wanted) in _SINK_TYPES.items():
        found = columns.get(name, _VOID)
        if (found != _VOID or name == "value") and re.fullmatch(pattern, found) is None:
            raise OptionError("columns", name, f"its type is {found}, a write takes {wanted}: cast it")
    if topic is None and "topic" not in columns:
        raise OptionError("topic", None, "give the option, or a column topic")


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[OutgoingRow]:
    """The messages in a batch. Raises `SourceError` for a row that is none."""
    names = [name for name in SINK_COLUMNS if name in batch.schema.names]
    columns = {name: batch.column(name).to_pylist() for name in names}
    for place in range(batch.num_rows):
        yield _row({name: column[place] for name, column in columns.items()}, topic)


def _row(row: dict[str, Any], topic: str | None) -> OutgoingRow:
    value, destination = row["value"], topic or row.get("topic")
    if value is None:
        raise SourceError("a row's value is null: a message needs a body, which may be empty")
    if not destination:
        raise SourceError("a row's topic is null or empty, and there is no option topic")
    properties: dict[str, str] = {}
    for header in row.get("headers") or ():
        name = None if header is None else header["key"]
        if not name:
            raise SourceError(f"a row has a header without a name: {header!r}")
        if name in properties:
            raise SourceError(f"a row has the header {name!r} twice: a message has one property of a name")
        properties[name] = _text("header " + name, header["value"])
    key = row.get("key")
    body = value.encode() if isinstance(value, str) else bytes(value)
    return OutgoingRow(
        destination, body, None if key is None else _text("key", key), row.get("tags"), properties, row.get("partition")
    )


def _text(what: str, value: bytes | str | None) -> str:
    if value is None:
        return ""
    try:
        return value if isinstance(value, str) else bytes(value).decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"the {what} is not UTF-8, which a message's properties are: {error}") from error


class RowSender:
    """Sends the rows of one task, at most `MAX_IN_FLIGHT` at a time. `run` None: every attempt makes other keys."""

    def __init__(self, options: WriteOptions, run: str | None, partition: int) -> None:
        self._options = options
        self._identities = None if run is None else RowIdentities(run, partition)
        self._groups: asyncio.Task[dict[int, str]] | None = None
        self._queues: dict[str, asyncio.Task[tuple[MessageQueue, ...]]] = {}

    def send(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Send all rows and wait until every one is acknowledged; how many they were. Raises the first failure."""
        return asyncio.run(self._send_all(batches))

    async def _send_all(self, batches: Iterable[pa.RecordBatch]) -> int:
        count, pace = 0, Pace(self._options.max_rows_per_second)
        async with Producer(
            list(self._options.namesrv),
            group=self._options.producer_group,
            timeout=self._options.delivery_timeout_s,
            idempotent=self._identities is not None,
            credentials=client_credentials(),
            tls=client_tls(),
        ) as producer:
            for batch in batches:
                # Spark's iterator blocks: what is under way is waited for before the next batch is asked for.
                for piece in pace.pieces(batch):
                    await pace.wait(piece.num_rows)
                    await _all(self._send_row(producer, row) for row in rows_of(piece, self._options.topic))
                count += batch.num_rows
        return count

    def _send_row(self, producer: Producer, row: OutgoingRow) -> Coroutine[None, None, None]:
        """What sends a row; its identity is fixed at once, in the order of the rows."""
        identity = None
        if self._identities is not None:
            identity = self._identities.next(row.topic, row.body, row.key, row.tags, row.properties, row.partition)
        return self._deliver(producer, row, identity)

    async def _deliver(self, producer: Producer, row: OutgoingRow, identity: str | None) -> None:
        queue: MessageQueue | None = None
        if row.partition is not None:
            queue = await self._numbered_queue(row.topic, row.partition)
        elif identity is not None:
            # A repeated send is known only to the broker group that stored the first one.
            queues = await self._queues_of(producer, row.topic)
            queue = queues[int(identity[:8], 16) % len(queues)]
        await producer.send(
            row.topic,
            row.body,
            key=row.key,
            tags=row.tags,
            properties=row.properties,
            queue=queue,
            unique_key=identity,
        )

    async def _queues_of(self, producer: Producer, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic when the task first asked for them."""
        task = self._queues.get(topic)
        if task is None:
            task = self._queues[topic] = asyncio.create_task(self._find_queues(producer, topic))
        return await asyncio.shield(task)

    async def _find_queues(self, producer: Producer, topic: str) -> tuple[MessageQueue, ...]:
        """The queues that a topic has. One that does not exist is made, on all broker groups that sends make topics on.

        Sends alone would make it group by group, and a row that came while only some had it would go to another queue
        the next time.
        """
        async with Admin(
            list(self._options.namesrv),
            timeout=self._options.delivery_timeout_s,
            credentials=client_credentials(),
            tls=client_tls(),
        ) as admin:
            try:
                route = await admin.topic_route(topic)
            except NoRouteError:
                counts = Counter(queue.broker_group for queue in await producer.queues(topic))
                await admin.create_topic(topic, queues=min(counts.values()), broker_groups=sorted(counts))
                route = await admin.topic_route(topic)
        if not route.all_writable:
            raise SourceError(f"no queue of topic {topic!r} can be written")
        return route.all_writable

    async def _numbered_queue(self, topic: str, partition: int) -> MessageQueue:
        """The queue with a number that is unique within its topic."""
        if self._groups is None:  # all rows under way wait for the first one's question
            asking = asyncio.to_thread(groups_by_ordinal, self._options.namesrv, self._options.delivery_timeout_s)
            self._groups = asyncio.create_task(asking)
        ordinal, queue_id = divmod(partition, QUEUES_PER_GROUP)
        group = (await asyncio.shield(self._groups)).get(ordinal)
        if group is None:
            raise SourceError(f"a row's partition is {partition}, but no broker group has the ordinal {ordinal}")
        return MessageQueue(topic, group, queue_id)


async def _all(sends: Iterable[Coroutine[None, None, None]]) -> None:
    """Run all, `MAX_IN_FLIGHT` at a time; the first failure cancels the others and is raised."""
    running: set[asyncio.Task[None]] = set()
    try:
        for send in sends:
            if len(running) >= MAX_IN_FLIGHT:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            running.add(asyncio.create_task(send))
        for task in list(running):
            await task
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
