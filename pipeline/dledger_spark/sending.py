"""Sender of the rows of one task: many at a time, at a bounded rate, each acknowledged by a majority at the end."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dledger_client import Admin, MessageQueue, NoRouteError, Producer, SendResult

from .errors import NotRememberedError, OptionError, SourceError
from .identity import Origin, RowIdentities, Spans
from .offsets import QUEUES_PER_GROUP
from .options import WriteOptions
from .plans import groups_by_ordinal
from .schema import NAMES, SOURCE_TOPIC
from .signing import client_credentials, client_tls

if TYPE_CHECKING:
    import pyarrow as pa
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


PIECES_PER_SECOND: Final = 10
"""Number of slices in which the rows of a second are sent, so that they are not sent in bursts."""
BURST_S: Final = 0.5
"""Maximum idle time in seconds that later rows may make up for."""


class Pace:
    """Holds rows back so that at most `rows_per_second` are sent; None is no limit."""

    def __init__(
        self,
        rows_per_second: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._rows_per_second = rows_per_second
        self._clock = clock
        self._sleep = sleep
        self._due_at: float | None = None

    def pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield a batch in slices, before each of which the caller must call `wait`."""
        if self._rows_per_second is None:
            yield batch
            return
        size = max(1, self._rows_per_second // PIECES_PER_SECOND)
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, size)

    async def wait(self, rows: int) -> None:
        """Wait until the next `rows` rows may be sent."""
        if self._rows_per_second is None:
            return
        now = self._clock()
        due_at = now if self._due_at is None else max(self._due_at, now - BURST_S)
        self._due_at = due_at + rows / self._rows_per_second
        if due_at > now:
            await self._sleep(due_at - now)


SINK_COLUMNS: Final = ("key", "value", "topic", "partition", "headers", "tags")
"""The columns that become parts of messages. Other columns of a read are allowed, and ignored."""
ORIGIN_COLUMNS: Final = (SOURCE_TOPIC, "broker_group", "queue_id", "offset")
"""The columns that say where a row comes from: no message gets them."""
MAX_IN_FLIGHT: Final = 1024
DEFAULT_TIMEOUT_S: Final = 30.0

_VOID: Final = "void"
_TEXT: Final = r"(string|varchar|char)\b.*"
_BYTES: Final = rf"binary|{_TEXT}"
_INTEGER: Final = "tinyint|smallint|int|bigint"
_SINK_TYPES: Final = {
    "key": (_BYTES, "BINARY or STRING"),
    "value": (_BYTES, "BINARY or STRING"),
    "topic": (_TEXT, "STRING"),
    "partition": (_INTEGER, "INT"),
    "headers": (rf"array<struct<key:string,value:({_BYTES})>>", "ARRAY<STRUCT<key: STRING, value: BINARY>>"),
    "tags": (_TEXT, "STRING"),
}
_ORIGIN_TYPES: Final = {
    SOURCE_TOPIC: (_TEXT, "STRING"),
    "broker_group": (_TEXT, "STRING"),
    "queue_id": (_INTEGER, "INT"),
    "offset": (_INTEGER, "BIGINT"),
}
"""By column: a pattern for the short names of the allowed types, and the type that an error names."""


class OutgoingRow(NamedTuple):
    """One row as a message; `partition` names its queue, None lets its identity choose."""

    topic: str
    body: bytes
    key: str | None
    tags: str | None
    properties: dict[str, str]
    partition: int | None
    origin: Origin | None = None


