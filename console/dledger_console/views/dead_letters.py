"""Dead letters: which groups have them, why each died, and sending them again."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import quote

import msgspec

from dledger_admin.operations import consumer_groups, dead_letters
from dledger_admin.operations.dead_letters import DeadLetters, Resent
from dledger_admin.operations.errors import OperationError
from dledger_client import NoRouteError, ReceivedMessage
from dledger_remoting.topics import DLQ_PREFIX, is_dead_letter_topic

from ..pages import AnyChange, AnyLook, Call, Change, Look, Rows, Search, select

LIST: Final = "/dead-letters"
MAX_SHOWN: Final = 500
"""Maximum number of dead letters on one page."""
_MAX_LISTED_EFFECTS: Final = 20
_SHOWN_CHARS: Final = 120


class Groups(msgspec.Struct, frozen=True):
    """A page of the groups that have had dead letters, with how many of them are kept."""

    groups: list[DeadLetters]
    rows: Rows


class Named(msgspec.Struct, frozen=True):
    """The name of a consumer group, and how many of its newest dead letters to show."""

    group: str
    count: int = 50


class Letter(msgspec.Struct, frozen=True):
    """A dead letter: where it came from, how often and why its group failed, and the beginning of its body."""

    offset_message_id: str
    message_id: str
    topic: str
    keys: tuple[str, ...]
    tag: str | None
    born_timestamp_ms: int
    died_timestamp_ms: int
    failures: int
    size: int
    beginning: str
    fault: str | None
    reason: str | None


class Letters(msgspec.Struct, frozen=True):
    """The newest dead letters of a group, the newest first. `kept` counts all; `max_retries` is the group's limit."""

    group: str
    letters: list[Letter]
    kept: int
    max_retries: int


class Resending(msgspec.Struct, frozen=True):
    """The dead letters to send again: those with these offset ids, or all. `again` sends also those sent before."""

    group: str
    ids: list[str] = []
    everything: bool = False
    topic: str | None = None
    again: bool = False


async def list_groups(call: Call, wanted: Search) -> Groups:
    """Return one page of the groups that have a topic of dead letters."""
    topics = [topic for topic in await call.admin.topics(include_system=True) if is_dead_letter_topic(topic)]
    names, rows = select(sorted(topic.removeprefix(DLQ_PREFIX) for topic in topics), wanted)
    counts = await asyncio.gather(*(dead_letters.count(call.admin, name) for name in names))
    return Groups([DeadLetters(name, kept) for name, kept in zip(names, counts, strict=True)], rows)


async def show(call: Call, wanted: Named) -> Letters:
    """Return the newest dead letters of a group. Raises `OperationError` if there is no such group."""
    config = await consumer_groups.require_group(call.admin, wanted.group)
    try:
        kept = await dead_letters.count(call.admin, wanted.group)
    except NoRouteError:  # it never had any
        return Letters(wanted.group, [], 0, config.retry_max_times)
    count = min(max(1, wanted.count), MAX_SHOWN)
    found = await dead_letters.newest(call.admin, call.access, wanted.group, count)
    return Letters(wanted.group, [_letter(message) for message in reversed(found)], kept, config.retry_max_times)


async def what_resending_does(call: Call, wanted: Resending) -> list[str]:
    """Return where each dead letter goes."""
    _require_choice(wanted)
    if wanted.everything:
        kept = await dead_letters.count(call.admin, wanted.group)
        where = f"to topic {wanted.topic}" if wanted.topic else "to the topic where it came from"
        repeated = "also if that was done before" if wanted.again else "unless that was done before"
        return [f"each of {dead_letters.counted(kept)} of {wanted.group} is sent {where}, {repeated}"]
    found = await dead_letters.named(call.admin, wanted.group, wanted.ids)
    lines = [
        f"{letter.offset_message_id} is sent to topic {wanted.topic or letter.topic}, whose groups all get it"
        for letter in found[:_MAX_LISTED_EFFECTS]
    ]
    more = len(found) - _MAX_LISTED_EFFECTS
    return [*lines, f"and {more} more"] if more > 0 else lines


async def resend(call: Call, wanted: Resending) -> Resent:
    """Send dead letters again; they stay where they are."""
    _require_choice(wanted)
    result = Resent(wanted.group)
    ids = () if wanted.everything else tuple(wanted.ids)
    order = dead_letters.Wanted(wanted.group, ids, topic=wanted.topic, again=wanted.again)
    await dead_letters.resend(call.access, order, result)
    return result


def _require_choice(wanted: Resending) -> None:
    if wanted.everything == bool(wanted.ids):
        raise OperationError("Choose dead letters, or all of them.")


def _letter(message: ReceivedMessage) -> Letter:
    return Letter(
        message.offset_message_id,
        message.message_id,
        message.topic,
        message.keys,
        message.tags,
        message.born_timestamp_ms,
        message.stored_timestamp_ms,
        message.reconsume_times,
        len(message.body),
        message.body[: _SHOWN_CHARS * 4].decode(errors="replace")[:_SHOWN_CHARS],
        message.fault,
        message.failure_reason,
    )


def _told(_: Resending, done: Resent) -> str:
    text = f"{dead_letters.counted(done.resent)} sent again, {done.already} were sent before."
    if done.failed:
        first = done.failed[0]
        text += f" {len(done.failed)} could not be sent: {first.offset_message_id} to {first.topic}: {first.reason}."
    return text


def page_of(group: str) -> str:
    """Return the path of the page of a group's dead letters."""
    return f"{LIST}/{quote(group, safe='')}"


LOOKS: Final[list[AnyLook]] = [
    Look(
        path=LIST,
        summary="Consumer groups with dead letters.",
        wanted=Search,
        answer=list_groups,
        template="dead_letters.html",
        section="dead letters",
    ),
    Look(
        path="/dead-letters/{group}",
        summary="Dead letters of a consumer group, and why they died.",
        wanted=Named,
        answer=show,
        template="dead_letter_group.html",
        section="dead letters",
    ),
]
CHANGES: Final[list[AnyChange]] = [
    Change(
        path="/dead-letters/{group}/resend",
        summary="Send dead letters again",
        wanted=Resending,
        effects=what_resending_does,
        act=resend,
        told=_told,
        after=lambda wanted: page_of(wanted.group),
        section="dead letters",
    ),
]
