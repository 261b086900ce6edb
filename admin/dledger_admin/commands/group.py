"""`dledger group`: consumer groups and their offsets."""

from __future__ import annotations

import click
import msgspec

from dledger_client import Admin, QueueStatus, StartFrom
from dledger_remoting.topics import SubscriptionGroupConfig, retry_topic

from ..errors import AdminError
from ..help import HelpGroup
from ..output import columns, emit, output_option
from .client_calls import with_admin
from .names import CONSUMER_GROUP, TOPIC
from .options import namesrv_option, time_ms
from .topic import application_topics

_DEFAULT_RETRIES = SubscriptionGroupConfig(group_name="").retry_max_times


class GroupLine(msgspec.Struct, frozen=True):
    """A consumer group in `group list`."""

    group: str
    may_consume: bool
    max_retries: int


class GroupChange(msgspec.Struct, frozen=True):
    """Result of `group create` and `group delete`."""

    group: str
    state: str


class QueueProgress(msgspec.Struct, frozen=True):
    """How far a group is in one queue; `committed` is null before its first commit, `lag` counts messages."""

    topic: str
    broker_group: str
    queue_id: int
    first: int
    end: int
    committed: int | None
    lag: int


class GroupDescription(msgspec.Struct, frozen=True):
    """Result of `group describe`."""

    group: str
    lag: int
    queues: list[QueueProgress]


class NewOffset(msgspec.Struct, frozen=True):
    """One queue in the result of `group reset`."""

    broker_group: str
    queue_id: int
    offset: int


def start_point(text: str) -> StartFrom:
    """Return what `Admin.reset_offsets` takes; a date without a time zone is in local time."""
    if text == "first":
        return "first"
    if text == "last":
        return "last"
    return time_ms("--to", text, otherwise="first, last, ")


@click.group(cls=HelpGroup)
def group() -> None:
    """Create, delete, list and describe consumer groups, and move their offsets."""


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    help=f"How often a failed message comes back.  [default: {_DEFAULT_RETRIES}, later as before]",
)
@output_option
def create(namesrv: str, name: str, retries: int | None, output: str) -> None:
    """Create a consumer group, or change one; brokers create them on first use unless `auto_create_group` is false."""

    async def work(admin: Admin) -> GroupChange:
        now = (await admin.groups()).get(name)
        config = now or SubscriptionGroupConfig(group_name=name)
        await admin.create_group(
            config if retries is None else msgspec.structs.replace(config, retry_max_times=retries)
        )
        return GroupChange(name, "changed" if now else "created")

    emit(with_admin(namesrv, work), output, _render_change)


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@output_option
def delete(namesrv: str, name: str, output: str) -> None:
    """Delete a consumer group with its offsets; stop its members first, or they create it again."""

    async def work(admin: Admin) -> GroupChange:
        await _require_group(admin, name)
        await admin.delete_group(name)
        return GroupChange(name, "deleted")

    emit(with_admin(namesrv, work), output, _render_change)


@group.command("list")
@namesrv_option
@output_option
def list_groups(namesrv: str, output: str) -> None:
    """List consumer groups by name."""

    async def work(admin: Admin) -> list[GroupLine]:
        return [
            GroupLine(name, config.consume_enable, config.retry_max_times)
            for name, config in (await admin.groups()).items()
        ]

    emit(with_admin(namesrv, work), output, _render_groups)


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@click.option(
    "--topic",
    type=TOPIC,
    help="Whose queues to show.  [default: every topic in which the group committed offsets, and its retry topic]",
)
@output_option
def describe(namesrv: str, name: str, topic: str | None, output: str) -> None:
    """Show how far a group is in each queue."""

    async def work(admin: Admin) -> GroupDescription:
        found: list[QueueStatus] = []
        for one in await _topics_of(admin, name) if topic is None else [topic]:
            offsets = await admin.offsets(name, one)
            waits = one == retry_topic(name) and any(queue.lag for queue in offsets)
            if topic or waits or any(queue.committed is not None for queue in offsets):
                found += offsets
        if all(one.committed is None for one in found):
            await _require_group(admin, name)
        return GroupDescription(name, sum(one.lag for one in found), [_progress(one) for one in found])

    emit(with_admin(namesrv, work), output, _render_description)


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@click.option("--topic", type=TOPIC, required=True, help="Where to move it.")
@click.option("--to", "position", required=True, help="first, last, ms since 1970, or ISO 8601.")
@output_option
def reset(namesrv: str, name: str, topic: str, position: str, output: str) -> None:
    """Move a group's offsets in a topic; stop its members first, or they overwrite them."""

    target = start_point(position)

    async def work(admin: Admin) -> list[NewOffset]:
        moved = await admin.reset_offsets(name, topic, target)
        return [NewOffset(queue.broker_group, queue.queue_id, offset) for queue, offset in sorted(moved.items())]

    offsets = with_admin(namesrv, work)
    if not offsets:
        raise AdminError(f"topic {topic} has no readable queues: nothing was moved")
    emit(offsets, output, _render_offsets)


async def _topics_of(admin: Admin, name: str) -> list[str]:
    """The topics that a group may read; what its members gave back waits in its retry topic."""
    own = retry_topic(name)
    return [*await application_topics(admin), *([own] if own in await admin.topics(include_system=True) else [])]


async def _require_group(admin: Admin, name: str) -> None:
    if name not in await admin.groups():
        raise AdminError(f"there is no consumer group {name!r}: `dledger group list` shows those that there are")


def _progress(status: QueueStatus) -> QueueProgress:
    return QueueProgress(*status.queue, status.first, status.end, status.committed, status.lag)


def _render_change(result: GroupChange) -> str:
    return f"{result.group} {result.state}"


def _render_groups(result: list[GroupLine]) -> str:
    rows = [(one.group, "yes" if one.may_consume else "no", one.max_retries) for one in result]
    return columns(("group", "may consume", "retries"), rows)


def _render_description(result: GroupDescription) -> str:
    rows = [msgspec.structs.astuple(one) for one in result.queues]
    table = columns(("topic", "broker group", "queue", "first", "end", "committed", "lag"), rows)
    return f"{table}\n{result.lag} messages behind"


def _render_offsets(result: list[NewOffset]) -> str:
    return columns(
        ("broker group", "queue", "offset"), [(one.broker_group, one.queue_id, one.offset) for one in result]
    )
