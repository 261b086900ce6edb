"""`dledger group`: consumer groups and their offsets."""

from __future__ import annotations

import click
import msgspec

from dledger_client import Admin
from dledger_remoting.delays import parse_delay_levels
from dledger_remoting.retry_policies import SKIPPED_DELAYS, CustomizedRetryPolicy, GroupRetryPolicy
from dledger_remoting.topics import SubscriptionGroupConfig

from ..errors import AdminError, WrongUsageError
from ..help import HelpGroup
from ..output import columns, emit, output_option
from .client_calls import with_admin
from .group_moves import NewOffset, move, start_point
from .group_view import GroupDescription, list_lines, render_description, render_list
from .group_view import describe as describe_group
from .names import CONSUMER_GROUP, TOPIC
from .options import namesrv_option

_DEFAULT_RETRIES = SubscriptionGroupConfig(group_name="").retry_max_times


class GroupChange(msgspec.Struct, frozen=True):
    """Result of `group create` and `group delete`."""

    group: str
    state: str


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
@click.option(
    "--retry-delays",
    metavar="DELAYS",
    help="How long a failed message waits each time, the last one over and over, such as '10s 1m 1h'; levels: as long "
    "as the brokers' delay levels say.  [default: levels, later as before]",
)
@output_option
def create(namesrv: str, name: str, retries: int | None, retry_delays: str | None, output: str) -> None:
    """Create a consumer group, or change one; brokers create them on first use unless `auto_create_group` is false."""

    policy = None if retry_delays is None else _retry_policy(retry_delays)

    async def work(admin: Admin) -> GroupChange:
        now = (await admin.groups()).get(name)
        config = now or SubscriptionGroupConfig(group_name=name)
        if retries is not None:
            config = msgspec.structs.replace(config, retry_max_times=retries)
        if policy is not None:
            config = msgspec.structs.replace(config, group_retry_policy=policy)
        await admin.create_group(config)
        return GroupChange(name, "changed" if now else "created")

    emit(with_admin(namesrv, work), output, _render_change)


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@output_option
def delete(namesrv: str, name: str, output: str) -> None:
    """Delete a consumer group with its offsets; refused while it has members."""

    async def work(admin: Admin) -> GroupChange:
        await _require_group(admin, name)
        await admin.delete_group(name)
        return GroupChange(name, "deleted")

    emit(with_admin(namesrv, work), output, _render_change)


@group.command("list")
@namesrv_option
@output_option
def list_groups(namesrv: str, output: str) -> None:
    """List consumer groups by name, with their state and how many messages they are behind.

    A group is empty, stable, or inconsistent: its members subscribe to different things.
    """

    emit(with_admin(namesrv, list_lines), output, render_list)


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@click.option(
    "--topic",
    type=TOPIC,
    help="Whose queues to show.  [default: all that members subscribe to; without members, all with offsets]",
)
@output_option
def describe(namesrv: str, name: str, topic: str | None, output: str) -> None:
    """Show the members of a group, how far it is in each queue, and who read the queue last.

    Members share the queues out among themselves and tell no broker. What is shown is who asked last for a queue's
    messages, within two minutes, as the nodes have seen it.
    """

    async def work(admin: Admin) -> GroupDescription:
        found = await describe_group(admin, name, topic)
        if not found.members and all(one.committed is None for one in found.queues):
            await _require_group(admin, name)
        return found

    emit(with_admin(namesrv, work), output, render_description)


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@click.option("--topic", type=TOPIC, help="Where to move it.  [default: all topics that it reads]")
@click.option("--queue", type=click.IntRange(min=0), help="The number of the queues to move it in.  [default: all]")
@click.option(
    "--to",
    "position",
    required=True,
    help="beginning, end, offset:N, a time such as 2026-01-31T12:00, an age such as -15m, or ms since 1970.",
)
@output_option
def reset(namesrv: str, name: str, topic: str | None, queue: int | None, position: str, output: str) -> None:
    """Move a group's offsets; its members go on there, and what they have read before counts no more.

    Refused, with the names of members that cannot be told: those that broadcast keep offsets of their own.
    """

    target = start_point(position)

    async def work(admin: Admin) -> list[NewOffset]:
        return await move(admin, name, topic, target, queue)

    _emit_moved(with_admin(namesrv, work), name, topic, output)


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@click.option("--topic", type=TOPIC, help="Whose messages to skip.  [default: of all topics that it reads]")
@output_option
def skip(namesrv: str, name: str, topic: str | None, output: str) -> None:
    """Have a group skip what it is behind: it goes on with the messages to come, as `reset --to end` says."""

    async def work(admin: Admin) -> list[NewOffset]:
        return await move(admin, name, topic, "last", None)

    _emit_moved(with_admin(namesrv, work), name, topic, output)


@group.command()
@namesrv_option
@click.argument("source", type=CONSUMER_GROUP)
@click.argument("target", type=CONSUMER_GROUP)
@click.option("--topic", type=TOPIC, help="Which topic's offsets to copy.  [default: all that SOURCE has]")
@output_option
def clone(namesrv: str, source: str, target: str, topic: str | None, output: str) -> None:
    """Have group TARGET go on where group SOURCE is."""

    async def work(admin: Admin) -> GroupChange:
        await _require_group(admin, source)
        await admin.clone_offsets(source, target, topic=topic)
        return GroupChange(target, f"goes on where {source} is")

    emit(with_admin(namesrv, work), output, _render_change)


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@output_option
def pause(namesrv: str, name: str, output: str) -> None:
    """Have brokers give a group no messages, until it is resumed; its members stay, and their offsets."""
    _set_consuming(namesrv, name, output, may_consume=False)


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@output_option
def resume(namesrv: str, name: str, output: str) -> None:
    """Have brokers give a paused group messages again."""
    _set_consuming(namesrv, name, output, may_consume=True)


def _set_consuming(namesrv: str, name: str, output: str, *, may_consume: bool) -> None:
    async def work(admin: Admin) -> GroupChange:
        await _require_group(admin, name)
        config = (await admin.groups())[name]
        await admin.create_group(msgspec.structs.replace(config, consume_enable=may_consume))
        return GroupChange(name, "resumed" if may_consume else "paused")

    emit(with_admin(namesrv, work), output, _render_change)


def _emit_moved(moved: list[NewOffset], name: str, topic: str | None, output: str) -> None:
    if not moved:
        where = f"group {name} has read no topic" if topic is None else f"topic {topic} has no such readable queues"
        raise AdminError(f"{where}: nothing was moved")
    emit(moved, output, _render_offsets)


def _retry_policy(text: str) -> GroupRetryPolicy:
    """The policy that has these delays; raises `WrongUsageError`. The first retry takes the third of a list."""
    if text == "levels":
        return GroupRetryPolicy()
    try:
        delays = parse_delay_levels(text)
    except ValueError as error:
        raise WrongUsageError(f"--retry-delays {text!r}: {error}; or levels") from error
    return GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy((*delays[:1] * SKIPPED_DELAYS, *delays)))


async def _require_group(admin: Admin, name: str) -> None:
    if name not in await admin.groups():
        raise AdminError(f"there is no consumer group {name!r}: `dledger group list` shows those that there are")


def _render_change(result: GroupChange) -> str:
    return f"{result.group} {result.state}"


def _render_offsets(result: list[NewOffset]) -> str:
    return columns(
        ("topic", "broker group", "queue", "offset"),
        [(one.topic, one.broker_group, one.queue_id, one.offset) for one in result],
    )
