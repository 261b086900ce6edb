"""Topics: their names, settings and queues, and their changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from dledger_base.similar_names import did_you_mean, some_of
from dledger_client import Admin, NotFoundError
from dledger_remoting.topics import (
    DEFAULT_TOPIC_QUEUES,
    IDEMPOTENT_ATTRIBUTE,
    PERM_READ,
    PERM_READ_WRITE,
    PERM_WRITE,
    TopicConfig,
    is_retry_topic,
    reply_topic,
)

from .errors import OperationError

PERMISSIONS: Final[Mapping[str, int]] = {"read-write": PERM_READ_WRITE, "read": PERM_READ, "write": PERM_WRITE}
"""Names of the permissions of a topic."""


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
    """A topic: its settings by broker group, and its queues."""

    topic: str
    settings: list[TopicSettings]
    queues: list[QueueRange]


class TopicChange(msgspec.Struct, frozen=True):
    """A change of a topic, and what the topic is since."""

    topic: str
    state: str


class Wish(NamedTuple):
    """Settings that a topic shall have. None, and an attribute that is left out, stay as they are.

    `broker_groups` are those to change, all if there are none. An attribute with the value None is removed.
    """

    queues: int | None = None
    permission: str | None = None
    broker_groups: Sequence[str] = ()
    attributes: Mapping[str, str | None] = {}


class Changed(NamedTuple):
    """A change of a topic, with a text for each broker group on which queues cannot be read any more."""

    change: TopicChange
    hidden_queues: list[str]


async def names(admin: Admin, *, include_system: bool) -> list[str]:
    """Return the sorted names of all topics; without `include_system` only those of applications."""
    return await (admin.topics(include_system=True) if include_system else application_topics(admin))


async def application_topics(admin: Admin) -> list[str]:
    """Return the names of all topics that are neither the service's own nor for retries."""
    names = await admin.topics(include_system=False)
    info = await admin.cluster_info()
    clusters = info.cluster_addr_table
    service_topics = {*info.broker_addr_table, *clusters, *(reply_topic(cluster) for cluster in clusters)}
    return [name for name in names if name not in service_topics and not is_retry_topic(name)]


async def settings_of(admin: Admin, name: str) -> list[TopicSettings]:
    """Return a topic's settings by broker group. Raises `NotFoundError` if there is none."""
    return [
        TopicSettings(
            group,
            config.read_queue_nums,
            config.write_queue_nums,
            config.perm,
            config.attributes.get(IDEMPOTENT_ATTRIBUTE) == "true",
        )
        for group, config in sorted((await admin.topic_config(name)).items())
    ]


async def describe(admin: Admin, name: str) -> TopicDescription:
    """Return a topic's settings, and the offsets that each queue keeps."""
    return TopicDescription(name, await settings_of(admin, name), await fetch_ranges(admin, name))


async def change(admin: Admin, name: str, wish: Wish) -> Changed:
    """Create a topic, or change the settings of one. Raises `OperationError` for a wish that cannot be fulfilled."""
    plan = await _plan(admin, name, wish)
    for settings, groups in plan.groups_by_settings.items():
        await admin.create_topic(name, broker_groups=groups, attributes=wish.attributes or None, **settings._asdict())
    return Changed(TopicChange(name, "changed" if plan.exists else "created"), plan.hidden_queues)


async def what_changing_does(admin: Admin, name: str, wish: Wish) -> list[str]:
    """Describe what a change does, with a line for each broker group. Raises as `change` does."""
    plan = await _plan(admin, name, wish)
    words = {perm: word for word, perm in PERMISSIONS.items()}
    lines = [
        f"topic {name} {'has' if plan.exists else 'is made with'} {settings.queues} queues on {group}, "
        f"{words.get(settings.perm, str(settings.perm))}"
        for settings, groups in plan.groups_by_settings.items()
        for group in groups
    ]
    lines += [f"{attribute} of {name} is {value or 'removed'}" for attribute, value in wish.attributes.items()]
    lines += [f"{hidden} cannot be read until it has as many queues again" for hidden in plan.hidden_queues]
    return lines


class _Plan(NamedTuple):
    """Settings that a change sets, by broker group, and the queues that can then not be read any more."""

    exists: bool
    groups_by_settings: dict[_Settings, list[str]]
    hidden_queues: list[str]


async def _plan(admin: Admin, name: str, wish: Wish) -> _Plan:
    try:
        configs = await admin.topic_config(name)
    except NotFoundError:
        configs = {}
    registered = sorted(await admin.broker_groups())
    plan = _Plan(bool(configs), {}, [])
    for group in wish.broker_groups or registered:
        if group not in registered:
            hint = did_you_mean(group, registered)
            raise OperationError(f"broker group {group!r} is not registered, there are {some_of(registered)}{hint}")
        settings = _choose_settings(group, configs.get(group), wish.queues, wish.permission)
        plan.groups_by_settings.setdefault(settings, []).append(group)
        before = configs[group].read_queue_nums if group in configs else 0
        after = settings.queues
        if after < before:
            lost_queues = f"queue {before - 1}" if after + 1 == before else f"queues {after} to {before - 1}"
            plan.hidden_queues.append(f"{lost_queues} of {name} on {group}")
    return plan


async def what_deleting_loses(admin: Admin, name: str) -> list[str]:
    """Describe what goes with a topic. Raises `NotFoundError` if there is none."""
    await admin.topic_config(name)
    ranges = await fetch_ranges(admin, name)
    messages = sum(queue.end - queue.first for queue in ranges)
    return [f"topic {name} with {len(ranges)} queues and the {messages} messages that they keep"]


async def delete(admin: Admin, name: str) -> TopicChange:
    """Delete a topic with all its messages. Raises `NotFoundError` if there is none."""
    await admin.topic_config(name)
    await admin.delete_topic(name)
    return TopicChange(name, "deleted")


async def fetch_ranges(admin: Admin, name: str) -> list[QueueRange]:
    """Return the offsets that each queue of a topic keeps."""
    route = await admin.topic_route(name)
    return [
        QueueRange(queue.broker_group, queue.queue_id, await admin.first_offset(queue), await admin.end_offset(queue))
        for queue in sorted({*route.readable, *route.writable})
    ]


class _Settings(NamedTuple):
    """Arguments of `Admin.create_topic` that are settings, without the attributes."""

    queues: int
    perm: int
    order: bool
    filter_type: str
    sys_flag: int


def _choose_settings(group: str, existing: TopicConfig | None, queues: int | None, permission: str | None) -> _Settings:
    """Return the settings for a broker group: those that are asked for, else the present ones, else defaults.

    Raises `OperationError` if `queues` is None and the topic has different numbers of read and write queues, because
    `queues` is one number for both.
    """
    if queues is None and existing and existing.read_queue_nums != existing.write_queue_nums:
        raise OperationError(
            f"{existing.topic_name} has {existing.read_queue_nums} queues to read and {existing.write_queue_nums} to "
            f"write on {group}, say with --queues how many it shall have"
        )
    base = existing or TopicConfig("", write_queue_nums=DEFAULT_TOPIC_QUEUES)
    return _Settings(
        queues=queues or base.write_queue_nums,
        perm=PERMISSIONS[permission] if permission else base.perm,
        order=base.order,
        filter_type=base.topic_filter_type,
        sys_flag=base.topic_sys_flag,
    )
