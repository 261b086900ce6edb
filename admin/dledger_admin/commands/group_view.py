"""Views of consumer groups, as `group list` and `group describe` show them: state, members, progress and readers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from dledger_client import Admin, GroupMember, MessageQueue, QueueReader, QueueStatus
from dledger_remoting.topics import SubscriptionGroupConfig, retry_topic

from ..output import columns

State: TypeAlias = Literal["empty", "stable", "inconsistent"]
"""Nobody is in the group; all members subscribe to the same; members differ, and messages pass some of them by."""

_AT_ONCE: Final = 32
"""Groups that are asked for at the same time."""


class GroupLine(msgspec.Struct, frozen=True):
    """A consumer group in `group list`; `lag` is that of all its queues."""

    group: str
    state: State
    members: int
    lag: int
    may_consume: bool
    max_retries: int


class Member(msgspec.Struct, frozen=True):
    """A member of a group, with expressions by topic."""

    client_id: str
    address: str
    language: str
    subscriptions: dict[str, str]


class QueueProgress(msgspec.Struct, frozen=True):
    """How far a group is in one queue; `committed` is null before its first commit, `lag` counts messages.

    `readers` are the client ids on the connection that asked last for messages of the queue, `reader_address` is its
    address, both empty if none did within two minutes; `idle_seconds` have passed since.
    """

    topic: str
    broker_group: str
    queue_id: int
    first: int
    end: int
    committed: int | None
    lag: int
    readers: list[str] = []
    reader_address: str | None = None
    idle_seconds: float | None = None


class GroupDescription(msgspec.Struct, frozen=True):
    """Result of `group describe`."""

    group: str
    state: State
    lag: int
    broadcast: bool
    members: list[Member]
    queues: list[QueueProgress]


async def list_lines(admin: Admin) -> list[GroupLine]:
    """All groups by name; each is asked for at every broker group."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def line(name: str, config: SubscriptionGroupConfig) -> GroupLine:
        async with turns:
            members, progress = await asyncio.gather(admin.members(name), admin.progress(name))
        lag = sum(one.lag for one in progress)
        return GroupLine(name, _state(members), len(members), lag, config.consume_enable, config.retry_max_times)

    return list(await asyncio.gather(*(line(*item) for item in (await admin.groups()).items())))


async def describe(admin: Admin, name: str, topic: str | None) -> GroupDescription:
    """One group; its retry topic is left out if nothing waits there."""
    members, readers, progress = await asyncio.gather(
        admin.members(name), admin.readers(name), admin.progress(name, topic)
    )
    own = retry_topic(name)
    waits = topic is not None or any(one.lag for one in progress if one.queue.topic == own)
    queues = [_progress(one, readers, members) for one in progress if waits or one.queue.topic != own]
    return GroupDescription(
        name,
        _state(members),
        sum(one.lag for one in queues),
        any(one.broadcast for one in members),
        [Member(one.client_id, one.address, one.language, one.subscriptions) for one in members],
        queues,
    )


def render_list(result: Sequence[GroupLine]) -> str:
    """A table."""
    rows = [
        (one.group, one.state, one.members, one.lag, "yes" if one.may_consume else "no", one.max_retries)
        for one in result
    ]
    return columns(("group", "state", "members", "lag", "may consume", "retries"), rows)


def render_description(result: GroupDescription) -> str:
    """A table of queues, one of members above it if there are some, and a summary."""
    parts: list[str] = []
    if result.members:
        members = [
            (one.client_id, one.address, one.language, ", ".join(f"{t}: {e}" for t, e in one.subscriptions.items()))
            for one in result.members
        ]
        parts += [columns(("member", "address", "language", "subscribes to"), members), ""]
    queues = [
        (one.topic, one.broker_group, one.queue_id, one.first, one.end, one.committed, one.lag, _reader(one))
        for one in result.queues
    ]
    header = ("topic", "broker group", "queue", "first", "end", "committed", "lag", "last read by")
    parts += [columns(header, queues), f"{result.state}, {result.lag} messages behind"]
    if result.broadcast:
        parts.append("broadcast: every member reads all queues, and keeps its offsets itself")
    if result.state == "inconsistent":
        parts.append(
            "members subscribe to different things: give all of them the same topics and tags, or messages are missed"
        )
    return "\n".join(parts)


def _state(members: Sequence[GroupMember]) -> State:
    if not members:
        return "empty"
    return "stable" if all(one.subscriptions == members[0].subscriptions for one in members) else "inconsistent"


def _progress(
    status: QueueStatus, readers: Mapping[MessageQueue, QueueReader], members: Sequence[GroupMember]
) -> QueueProgress:
    reader = readers.get(status.queue)
    known = QueueProgress(*status.queue, status.first, status.end, status.committed, status.lag)
    if reader is None:
        return known
    ids = sorted({member.client_id for member in members}.intersection(reader.client_ids))
    return msgspec.structs.replace(known, readers=ids, reader_address=reader.address, idle_seconds=reader.idle_seconds)


def _reader(one: QueueProgress) -> str | None:
    """Who reads a queue; one that does not heartbeat is known by its address alone."""
    if one.reader_address is None or one.idle_seconds is None:
        return None
    who = ", ".join(one.readers) or f"{one.reader_address}, no member"
    return f"{who} ({one.idle_seconds:.0f} s ago)"
