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
"""State of a group: it has no members; all subscribe to the same; they differ, so that some miss messages."""

_MAX_CONCURRENT_GROUPS: Final = 32
"""Maximum number of groups that are asked for at the same time."""


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
    """Progress of a group in one queue. `committed` is null before its first commit, `lag` counts messages.

    `readers` are the client ids on the connection that asked last for messages of the queue. `reader_address` is the
    address of that connection. Both are empty if no connection asked within two minutes. `idle_seconds` have passed
    since it asked.
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
    """Return all groups by name; every broker group is asked about each."""
    slots = asyncio.Semaphore(_MAX_CONCURRENT_GROUPS)

    async def line(name: str, config: SubscriptionGroupConfig) -> GroupLine:
        async with slots:
            members, progress = await asyncio.gather(admin.members(name), admin.progress(name))
        lag = sum(status.lag for status in progress)
        return GroupLine(name, _judge_state(members), len(members), lag, config.consume_enable, config.retry_max_times)

    return list(await asyncio.gather(*(line(*item) for item in (await admin.groups()).items())))


async def describe(admin: Admin, name: str, topic: str | None) -> GroupDescription:
    """Return one group; its retry topic is left out if nothing waits there."""
    members, readers, progress = await asyncio.gather(
        admin.members(name), admin.readers(name), admin.progress(name, topic)
    )
    own_retry_topic = retry_topic(name)
    shows_retry_topic = topic is not None or any(
        status.lag for status in progress if status.queue.topic == own_retry_topic
    )
    queues = [
        _describe_progress(status, readers, members)
        for status in progress
        if shows_retry_topic or status.queue.topic != own_retry_topic
    ]
    return GroupDescription(
        name,
        _judge_state(members),
        sum(queue.lag for queue in queues),
        any(member.broadcast for member in members),
        [Member(member.client_id, member.address, member.language, member.subscriptions) for member in members],
        queues,
    )


def render_list(result: Sequence[GroupLine]) -> str:
    """Return a table."""
    if not result:
        return "there are no consumer groups: the first consumer of a group makes it"
    rows = [
        (line.group, line.state, line.members, line.lag, "yes" if line.may_consume else "no", line.max_retries)
        for line in result
    ]
    return columns(("group", "state", "members", "lag", "may consume", "retries"), rows)


def render_description(result: GroupDescription) -> str:
    """Return a table of members, if there are any, a table of queues, and a summary."""
    parts: list[str] = []
    if result.members:
        members = [
            (
                member.client_id,
                member.address,
                member.language,
                ", ".join(f"{topic}: {expression}" for topic, expression in member.subscriptions.items()),
            )
            for member in result.members
        ]
        parts += [columns(("member", "address", "language", "subscribes to"), members), ""]
    queues = [
        (
            queue.topic,
            queue.broker_group,
            queue.queue_id,
            queue.first,
            queue.end,
            queue.committed,
            queue.lag,
            _format_reader(queue),
        )
        for queue in result.queues
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


def _judge_state(members: Sequence[GroupMember]) -> State:
    if not members:
        return "empty"
    return "stable" if all(member.subscriptions == members[0].subscriptions for member in members) else "inconsistent"


def _describe_progress(
    status: QueueStatus, readers: Mapping[MessageQueue, QueueReader], members: Sequence[GroupMember]
) -> QueueProgress:
    reader = readers.get(status.queue)
    progress = QueueProgress(*status.queue, status.first, status.end, status.committed, status.lag)
    if reader is None:
        return progress
    ids = sorted({member.client_id for member in members}.intersection(reader.client_ids))
    return msgspec.structs.replace(
        progress, readers=ids, reader_address=reader.address, idle_seconds=reader.idle_seconds
    )


def _format_reader(queue: QueueProgress) -> str | None:
    """Return the reader of a queue. A reader without heartbeats is known by its address alone."""
    if queue.reader_address is None or queue.idle_seconds is None:
        return None
    reader = ", ".join(queue.readers) or f"{queue.reader_address}, no member"
    return f"{reader} ({queue.idle_seconds:.0f} s ago)"
