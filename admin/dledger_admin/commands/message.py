"""`dledger message`: single messages."""

from __future__ import annotations

from functools import partial

import click
import msgspec

from dledger_client import Admin, Producer, ReceivedMessage
from dledger_client.administration.lookups import MAX_MESSAGES_BY_KEY
from dledger_remoting.topics import TRACE_TOPIC

from ..help import HelpGroup
from ..operations.messages import MessageView, by_key, by_offset_id, view
from ..operations.traces import trace_view
from ..operations.traces import traces as find_traces
from ..output import emit, output_option
from .client_calls import run, with_admin
from .message_format import exit_code, render
from .message_trace import table
from .names import TOPIC
from .options import namesrv_option
from .signing import signing


@click.group(cls=HelpGroup)
def message() -> None:
    """Find single messages and their traces, and take them back."""


@message.command()
@namesrv_option
@click.argument("message_id", metavar="[OFFSET-ID]", required=False)
@click.option("--topic", type=TOPIC, help="Topic of the messages, with --key or --unique-key.")
@click.option("--key", help="All messages with this key.")
@click.option("--unique-key", help="The message with the id that its producer gave it.")
@click.option(
    "--max",
    "limit",
    type=click.IntRange(min=1, max=MAX_MESSAGES_BY_KEY),
    default=32,
    show_default=True,
    help="Maximum number of messages to show, the newest ones.",
)
@output_option
def get(
    namesrv: str,
    message_id: str | None,
    topic: str | None,
    key: str | None,
    unique_key: str | None,
    limit: int,
    output: str,
) -> None:
    """Show the message with an offset message id, or all messages with a key; no match is an error.

    The exit code is 1 if the body of one of them cannot be read.
    """
    if sum(choice is not None for choice in (message_id, key, unique_key)) != 1:
        raise click.UsageError("give exactly one of OFFSET-ID, --key and --unique-key")
    if message_id is None and topic is None:
        raise click.UsageError("--key and --unique-key need --topic")

    async def work(admin: Admin) -> list[ReceivedMessage]:
        if message_id is not None:
            return [await by_offset_id(admin, message_id)]
        wanted = (key if key is not None else unique_key) or ""
        return await by_key(admin, topic or "", wanted, unique=unique_key is not None, limit=limit)

    views = [view(received) for received in with_admin(namesrv, work)]
    emit(views, output, _render)
    click.get_current_context().exit(exit_code(views))


@message.command()
@namesrv_option
@click.argument("message_id", metavar="MESSAGE-ID")
@click.option("--topic", type=TOPIC, default=TRACE_TOPIC, show_default=True, help="Where clients write traces.")
@click.option(
    "--max",
    "limit",
    type=click.IntRange(min=1, max=MAX_MESSAGES_BY_KEY),
    default=MAX_MESSAGES_BY_KEY,
    show_default=True,
    help="Maximum number of trace messages to search, the newest ones.",
)
@output_option
def trace(namesrv: str, message_id: str, topic: str, limit: int, output: str) -> None:
    """Show the clients that sent, received and handled a message, by the traces that they wrote; no trace is an error.

    MESSAGE-ID is the id that its producer gave the message, the unique key, as `consume` shows it.
    """
    found = with_admin(namesrv, partial(find_traces, message_id=message_id, topic=topic, limit=limit))
    if output == "json":
        emit([trace_view(entry) for entry in found], output, str)
    else:
        emit(found, output, table)


class Recalled(msgspec.Struct, frozen=True):
    """Result of `message recall`: the unique key of what is not delivered."""

    topic: str
    unique_key: str


@message.command()
@namesrv_option
@click.argument("handle")
@click.option("--topic", type=TOPIC, required=True, help="Topic of the message.")
@output_option
def recall(namesrv: str, handle: str, topic: str, output: str) -> None:
    """Take back a message before its delivery, by the HANDLE that `produce` shows; fails for a delivered message."""

    async def work() -> Recalled:
        async with Producer(namesrv, **signing()) as producer:
            return Recalled(topic, await producer.recall(topic, handle))

    emit(run(work, namesrv), output, lambda result: f"{result.unique_key} is not delivered to {result.topic}")


def _render(result: list[MessageView]) -> str:
    return "\n\n".join(
        render(shown, f"{shown.topic}/{shown.broker_group}/{shown.queue_id} offset {shown.queue_offset}")
        for shown in result
    )
