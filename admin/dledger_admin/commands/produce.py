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

from dledger_client import ClientError, InvalidArgumentError, Message, MessageQueue, Producer, SendError, SendResult
from dledger_client.producer import DEFAULT_TIMEOUT_SECONDS
from dledger_client.sending.outgoing import OutgoingEncoder
from dledger_remoting.record import MAX_MESSAGE_BYTES

from ..errors import AdminError, WrongUsageError
from ..health.reports import NodeAnswer
from ..health.survey import survey
from ..output import emit, output_option, say
from ..progress import Progress
from .client_calls import is_missing, run, say_similar_topic
from .message_format import Line, line_reader
from .names import TOPIC
from .options import FiniteFloat, namesrv_option, time_ms
from .positions import QueueName, QueueNameType, chosen_queues
from .signing import signing

_READ_BYTES = 1 << 18
_SHOWN_BYTES = 80
_WARNING_SECONDS = 1.0
"""Time limit in seconds for the nodes' reports about their disks, counted from when all messages are stored."""
_TAB = "\t"


class Produced(msgspec.Struct, frozen=True):
    """Result of `produce`: counts of the messages that are stored on a majority of their broker group.

    `recall_handles` are those of messages that are to be delivered later, in the order of the lines.
    """

    topic: str
    messages: int
    body_bytes: int
    recall_handles: list[str] | msgspec.UnsetType = msgspec.UNSET


