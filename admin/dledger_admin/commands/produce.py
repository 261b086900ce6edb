"""`dledger produce`: one message per line of standard input."""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from io import RawIOBase
from threading import Thread
from typing import BinaryIO

import click
import msgspec

from dledger_client import InvalidArgumentError, Message, MessageQueue, Producer, SendError, SendResult
from dledger_client.outgoing import OutgoingEncoder
from dledger_client.producer import DEFAULT_TIMEOUT_SECONDS
from dledger_remoting.record import MAX_MESSAGE_BYTES

from ..errors import AdminError, WrongUsageError
from ..output import emit, output_option
from .client_calls import run
from .message_format import Line, line_reader
from .names import TOPIC
from .options import namesrv_option, time_ms
from .positions import QueueName, QueueNameType, chosen_queues
from .signing import signing

_READ_BYTES = 1 << 18
_SHOWN_BYTES = 80
_TAB = "\t"


class Produced(msgspec.Struct, frozen=True):
    """Result of `produce`: what is stored on a majority of its broker group.

    `recall_handles` are those of messages that are to be delivered later, in the order of the lines.
    """

    topic: str
    messages: int
    body_bytes: int
    recall_handles: list[str] | msgspec.UnsetType = msgspec.UNSET


class LineReader:
    """Cuts a byte stream into lines without their ends; the last one needs none.

    `read(size)` gives what is there, at most `size` bytes, and waits for the first one; nothing is the end.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._lines = 0

    async def batches(self) -> AsyncIterator[list[bytes]]:
        """Yield the lines that have come, as soon as there are some.

        Raises `AdminError` for a line without an end as soon as it is longer than any message.
        """
        while block := await _in_daemon_thread(partial(self._read, _READ_BYTES)):
            *complete, rest = block.split(b"\n")
            if complete:
                complete[0] = b"".join((*self._rest, complete[0]))
                self._rest.clear()
                self._rest_bytes = 0
                self._lines += len(complete)
                yield complete
            self._rest.append(rest)
            self._rest_bytes += len(rest)
            if self._rest_bytes > MAX_MESSAGE_BYTES:
                raise AdminError(
                    f"line {self._lines + 1} is longer than {MAX_MESSAGE_BYTES} bytes, more than a message holds"
                )
        last = b"".join(self._rest)
        if last:
            yield [last]


@click.command()
@namesrv_option
@click.option(
    "--topic", type=TOPIC, required=True, help="Where to send; the first message creates it where brokers allow that."
)
@click.option("--key", help="Key of every message.")
@click.option("-k", "--keys", is_flag=True, help="Lines have the key before the body, as `consume -k` shows them.")
@click.option(
    "--key-delimiter",
    metavar="TEXT",
    help="What separates key and body in a line; without it a tab. Lines without it have no key. Brings --keys.",
)
@click.option(
    "-f",
    "--format",
    "pattern",
    help="kcat's format string by which each line is read: %s body, %k keys, %g tag, such as %k:%s.  [default: %s]",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="Send so many lines at most.")
@click.option(
    "--queue",
    "queue_name",
    type=QueueNameType(),
    metavar="ID|BROKER_GROUP/ID",
    help="Send to this queue.  [default: all in turn]",
)
@click.option("--tag", help="Tag of every message.")
@click.option(
    "--property", "properties", metavar="NAME=VALUE", multiple=True, help="Property of every message; repeatable."
)
@click.option("--ordered", is_flag=True, help="Keep the order of messages with the same key (of all, without keys).")
@click.option("--ordering-key", metavar="TEXT", help="Send to the queue of this key, and keep the order of the lines.")
@click.option(
    "--delay",
    "delay_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Have messages delivered so much later; shows what `message recall` takes.",
)
@click.option("--deliver-at", metavar="TIME", help="Have messages delivered at this time, as in `consume --from`.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=DEFAULT_TIMEOUT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until a broker is registered, and then until a message is stored.",
)
@output_option
def produce(
    namesrv: str,
    topic: str,
    key: str | None,
    keys: bool,
    key_delimiter: str | None,
    pattern: str | None,
    count: int | None,
    queue_name: QueueName | None,
    tag: str | None,
    properties: tuple[str, ...],
    ordered: bool,
    ordering_key: str | None,
    delay_s: float | None,
    deliver_at: str | None,
    timeout: float,
    output: str,
) -> None:
    """Send each line of standard input as a message; returns when all are stored."""
    if sys.stdin is None:
        raise AdminError("standard input is closed: the messages come from there, one for each line")
    if queue_name is not None and ordered:
        raise click.UsageError("--ordered chooses the queue by the key: leave it or --queue out")
    if ordering_key is not None and (ordered or queue_name is not None):
        raise click.UsageError("--ordering-key chooses the queue: leave out --ordered and --queue")
    if delay_s is not None and deliver_at is not None:
        raise click.UsageError("--delay and --deliver-at both say when: give one of them")
    deliver_at_ms = None if deliver_at is None else time_ms("--deliver-at", deliver_at)
    common = dict(_name_and_value(item) for item in properties) or None
    read = _reader(pattern, key_delimiter or (_TAB if keys else None))

    def message(line: bytes, number: int) -> Message:
        found = read(line)
        if found is None:
            raise AdminError(f"line {number} does not have the form {pattern!r}: {line[:_SHOWN_BYTES]!r}")
        own_key = key if found.key is None else _text(number, "key", found.key) or None
        own_tag = tag if found.tag is None else _text(number, "tag", found.tag) or None
        return Message(
            found.body,
            own_key,
            own_tag,
            common,
            delay_s=delay_s,
            deliver_at=deliver_at_ms,
            ordering_key=ordering_key,
        )

    stored = 0
    handles: list[str] = []
    under_way: list[Message] = []

    async def send_all() -> Produced:
        nonlocal stored, under_way
        size = 0
        # Unbuffered: an interpreter that ends waits for the lock of a buffer that a thread still reads into.
        stdin = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        reader = LineReader(partial(_read, stdin))
        async with Producer(namesrv, timeout=timeout, **signing()) as producer:
            queue = None if queue_name is None else await _queue(producer, topic, queue_name)
            async for lines in reader.batches():
                taken = lines if count is None else lines[: count - stored]
                under_way = [message(line, number) for number, line in enumerate(taken, stored + 1)]
                results = await _send(producer, topic, under_way, queue, ordered=ordered)
                handles.extend(one.recall_handle for one in results if one.recall_handle is not None)
                stored += len(under_way)
                size += sum(len(one.body) for one in under_way)
                under_way = []
                if stored == count:
                    break
        return Produced(topic, stored, size, handles or msgspec.UNSET)

    try:
        result = run(send_all, namesrv, patience_s=timeout)
    except KeyboardInterrupt:
        click.echo(f"interrupted: the first {stored} lines are stored, the next {len(under_way)} perhaps", err=True)
        raise
    except AdminError as error:
        if under_way:
            raise _placed(error, topic, stored, under_way, ordered=ordered) from error
        if stored:
            raise AdminError(f"{error.message}; {_before(stored)}") from error
        raise
    emit(result, output, _render)


def _render(result: Produced) -> str:
    lines = [f"{result.messages} messages, {result.body_bytes} bytes to {result.topic}"]
    if result.recall_handles is not msgspec.UNSET:
        lines += result.recall_handles
    return "\n".join(lines)


def _reader(pattern: str | None, key_delimiter: str | None) -> Callable[[bytes], Line | None]:
    """Return what takes a line of input apart, None if it does not fit."""
    if pattern is not None:
        if key_delimiter is not None:
            raise click.UsageError("--format says where the key is, and so does --keys: give one of them")
        return line_reader(pattern)
    if key_delimiter is None:
        return Line
    between = key_delimiter.encode()

    def read(line: bytes) -> Line:
        head, found, body = line.partition(between)
        return Line(body, head) if found else Line(line)

    return read


def _text(number: int, what: str, field: bytes) -> str:
    """Return a field of a line of input as text; raises `AdminError` if it is none."""
    try:
        return field.decode()
    except UnicodeDecodeError as error:
        raise AdminError(f"line {number}: the {what} {field!r} is not UTF-8") from error


async def _queue(producer: Producer, topic: str, name: QueueName) -> MessageQueue:
    """Return the one queue of this name; raises `AdminError` if there is none, or more than one."""
    found = chosen_queues(await producer.queues(topic), [name], topic)
    if len(found) > 1:
        names = ", ".join(f"{queue.broker_group}/{queue.queue_id}" for queue in found)
        raise AdminError(f"--queue {name.queue_id} is one of {names}: say which")
    return found[0]


def _placed(error: AdminError, topic: str, stored: int, under_way: list[Message], *, ordered: bool) -> AdminError:
    """Return the error with the lines of the input that it is about, counted from 1, and how many are stored."""
    cause = error.__cause__
    if isinstance(cause, SendError) and not ordered:
        under_way, stored = under_way[len(cause.stored) :], stored + len(cause.stored)
    first, last = stored + 1, stored + len(under_way)
    where = f"lines {first} to {last}" if first < last else f"line {last}"
    if isinstance(cause, InvalidArgumentError):
        encoder = OutgoingEncoder()
        for number, one in enumerate(under_way, first):
            try:
                encoder.encode_batches(topic, [one])
            except InvalidArgumentError:
                where = f"line {number}"
                break
    return AdminError(f"{where}: {error.message}; {_before(stored)}")


def _before(stored: int) -> str:
    return f"the first {stored} lines are stored" if stored else "no line is known to be stored"


def _read(stream: RawIOBase | BinaryIO, size: int) -> bytes:
    """Read what is there, and wait for it even where another program has set the stream not to block."""
    while (block := stream.read(size)) is None:
        waiting = select.poll()
        waiting.register(stream, select.POLLIN)
        waiting.poll()
    return block


async def _in_daemon_thread(read: Callable[[], bytes]) -> bytes:
    """What `asyncio.to_thread` does, on a thread that may go on waiting when the program ends, as by Ctrl-C."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[bytes] = loop.create_future()

    def settle(block: bytes, error: OSError | None) -> None:
        if result.done():
            return
        if error is None:
            result.set_result(block)
        else:
            result.set_exception(error)

    def work() -> None:
        block, failure = b"", None
        try:
            block = read()
        except OSError as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, block, failure)

    Thread(target=work, name="standard input", daemon=True).start()
    return await result


async def _send(
    producer: Producer, topic: str, batch: list[Message], queue: MessageQueue | None, *, ordered: bool
) -> list[SendResult]:
    if ordered:
        batch = [msgspec.structs.replace(message, ordering_key=str(message.key or "")) for message in batch]
    return await producer.send_batch(topic, batch, queue=queue)


def _name_and_value(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise WrongUsageError(f"--property {text!r}: NAME=VALUE is expected")
    return name, value
