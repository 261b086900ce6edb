"""`dledger group`: consumer groups and their offsets."""

from __future__ import annotations

import click

from dledger_client import Admin, StartFrom
from dledger_remoting.recalls import parse_delay_levels
from dledger_remoting.retry_policies import SKIPPED_DELAYS, CustomizedRetryPolicy, GroupRetryPolicy
from dledger_remoting.topics import SubscriptionGroupConfig

from ..asking import Asking, asks_first
from ..errors import AdminError, WrongUsageError
from ..help import HelpGroup
from ..operations import consumer_groups
from ..operations.consumer_groups import GroupChange, GroupDescription
from ..operations.group_moves import (
    AtOffset,
    NewOffset,
    move,
    what_a_clone_moves,
    what_a_group_loses,
    what_a_move_does,
)
from ..output import columns, emit, output_option
from .client_calls import with_admin
from .group_view import render_description, render_list
from .names import CONSUMER_GROUP, TOPIC
from .options import namesrv_option, time_ms

_AT_OFFSET = "offset:"
_DEFAULT_RETRIES = SubscriptionGroupConfig(group_name="").retry_max_times


@click.group(cls=HelpGroup)
def group() -> None:
    """Create, delete, list and describe consumer groups, and move their offsets."""


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@click.option(
    "--retries",
    type=click.IntRange(min=0),
    help=f"Maximum number of redeliveries of a failed message.  [default: {_DEFAULT_RETRIES}, later as before]",
)
@click.option(
    "--retry-delays",
    metavar="DELAYS",
    help="Delays before the redeliveries of a failed message, such as '10s 1m 1h'; the last one repeats. 'levels' "
    "means the brokers' delay levels.  [default: levels, later as before]",
)
@click.option(
    "--ordered/--no-ordered",
    default=None,
    help="Deliver messages in their order to clients that come through a proxy.  [default: no, later as before]",
)
@output_option
def create(
    namesrv: str, name: str, retries: int | None, retry_delays: str | None, ordered: bool | None, output: str
) -> None:
    """Create a consumer group, or change one; brokers create them on first use unless `auto_create_group` is false."""

    policy = None if retry_delays is None else _parse_retry_policy(retry_delays)

    async def work(admin: Admin) -> GroupChange:
        return await consumer_groups.create(admin, name, retries, policy, ordered=ordered)

    emit(with_admin(namesrv, work), output, _render_change)


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@asks_first
@output_option
def delete(namesrv: str, name: str, output: str, asking: Asking) -> None:
    """Delete a consumer group with its offsets; refused while it has members."""

    async def list_effects(admin: Admin) -> list[str]:
        await consumer_groups.require_group(admin, name)
        return await what_a_group_loses(admin, name)

    if not asking.agreed(lambda: with_admin(namesrv, list_effects), output):
        return

    async def work(admin: Admin) -> GroupChange:
        return await consumer_groups.delete(admin, name)

    emit(with_admin(namesrv, work), output, _render_change)


@group.command("list")
@namesrv_option
@output_option
def list_groups(namesrv: str, output: str) -> None:
    """List consumer groups by name, with their state and how many messages they are behind.

    A group is empty, stable, or inconsistent: its members subscribe to different things.
    """

    emit(with_admin(namesrv, consumer_groups.list_lines), output, render_list)


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@click.option(
    "--topic",
    type=TOPIC,
    help="Show the queues of this topic.  [default: all that members subscribe to; without members, all with offsets]",
)
@output_option
def describe(namesrv: str, name: str, topic: str | None, output: str) -> None:
    """Show the members of a group, its progress in each queue, and the last reader of the queue.

    Members share the queues among themselves and tell no broker. The reader of a queue is the last client that asked a
    node for its messages within two minutes.
    """

    async def work(admin: Admin) -> GroupDescription:
        description = await consumer_groups.describe(admin, name, topic)
        if not description.members and all(queue.committed is None for queue in description.queues):
            await consumer_groups.require_group(admin, name)
        return description

    emit(with_admin(namesrv, work), output, render_description)


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@click.option("--topic", type=TOPIC, help="Move the offsets of this topic.  [default: all topics that it reads]")
@click.option(
    "--queue", type=click.IntRange(min=0), help="Move the offsets of the queues with this number.  [default: all]"
)
@click.option(
    "--to",
    "position",
    required=True,
    help="beginning, end, offset:N, a time such as 2026-01-31T12:00, an age such as -15m, or ms since 1970.",
)
@asks_first
@output_option
def reset(
    namesrv: str, name: str, topic: str | None, queue: int | None, position: str, output: str, asking: Asking
) -> None:
    """Move a group's offsets. Its members go on there, and later commits of earlier reads do not count.

    The reset is refused, with the names of the members, if members broadcast: they keep their own offsets.
    """

    target = start_point(position)
    if not asking.agreed(lambda: _list_moves(namesrv, name, topic, target, queue), output):
        return

    async def work(admin: Admin) -> list[NewOffset]:
        return await move(admin, name, topic, target, queue)

    _emit_moved(with_admin(namesrv, work), name, topic, output)


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@click.option("--topic", type=TOPIC, help="Skip the messages of this topic.  [default: all topics that it reads]")
@asks_first
@output_option
def skip(namesrv: str, name: str, topic: str | None, output: str, asking: Asking) -> None:
    """Skip all messages that a group is behind; the same as `reset --to end`."""
    if not asking.agreed(lambda: _list_moves(namesrv, name, topic, "last", None), output):
        return

    async def work(admin: Admin) -> list[NewOffset]:
        return await move(admin, name, topic, "last", None)

    _emit_moved(with_admin(namesrv, work), name, topic, output)


