"""Consumer groups: their state, members, progress and readers, and the changes of a group as a whole."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from dledger_base.similar_names import did_you_mean
from dledger_client import (
    Admin,
    GroupMember,
    MessageQueue,
    NoRouteError,
    NotFoundError,
    QueueReader,
    QueueStatus,
    RefusedError,
)
from dledger_remoting.retry_policies import GroupRetryPolicy
from dledger_remoting.topics import SubscriptionGroupConfig, retry_topic

from .access import is_right_refused
from .errors import MissingError

State: TypeAlias = Literal["empty", "stable", "inconsistent"]
"""State of a group: it has no members; all subscribe to the same; they differ, so that some miss messages."""

_MAX_CONCURRENT_GROUPS: Final = 32
"""Maximum number of groups that are asked for at the same time."""
MAX_DELAY_QUEUES: Final = 1024
"""Maximum number of queues of a topic whose lag in seconds is asked for. A broker looks up a message for each."""


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


class Lag(msgspec.Struct, frozen=True):
    """Lag of a group: the messages that it has not consumed, and how long ago the oldest of these was stored.

    `seconds` is 0 without lag, and None if no broker tells this account.
    """

    messages: int
    seconds: float | None


class GroupChange(msgspec.Struct, frozen=True):
    """A change of a group, and what the group is since."""

    group: str
    state: str


async def list_lines(admin: Admin) -> list[GroupLine]:
    """Return all groups by name; every broker group is asked about each."""
    return await lines_of(admin, await admin.groups())


async def lines_of(admin: Admin, groups: Mapping[str, SubscriptionGroupConfig]) -> list[GroupLine]:
    """Return the lines of these groups, in their order."""
    slots = asyncio.Semaphore(_MAX_CONCURRENT_GROUPS)

    async def line(name: str, config: SubscriptionGroupConfig) -> GroupLine:
        async with slots:
            members, progress = await asyncio.gather(admin.members(name), admin.progress(name))
        lag = sum(status.lag for status in progress)
        return GroupLine(name, _judge_state(members), len(members), lag, config.consume_enable, config.retry_max_times)

    return list(await asyncio.gather(*(line(*item) for item in groups.items())))


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


async def delays(admin: Admin, name: str, lags: Mapping[MessageQueue, int]) -> dict[MessageQueue, float]:
    """Return how long ago, in seconds, the next message of a group was stored, by queue.

    `lags` are those of all queues of the group; only topics with a lag are asked for. Topics that are gone, that the
    account may not see, or that have more than `MAX_DELAY_QUEUES` queues are left out.
    """
    sizes = Counter(queue.topic for queue in lags)
    topics = {queue.topic for queue, lag in lags.items() if lag and sizes[queue.topic] <= MAX_DELAY_QUEUES}
    found: dict[MessageQueue, float] = {}
    for topic in sorted(topics):
        try:
            found |= await admin.delays(name, topic)
        except NoRouteError:
            continue
        except RefusedError as error:
            if not is_right_refused(error) and not isinstance(error, NotFoundError):
                raise
    return found


async def lag_of(admin: Admin, name: str) -> Lag:
    """Return the lag of a group over all queues."""
    lags = {status.queue: status.lag for status in await admin.progress(name)}
    return lag_in(lags, await delays(admin, name, lags))


def lag_in(lags: Mapping[MessageQueue, int], waits: Mapping[MessageQueue, float]) -> Lag:
    """Return the lag over some queues, of which `waits` has the seconds since their next messages were stored."""
    behind = [queue for queue, lag in lags.items() if lag]
    if not behind:
        return Lag(0, 0.0)
    return Lag(sum(lags.values()), max((waits[queue] for queue in behind if queue in waits), default=None))


async def require_group(admin: Admin, name: str) -> SubscriptionGroupConfig:
    """Return the settings of a group. Raises `MissingError` if there is none."""
    groups = await admin.groups()
    if name not in groups:
        hint = did_you_mean(name, groups)
        raise MissingError(
            f"there is no consumer group {name!r}", f"`dledger group list` shows those that there are{hint}"
        )
    return groups[name]


async def create(
    admin: Admin, name: str, retries: int | None, policy: GroupRetryPolicy | None, *, ordered: bool | None
) -> GroupChange:
    """Create a group, or change it: redeliveries and their delays, order through a proxy. None leaves a setting."""
    existing = (await admin.groups()).get(name)
    config = existing or SubscriptionGroupConfig(group_name=name)
    if retries is not None:
        config = msgspec.structs.replace(config, retry_max_times=retries)
    if policy is not None:
        config = msgspec.structs.replace(config, group_retry_policy=policy)
    if ordered is not None:
        config = msgspec.structs.replace(config, consume_message_orderly=ordered)
    await admin.create_group(config)
    return GroupChange(name, "changed" if existing else "created")


async def delete(admin: Admin, name: str) -> GroupChange:
    """Delete a group with its offsets. Raises `MissingError` if there is none, `GroupInUseError` with members."""
    await require_group(admin, name)
    await admin.delete_group(name)
    return GroupChange(name, "deleted")


async def set_consuming(admin: Admin, name: str, *, may_consume: bool) -> GroupChange:
    """Pause or resume a group. Raises `MissingError` if there is none."""
    config = await require_group(admin, name)
    await admin.create_group(msgspec.structs.replace(config, consume_enable=may_consume))
    return GroupChange(name, "resumed" if may_consume else "paused")


async def clone(admin: Admin, source: str, target: str, topic: str | None) -> GroupChange:
    """Give a group the offsets of another, in a topic or in all. Raises `MissingError` without that other group.

    A missing target is created with the settings of the other group. Offsets alone would not be listed as a group.
    """
    config = await require_group(admin, source)
    is_new = target not in await admin.groups()
    if is_new:
        await admin.create_group(msgspec.structs.replace(config, group_name=target))
    await admin.clone_offsets(source, target, topic=topic)
    return GroupChange(target, f"{'created, ' if is_new else ''}goes on where {source} is")


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
