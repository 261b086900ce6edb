"""`dledger topic`: create, delete, list, describe."""

from __future__ import annotations

from typing import NamedTuple

import click
import msgspec

from dledger_client import Admin, NotFoundError
from dledger_remoting.topics import (
    DEFAULT_TOPIC_QUEUES,
    IDEMPOTENT_ATTRIBUTE,
    PERM_READ,
    PERM_READ_WRITE,
    PERM_WRITE,
    WRITE_ALIASES_ATTRIBUTE,
    TopicConfig,
    is_retry_topic,
    reply_topic,
)

from ..errors import AdminError
from ..help import HelpGroup
from ..output import columns, emit, output_option
from .client_calls import REGISTRATION_SECONDS, registered_groups, with_admin
from .names import STORED_TOPIC, TOPIC
from .options import broker_groups_option, namesrv_option

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
    help="What clients may do.  [default: read-write, later as before]",
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
    help="Let producers that know no better find other nodes while there is no leader.  [default: as the nodes are "
    "configured, later as before]",
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
    output: str,
) -> None:
    """Create a topic, or change the settings of one: those that are not given stay as they are."""
    attributes: dict[str, str | None] = {}
    if idempotent is not None:
        attributes[IDEMPOTENT_ATTRIBUTE] = "true" if idempotent else None
    if write_aliases is not None:
        attributes[WRITE_ALIASES_ATTRIBUTE] = "true" if write_aliases else "false"

    async def work(admin: Admin) -> TopicChange:
        try:
            configs = await admin.topic_config(name)
        except NotFoundError:
            configs = {}
        registered = sorted(await admin.broker_groups())
        wanted: dict[_Settings, list[str]] = {}
        shrinking: list[str] = []
        for group in broker_groups or registered:
            if group not in registered:
                raise AdminError(f"broker group {group!r} is not registered, there are {', '.join(registered)}")
            settings = _settings(group, configs.get(group), queues, permission)
            wanted.setdefault(settings, []).append(group)
            before = configs[group].read_queue_nums if group in configs else 0
            after = settings.queues
            if after < before:
                gone = f"queue {before - 1}" if after + 1 == before else f"queues {after} to {before - 1}"
                shrinking.append(f"{gone} of {name} on {group}")
        for settings, names in wanted.items():
            await admin.create_topic(name, broker_groups=names, attributes=attributes or None, **settings._asdict())
        for gone in shrinking:
            click.echo(f"warning: {gone} cannot be read until it has as many queues again", err=True)
        return TopicChange(name, "changed" if configs else "created")

    emit(with_admin(namesrv, work, patience_s=REGISTRATION_SECONDS), output, _render_change)


class _Settings(NamedTuple):
    """What `Admin.create_topic` sets on a broker group beside attributes."""

    queues: int
    perm: int
    order: bool
    filter_type: str
    sys_flag: int


def _settings(group: str, now: TopicConfig | None, queues: int | None, permission: str | None) -> _Settings:
    """Return the settings for a broker group: what is asked for, else what is there, else defaults.

    Raises `AdminError` if there are other queues to read than to write, which one number cannot keep.
    """
    if queues is None and now and now.read_queue_nums != now.write_queue_nums:
        raise AdminError(
            f"{now.topic_name} has {now.read_queue_nums} queues to read and {now.write_queue_nums} to write on {group}"
            ", say with --queues how many it shall have"
        )
    base = now or TopicConfig("", write_queue_nums=DEFAULT_TOPIC_QUEUES)
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
@output_option
def delete(namesrv: str, name: str, output: str) -> None:
    """Delete a topic with all its messages; one that does not exist is an error."""

    async def work(admin: Admin) -> TopicChange:
        await admin.topic_config(name)
        await admin.delete_topic(name)
        return TopicChange(name, "deleted")

    emit(with_admin(namesrv, work), output, _render_change)


@topic.command("list")
@namesrv_option
@click.option("--system", is_flag=True, help="Show the service's own topics too, and those of retries.")
@output_option
def list_topics(namesrv: str, system: bool, output: str) -> None:
    """List topics by name."""

    async def work(admin: Admin) -> list[str]:
        await registered_groups(admin)
        return await (admin.topics(include_system=True) if system else application_topics(admin))

    emit(with_admin(namesrv, work), output, "\n".join)


async def application_topics(admin: Admin) -> list[str]:
    """Return the names of all topics that are neither the service's own nor for retries."""
    names = await admin.topics(include_system=False)
    info = await admin.cluster_info()
    clusters = info.cluster_addr_table
    own = {*info.broker_addr_table, *clusters, *(reply_topic(cluster) for cluster in clusters)}
    return [name for name in names if name not in own and not is_retry_topic(name)]


@topic.command()
@namesrv_option
@click.argument("name", type=STORED_TOPIC)
@output_option
def describe(namesrv: str, name: str, output: str) -> None:
    """Show a topic's settings, and the offsets that each queue keeps."""

    async def work(admin: Admin) -> TopicDescription:
        configs = await admin.topic_config(name)
        route = await admin.topic_route(name)
        ranges = [
            QueueRange(
                queue.broker_group, queue.queue_id, await admin.first_offset(queue), await admin.end_offset(queue)
            )
            for queue in sorted({*route.readable, *route.writable})
        ]
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


def _render_change(result: TopicChange) -> str:
    return f"{result.topic} {result.state}"


def _render_description(result: TopicDescription) -> str:
    settings = columns(
        ("broker group", "read queues", "write queues", "permission", "idempotent"),
        [
            (
                one.broker_group,
                one.read_queues,
                one.write_queues,
                next((word for word, perm in _PERMISSIONS.items() if perm == one.perm), str(one.perm)),
                "yes" if one.idempotent else "no",
            )
            for one in result.settings
        ],
    )
    queues = columns(
        ("broker group", "queue", "first", "end", "messages"),
        [(one.broker_group, one.queue_id, one.first, one.end, one.end - one.first) for one in result.queues],
    )
    return f"{settings}\n\n{queues}"