class LineReader:
    """Cuts a byte stream into lines without their line ends. The last line needs no line end.

    `read(size)` waits for data and returns at most `size` bytes. It returns no bytes at the end of the stream.
    """

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._lines = 0

    async def batches(self) -> AsyncIterator[list[bytes]]:
        """Yield complete lines as soon as they arrive.

        Raises `AdminError` for a line without an end as soon as it is longer than any message.
        """
        while block := await _read_in_daemon_thread(partial(self._read, _READ_BYTES)):
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
    "--topic", type=TOPIC, required=True, help="Topic to send to; the first message creates it if brokers allow that."
)
@click.option("--key", help="Key of every message.")
@click.option("-k", "--keys", is_flag=True, help="Lines have the key before the body, as `consume -k` shows them.")
@click.option(
    "--key-delimiter",
    metavar="TEXT",
    help="Separator of key and body in a line; a tab by default. Lines without it have no key. Implies --keys.",
)
@click.option(
    "-f",
    "--format",
    "pattern",
    help="kcat's format string by which each line is read: %s body, %k keys, %g tag, such as %k:%s.  [default: %s]",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="Maximum number of lines to send.")
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
    type=FiniteFloat(min=0),
    metavar="SECONDS",
    help="Delay of the delivery; shows the handles that `message recall` takes.",
)
@click.option("--deliver-at", metavar="TIME", help="Time of the delivery, given as in `consume --from`.")
@click.option(
    "--timeout",
    type=FiniteFloat(min=0, min_open=True),
    default=DEFAULT_TIMEOUT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="Time limit until a broker is registered, and then until a message is stored.",
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
    """Send each line of standard input as a message, and wait until all are stored."""
    if sys.stdin is None:
        raise AdminError("standard input is closed: the messages come from there, one for each line")
    if queue_name is not None and ordered:
        raise click.UsageError("--ordered chooses the queue by the key: leave it or --queue out")
    if ordering_key is not None and (ordered or queue_name is not None):
        raise click.UsageError("--ordering-key chooses the queue: leave out --ordered and --queue")
    if delay_s is not None and deliver_at is not None:
        raise click.UsageError("--delay and --deliver-at both say when: give one of them")
    deliver_at_ms = None if deliver_at is None else time_ms("--deliver-at", deliver_at)
    common_properties = dict(_parse_property(item) for item in properties) or None
    parse_line = _choose_reader(pattern, key_delimiter or (_TAB if keys else None))

    def make_message(line: bytes, number: int) -> Message:
        parsed = parse_line(line)
        if parsed is None:
            raise AdminError(f"line {number} does not have the form {pattern!r}: {line[:_SHOWN_BYTES]!r}")
        own_key = key if parsed.key is None else _decode_field(number, "key", parsed.key) or None
        own_tag = tag if parsed.tag is None else _decode_field(number, "tag", parsed.tag) or None
        return Message(
            parsed.body,
            own_key,
            own_tag,
            common_properties,
            delay_s=delay_s,
            deliver_at=deliver_at_ms,
            ordering_key=ordering_key,
        )

    stored = 0
    handles: list[str] = []
    in_flight: list[Message] = []
    progress = Progress()
    is_new = False

    async def send_all() -> Produced:
        nonlocal stored, in_flight, is_new
        is_new = await is_missing(namesrv, topic)
        size = 0
        warning: asyncio.Task[str | None] | None = None
        # Read unbuffered: at its end the interpreter waits for the lock of a buffer that a thread still reads into.
        stdin = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        reader = LineReader(partial(_read_available, stdin))
        async with Producer(namesrv, timeout=timeout, **signing()) as producer:
            queue = None if queue_name is None else await _find_queue(producer, topic, queue_name)
            async for lines in reader.batches():
                accepted = lines if count is None else lines[: count - stored]
                in_flight = [make_message(line, number) for number, line in enumerate(accepted, stored + 1)]
                results = await _send(producer, topic, in_flight, queue, ordered=ordered)
                handles.extend(sent.recall_handle for sent in results if sent.recall_handle is not None)
                stored += len(in_flight)
                progress.tell(f"{stored:,} messages stored so far")
                warning = warning or asyncio.create_task(_find_disk_warning(namesrv))
                size += sum(len(message.body) for message in in_flight)
                in_flight = []
                if stored == count:
                    break
            if warning is not None:
                await _say_warning(warning)
        return Produced(topic, stored, size, handles or msgspec.UNSET)

    try:
        result = run(send_all, namesrv, patience_s=timeout)
    except KeyboardInterrupt:
        say(f"interrupted: the first {stored} lines are stored, the next {len(in_flight)} perhaps")
        raise
    except AdminError as error:
        if in_flight:
            raise _locate_error(error, topic, stored, in_flight, ordered=ordered) from error
        if stored:
            raise AdminError(f"{error.message}; {_describe_stored(stored)}") from error
        raise
    emit(result, output, _render)
    if is_new and stored:
        say_similar_topic(topic, namesrv)


def _render(result: Produced) -> str:
    lines = [f"{result.messages} messages, {result.body_bytes} bytes to {result.topic}"]
    if result.recall_handles is not msgspec.UNSET:
        lines += result.recall_handles
    return "\n".join(lines)


def _choose_reader(pattern: str | None, key_delimiter: str | None) -> Callable[[bytes], Line | None]:
    """Return a function that splits a line of input. It returns None if the line does not fit the format."""
    if pattern is not None:
        if key_delimiter is not None:
            raise click.UsageError("--format says where the key is, and so does --keys: give one of them")
        return line_reader(pattern)
    if key_delimiter is None:
        return Line
    separator = key_delimiter.encode()

    def read(line: bytes) -> Line:
        head, matched, body = line.partition(separator)
        return Line(body, head) if matched else Line(line)

    return read


def _decode_field(number: int, what: str, field: bytes) -> str:
    """Return a field of a line of input as text; raises `AdminError` if it is not UTF-8."""
    try:
        return field.decode()
    except UnicodeDecodeError as error:
        raise AdminError(f"line {number}: the {what} {field!r} is not UTF-8") from error


async def _find_queue(producer: Producer, topic: str, name: QueueName) -> MessageQueue:
    """Return the one queue of this name; raises `AdminError` if there is none, or more than one."""
    matching = chosen_queues(await producer.queues(topic), [name], topic)
    if len(matching) > 1:
        names = ", ".join(f"{queue.broker_group}/{queue.queue_id}" for queue in matching)
        raise AdminError(f"--queue {name.queue_id} is one of {names}: say which")
    return matching[0]


def _locate_error(error: AdminError, topic: str, stored: int, in_flight: list[Message], *, ordered: bool) -> AdminError:
    """Return the error with the input lines that it is about, counted from 1, and the number of stored lines."""
    cause = error.__cause__
    if isinstance(cause, SendError) and not ordered:
        in_flight, stored = in_flight[len(cause.stored) :], stored + len(cause.stored)
    first, last = stored + 1, stored + len(in_flight)
    location = f"lines {first} to {last}" if first < last else f"line {last}"
    if isinstance(cause, InvalidArgumentError):
        encoder = OutgoingEncoder()
        for number, message in enumerate(in_flight, first):
            try:
                encoder.encode_batches(topic, [message])
            except InvalidArgumentError:
                location = f"line {number}"
                break
    return AdminError(f"{location}: {error.message}; {_describe_stored(stored)}")


def _describe_stored(stored: int) -> str:
    return f"the first {stored} lines are stored" if stored else "no line is known to be stored"


def _read_available(stream: RawIOBase | BinaryIO, size: int) -> bytes:
    """Read the available bytes. Wait for them even if another program has set the stream to non-blocking."""
    while (block := stream.read(size)) is None:
        poller = select.poll()
        poller.register(stream, select.POLLIN)
        poller.poll()
    return block


async def _read_in_daemon_thread(read: Callable[[], bytes]) -> bytes:
    """Read on a daemon thread, so that the program can end during the wait. `asyncio.to_thread` would keep it alive."""
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


async def _find_disk_warning(namesrv: str) -> str | None:
    """Return a warning about the disks above the watermark, None if no node reports one."""
    try:
        cluster_survey = await survey(namesrv, **signing())
    except ClientError:
        return None
    reports = [answer.report for answer in cluster_survey.nodes.values() if isinstance(answer, NodeAnswer)]
    warnings = sorted(report.disk_warning for report in reports if report is not None and report.disk_warning)
    if not warnings:
        return None
    more = len(warnings) - 1
    return f"{warnings[0]} ({more} more disks are above it, see `dledger cluster health`)" if more else warnings[0]


async def _say_warning(warning: asyncio.Task[str | None]) -> None:
    """Print the warning about disks, if it comes within `_WARNING_SECONDS`."""
    try:
        async with asyncio.timeout(_WARNING_SECONDS):
            text = await warning
    except TimeoutError:
        return
    if text is not None:
        say(f"warning: {text}")


def _parse_property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise WrongUsageError(f"--property {text!r}: NAME=VALUE is expected")
    return name, value
