"""`dledger consume`: messages to standard output."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass

import click

from dledger_client import (
    Admin,
    ClientError,
    Filter,
    GroupInUseError,
    InvalidArgumentError,
    MessageQueue,
    NoBrokerError,
    NoRouteError,
    NotFoundError,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RefusedError,
    Sql,
    StartFrom,
)
from dledger_remoting.topics import is_system_group

from ..errors import AdminError
from ..operations.messages import unreadable
from ..operations.positions import AtTime, Edge, FromEnd, Offset, Position, find
from ..output import say, write_out
from .client_calls import REGISTRATION_SECONDS, run
from .message_format import TOKENS, formatter, json_line, keyed
from .names import CONSUMER_GROUP, TOPIC
from .options import namesrv_option
from .positions import QueueName, QueueNameType, chosen_queues, parse_end, parse_position
from .signing import signing

_POLL_MESSAGES = 256
_POLL_TIMEOUT_S = 1.0
_LAST_COMMIT_S = 1.0
_PROBE_TIMEOUT_S = 0.1
_REFUSED_SECONDS = 2.0
"""Time in seconds for which brokers may refuse to make a group before that is told. A new leader refuses, too."""
_DEFAULT_GROUP = "DEFAULT_CONSUMER"
_TAB = "\t"


@dataclass(frozen=True, slots=True)
class _Source:
    """The messages to read, and the end."""

    namesrv: str
    topic: str
    group: str | None
    tags: str
    sql: str | None
    begin: Position | None
    end: Position | None
    queues: tuple[QueueName, ...]
    count: int | None

    @property
    def filter(self) -> Filter:
        """The filter of the messages that are wanted."""
        return self.tags if self.sql is None else Sql(self.sql)

    def __post_init__(self) -> None:
        """Refuse options that a group cannot have: its members share the queues and continue at its offsets."""
        if self.sql is not None and self.tags != "*":
            raise click.UsageError("--tag and --sql filter each alone: in SQL, the tag is the property TAGS")
        if self.group is None:
            return
        if self.queues and self.end is None:
            raise click.UsageError("--queue goes with --group only if there is an end (--to), for members share queues")
        if isinstance(self.begin, Offset | FromEnd):
            raise click.UsageError(
                "--from with --group is for a group that is new, and takes no offsets: use `dledger group reset`, or "
                "leave --group out"
            )


@click.command(
    epilog="Tokens of --format: "
    + ", ".join(f"%{token} {meaning}" for token, (meaning, _) in TOKENS.items())
    + "; \\n, \\t and \\r as in C."
)
@namesrv_option
@click.option("--topic", type=TOPIC, required=True, help="Topic to read.")
@click.option(
    "--group", type=CONSUMER_GROUP, help="Read as a member of this consumer group, from its committed offsets."
)
@click.option("--tag", "tags", default="*", show_default=True, metavar="EXPRESSION", help="Tags, such as 'a || b'.")
@click.option(
    "--sql",
    metavar="EXPRESSION",
    help="Properties in SQL92, such as \"region = 'eu' AND amount > 100\"; no --tag then.",
)
@click.option(
    "--from",
    "begin",
    metavar="WHERE",
    help="Begin at: beginning, end, an offset such as 1200, the last messages of each queue such as -10, a time such "
    "as 2026-01-31T12:00 (local unless it names a zone), an age such as -90s, -15m, -2h or -7d, or ms since 1970. A "
    "group begins there only if it is new.  [default: end; beginning if there is an end]",
)
@click.option(
    "--to",
    "end",
    metavar="WHERE",
    help="End before this place, given as with --from; a time in the future is refused.",
)
@click.option("--from-beginning", is_flag=True, help="As --from beginning.")
@click.option(
    "--exit-eof", is_flag=True, help="As --to end: end at the end that each queue has when the command starts."
)
@click.option(
    "--queue",
    "queues",
    type=QueueNameType(),
    multiple=True,
    metavar="ID|BROKER_GROUP/ID",
    help="Read this queue only; repeatable.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="End after this many messages.")
@click.option("-f", "--format", "pattern", help="kcat's format string, see below.  [default: %s\\n]")
@click.option("-k", "--keys", is_flag=True, help="Show the keys before the body, as `produce -k` reads them.")
@click.option("--key-delimiter", metavar="TEXT", help="Separator of keys and body; a tab by default. Implies --keys.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="json: one object per line.")
def consume(
    namesrv: str,
    topic: str,
    group: str | None,
    tags: str,
    sql: str | None,
    begin: str | None,
    end: str | None,
    from_beginning: bool,
    exit_eof: bool,
    queues: tuple[QueueName, ...],
    count: int | None,
    pattern: str | None,
    keys: bool,
    key_delimiter: str | None,
    output: str,
) -> None:
    """Print messages of a topic; messages of one queue are in order.

    Without --group all queues are read and nothing is committed. With --group the queues are shared with the other
    members. With --group and --to all queues are read without joining the group, and printed messages are committed.

    A signal ends the command with exit code 0. If --to or --count set an end that is not reached, the exit code is 128
    plus the signal's number. A message whose body cannot be read is named on standard error, and makes the exit code 1.
    """
    if sys.stdout is None:
        raise AdminError("standard output is closed: the messages go there")
    if (begin and from_beginning) or (end and exit_eof):
        raise click.UsageError("--from-beginning is --from beginning and --exit-eof is --to end: give one of the two")
    show = _choose_format(output, pattern, key_delimiter or (_TAB if keys else None))
    source = _Source(
        namesrv,
        topic,
        group,
        tags,
        sql,
        Edge.BEGINNING if from_beginning else None if begin is None else parse_position("--from", begin),
        Edge.END if exit_eof else None if end is None else parse_end("--to", end),
        queues,
        count,
    )
    printing = _Printer(show)
    code = 0
    try:
        run(lambda: printing.print_all(source), namesrv, patience_s=REGISTRATION_SECONDS)
    except (KeyboardInterrupt, asyncio.CancelledError) as interruption:
        if source.end is not None or count is not None:
            code = 128 + (signal.SIGINT if isinstance(interruption, KeyboardInterrupt) else signal.SIGTERM)
    click.get_current_context().exit(code or int(printing.was_unreadable))


def _choose_format(output: str, pattern: str | None, key_delimiter: str | None) -> Callable[[ReceivedMessage], bytes]:
    """Return the function that makes the text of a message."""
    if sum((output == "json", pattern is not None, key_delimiter is not None)) > 1:
        raise click.UsageError("-o json, --format and --keys are three forms of a message: give one of them")
    if output == "json":
        return json_line
    return formatter(pattern or "%s\\n") if key_delimiter is None else keyed(key_delimiter)


class _Printer:
    """Prints messages. `was_unreadable` is True if a body could not be read, which standard error reports."""

    def __init__(self, show: Callable[[ReceivedMessage], bytes]) -> None:
        self.was_unreadable = False
        self._show = show

    async def print_all(self, source: _Source) -> None:
        """Print until the source ends."""
        task = asyncio.current_task()
        if task is not None:  # so that printed messages are committed also when `timeout` ends the command
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        member_of = None if source.end is not None else source.group
        async with aclosing(
            _read_all_queues(source) if member_of is None else _read_as_member(source, member_of)
        ) as messages:
            async for message in messages:
                self._print(message)

    def _print(self, message: ReceivedMessage) -> None:
        if message.fault is not None:
            self.was_unreadable = True
            say(unreadable(message))
        if message.fault is None or self._show is json_line:
            write_out(self._show(message))


async def _read_as_member(source: _Source, group: str) -> AsyncGenerator[ReceivedMessage, None]:
    """Yield messages as a member of the group. Each is acknowledged when the caller asks for the next."""
    await _make_group(source, group)
    async with PushConsumer(
        source.namesrv,
        group,
        source.topic,
        filter=source.filter,
        start_from=_choose_start(source.begin),
        auto_ack=False,
        keep_unreadable=True,
        **signing(),
    ) as consumer:
        delivered = 0
        async for message in consumer:
            yield message
            message.ack()
            delivered += 1
            if delivered == source.count:
                return


def _choose_start(begin: Position | None) -> StartFrom:
    """Return the start of a group that has committed nothing."""
    match begin:
        case AtTime(ms):
            return ms
        case Edge.BEGINNING:
            return "first"
        case _:
            return "last"


async def _make_group(source: _Source, group: str) -> None:
    """Have brokers make the group by reading in its name; what keeps them from it is said once, and waited out.

    A consumer that joins is not told: a heartbeat is taken, and its pulls are repeated in silence. Raises `AdminError`
    if brokers make no groups.
    """
    async with (
        Admin(source.namesrv, **signing()) as admin,
        PullConsumer(source.namesrv, group, timeout=_REFUSED_SECONDS, **signing()) as probe,
    ):
        try:
            if is_system_group(group) or group in await admin.groups():
                return
            queue_by_group = {queue.broker_group: queue for queue in await probe.queues(source.topic)}
            await probe.assign(queue_by_group.values())
            while group not in await admin.groups():
                await probe.poll(1, timeout=_PROBE_TIMEOUT_S)
        except (NoBrokerError, NoRouteError, InvalidArgumentError):
            return  # a missing topic may come, and the members of the group wait for it
        except NotFoundError as error:
            raise AdminError(
                f"consumer group {group!r} does not exist, and brokers make none: `dledger group create {group}`"
            ) from error
        except ClientError as error:
            reason = error.remark if isinstance(error, RefusedError) else str(error)
            advice = "free space on the disks of its brokers; " if "disk is full" in reason else ""
            say(f"consumer group {group!r} cannot be made yet: {reason}; {advice}waiting until it can")


async def _read_all_queues(source: _Source) -> AsyncGenerator[ReceivedMessage, None]:
    """Yield the messages of queues between two places. With a group, begin at its offsets, and commit them.

    Raises `GroupInUseError` if the group has members, who would undo that.
    """
    if source.group is not None:
        async with Admin(source.namesrv, **signing()) as admin:
            if members := await admin.members(source.group):
                raise GroupInUseError(source.group, [str(member) for member in members])
    async with (
        PullConsumer(
            source.namesrv, source.group or _DEFAULT_GROUP, filter=source.filter, keep_unreadable=True, **signing()
        ) as consumer,
        aclosing(_Committer(consumer)) as commits,
    ):
        known = set(chosen_queues(await _find_readable_queues(consumer, source.topic), source.queues, source.topic))
        await consumer.assign(known)
        begins, ends = await _seek_to_start(source, consumer)
        remaining = sys.maxsize if source.count is None else source.count
        while remaining and await _drop_finished(consumer, ends):
            if source.end is None and not source.queues:
                added = await consumer.queues(source.topic)
                if not known.issuperset(added):
                    known.update(added)
                    await consumer.assign(known)
            messages = await consumer.poll(min(_POLL_MESSAGES, remaining), timeout=_POLL_TIMEOUT_S)
            for message in messages:
                if begins.get(message.queue, 0) <= message.queue_offset < ends.get(message.queue, sys.maxsize):
                    yield message
                    remaining -= 1
            for queue, position in consumer.positions.items():
                if position > ends.get(queue, position):
                    consumer.seek(queue, ends[queue])  # messages beyond the end are not printed, and not committed
            if source.group:
                reaches_end = any(position == ends.get(queue) for queue, position in consumer.positions.items())
                await commits.commit(printed=bool(messages), wait=reaches_end or not remaining)


class _Committer:
    """Commits printed messages, one commit at a time: a leader collects commits, and answers after 0.2 s."""

    def __init__(self, consumer: PullConsumer) -> None:
        self._consumer = consumer
        self._in_flight: asyncio.Task[None] | None = None
        self._is_due = False

    async def commit(self, *, printed: bool, wait: bool) -> None:
        """Commit the present positions, unless nothing was `printed` since the last time.

        While another commit is under way, this one waits for it with `wait`, as a queue is left now. Without `wait` a
        later call commits. Raises the errors of a commit.
        """
        self._is_due |= printed
        if self._is_due and (wait or self._in_flight is None or self._in_flight.done()):
            await self._await_in_flight()
            self._is_due = False
            self._in_flight = asyncio.create_task(self._consumer.commit())
            await asyncio.sleep(0)  # from here on it has the positions
        if wait:
            await self._await_in_flight()

    async def aclose(self) -> None:
        """Give a commit that is under way a moment to end: a signal or a full disk may have ended the command."""
        if self._in_flight is not None:
            await asyncio.wait((self._in_flight,), timeout=_LAST_COMMIT_S)
            self._in_flight.cancel()
            await asyncio.gather(self._in_flight, return_exceptions=True)

    async def _await_in_flight(self) -> None:
        in_flight, self._in_flight = self._in_flight, None
        if in_flight is not None:
            await in_flight


async def _drop_finished(consumer: PullConsumer, ends: dict[MessageQueue, int]) -> bool:
    """Read no more from queues that have come to their ends; returns whether there are others."""
    unfinished = [queue for queue, position in consumer.positions.items() if position < ends.get(queue, sys.maxsize)]
    if len(unfinished) < len(consumer.positions):
        await consumer.assign(unfinished)
    return bool(unfinished)


async def _find_readable_queues(consumer: PullConsumer, topic: str) -> tuple[MessageQueue, ...]:
    """The queues of a topic that can be read; raises `AdminError` if there is none."""
    queues = await consumer.queues(topic)
    if not queues:
        raise AdminError(
            f"topic {topic} has no readable queues: `dledger topic create {topic} --permission read-write` lets it be "
            "read"
        )
    return queues


async def _seek_to_start(
    source: _Source, consumer: PullConsumer
) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
    """Move the consumer to the first offset of each queue. Return these offsets, and those before which reading ends.

    A queue begins at its end at the latest, even if a later offset is given. A group begins at its committed offset.
    """
    initial = consumer.positions
    ends = {} if source.end is None else await find(consumer, source.end)
    begin = source.begin or (Edge.END if source.end is None else Edge.BEGINNING)
    begins = initial
    if source.group is None or source.begin is not None:
        begins = await find(consumer, begin)
    if source.group is not None and source.begin is not None:
        async with Admin(source.namesrv, **signing()) as admin:
            committed = {status.queue: status.committed for status in await admin.offsets(source.group, source.topic)}
        begins = {
            queue: initial[queue] if committed.get(queue) is not None else offset for queue, offset in begins.items()
        }
    if isinstance(begin, Offset):
        await consumer.seek_to_end()
        end_positions = consumer.positions
        for queue, offset in begins.items():
            consumer.seek(queue, min(offset, end_positions[queue]))
    else:
        for queue, offset in begins.items():
            consumer.seek(queue, offset)
    return begins, ends
