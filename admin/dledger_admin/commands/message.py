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
from .message_format import MessageView, render, view
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
@click.option("--topic", type=TOPIC, help="With --key or --unique-key: where to look.")
@click.option("--key", help="All messages with this key.")
@click.option("--unique-key", help="The message with the id that its producer gave it.")
@click.option(
    "--max",
    "limit",
    type=click.IntRange(min=1, max=MAX_MESSAGES_BY_KEY),
    default=32,
    show_default=True,
    help="Most messages to show: the newest.",
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
    """Show the message with an offset message id, or those with a key; none is an error."""
    if sum(choice is not None for choice in (message_id, key, unique_key)) != 1:
        raise click.UsageError("give exactly one of OFFSET-ID, --key and --unique-key")
    if message_id is None and topic is None:
        raise click.UsageError("--key and --unique-key need --topic")

    async def work(admin: Admin) -> list[ReceivedMessage]:
        if message_id is not None:
            try:
                return [await admin.message_by_id(message_id)]
            except NotFoundError as error:
                raise AdminError(
                    f"{error.remark}; a unique key, as `consume` shows it, is looked up with --topic and --unique-key"
                ) from error
        wanted = key if key is not None else unique_key
        found = await admin.messages_by_key(
            topic or "", wanted or "", unique=unique_key is not None, max_messages=limit
        )
        if not found:
            kind = "key" if key is not None else "unique key"
            raise AdminError(f"topic {topic!r} has no message with the {kind} {wanted!r}")
        return found

    emit([view(found) for found in with_admin(namesrv, work)], output, _render)


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
    help="Most trace messages to look at: the newest.",
)
@output_option
def trace(namesrv: str, message_id: str, topic: str, limit: int, output: str) -> None:
    """Show who sent, received and handled a message, as far as clients have written traces; none is an error.

    MESSAGE-ID is the id that its producer gave the message, the unique key, as `consume` shows it.
    """
    hint = "clients write traces where they are told to: trace=True, or enableMsgTrace in RocketMQ's"

    async def work(admin: Admin) -> list[Trace]:
        try:
            found = await admin.message_trace(message_id, topic=topic, max_messages=limit)
        except NoRouteError as error:
            raise AdminError(f"{error}: {hint}") from error
        if not found:
            raise AdminError(f"topic {topic!r} has no trace of message {message_id!r}: {hint}")
        return found

    found = with_admin(namesrv, work)
    if output == "json":
        emit([view_of_trace(one) for one in found], output, str)
    else:
        emit(found, output, table)


class Recalled(msgspec.Struct, frozen=True):
    """Result of `message recall`: the unique key of what is not delivered."""

    topic: str
    unique_key: str


@message.command()
@namesrv_option
@click.argument("handle")
@click.option("--topic", type=TOPIC, required=True, help="What the message is for.")
@output_option
def recall(namesrv: str, handle: str, topic: str, output: str) -> None:
    """Take back a message that is to be delivered later, by the HANDLE that `produce` shows; too late is an error."""

    async def work() -> Recalled:
        async with Producer(namesrv, **signing()) as producer:
            return Recalled(topic, await producer.recall(topic, handle))

    emit(run(work, namesrv), output, lambda result: f"{result.unique_key} is not delivered to {result.topic}")


def _render(result: list[MessageView]) -> str:
    return "\n\n".join(
        render(one, f"{one.topic}/{one.broker_group}/{one.queue_id} offset {one.queue_offset}") for one in result
    )