@group.command()
@namesrv_option
@click.argument("source", type=CONSUMER_GROUP)
@click.argument("target", type=CONSUMER_GROUP)
@click.option("--topic", type=TOPIC, help="Copy the offsets of this topic.  [default: all that SOURCE has]")
@asks_first
@output_option
def clone(namesrv: str, source: str, target: str, topic: str | None, output: str, asking: Asking) -> None:
    """Copy the offsets of group SOURCE to group TARGET. If TARGET has offsets that change, the command asks first.

    A missing TARGET is created with the settings of SOURCE.
    """

    async def look(admin: Admin) -> list[str]:
        await consumer_groups.require_group(admin, source)
        return await what_a_clone_moves(admin, source, target, topic)

    moved = [] if asking.yes else with_admin(namesrv, look)
    asks = bool(moved) or asking.yes or asking.dry_run
    if asks and not asking.agreed(lambda: moved or [f"nothing: no offset of {target} changes"], output):
        return

    async def work(admin: Admin) -> GroupChange:
        return await consumer_groups.clone(admin, source, target, topic)

    emit(with_admin(namesrv, work), output, _render_change)


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@output_option
def pause(namesrv: str, name: str, output: str) -> None:
    """Give a group no messages until it is resumed; its members and offsets stay."""
    _set_consuming(namesrv, name, output, may_consume=False)


@group.command()
@namesrv_option
@click.argument("name", type=CONSUMER_GROUP)
@output_option
def resume(namesrv: str, name: str, output: str) -> None:
    """Give messages to a paused group again."""
    _set_consuming(namesrv, name, output, may_consume=True)


def _list_moves(
    namesrv: str, name: str, topic: str | None, target: StartFrom | AtOffset, queue: int | None
) -> list[str]:
    async def list_effects(admin: Admin) -> list[str]:
        return await what_a_move_does(admin, name, topic, target, queue)

    return with_admin(namesrv, list_effects)


def _set_consuming(namesrv: str, name: str, output: str, *, may_consume: bool) -> None:
    async def work(admin: Admin) -> GroupChange:
        return await consumer_groups.set_consuming(admin, name, may_consume=may_consume)

    emit(with_admin(namesrv, work), output, _render_change)


def _emit_moved(moved: list[NewOffset], name: str, topic: str | None, output: str) -> None:
    if not moved:
        reason = f"group {name} has read no topic" if topic is None else f"topic {topic} has no such readable queues"
        raise AdminError(f"{reason}: nothing was moved")
    emit(moved, output, _render_offsets)


def _parse_retry_policy(text: str) -> GroupRetryPolicy:
    """Return the policy with these delays; raises `WrongUsageError`. The first retry takes a list's third delay."""
    if text == "levels":
        return GroupRetryPolicy()
    try:
        delays = parse_delay_levels(text)
    except ValueError as error:
        raise WrongUsageError(f"--retry-delays {text!r}: {error}; or levels") from error
    return GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy((*delays[:1] * SKIPPED_DELAYS, *delays)))


def start_point(text: str) -> StartFrom | AtOffset:
    """Return the place to move to. A date without a time zone is in local time. Raises `WrongUsageError`."""
    if text in ("first", "beginning"):
        return "first"
    if text in ("last", "end"):
        return "last"
    if text.startswith(_AT_OFFSET):
        number = text.removeprefix(_AT_OFFSET)
        if not number.isdecimal():
            raise WrongUsageError(f"--to {text!r}: an offset is a number that is not below 0, such as offset:42")
        return AtOffset(int(number))
    return time_ms("--to", text, otherwise="beginning, end, offset:N, ")


def _render_change(result: GroupChange) -> str:
    return f"{result.group} {result.state}"


def _render_offsets(result: list[NewOffset]) -> str:
    return columns(
        ("topic", "broker group", "queue", "offset"),
        [(new_offset.topic, new_offset.broker_group, new_offset.queue_id, new_offset.offset) for new_offset in result],
    )
