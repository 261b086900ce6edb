"""Check points of popped messages, and the other texts of POP. Formats: RocketMQ's `ExtraInfoUtil` and `KeyBuilder`.

A message's check point is in its property POP_CK. It comes back with the acknowledgement as `extraInfo`. Fields are
separated by one space:

| field | |
|---|---|
| start offset | the first offset of the delivery |
| pop time | ms since 1970; no two deliveries of a group in a queue have the same |
| invisible time | ms |
| revive queue | 999 if messages are popped in order, else it means nothing here |
| retry | 0: a queue of the topic itself, 1: of its retry topic, 2: of the retry topic of the second form |
| broker name, queue id | |
| queue offset | of the message |

A message may have its check point already. Otherwise the client makes it from the answer's `startOffsetInfo` (`retry
queue start;...`) and `msgOffsetInfo` (`retry queue offset,offset;...`). `orderCountInfo` (`retry queue count;...`) says
how often ordered messages were delivered before. For one message `retry qoQUEUE%OFFSET count` takes precedence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from .errors import InvalidParameter
from .integers import MAX_INT32, MAX_INT64
from .topics import RETRY_PREFIX, is_retry_topic, validate_group, validate_topic

ORDERED_REVIVE_QUEUE: Final = 999
"""Value of the revive queue field for messages that are popped in order."""
MAX_POP_MESSAGES: Final = 32
"""Maximum number of messages that one pop may ask for."""
_FIELDS: Final = 8


class Retry(StrEnum):
    """Topic in which a popped message is stored, as the check point writes it."""

    NONE = "0"
    """The topic itself."""
    V1 = "1"
    """Its retry topic for the group, `%RETRY%group_topic`. Two pairs of group and topic may have the same name."""
    V2 = "2"
    """Its retry topic in the form whose names are unique, `%RETRY%group+topic`."""


def pop_retry_topic(group: str, topic: str, retry: Retry) -> str:
    """Return the topic that a retry flag stands for."""
    if retry is Retry.NONE:
        return topic
    return f"{RETRY_PREFIX}{group}{'_' if retry is Retry.V1 else '+'}{topic}"


def group_of_retry_topic(name: str) -> str:
    """Return the group of a retry topic: either of the first form as clients make it (`%RETRY%group`), or of the second
    form.

    The two forms can be distinguished, because no group's name has a `+`.
    """
    return name.removeprefix(RETRY_PREFIX).partition("+")[0]


def validate_stored_topic(name: str) -> None:
    """Raise `InvalidParameter` if brokers can have no topic of this name.

    Retry topics of the second form pass: clients may delete them, although only brokers create them.
    """
    _, plus, topic = name.partition("+")
    if plus and is_retry_topic(name):
        validate_group(group_of_retry_topic(name))
        validate_topic(topic)
    else:
        validate_topic(name)


class CheckPoint(msgspec.Struct, frozen=True):
    """The check point of one message, in the format that the module's docstring gives."""

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    is_ordered: bool
    retry: Retry
    broker_name: str
    queue_id: int
    queue_offset: int

    @property
    def text(self) -> str:
        """The check point as property and `extraInfo` hold it."""
        revive_queue = revive_queue_of(is_ordered=self.is_ordered)
        return (
            f"{self.start_offset} {self.pop_time_ms} {self.invisible_ms} {revive_queue} {self.retry} "
            f"{self.broker_name} {self.queue_id} {self.queue_offset}"
        )


def revive_queue_of(*, is_ordered: bool) -> int:
    """Return the value of the revive queue field. Brokers here have no revive queues."""
    return ORDERED_REVIVE_QUEUE if is_ordered else 0


def parse_check_point(text: str) -> CheckPoint:
    """Parse a check point. Text behind its eight fields is ignored. Raises `InvalidParameter`."""
    fields = text.split(" ")
    try:
        start, popped, invisible, revive_queue, retry, broker, queue, offset = fields[:_FIELDS]
        numbers = [_number(field, MAX_INT64) for field in (start, popped, invisible, offset)]
        small = [_number(field, MAX_INT32) for field in (revive_queue, queue)]
        flag = Retry(retry)
    except ValueError:
        raise InvalidParameter(
            f"extraInfo {text[:200]!r} is no check point: expected the POP_CK of the message that was popped"
        ) from None
    return CheckPoint(
        numbers[0], numbers[1], numbers[2], small[0] == ORDERED_REVIVE_QUEUE, flag, broker, small[1], numbers[3]
    )


def _number(field: str, limit: int) -> int:
    """Parse a natural number. Raises ValueError."""
    if not (field.isascii() and field.isdecimal() and len(field) < 20 and int(field) <= limit):
        raise ValueError(field)
    return int(field)


def _parse_rows(field: str, last: str, text: str) -> list[tuple[Retry, int, int]]:
    """Return the rows of a field. `last` is what the third number of a row is. Raises `InvalidParameter`."""
    rows: list[tuple[Retry, int, int]] = []
    for row in filter(None, text.split(";")):
        try:
            retry, queue_id, number = row.split(" ")
            rows.append((Retry(retry), _number(queue_id, MAX_INT32), _number(number, MAX_INT64)))
        except ValueError:
            raise InvalidParameter(f"{field} {row[:200]!r}, expected 'retry queue {last}'") from None
    return rows


def start_offset_info(rows: Iterable[tuple[Retry, int, int]]) -> str:
    """Return the text of (retry, queue id, start offset) rows."""
    return ";".join(f"{retry} {queue_id} {start}" for retry, queue_id, start in rows)


def parse_start_offset_info(text: str) -> list[tuple[Retry, int, int]]:
    """Return the rows of a `startOffsetInfo`. Raises `InvalidParameter`."""
    return _parse_rows("startOffsetInfo", "start", text)


def deliveries_info(rows: Iterable[tuple[Retry, int, int]]) -> str:
    """Return the text of (retry, queue id, pop time) rows, which name deliveries of a topic to a group."""
    return start_offset_info(rows)


def parse_deliveries_info(text: str) -> list[tuple[Retry, int, int]]:
    """Return the rows of a `deliveries`. Raises `InvalidParameter`."""
    return _parse_rows("deliveries", "pop time", text)


def message_offset_info(rows: Iterable[tuple[Retry, int, Sequence[int]]]) -> str:
    """Return the text of (retry, queue id, offsets) rows."""
    return ";".join(f"{retry} {queue_id} {','.join(map(str, offsets))}" for retry, queue_id, offsets in rows)


def order_count_info(
    rows: Iterable[tuple[Retry, int, int]], messages: Iterable[tuple[Retry, int, int, int]] = ()
) -> str:
    """Return the text of (retry, queue id, deliveries before) rows.

    Messages that differ from their queue have rows of their own: (retry, queue id, offset, deliveries before).
    """
    counts = (f"{retry} {queue_id} {count}" for retry, queue_id, count in rows)
    others = (f"{retry} qo{queue_id}%{offset} {count}" for retry, queue_id, offset, count in messages)
    return ";".join((*counts, *others))