def check_columns(columns: Mapping[str, str], topic: str | None) -> None:
    """Raise `OptionError` if the columns of a write, their types by name, make no messages.

    Types are Spark's short names, such as `array<struct<key:string,value:binary>>`. A column of nulls alone is `void`.
    """
    if unknown := [name for name in columns if name not in (*NAMES, SOURCE_TOPIC)]:
        allowed = f"{', '.join(SINK_COLUMNS)}, and of the rows' origin {', '.join(ORIGIN_COLUMNS)}"
        raise OptionError("columns", unknown[0], f"a write takes {allowed}")
    if "value" not in columns:
        raise OptionError("columns", ", ".join(columns), "a write needs the column value, BINARY or STRING")
    types = _SINK_TYPES
    if SOURCE_TOPIC in columns:
        if missing := [name for name in ORIGIN_COLUMNS if name not in columns]:
            raise OptionError(
                "columns", SOURCE_TOPIC, f"the columns of origin go together, {', '.join(missing)} is missing"
            )
        types = _SINK_TYPES | _ORIGIN_TYPES
    for name, (pattern, allowed_type) in types.items():
        column_type = columns.get(name, _VOID)
        if (column_type != _VOID or name == "value") and re.fullmatch(pattern, column_type) is None:
            raise OptionError("columns", name, f"its type is {column_type}, a write takes {allowed_type}: cast it")
    if topic is None and "topic" not in columns:
        raise OptionError("topic", None, "give the option, or a column topic")


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[OutgoingRow]:
    """Yield the messages in a batch. Raises `SourceError` for a row that cannot be a message."""
    wanted = (*SINK_COLUMNS, *(ORIGIN_COLUMNS if SOURCE_TOPIC in batch.schema.names else ()))
    names = [name for name in wanted if name in batch.schema.names]
    columns = {name: batch.column(name).to_pylist() for name in names}
    for place in range(batch.num_rows):
        yield _make_row({name: column[place] for name, column in columns.items()}, topic)


def _make_row(row: dict[str, Any], topic: str | None) -> OutgoingRow:
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
        properties[name] = _decode_text("header " + name, header["value"])
    key = row.get("key")
    body = value.encode() if isinstance(value, str) else bytes(value)
    return OutgoingRow(
        destination,
        body,
        None if key is None else _decode_text("key", key),
        row.get("tags"),
        properties,
        row.get("partition"),
        _parse_origin(row),
    )


def _parse_origin(row: dict[str, Any]) -> Origin | None:
    if SOURCE_TOPIC not in row:
        return None
    origin = Origin(*(row[name] for name in ORIGIN_COLUMNS))
    if None in origin:
        raise SourceError(f"a row's origin has a null, {origin}: leave {SOURCE_TOPIC} out, or fill in all four columns")
    return origin


def _decode_text(what: str, value: bytes | str | None) -> str:
    if value is None:
        return ""
    try:
        return value if isinstance(value, str) else bytes(value).decode()
    except UnicodeDecodeError as error:
        raise SourceError(f"the {what} is not UTF-8, which a message's properties are: {error}") from error


