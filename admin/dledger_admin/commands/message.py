"""`dledger message`: single messages."""

from __future__ import annotations

import click
import msgspec

from dledger_client import Admin, NoRouteError, NotFoundError, Producer, ReceivedMessage
from dledger_client.lookups import MAX_MESSAGES_BY_KEY
from dledger_remoting.topics import TRACE_TOPIC
from dledger_remoting.traces import Trace

from ..errors import AdminError
from ..help import HelpGroup
from ..output import emit, output_option
from .client_calls import run, with_admin
from .message_format import MessageView, exit_code, render, view
from .message_trace import table
from .message_trace import view as view_of_trace
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
            try:
                return [await admin.message_by_id(message_id, keep_unreadable=True)]
            except NotFoundError as error:
                raise AdminError(
                    f"{error.remark}; a unique key, as `consume` shows it, is looked up with --topic and --unique-key"
                ) from error
        searched_key = key if key is not None else unique_key
        messages = await admin.messages_by_key(
            topic or "", searched_key or "", unique=unique_key is not None, max_messages=limit, keep_unreadable=True
        )
        if not messages:
            kind = "key" if key is not None else "unique key"
            raise AdminError(f"topic {topic!r} has no message with the {kind} {searched_key!r}")
        return messages

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
    hint = "clients write traces where they are told to: trace=True, or enableMsgTrace in RocketMQ's"

    async def work(admin: Admin) -> list[Trace]:
        try:
            traces = await admin.message_trace(message_id, topic=topic, max_messages=limit)
        except NoRouteError as error:
            raise AdminError(f"{error}: {hint}") from error
        if not traces:
            raise AdminError(f"topic {topic!r} has no trace of message {message_id!r}: {hint}")
        return traces

    traces = with_admin(namesrv, work)
    if output == "json":
        emit([view_of_trace(entry) for entry in traces], output, str)
    else:
        emit(traces, output, table)


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
