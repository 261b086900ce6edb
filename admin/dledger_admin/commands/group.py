"""`dledger group`: consumer groups and their offsets."""

from __future__ import annotations

import click
import msgspec

from dledger_client import Admin, StartFrom
from dledger_remoting.delays import parse_delay_levels
from dledger_remoting.retry_policies import SKIPPED_DELAYS, CustomizedRetryPolicy, GroupRetryPolicy
from dledger_remoting.topics import SubscriptionGroupConfig

from ..errors import AdminError, WrongUsageError
from ..help import HelpGroup
from ..output import columns, emit, output_option
from .client_calls import with_admin
from .group_view import GroupDescription, list_lines, render_description, render_list
from .group_view import describe as describe_group
from .names import CONSUMER_GROUP, TOPIC
from .options import namesrv_option, time_ms

_DEFAULT_RETRIES = SubscriptionGroupConfig(group_name="").retry_max_times


class GroupChange(msgspec.Struct, frozen=True):
    """Result of `group create` and `group delete`."""

    group: str
    state: str


class NewOffset(msgspec.Struct, frozen=True):
    """One queue in the result of `group reset`."""

    broker_group: str
    queue_id: int
    offset: int


def start_point(text: str) -> StartFrom:
    """Return what `Admin.reset_offsets` takes; a date without a time zone is in local time."""
    if text in ("first", "beginning"):
        return "first"
    if text in ("last", "end"):
        return "last"
    return time_ms("--to", text, otherwise="beginning, end, ")


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
@click.option("--topic", type=TOPIC, required=True, help="Where to move it.")
@click.option(
    "--to",
    "position",
    required=True,
    help="beginning, end, a time such as 2026-01-31T12:00, an age such as -15m, or ms since 1970.",
)
@output_option
def reset(namesrv: str, name: str, topic: str, position: str, output: str) -> None:
    """Move a group's offsets in a topic; refused while it has members."""

    target = start_point(position)

    async def work(admin: Admin) -> list[NewOffset]:
        moved = await admin.reset_offsets(name, topic, target)
        return [NewOffset(queue.broker_group, queue.queue_id, offset) for queue, offset in sorted(moved.items())]

    offsets = with_admin(namesrv, work)
    if not offsets:
        raise AdminError(f"topic {topic} has no readable queues: nothing was moved")
    emit(offsets, output, _render_offsets)


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
        ("broker group", "queue", "offset"), [(one.broker_group, one.queue_id, one.offset) for one in result]
    )
