"""Topics: their queues and consumers, and how to create, change and delete them."""

from __future__ import annotations

import asyncio
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from dledger_admin.operations import topics
from dledger_admin.operations.topics import TopicChange, TopicSettings
from dledger_client import NotFoundError, QueueRange
from dledger_remoting.topics import IDEMPOTENT_ATTRIBUTE

from ..pages import AnyChange, AnyLook, Call, Change, Look, Rows, Search, cut, select

_MAX_CONCURRENT: Final = 16
"""Maximum number of topics that are asked for at the same time."""
LIST: Final = "/topics"


class ListWanted(Search, frozen=True):
    """Parameters of the list; `system` adds topics of the service and of retries."""

    system: bool = False


class TopicLine(msgspec.Struct, frozen=True):
    """A topic in the list. `newest_ms` is when its newest message was stored, in ms since 1970."""

    topic: str
    queues: int
    messages: int
    stored_per_s: float
    newest_ms: int | None


class Topics(msgspec.Struct, frozen=True):
    """A page of the list of topics."""

    topics: list[TopicLine]
    rows: Rows


class Named(msgspec.Struct, frozen=True):
    """The name of a topic, and the number of the page of its queues."""

    topic: str
    page: int = 1


class Topic(msgspec.Struct, frozen=True):
    """A topic: its settings by broker group, one page of its queues, and the groups that consume it."""

    topic: str
    settings: list[TopicSettings]
    queues: list[QueueRange]
    rows: Rows
    messages: int
    stored_per_s: float
    consumers: list[str]


class Wish(msgspec.Struct, frozen=True):
    """Settings that a topic shall have on all broker groups; None leaves a setting as it is."""

    topic: str
    queues: int | None = None
    permission: Literal["read-write", "read", "write"] | None = None
    idempotent: Literal["yes", "no"] | None = None


async def list_topics(call: Call, wanted: ListWanted) -> Topics:
    """Return one page of the topics, each with what its queues keep."""
    names, rows = select(await topics.names(call.admin, include_system=wanted.system), wanted)
    slots = asyncio.Semaphore(_MAX_CONCURRENT)

    async def line(name: str) -> TopicLine:
        async with slots:
            try:
                found = await call.admin.topic_statistics(name)
            except NotFoundError:  # deleted meanwhile, or known to name servers only
                return TopicLine(name, 0, 0, 0.0, None)
        newest = max((queue.newest_ms for queue in found.queues if queue.newest_ms), default=None)
        messages = sum(queue.end - queue.first for queue in found.queues)
        return TopicLine(name, len(found.queues), messages, found.stored_per_s, newest)

    return Topics(list(await asyncio.gather(*map(line, names))), rows)


async def describe(call: Call, wanted: Named) -> Topic:
    """Return one topic. Raises `NotFoundError`."""
    configs, found, consumers = await asyncio.gather(
        topics.settings_of(call.admin, wanted.topic),
        call.admin.topic_statistics(wanted.topic),
        call.admin.topic_consumers(wanted.topic),
    )
    queues, rows = cut(found.queues, wanted.page)
    return Topic(
        wanted.topic,
        configs,
        queues,
        rows,
        sum(queue.end - queue.first for queue in found.queues),
        found.stored_per_s,
        consumers,
    )


async def what_changes(call: Call, wanted: Wish) -> list[str]:
    """Return what creating or changing a topic does."""
    return await topics.what_changing_does(call.admin, wanted.topic, _settings(wanted))


async def change(call: Call, wanted: Wish) -> TopicChange:
    """Create or change a topic."""
    return (await topics.change(call.admin, wanted.topic, _settings(wanted))).change


async def what_goes(call: Call, wanted: Named) -> list[str]:
    """Return what goes with a topic: its messages, and the place of the groups that consume it."""
    lines = await topics.what_deleting_loses(call.admin, wanted.topic)
    consumers = await call.admin.topic_consumers(wanted.topic)
    return [*lines, *(f"the offsets of consumer group {group} in it" for group in consumers)]


async def delete(call: Call, wanted: Named) -> TopicChange:
    """Delete a topic with its messages."""
    return await topics.delete(call.admin, wanted.topic)


def _settings(wanted: Wish) -> topics.Wish:
    attributes: dict[str, str | None] = {}
    if wanted.idempotent is not None:
        attributes[IDEMPOTENT_ATTRIBUTE] = "true" if wanted.idempotent == "yes" else None
    return topics.Wish(wanted.queues, wanted.permission, (), attributes)


def _told(wanted: Wish | Named, done: TopicChange) -> str:
    return f"Topic {wanted.topic} is {done.state}."


def page_of(topic: str) -> str:
    """Return the path of a topic's page."""
    return f"{LIST}/{quote(topic, safe='')}"


LOOKS: Final[list[AnyLook]] = [
    Look(
        path=LIST,
        summary="Topics: queues, kept messages, rates.",
        wanted=ListWanted,
        answer=list_topics,
        template="topics.html",
        section="topics",
    ),
    Look(
        path="/topics/{topic}",
        summary="A topic: settings, queues, consumers.",
        wanted=Named,
        answer=describe,
        template="topic.html",
        section="topics",
        is_live=True,
    ),
]
CHANGES: Final[list[AnyChange]] = [
    Change(
        path="/change/topic",
        summary="Create or change a topic",
        wanted=Wish,
        effects=what_changes,
        act=change,
        told=_told,
        after=lambda wanted: page_of(wanted.topic),
        section="topics",
    ),
    Change(
        path="/topics/{topic}/delete",
        summary="Delete a topic",
        wanted=Named,
        effects=what_goes,
        act=delete,
        told=_told,
        after=lambda _: LIST,
        section="topics",
    ),
]
