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
    InvalidArgumentError,
    MessageQueue,
    NoBrokerError,
    NoRouteError,
    NotFoundError,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RefusedError,
)
from dledger_remoting.topics import is_system_group

from ..errors import AdminError
from .client_calls import REGISTRATION_SECONDS, run
from .message_format import TOKENS, formatter, json_line
from .options import namesrv_option

_POLL_MESSAGES = 256
_POLL_TIMEOUT_S = 1.0
_PROBE_TIMEOUT_S = 0.1
_REFUSED_SECONDS = 2.0
"""How long brokers may refuse to make a group before that is told: a leader that has just been elected refuses, too."""
_NO_GROUP = "DEFAULT_CONSUMER"


@dataclass(frozen=True, slots=True)
class _Source:
    """What to read, and up to where."""

    namesrv: str
    topic: str
    group: str | None
    tags: str
    from_beginning: bool
    exit_eof: bool
    count: int | None


@click.command(
    epilog="Tokens of --format: "
    + ", ".join(f"%{token} {meaning}" for token, (meaning, _) in TOKENS.items())
    + "; \\n, \\t and \\r as in C."
)
@namesrv_option
@click.option("--topic", required=True, help="Where to read.")
@click.option("--group", help="Read as a member of this consumer group, from its committed offsets.")
@click.option("--tag", "tags", default="*", show_default=True, metavar="EXPRESSION", help="Tags, such as 'a || b'.")
@click.option("--from-beginning", is_flag=True, help="Begin at the first kept message; a group only if it is new.")
@click.option("--exit-eof", is_flag=True, help="End at what is the end of each queue when the command starts.")
@click.option("--count", type=click.IntRange(min=1), help="End after so many messages.")
@click.option("--format", "pattern", default="%s\\n", show_default=True, help="kcat's format string, see below.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="json: one object per line.")
def consume(
    namesrv: str,
    topic: str,
    group: str | None,
    tags: str,
    from_beginning: bool,
    exit_eof: bool,
    count: int | None,
    pattern: str,
    output: str,
) -> None:
    """Print messages of a topic, those of one queue in order.

    Without --group all queues are read and nothing is committed. With it the queues are shared with the other members;
    with --exit-eof too, all queues are read without joining the group, and what was printed is committed.

    A signal ends the command well, unless it comes before the end that --exit-eof or --count set: the exit code is then
    128 and the signal's number.
    """
    if sys.stdout is None:
        raise AdminError("standard output is closed: the messages go there")
    show = json_line if output == "json" else formatter(pattern)
    source = _Source(namesrv, topic, group, tags, from_beginning, exit_eof, count)
    try:
        run(lambda: _print_all(source, show), namesrv, patience_s=REGISTRATION_SECONDS)
    except (KeyboardInterrupt, asyncio.CancelledError) as ended:
        if exit_eof or count is not None:
            number = signal.SIGINT if isinstance(ended, KeyboardInterrupt) else signal.SIGTERM
            click.get_current_context().exit(128 + number)


async def _print_all(source: _Source, show: Callable[[ReceivedMessage], bytes]) -> None:
    stdout = sys.stdout.buffer
    this = asyncio.current_task()
    if this is not None:  # what was printed is committed when `timeout`, say, ends the command, too
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
    member_of = None if source.exit_eof else source.group
    async with aclosing(_all_queues(source) if member_of is None else _as_member(source, member_of)) as messages:
        async for message in messages:
            stdout.write(show(message))
            stdout.flush()


async def _as_member(source: _Source, group: str) -> AsyncGenerator[ReceivedMessage, None]:
    """Yield what the group assigns to this process; what the caller came back for is committed."""
    await _make_group(source, group)
    async with PushConsumer(
        source.namesrv,
        group,
        {source.topic: source.tags},
        start_from="first" if source.from_beginning else "last",
        auto_ack=False,
    ) as consumer:
        delivered = 0
        async for message in consumer:
            yield message
            message.ack()
            delivered += 1
            if delivered == source.count:
                return


async def _make_group(source: _Source, group: str) -> None:
    """Have brokers make the group by reading in its name; what keeps them from it is said once, and waited out.

    A consumer that joins is not told: a heartbeat is taken, and its pulls are repeated in silence. Raises `AdminError`
    if brokers make no groups.
    """
    async with Admin(source.namesrv) as admin, PullConsumer(source.namesrv, group, timeout=_REFUSED_SECONDS) as probe:
        try:
            if is_system_group(group) or group in await admin.groups():
                return
            one_each = {queue.broker_group: queue for queue in await probe.queues(source.topic)}
            await probe.assign(one_each.values())
            while group not in await admin.groups():
                await probe.poll(1, timeout=_PROBE_TIMEOUT_S)
        except (NoBrokerError, NoRouteError, InvalidArgumentError):
            return  # what is not there yet may come, and the members of the group wait for it
        except NotFoundError as error:
            raise AdminError(
                f"consumer group {group!r} does not exist, and brokers make none: `dledger group create {group}`"
            ) from error
        except ClientError as error:
            reason = error.remark if isinstance(error, RefusedError) else str(error)
            advice = "free space on the disks of its brokers; " if "disk is full" in reason else ""
            click.echo(f"consumer group {group!r} cannot be made yet: {reason}; {advice}waiting until it can", err=True)


async def _all_queues(source: _Source) -> AsyncGenerator[ReceivedMessage, None]:
    """Yield the messages of all queues; with a group, from its offsets, which follow."""
    async with PullConsumer(source.namesrv, source.group or _NO_GROUP, tags=source.tags) as consumer:
        queues = await consumer.queues(source.topic)
        if not queues:
            raise AdminError(
                f"topic {source.topic} has no readable queues: `dledger topic create {source.topic} --permission "
                "read-write` lets it be read"
            )
        await consumer.assign(queues)
        known = set(queues)
        ends: dict[MessageQueue, int] = {}
        if source.exit_eof:
            async with Admin(source.namesrv) as admin:
                ends = {queue: await admin.end_offset(queue) for queue in queues}
        if source.group is None:
            await (consumer.seek_to_begin() if source.from_beginning or source.exit_eof else consumer.seek_to_end())
        remaining = sys.maxsize if source.count is None else source.count
        while remaining and not (ends and all(consumer.positions[queue] >= end for queue, end in ends.items())):
            if not ends and not known.issuperset(added := await consumer.queues(source.topic)):
                known.update(added)
                await consumer.assign(known)
            messages = await consumer.poll(min(_POLL_MESSAGES, remaining), timeout=_POLL_TIMEOUT_S)
            for message in messages:
                yield message
            remaining -= len(messages)
            if source.group and messages:
                await consumer.commit()
