"""Messages: finding them by key, id, time and place, what one says, what became of it, and sending."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Literal
from urllib.parse import quote

import msgspec

from dledger_admin.operations import messages, stories, tails
from dledger_admin.operations.messages import MessageView, view
from dledger_admin.operations.positions import AtTime, FromEnd, Offset, Position
from dledger_admin.operations.reading import glance
from dledger_admin.operations.stories import Event
from dledger_client import SendResult

from ..binding import BindingError
from ..bodies import Body, body_of
from ..pages import AnyChange, AnyLook, Call, Change, Look
from .consumer_groups import time_in

LIST: Final = "/messages"
MAX_FOUND: Final = 64
"""Maximum number of messages that a search shows."""
MAX_FOLLOWED: Final = 32
"""Maximum number of messages that a live tail shows."""
_SHOWN_CHARS: Final = 120
"""Maximum number of characters of a body in a list."""


class Search(msgspec.Struct, frozen=True):
    """Parameters of a search.

    `value` is a key, the unique key that a producer gave, an offset id, a time in ISO 8601, or an offset, as `by` says.
    `queue` is a number such as `3`, or `broker-a/3`, for searches by place. No search is made without a topic or an
    offset id.
    """

    topic: str = ""
    by: Literal["newest", "key", "unique key", "offset id", "time", "offset"] = "newest"
    value: str = ""
    queue: str = ""
    count: int = 20


class Line(msgspec.Struct, frozen=True):
    """A message in a list; `beginning` is the beginning of its body if that is text."""

    topic: str
    queue: str
    queue_offset: int
    offset_message_id: str
    message_id: str
    keys: tuple[str, ...]
    tag: str | None
    stored_timestamp_ms: int
    size: int
    beginning: str


class Found(msgspec.Struct, frozen=True):
    """Result of a search; None without a search."""

    messages: list[Line] | None


class Following(msgspec.Struct, frozen=True):
    """Parameters of a live tail: a topic, and a tag or an expression in SQL92. Nothing is followed without a topic."""

    topic: str = ""
    tag: str = ""
    sql: str = ""


class Named(msgspec.Struct, frozen=True):
    """The offset id of a message, and how its body is shown: `auto` is JSON, text or hex, as the body is."""

    offset_id: str
    body: Literal["auto", "text", "json", "hex"] = "auto"


class Shown(msgspec.Struct, frozen=True):
    """A message with its body as it is shown, and its story."""

    message: MessageView
    body: Body
    story: list[Event]


class Sending(msgspec.Struct, frozen=True):
    """A message to send; `key` may be several keys with spaces between them."""

    topic: str
    body: str = ""
    key: str = ""
    tag: str = ""


async def search(call: Call, wanted: Search) -> Found:
    """Return the messages that a search finds, the oldest first."""
    if not wanted.topic and wanted.by != "offset id":
        return Found(None)
    if wanted.by not in ("newest", "offset id") and not wanted.value:
        return Found(None)
    limit = min(max(1, wanted.count), MAX_FOUND)
    match wanted.by:
        case "offset id":
            found = [await messages.by_offset_id(call.admin, wanted.value)]
        case "key" | "unique key":
            unique = wanted.by == "unique key"
            found = await messages.by_key(call.admin, wanted.topic, wanted.value, unique=unique, limit=limit)
        case _:
            group, queue_id = _queue_in(wanted.queue)
            found = await glance(
                call.access, wanted.topic, _place(wanted, limit), limit, broker_group=group, queue_id=queue_id
            )
    return Found([_line(view(message)) for message in found])


@asynccontextmanager
async def follow(call: Call, wanted: Following) -> AsyncGenerator[Callable[[], Awaitable[Found]], None]:
    """Follow a topic; the function returns the newest messages that match, the newest first. None without a topic."""
    if not wanted.topic:

        async def nothing() -> Found:
            return Found(None)

        yield nothing
        return
    async with tails.tail(call.access, wanted.topic, tag=wanted.tag, sql=wanted.sql, limit=MAX_FOLLOWED) as tail:

        async def look() -> Found:
            return Found([_line(view(message)) for message in await tail.look()])

        yield look


async def follow_once(call: Call, wanted: Following) -> Found:
    """Return the newest messages of a topic that match."""
    async with follow(call, wanted) as look:
        return await look()


async def show(call: Call, wanted: Named) -> Shown:
    """Return one message with its story. Raises `OperationError` if there is none."""
    message = await messages.by_offset_id(call.admin, wanted.offset_id)
    return Shown(view(message), body_of(message, wanted.body), await stories.tell(call.admin, message))


async def what_sending_does(call: Call, wanted: Sending) -> list[str]:
    """Return what sending a message does."""
    return await messages.what_sending_does(call.admin, wanted.topic, len(wanted.body.encode()))


async def send(call: Call, wanted: Sending) -> SendResult:
    """Send a message to a topic that exists."""
    body = wanted.body.encode()
    return await messages.send(call.access, wanted.topic, body, key=wanted.key, tag=wanted.tag)


async def what_sending_again_does(call: Call, wanted: Named) -> list[str]:
    """Return what sending a copy does."""
    message = await messages.by_offset_id(call.admin, wanted.offset_id)
    lines = await messages.what_sending_does(call.admin, message.topic, len(message.body))
    return [*lines, f"message {wanted.offset_id} itself stays"]


async def send_again(call: Call, wanted: Named) -> SendResult:
    """Send a copy of a message to its topic."""
    return await messages.send_again(call.access, wanted.offset_id)


def _place(wanted: Search, limit: int) -> Position:
    match wanted.by:
        case "time":
            return AtTime(time_in(wanted.value))
        case "offset":
            if not (wanted.value.isascii() and wanted.value.isdecimal()):
                raise BindingError(f"{wanted.value!r} is no offset")
            return Offset(int(wanted.value[:18]))
        case _:
            return FromEnd(limit)


def _queue_in(text: str) -> tuple[str, int | None]:
    """Return the broker group and the number in the name of a queue. Raises `BindingError`."""
    if not text.strip():
        return "", None
    group, _, number = text.strip().rpartition("/")
    if not (number.isascii() and number.isdecimal()):
        raise BindingError(f"{text!r} is no queue such as 3 or broker-a/3")
    return group, int(number[:9])


def _line(message: MessageView) -> Line:
    size = len(message.body.encode()) if message.body is not None else len(message.body_base64 or b"")
    return Line(
        message.topic,
        f"{message.broker_group}/{message.queue_id}",
        message.queue_offset,
        message.offset_message_id,
        message.message_id,
        message.keys,
        message.tag,
        message.stored_timestamp_ms,
        size,
        (message.body or "")[:_SHOWN_CHARS],
    )


def page_of(offset_id: str) -> str:
    """Return the path of a message's page."""
    return f"{LIST}/{quote(offset_id, safe='')}"