class RowSender:
    """Sends the rows of one task, at most `MAX_IN_FLIGHT` at a time.

    Without `run`, rows have no identity, so every attempt stores them again. `attempt` counts the runs of the task,
    from 0.
    """

    def __init__(self, options: WriteOptions, run: str | None, partition: int, attempt: int = 0) -> None:
        self._options = options
        self._repeat_reason = "the task runs again" if attempt else ""
        """Why rows are sent again, as far as the task knows; empty if they are not."""
        self._forgotten: SendResult | None = None
        self.taken_for_others = 0
        """Number of rows that a broker group took for rows it had before, or may have: its answer does not say."""
        self.not_remembered = 0
        """Rows that are stored, and that a repetition would store again."""
        self._timeout_s = DEFAULT_TIMEOUT_S if options.delivery_timeout_s is None else options.delivery_timeout_s
        self._identities = None if run is None else RowIdentities(run, partition)
        self._groups: asyncio.Task[dict[int, str]] | None = None
        self._queues: dict[str, asyncio.Task[tuple[MessageQueue, ...]]] = {}

    @property
    def spans(self) -> Spans:
        """Source offsets of the rows, if they tell their origin."""
        return {} if self._identities is None else self._identities.spans

    def send(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Send all rows, wait until all are acknowledged, and return their number. Raises the first failure."""
        try:
            return asyncio.run(self._send_all(batches))
        finally:
            if self._identities is not None:
                self._identities.close()

    async def _send_all(self, batches: Iterable[pa.RecordBatch]) -> int:
        count, pace = 0, Pace(self._options.max_rows_per_second)
        async with Producer(
            list(self._options.namesrv),
            group=self._options.producer_group,
            timeout=self._timeout_s,
            idempotent=self._identities is not None,
            credentials=client_credentials(),
            tls=client_tls(),
        ) as producer:
            for batch in batches:
                # Spark's iterator blocks: wait for sends under way before the next batch.
                for piece in pace.pieces(batch):
                    await pace.wait(piece.num_rows)
                    await _run_all(self._send_row(producer, row) for row in rows_of(piece, self._options.topic))
                count += batch.num_rows
        return count

    def _send_row(self, producer: Producer, row: OutgoingRow) -> Coroutine[None, None, None]:
        """Return a coroutine that sends a row. Its identity is fixed at once, in the order of the rows."""
        identity = None
        if self._identities is not None:
            identity = self._identities.next(*row)
        return self._deliver(producer, row, identity)

    async def _deliver(self, producer: Producer, row: OutgoingRow, identity: str | None) -> None:
        queue: MessageQueue | None = None
        if row.partition is not None:
            queue = await self._find_numbered_queue(row.topic, row.partition)
        elif identity is not None:
            # A repeated send is known only to the broker group that stored the first one.
            queues = await self._queues_at_first_use(producer, row.topic)
            queue = queues[int(identity[:8], 16) % len(queues)]
        result = await producer.send(
            row.topic,
            row.body,
            key=row.key,
            tags=row.tags,
            properties=row.properties,
            queue=queue,
            unique_key=identity,
        )
        if identity is not None:
            self.check_remembered(result)

    def check_remembered(self, result: SendResult) -> None:
        """Count a row that is not remembered. Raises `NotRememberedError` once such a row was sent again."""
        self.taken_for_others += result.repeated or result.remembered is None
        if result.repeated and not self._repeat_reason:
            self._repeat_reason = "the job or micro-batch ran before"
        if result.remembered is False:
            self.not_remembered += 1
            self._forgotten = result
            if result.perhaps_twice:
                self._repeat_reason = "an attempt to send it had no answer"
        if self._repeat_reason and (forgotten := self._forgotten) is not None:
            raise NotRememberedError(forgotten.topic, forgotten.broker_group, self._repeat_reason)

    async def _queues_at_first_use(self, producer: Producer, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic when the task first needed them."""
        task = self._queues.get(topic)
        if task is None:
            task = self._queues[topic] = asyncio.create_task(self._find_queues(producer, topic))
        return await asyncio.shield(task)

    async def _find_queues(self, producer: Producer, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic. A missing topic is made on all broker groups on which sends make topics.

        Sends alone would make it group by group. A row sent while only some groups had the topic would go to another
        queue the next time.
        """
        async with Admin(
            list(self._options.namesrv),
            timeout=self._timeout_s,
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

    async def _find_numbered_queue(self, topic: str, partition: int) -> MessageQueue:
        """Return the queue with a number that is unique within its topic."""
        if self._groups is None:  # all rows in flight wait for one lookup
            lookup = asyncio.to_thread(groups_by_ordinal, self._options.namesrv, self._timeout_s)
            self._groups = asyncio.create_task(lookup)
        ordinal, queue_id = divmod(partition, QUEUES_PER_GROUP)
        group = (await asyncio.shield(self._groups)).get(ordinal)
        if group is None:
            raise SourceError(f"a row's partition is {partition}, but no broker group has the ordinal {ordinal}")
        return MessageQueue(topic, group, queue_id)


async def _run_all(sends: Iterable[Coroutine[None, None, None]]) -> None:
    """Run all sends, `MAX_IN_FLIGHT` at a time; the first failure cancels the others and is raised."""
    running: set[asyncio.Task[None]] = set()
    try:
        for send in sends:
            if len(running) >= MAX_IN_FLIGHT:
                finished, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in finished:
                    task.result()
            running.add(asyncio.create_task(send))
        for task in list(running):
            await task
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
