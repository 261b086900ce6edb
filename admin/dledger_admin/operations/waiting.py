"""Messages that wait: delayed ones until they are due, and halves of transactions until somebody decides."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import msgspec

from dledger_client import Admin
from dledger_remoting.errors import IllegalOperation
from dledger_remoting.recalls import RecallHandle

from .access import Access
from .each_group import ask_each
from .errors import OperationError
from .messages import PRODUCER_GROUP

MAX_SHOWN: Final = 100
"""Maximum number of messages of a broker group that are returned."""


class Delayed(msgspec.Struct, frozen=True):
    """A delayed message. `handle` recalls it."""

    broker_group: str
    topic: str
    queue_id: int
    due_ms: int
    unique_key: str
    size: int
    handle: str


class DelayedMessages(msgspec.Struct, frozen=True):
    """The delayed messages that are due next, of all broker groups. `pending` counts all that wait.

    `unseen` has a sentence for each broker group that does not answer.
    """

    messages: list[Delayed]
    pending: int
    unseen: list[str]


class Half(msgspec.Struct, frozen=True):
    """A transaction without an outcome. Its producer group is asked for the outcome again at `next_check_ms`."""

    broker_group: str
    topic: str
    producer_group: str
    unique_key: str
    born_ms: int
    checks: int
    next_check_ms: int
    size: int


class Halves(msgspec.Struct, frozen=True):
    """The oldest open transactions of all broker groups. `pending` counts all of them.

    `unseen` has a sentence for each broker group that does not answer.
    """

    halves: list[Half]
    pending: int
    unseen: list[str]


class Recalled(msgspec.Struct, frozen=True):
    """A delayed message that will not be delivered."""

    topic: str
    unique_key: str


async def delayed(admin: Admin, after_ms: int = -1) -> DelayedMessages:
    """Return the delayed messages that are due next, of those that are due after a time in ms since 1970."""
    answers = await ask_each(admin, lambda name: admin.delayed_messages(name, after_ms=after_ms))
    messages = [
        Delayed(
            name,
            row.topic,
            row.queue_id,
            row.due_ms,
            row.unique_key,
            row.size,
            RecallHandle(row.topic, name, row.due_ms, row.unique_key).encode(),
        )
        for name, told in answers.found.items()
        for row in told.rows
    ]
    messages.sort(key=lambda one: (one.due_ms, one.broker_group, one.unique_key))
    return DelayedMessages(messages[:MAX_SHOWN], sum(told.pending for told in answers.found.values()), answers.unseen)


async def halves(admin: Admin) -> Halves:
    """Return the oldest open transactions."""
    answers = await ask_each(admin, admin.open_halves)
    rows = [
        Half(name, row.topic, row.group, row.unique_key, row.born_ms, row.checks, row.next_check_ms, row.size)
        for name, told in answers.found.items()
        for row in told.rows
    ]
    rows.sort(key=lambda one: (one.born_ms, one.broker_group, one.unique_key))
    return Halves(rows[:MAX_SHOWN], sum(told.pending for told in answers.found.values()), answers.unseen)


def what_recalling_does(handle: str) -> list[str]:
    """Describe the message that a handle recalls. Raises `OperationError` for what is no handle."""
    content = _decode(handle)
    due = datetime.fromtimestamp(content.due_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    return [f"message {content.unique_key} of topic {content.topic}, which is due at {due}, is never delivered"]


async def recall(access: Access, handle: str) -> Recalled:
    """Recall a delayed message. Raises `RefusedError` if it is delivered, or about to be."""
    topic = _decode(handle).topic
    async with access.producer(PRODUCER_GROUP) as producer:
        return Recalled(topic, await producer.recall(topic, handle))


def _decode(handle: str) -> RecallHandle:
    try:
        return RecallHandle.decode(handle)
    except IllegalOperation as error:
        raise OperationError(error.remark) from error
