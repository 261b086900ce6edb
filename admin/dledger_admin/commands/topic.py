"""`dledger topic`: create, delete, list, describe."""

from __future__ import annotations

import click
import msgspec

from dledger_client import Admin
from dledger_remoting.topics import (
    IDEMPOTENT_ATTRIBUTE,
    PERM_READ,
    PERM_READ_WRITE,
    PERM_WRITE,
    is_retry_topic,
    reply_topic,
)

from ..output import columns, emit, output_option
from .client_calls import with_admin
from .options import namesrv_option

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


class TopicDescription(msgspec.Struct, frozen=True):
    """Result of `topic describe`."""

    topic: str
    settings: list[TopicSettings]
    queues: list[QueueRange]


class TopicChange(msgspec.Struct, frozen=True):
    """Result of `topic create` and `topic delete`."""

    topic: str
    state: str


@click.group()
def topic() -> None:
    """Create, delete, list and describe topics."""


@topic.command()
@namesrv_option
@click.argument("name")
@click.option("--queues", type=click.IntRange(min=1), default=8, show_default=True, help="Queues on each broker group.")
@click.option("--permission", type=click.Choice(list(_PERMISSIONS)), default="read-write", show_default=True)
@click.option("--broker-group", "groups", multiple=True, help="Only on this broker group; repeatable.  [default: all]")
@click.option("--idempotent/--no-idempotent", default=None, help="Whether a repeated send is stored once, always.")
@output_option
def create(
    namesrv: str,
    name: str,
    queues: int,
    permission: str,
    groups: tuple[str, ...],
    idempotent: bool | None,
    output: str,
) -> None:
    """Create a topic, or change the settings of one."""
    attributes = None if idempotent is None else {IDEMPOTENT_ATTRIBUTE: "true" if idempotent else None}

    async def work(admin: Admin) -> TopicChange:
        await admin.create_topic(
            name,
            queues=queues,
            perm=_PERMISSIONS[permission],
            broker_groups=groups or None,
            attributes=attributes,
        )
        return TopicChange(name, "created")

    emit(with_admin(namesrv, work), output, _render_change)


@topic.command()
@namesrv_option
@click.argument("name")
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
        names = await admin.topics(include_system=system)
        if system:
            return names
        info = await admin.cluster_info()
        clusters = info.cluster_addr_table
        own = {*info.broker_addr_table, *clusters, *(reply_topic(cluster) for cluster in clusters)}
        return [name for name in names if name not in own and not is_retry_topic(name)]

    emit(with_admin(namesrv, work), output, "\n".join)


@topic.command()
@namesrv_option
@click.argument("name")
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
            TopicSettings(group, config.read_queue_nums, config.write_queue_nums, config.perm)
            for group, config in sorted(configs.items())
        ]
        return TopicDescription(name, settings, ranges)

    emit(with_admin(namesrv, work), output, _render_description)


def _render_change(result: TopicChange) -> str:
    return f"{result.topic} {result.state}"


def _render_description(result: TopicDescription) -> str:
    settings = columns(
        ("broker group", "read queues", "write queues", "perm"),
        [(one.broker_group, one.read_queues, one.write_queues, one.perm) for one in result.settings],
    )
    queues = columns(
        ("broker group", "queue", "first", "end", "messages"),
        [(one.broker_group, one.queue_id, one.first, one.end, one.end - one.first) for one in result.queues],
    )
    return f"{settings}\n\n{queues}"
