"""`dledger topic`: create, delete, list, describe."""

from __future__ import annotations

from typing import Final

import click

from dledger_client import Admin
from dledger_remoting.message_types import OF_MESSAGES, MessageType
from dledger_remoting.topics import (
    DEFAULT_TOPIC_QUEUES,
    IDEMPOTENT_ATTRIBUTE,
    MESSAGE_TYPE_ATTRIBUTE,
    WRITE_ALIASES_ATTRIBUTE,
)

from ..asking import Asking, asks_first
from ..help import HelpGroup
from ..operations import topics
from ..operations.clusters import registered_groups
from ..operations.topics import PERMISSIONS, TopicChange, TopicDescription
from ..output import columns, emit, output_option, say
from .client_calls import REGISTRATION_SECONDS, with_admin
from .names import STORED_TOPIC, TOPIC
from .options import broker_groups_option, namesrv_option

_NO_TOPICS = "there are no topics: `dledger topic create` makes one, and so does the first message to it"
MESSAGE_TYPES: Final = (*OF_MESSAGES, MessageType.MIXED)
"""Types of messages that a topic may be for."""


@click.group(cls=HelpGroup)
def topic() -> None:
    """Create, delete, list and describe topics."""


@topic.command()
@namesrv_option
@click.argument("name", type=TOPIC)
@click.option(
    "--queues",
    "--partitions",
    "queues",
    type=click.IntRange(min=1),
    help=f"Queues on each broker group.  [default: {DEFAULT_TOPIC_QUEUES}, later as before]",
)
@click.option(
    "--permission",
    type=click.Choice(list(PERMISSIONS)),
    help="Rights of clients.  [default: read-write, later as before]",
)
@broker_groups_option
@click.option(
    "--idempotent/--no-idempotent",
    default=None,
    help="Store a repeated send once, whatever its client asks.  [default: no, later as before]",
)
@click.option(
    "--write-aliases/--no-write-aliases",
    default=None,
    help="List write aliases in the route, so that stock producers find another node while there is no leader.  "
    "[default: as the nodes are configured, later as before]",
)
@click.option(
    "--type",
    "message_type",
    type=click.Choice([str(word) for word in MESSAGE_TYPES], case_sensitive=False),
    help="Kind of messages that proxies take for the topic.  [default: NORMAL, later as before]",
)
@output_option
def create(
    namesrv: str,
    name: str,
    queues: int | None,
    permission: str | None,
    broker_groups: tuple[str, ...],
    idempotent: bool | None,
    write_aliases: bool | None,
    message_type: str | None,
    output: str,
) -> None:
    """Create a topic, or change the settings of one. Settings that are not given stay as they are."""
    attributes: dict[str, str | None] = {}
    if idempotent is not None:
        attributes[IDEMPOTENT_ATTRIBUTE] = "true" if idempotent else None
    if write_aliases is not None:
        attributes[WRITE_ALIASES_ATTRIBUTE] = "true" if write_aliases else "false"
    if message_type is not None:
        attributes[MESSAGE_TYPE_ATTRIBUTE] = message_type

    wish = topics.Wish(queues, permission, broker_groups, attributes)

    async def work(admin: Admin) -> TopicChange:
        changed = await topics.change(admin, name, wish)
        for hidden in changed.hidden_queues:
            say(f"warning: {hidden} cannot be read until it has as many queues again")
        return changed.change

    emit(with_admin(namesrv, work, patience_s=REGISTRATION_SECONDS), output, _render_change)


@topic.command()
@namesrv_option
@click.argument("name", type=STORED_TOPIC)
@asks_first
@output_option
def delete(namesrv: str, name: str, output: str, asking: Asking) -> None:
    """Delete a topic with all its messages. A topic that does not exist is an error."""

    async def list_effects(admin: Admin) -> list[str]:
        return await topics.what_deleting_loses(admin, name)

    if not asking.agreed(lambda: with_admin(namesrv, list_effects), output):
        return

    async def work(admin: Admin) -> TopicChange:
        return await topics.delete(admin, name)

    emit(with_admin(namesrv, work), output, _render_change)


@topic.command("list")
@namesrv_option
@click.option("--system", is_flag=True, help="Show system topics and retry topics, too.")
@output_option
def list_topics(namesrv: str, system: bool, output: str) -> None:
    """List topics by name."""

    async def work(admin: Admin) -> list[str]:
        await registered_groups(admin)
        return await topics.names(admin, include_system=system)

    emit(with_admin(namesrv, work), output, lambda names: "\n".join(names) or _NO_TOPICS)


@topic.command()
@namesrv_option
@click.argument("name", type=STORED_TOPIC)
@output_option
def describe(namesrv: str, name: str, output: str) -> None:
    """Show a topic's settings, and the offsets that each queue keeps."""

    async def work(admin: Admin) -> TopicDescription:
        return await topics.describe(admin, name)

    emit(with_admin(namesrv, work), output, _render_description)


def _render_change(result: TopicChange) -> str:
    return f"{result.topic} {result.state}"


def _render_description(result: TopicDescription) -> str:
    settings = columns(
        ("broker group", "read queues", "write queues", "permission", "idempotent"),
        [
            (
                row.broker_group,
                row.read_queues,
                row.write_queues,
                next((word for word, perm in PERMISSIONS.items() if perm == row.perm), str(row.perm)),
                "yes" if row.idempotent else "no",
            )
            for row in result.settings
        ],
    )
    queues = columns(
        ("broker group", "queue", "first", "end", "messages"),
        [(row.broker_group, row.queue_id, row.first, row.end, row.end - row.first) for row in result.queues],
    )
    return f"{settings}\n\n{queues}"
