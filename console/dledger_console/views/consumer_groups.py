"""Consumer groups: members, shares and lag, and how to reset, pause, clone and delete a group."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from dledger_admin.operations import consumer_groups
from dledger_admin.operations.consumer_groups import GroupChange, GroupDescription, GroupLine, Lag
from dledger_admin.operations.errors import MissingError, OperationError
from dledger_admin.operations.group_moves import (
    AtOffset,
    NewOffset,
    move,
    what_a_clone_moves,
    what_a_group_loses,
    what_a_move_does,
)
from dledger_client import MessageQueue, StartFrom

from ..binding import BindingError
from ..lags import Lags
from ..pages import AnyChange, AnyLook, Call, Change, Look, Rows, Search, cut, select

LIST: Final = "/consumer-groups"
DELAYS_SECONDS: Final = 5.0
"""Time for which the lag in seconds is shared. Brokers look up a message for each queue."""


class Groups(msgspec.Struct, frozen=True):
    """A page of the list of consumer groups."""

    groups: list[GroupLine]
    rows: Rows


class Named(msgspec.Struct, frozen=True):
    """The name of a consumer group."""

    group: str


class Wanted(Named, frozen=True):
    """A consumer group, and the number of the page of its queues."""

    page: int = 1


class Share(msgspec.Struct, frozen=True):
    """A member, and the number of queues that it was the last to ask for."""

    client_id: str
    queues: int


class Group(msgspec.Struct, frozen=True):
    """A consumer group: its settings, its members with their shares, and its progress in one page of its queues.

    `topics` are those in which it has progress. `delays` are seconds since the next message was stored, by queue, as
    far as they are known: `topic/broker group/queue`. `lags` are those of the last hour.
    """

    description: GroupDescription
    may_consume: bool
    max_retries: int
    shares: list[Share]
    topics: list[str]
    rows: Rows
    lag: Lag
    delays: dict[str, float]
    lags: Lags


class Goal(Named, frozen=True):
    """A place where a group shall go on: at the beginning or end of each queue, at a time, or at an offset.

    `time` is in ISO 8601, in UTC if it names no time zone. Without a topic all topics are moved that the group reads.
    """

    to: Literal["beginning", "end", "time", "offset"] = "end"
    topic: str | None = None
    time: str = ""
    offset: int | None = None


class Consuming(Named, frozen=True):
    """A group that shall get messages, or none."""

    may_consume: bool


class Cloning(Named, frozen=True):
    """The group whose offsets are copied, and the group that gets them."""

    target: str


async def list_groups(call: Call, wanted: Search) -> Groups:
    """Return one page of the consumer groups, each with its members and its lag."""
    configs = await call.admin.groups()
    names, rows = select(list(configs), wanted)
    return Groups(await consumer_groups.lines_of(call.admin, {name: configs[name] for name in names}), rows)


async def describe(call: Call, wanted: Wanted) -> Group:
    """Return one consumer group. Raises `MissingError`."""
    configs, found = await asyncio.gather(call.admin.groups(), consumer_groups.describe(call.admin, wanted.group, None))
    config = configs.get(wanted.group)
    if config is None:
        raise MissingError(f"There is no consumer group {wanted.group}.")
    asked = Counter(reader for queue in found.queues for reader in queue.readers)
    shares = [Share(member.client_id, asked[member.client_id]) for member in found.members]
    lags = {MessageQueue(one.topic, one.broker_group, one.queue_id): one.lag for one in found.queues}
    waits = await call.cluster.share(
        ("delays", wanted.group, call.access.credentials),
        DELAYS_SECONDS,
        partial(consumer_groups.delays, call.admin, wanted.group, lags),
    )
    lag = consumer_groups.lag_in(lags, waits)
    call.cluster.lags.note(wanted.group, lag)
    queues, rows = cut(found.queues, wanted.page)
    return Group(
        msgspec.structs.replace(found, queues=queues),
        config.consume_enable,
        config.retry_max_times,
        shares,
        sorted({queue.topic for queue in found.queues}),
        rows,
        lag,
        {f"{queue.topic}/{queue.broker_group}/{queue.queue_id}": seconds for queue, seconds in waits.items()},
        call.cluster.lags.of(wanted.group),
    )


async def what_moves(call: Call, wanted: Goal) -> list[str]:
    """Return what a reset skips or brings again in each queue."""
    await consumer_groups.require_group(call.admin, wanted.group)
    return await what_a_move_does(call.admin, wanted.group, wanted.topic, _start(wanted), None)


async def reset(call: Call, wanted: Goal) -> list[NewOffset]:
    """Move a group. Raises `OperationError` if nothing can be moved."""
    moved = await move(call.admin, wanted.group, wanted.topic, _start(wanted), None)
    if not moved:
        raise OperationError(f"group {wanted.group} has read no such topic: nothing was moved")
    return moved


async def what_pausing_does(call: Call, wanted: Consuming) -> list[str]:
    """Return what pausing or resuming a group does."""
    await consumer_groups.require_group(call.admin, wanted.group)
    if wanted.may_consume:
        return [f"consumer group {wanted.group} gets messages again, from where it was"]
    return [f"consumer group {wanted.group} gets no messages until it is resumed; its members and offsets stay"]


async def set_consuming(call: Call, wanted: Consuming) -> GroupChange:
    """Pause or resume a group."""
    return await consumer_groups.set_consuming(call.admin, wanted.group, may_consume=wanted.may_consume)


async def what_cloning_does(call: Call, wanted: Cloning) -> list[str]:
    """Return the offsets that a clone replaces."""
    await consumer_groups.require_group(call.admin, wanted.group)
    if wanted.target not in await call.admin.groups():
        return [f"consumer group {wanted.target}, which its first consumer makes, begins where {wanted.group} is"]
    moved = await what_a_clone_moves(call.admin, wanted.group, wanted.target, None)
    return moved or [f"consumer group {wanted.target} goes on where {wanted.group} is; it loses no offset of its own"]


async def clone(call: Call, wanted: Cloning) -> GroupChange:
    """Give a group the offsets of another."""
    return await consumer_groups.clone(call.admin, wanted.group, wanted.target, None)


async def what_goes(call: Call, wanted: Named) -> list[str]:
    """Return the offsets that go with a group."""
    await consumer_groups.require_group(call.admin, wanted.group)
    return await what_a_group_loses(call.admin, wanted.group)


async def delete(call: Call, wanted: Named) -> GroupChange:
    """Delete a group that has no members."""
    return await consumer_groups.delete(call.admin, wanted.group)


def _start(wanted: Goal) -> StartFrom | AtOffset:
    match wanted.to:
        case "beginning":
            return "first"
        case "end":
            return "last"
        case "offset":
            if wanted.offset is None or wanted.offset < 0:
                raise BindingError("`offset` must be a number that is not below 0")
            return AtOffset(wanted.offset)
        case "time":
            return time_in(wanted.time)


def time_in(text: str) -> int:
    """Return a time in ISO 8601 as ms since 1970; without a time zone it is in UTC. Raises `BindingError`."""
    try:
        at = datetime.fromisoformat(text)
        return int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise BindingError(f"{text!r} is no time such as 2026-01-31T12:00") from None


def page_of(group: str) -> str:
    """Return the path of a group's page."""
    return f"{LIST}/{quote(group, safe='')}"


