"""`dledger dlq`: dead letters, the messages that a consumer group could not handle often enough."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import click

from dledger_client import Admin, ReceivedMessage
from dledger_remoting.properties import FAILURE_REASON, ORIGIN_MESSAGE_ID
from dledger_remoting.topics import dead_letter_topic

from ..errors import AdminError
from ..help import HelpGroup
from ..operations.dead_letters import DeadLetters, Resent, Wanted, all_counts, counted, newest, pages
from ..operations.dead_letters import resend as resend_letters
from ..operations.messages import MessageView, unreadable, view
from ..operations.positions import Edge, Position
from ..output import columns, emit, output_option, say, write_out
from .client_calls import run, with_admin
from .message_format import exit_code, json_line, render
from .names import CONSUMER_GROUP, TOPIC
from .options import namesrv_option
from .positions import parse_end, parse_position
from .signing import command_access

Command = TypeVar("Command", bound=Callable[..., object])


@click.group(cls=HelpGroup)
def dlq() -> None:
    """List, show, export and resend dead letters: messages that a consumer group failed to handle too often."""


def _add_range_options(command: Command) -> Command:
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


def _parse_range(begin: str | None, end: str | None) -> tuple[Position, Position]:
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
    "-n",
    "--count",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Maximum number to show, the newest ones.",
)
@output_option
def show(namesrv: str, group: str, count: int, output: str) -> None:
    """Show the newest dead letters of a group, the oldest of them first.

    The exit code is 1 if the body of one of them cannot be read.
    """

    async def work(admin: Admin) -> list[ReceivedMessage]:
        return await newest(admin, command_access(namesrv), group, count)

    views = [view(letter) for letter in with_admin(namesrv, work)]
    emit(views, output, lambda letters: _render_letters(group, letters))
    click.get_current_context().exit(exit_code(views))


@dlq.command()
@namesrv_option
@click.argument("group", type=CONSUMER_GROUP)
@_add_range_options
def export(namesrv: str, group: str, begin: str | None, end: str | None) -> None:
    """Print dead letters as JSON, one object a line, as `consume -o json` does; they stay where they are.

    If a body cannot be read, the stored body is printed, `fault` gives the reason, and the exit code is 1.
    """
    if sys.stdout is None:
        raise AdminError("standard output is closed: the dead letters go there")
    places = _parse_range(begin, end)

    faults: list[str] = []

    async def work(admin: Admin) -> None:
        async for page in pages(admin, command_access(namesrv), group, *places):
            write_out(b"".join(map(json_line, page)))
            faults.extend(unreadable(letter) for letter in page if letter.fault is not None)

    with_admin(namesrv, work)
    for fault in faults:
        say(fault)
    click.get_current_context().exit(int(bool(faults)))


@dlq.command()
@namesrv_option
@click.argument("group", type=CONSUMER_GROUP)
@click.option("--all", "everything", is_flag=True, help="Resend all, or those between --from and --to.")
@click.option("--id", "ids", multiple=True, metavar="OFFSET-ID", help="Resend this one; repeatable.")
@_add_range_options
@click.option("--topic", type=TOPIC, help="Topic to send them to.  [default: the original topic of each]")
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

    Every subscriber of the topic gets them, not only this group. No dead letter is sent twice while the topic keeps the
    first copy, also after an interruption; --again sends it once more. Dead letters stay where they are. Those that
    cannot be sent are named, and make the exit code 1.
    """
    if everything == bool(ids):
        raise click.UsageError("give either --all or --id: which dead letters are to be resent?")
    if ids and (begin or end):
        raise click.UsageError("--from and --to are for --all: --id names each dead letter")
    wanted = Wanted(group, ids, *_parse_range(begin, end), topic, again)
    result = Resent(group)
    try:
        run(lambda: resend_letters(command_access(namesrv), wanted, result), namesrv)
    except KeyboardInterrupt:
        say(
            f"interrupted: {counted(result.resent)} resent, the next one perhaps; given again, the command sends none "
            "of them twice"
        )
        raise
    emit(result, output, _render_resent)
    if result.failed:
        click.get_current_context().exit(1)


def _render_counts(result: list[DeadLetters]) -> str:
    if not result:
        return "no group has dead letters"
    return columns(("group", "dead letters"), [(count.group, count.messages) for count in result])


def _render_letters(group: str, views: list[MessageView]) -> str:
    return "\n\n".join(_render_letter(group, letter) for letter in views)


def _render_letter(group: str, letter: MessageView) -> str:
    origin = letter.properties.get(ORIGIN_MESSAGE_ID, "-")
    place = f"{dead_letter_topic(group)}/{letter.broker_group}/{letter.queue_id} offset {letter.queue_offset}"
    lines = (
        f"  from        {letter.topic}",
        f"  was         {origin}",
        f"  delivered   {letter.reconsume_times} times",
        f"  failed by   {letter.properties.get(FAILURE_REASON, '-')}",
    )
    return render(letter, place, lines)


def _render_resent(result: Resent) -> str:
    lines = [f"{counted(result.resent)} of {result.group} resent, {result.already} were resent before"]
    lines += [f"{failure.offset_message_id} not sent to {failure.topic}: {failure.reason}" for failure in result.failed]
    return "\n".join(lines)
