"""`dledger dlq`: dead letters, the messages that a consumer group could not handle often enough."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

import click

from dledger_client import Admin, ClientError, Producer, ReceivedMessage
from dledger_remoting.properties import ORIGIN_MESSAGE_ID
from dledger_remoting.topics import dead_letter_topic

from ..errors import AdminError
from ..help import HelpGroup
from ..output import columns, emit, output_option
from .client_calls import run, with_admin
from .dead_letters import DeadLetters, Resending, Resent, advice, all_counts, counted, named, pages
from .message_format import MessageView, json_line, render, view
from .names import CONSUMER_GROUP, TOPIC
from .options import namesrv_option
from .positions import Edge, FromEnd, Position, parse_end, parse_position
from .signing import signing

Command = TypeVar("Command", bound=Callable[..., object])

PRODUCER_GROUP = "DLEDGER_DEAD_LETTERS"


@click.group(cls=HelpGroup)
def dlq() -> None:
    """List, show, export and resend dead letters: messages that a consumer group failed to handle too often."""


def _range_options(command: Command) -> Command:
    """Add `--from` and `--to`, as parameters `begin` and `end`."""
    command = click.option(
        "--to", "end", metavar="WHERE", help="End before this place, given as with --from.  [default: end]"
    )(command)
    return click.option(
        "--from",
        "begin",
        metavar="WHERE",
        help="Begin at: beginning, end, an offset such as 1200, the last ones such as -10, a time such as "
        "2026-01-31T12:00, an age such as -15m, or ms since 1970.  [default: beginning]",
    )(command)


def _places(begin: str | None, end: str | None) -> tuple[Position, Position]:
    return (
        Edge.BEGINNING if begin is None else parse_position("--from", begin),
        Edge.END if end is None else parse_end("--to", end),
    )


@dlq.command("list")
@namesrv_option
@output_option
def list_groups(namesrv: str, output: str) -> None:
    """List the groups that have dead letters, and how many are kept."""
    emit(with_admin(namesrv, all_counts), output, _render_counts)


@dlq.command()
@namesrv_option
@click.argument("group", type=CONSUMER_GROUP)
@click.option(
    "-n", "--count", type=click.IntRange(min=1), default=32, show_default=True, help="Most to show: the newest."
)
@output_option
def show(namesrv: str, group: str, count: int, output: str) -> None:
    """Show the newest dead letters of a group, the oldest of them first."""

    async def work(admin: Admin) -> list[ReceivedMessage]:
        found = [letter async for page in pages(admin, namesrv, group, FromEnd(count), Edge.END) for letter in page]
        found.sort(key=lambda letter: (letter.stored_timestamp_ms, letter.queue, letter.queue_offset))
        return found[-count:]

    emit([view(letter) for letter in with_admin(namesrv, work)], output, lambda views: _render_letters(group, views))


@dlq.command()
@namesrv_option
@click.argument("group", type=CONSUMER_GROUP)
@_range_options
def export(namesrv: str, group: str, begin: str | None, end: str | None) -> None:
    """Print dead letters as JSON, one object a line, as `consume -o json` does; they stay where they are."""
    if sys.stdout is None:
        raise AdminError("standard output is closed: the dead letters go there")
    places = _places(begin, end)

    async def work(admin: Admin) -> None:
        async for page in pages(admin, namesrv, group, *places):
            click.echo(b"".join(map(json_line, page)), nl=False)

    with_admin(namesrv, work)


@dlq.command()
@namesrv_option
@click.argument("group", type=CONSUMER_GROUP)
@click.option("--all", "everything", is_flag=True, help="Resend all, or those between --from and --to.")
@click.option("--id", "ids", multiple=True, metavar="OFFSET-ID", help="Resend this one; repeatable.")
@_range_options
@click.option("--topic", type=TOPIC, help="Where to send them.  [default: where each came from]")
@click.option("--again", is_flag=True, help="Resend those too that were resent before.")
@output_option
def resend(
    namesrv: str,
    group: str,
    everything: bool,
    ids: tuple[str, ...],
    begin: str | None,
    end: str | None,
    topic: str | None,
    again: bool,
    output: str,
) -> None:
    """Send dead letters to the topics where they came from, with the properties that they had.

    Every subscriber of the topic gets them, not only this group. None is sent twice, whoever resent it before and
    however that ended, as long as the topic keeps what was sent; --again sends it once more. Dead letters stay where
    they are. Those that cannot be sent are named, and make the exit code 1.
    """
    if everything == bool(ids):
        raise click.UsageError("give either --all or --id: which dead letters are to be resent?")
    if ids and (begin or end):
        raise click.UsageError("--from and --to are for --all: --id names each dead letter")
    places = _places(begin, end)
    result = Resent(group)

    async def letters(admin: Admin) -> AsyncGenerator[list[ReceivedMessage], None]:
        if ids:
            yield await named(admin, group, list(dict.fromkeys(ids)))
            return
        async for page in pages(admin, namesrv, group, *places):
            yield page

    async def work() -> None:
        nonlocal result
        async with (
            Admin(namesrv, **signing()) as admin,
            Producer(namesrv, group=PRODUCER_GROUP, **signing()) as producer,
        ):
            resending = Resending(admin, producer, group, topic, again=again)
            result = resending.result
            async for page in letters(admin):
                try:
                    await resending.resend(page)
                except ClientError as error:
                    raise advice(error, result) from error

    try:
        run(work, namesrv)
    except KeyboardInterrupt:
        click.echo(
            f"interrupted: {counted(result.resent)} resent, the next one perhaps; given again, the command sends none "
            "of them twice",
            err=True,
        )
        raise
    emit(result, output, _render_resent)
    if result.failed:
        click.get_current_context().exit(1)


def _render_counts(result: list[DeadLetters]) -> str:
    return columns(("group", "dead letters"), [(one.group, one.messages) for one in result])


def _render_letters(group: str, views: list[MessageView]) -> str:
    return "\n\n".join(_render_letter(group, one) for one in views)


def _render_letter(group: str, one: MessageView) -> str:
    origin = one.properties.get(ORIGIN_MESSAGE_ID, "-")
    place = f"{dead_letter_topic(group)}/{one.broker_group}/{one.queue_id} offset {one.queue_offset}"
    lines = (f"  from        {one.topic}", f"  was         {origin}", f"  delivered   {one.reconsume_times} times")
    return render(one, place, lines)


def _render_resent(result: Resent) -> str:
    lines = [f"{counted(result.resent)} of {result.group} resent, {result.already} were resent before"]
    lines += [f"{one.offset_message_id} not sent to {one.topic}: {one.reason}" for one in result.failed]
    return "\n".join(lines)