def _told(_: Sending | Named, done: SendResult) -> str:
    place = f"{done.broker_group}/{done.queue_id}, offset {done.queue_offset}"
    return f"The message is stored in topic {done.topic}, queue {place}; its unique key is {done.message_id}."


LOOKS: Final[list[AnyLook]] = [
    Look(
        path=LIST,
        summary="Search for messages by key, id, time, or place.",
        wanted=Search,
        answer=search,
        template="messages.html",
        section="messages",
    ),
    Look(
        path="/tail",
        summary="The newest messages of a topic, as they come, by tag or SQL92.",
        wanted=Following,
        answer=follow_once,
        template="tail.html",
        section="messages",
        is_live=True,
        follow=follow,
    ),
    Look(
        path="/messages/{offset_id}",
        summary="A message: its body, its properties, and what became of it.",
        wanted=Named,
        answer=show,
        template="message.html",
        section="messages",
    ),
]
CHANGES: Final[list[AnyChange]] = [
    Change(
        path="/change/message",
        summary="Send a message",
        wanted=Sending,
        effects=what_sending_does,
        act=send,
        told=_told,
        after=lambda wanted: f"{LIST}?topic={quote(wanted.topic, safe='')}",
        section="messages",
    ),
    Change(
        path="/messages/{offset_id}/again",
        summary="Send a message again",
        wanted=Named,
        effects=what_sending_again_does,
        act=send_again,
        told=_told,
        after=lambda wanted: page_of(wanted.offset_id),
        section="messages",
    ),
]
