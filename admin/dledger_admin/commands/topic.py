"""`dledger topic`: create, delete, list, describe."""

from __future__ import annotations

from typing import Final, NamedTuple

import click
import msgspec

from dledger_client import Admin, NotFoundError
from dledger_remoting.message_types import OF_MESSAGES, MessageType
from dledger_remoting.topics import (
    DEFAULT_TOPIC_QUEUES,
    IDEMPOTENT_ATTRIBUTE,
    MESSAGE_TYPE_ATTRIBUTE,
    PERM_READ,
    PERM_READ_WRITE,
    PERM_WRITE,
    WRITE_ALIASES_ATTRIBUTE,
    TopicConfig,
    is_retry_topic,
    reply_topic,
)

from ..asking import Asking, asks_first
from ..errors import AdminError
from ..help import HelpGroup
from ..output import columns, emit, output_option, say
from .client_calls import REGISTRATION_SECONDS, registered_groups, with_admin
from .names import STORED_TOPIC, TOPIC
from .options import broker_groups_option, namesrv_option

_NO_TOPICS = "there are no topics: `dledger topic create` makes one, and so does the first message to it"
_PERMISSIONS = {"read-write": PERM_READ_WRITE, "read": PERM_READ, "write": PERM_WRITE}


class QueueRange(msgspec.Struct, frozen=True):
    """Kept messages of a queue: offsets `first` to `end` - 1."""

    broker_group: str
    queue_id: int
    first: int
    end: int


class TopicSettings(msgspec.Struct, frozen=True):
    """A topic's settings on one broker group; `perm` is a sum of 4 (read) and 2 (write)."""

    broker_group: str
    read_queues: int
    write_queues: int
    perm: int
    idempotent: bool


class TopicDescription(msgspec.Struct, frozen=True):
    """Result of `topic describe`."""

    topic: str
    settings: list[TopicSettings]
    queues: list[QueueRange]


MESSAGE_TYPES: Final = (*OF_MESSAGES, MessageType.MIXED)
"""Types of messages that a topic may be for."""


class TopicChange(msgspec.Struct, frozen=True):
    """Result of `topic create` and `topic delete`."""

    topic: str
    state: str


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
    type=click.Choice(list(_PERMISSIONS)),
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

    async def work(admin: Admin) -> TopicChange:
        try:
            configs = await admin.topic_config(name)
        except NotFoundError:
            configs = {}
        registered = sorted(await admin.broker_groups())
        groups_by_settings: dict[_Settings, list[str]] = {}
        shrinking: list[str] = []
        for group in broker_groups or registered:
            if group not in registered:
                raise AdminError(f"broker group {group!r} is not registered, there are {', '.join(registered)}")
            settings = _choose_settings(group, configs.get(group), queues, permission)
            groups_by_settings.setdefault(settings, []).append(group)
            before = configs[group].read_queue_nums if group in configs else 0
            after = settings.queues
            if after < before:
                lost_queues = f"queue {before - 1}" if after + 1 == before else f"queues {after} to {before - 1}"
                shrinking.append(f"{lost_queues} of {name} on {group}")
        for settings, names in groups_by_settings.items():
            await admin.create_topic(name, broker_groups=names, attributes=attributes or None, **settings._asdict())
        for lost_queues in shrinking:
            say(f"warning: {lost_queues} cannot be read until it has as many queues again")
        return TopicChange(name, "changed" if configs else "created")

    emit(with_admin(namesrv, work, patience_s=REGISTRATION_SECONDS), output, _render_change)


class _Settings(NamedTuple):
    """Arguments of `Admin.create_topic` that are settings, without the attributes."""

    queues: int
    perm: int
    order: bool
    filter_type: str
    sys_flag: int


def _choose_settings(group: str, existing: TopicConfig | None, queues: int | None, permission: str | None) -> _Settings:
    """Return the settings for a broker group: those that are asked for, else the present ones, else defaults.

    Raises `AdminError` if `queues` is None and the topic has different numbers of read and write queues: `queues` is
    one number for both.
    """
    if queues is None and existing and existing.read_queue_nums != existing.write_queue_nums:
        raise AdminError(
            f"{existing.topic_name} has {existing.read_queue_nums} queues to read and {existing.write_queue_nums} to "
            f"write on {group}, say with --queues how many it shall have"
        )
    base = existing or TopicConfig("", write_queue_nums=DEFAULT_TOPIC_QUEUES)
    return _Settings(
        queues=queues or base.write_queue_nums,
        perm=_PERMISSIONS[permission] if permission else base.perm,
        order=base.order,
        filter_type=base.topic_filter_type,
        sys_flag=base.topic_sys_flag,
    )


@topic.command()
@namesrv_option
@click.argument("name", type=STORED_TOPIC)
@asks_first
@output_option
def delete(namesrv: str, name: str, output: str, asking: Asking) -> None:
    """Delete a topic with all its messages. A topic that does not exist is an error."""

    async def list_effects(admin: Admin) -> list[str]:
        await admin.topic_config(name)
        ranges = await _fetch_ranges(admin, name)
        messages = sum(queue.end - queue.first for queue in ranges)
        return [f"topic {name} with {len(ranges)} queues and the {messages} messages that they keep"]

    if not asking.agreed(lambda: with_admin(namesrv, list_effects), output):
        return

    async def work(admin: Admin) -> TopicChange:
        await admin.topic_config(name)
        await admin.delete_topic(name)
        return TopicChange(name, "deleted")

    emit(with_admin(namesrv, work), output, _render_change)


@topic.command("list")
@namesrv_option
@click.option("--system", is_flag=True, help="Show system topics and retry topics, too.")
@output_option
def list_topics(namesrv: str, system: bool, output: str) -> None:
    """List topics by name."""

    async def work(admin: Admin) -> list[str]:
        await registered_groups(admin)
        return await (admin.topics(include_system=True) if system else application_topics(admin))

    emit(with_admin(namesrv, work), output, lambda names: "\n".join(names) or _NO_TOPICS)


async def application_topics(admin: Admin) -> list[str]:
    """Return the names of all topics that are neither the service's own nor for retries."""
    names = await admin.topics(include_system=False)
    info = await admin.cluster_info()
    clusters = info.cluster_addr_table
    service_topics = {*info.broker_addr_table, *clusters, *(reply_topic(cluster) for cluster in clusters)}
    return [name for name in names if name not in service_topics and not is_retry_topic(name)]


@topic.command()
@namesrv_option
@click.argument("name", type=STORED_TOPIC)
@output_option
def describe(namesrv: str, name: str, output: str) -> None:
    """Show a topic's settings, and the offsets that each queue keeps."""

    async def work(admin: Admin) -> TopicDescription:
        configs = await admin.topic_config(name)
        ranges = await _fetch_ranges(admin, name)
        settings = [
            TopicSettings(
                group,
                config.read_queue_nums,
                config.write_queue_nums,
                config.perm,
                config.attributes.get(IDEMPOTENT_ATTRIBUTE) == "true",
            )
            for group, config in sorted(configs.items())
        ]
        return TopicDescription(name, settings, ranges)

    emit(with_admin(namesrv, work), output, _render_description)


async def _fetch_ranges(admin: Admin, name: str) -> list[QueueRange]:
    route = await admin.topic_route(name)
    return [
        QueueRange(queue.broker_group, queue.queue_id, await admin.first_offset(queue), await admin.end_offset(queue))
        for queue in sorted({*route.readable, *route.writable})
    ]


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
                next((word for word, perm in _PERMISSIONS.items() if perm == row.perm), str(row.perm)),
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