def _told_reset(wanted: Goal, moved: list[NewOffset]) -> str:
    return f"Consumer group {wanted.group} goes on at the {wanted.to} in {len(moved)} queues."


def _told_change(_: Named, done: GroupChange) -> str:
    return f"Consumer group {done.group} {'is ' if done.state in _STATES else ''}{done.state}."


_STATES: Final = frozenset({"deleted", "paused", "resumed"})

LOOKS: Final[list[AnyLook]] = [
    Look(
        path=LIST,
        summary="Consumer groups: state, members, lag.",
        wanted=Search,
        answer=list_groups,
        template="consumer_groups.html",
        section="consumer groups",
        is_live=True,
    ),
    Look(
        path="/consumer-groups/{group}",
        summary="A consumer group: members, their shares, and the lag of each queue.",
        wanted=Wanted,
        answer=describe,
        template="consumer_group.html",
        section="consumer groups",
        is_live=True,
    ),
]
CHANGES: Final[list[AnyChange]] = [
    Change(
        path="/consumer-groups/{group}/reset",
        summary="Reset a consumer group",
        wanted=Goal,
        effects=what_moves,
        act=reset,
        told=_told_reset,
        after=lambda wanted: page_of(wanted.group),
        section="consumer groups",
    ),
    Change(
        path="/consumer-groups/{group}/consuming",
        summary="Pause or resume a consumer group",
        wanted=Consuming,
        effects=what_pausing_does,
        act=set_consuming,
        told=_told_change,
        after=lambda wanted: page_of(wanted.group),
        section="consumer groups",
    ),
    Change(
        path="/consumer-groups/{group}/clone",
        summary="Copy the offsets of a consumer group",
        wanted=Cloning,
        effects=what_cloning_does,
        act=clone,
        told=_told_change,
        after=lambda wanted: page_of(wanted.group),
        section="consumer groups",
    ),
    Change(
        path="/consumer-groups/{group}/delete",
        summary="Delete a consumer group",
        wanted=Named,
        effects=what_goes,
        act=delete,
        told=_told_change,
        after=lambda _: LIST,
        section="consumer groups",
    ),
]
