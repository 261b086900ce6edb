"""Places in a topic as options name them: `--from`, `--to` and `--queue`.

A number alone is an offset. A number with a minus sign counts from the end of each queue. With a unit, as `-15m`, it is
an age. Digits are a time only from 100000000000 on, in ms since 1970: no queue has as many messages.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import click

from dledger_client import MessageQueue

from ..errors import AdminError, WrongUsageError
from ..operations.positions import AtTime, Edge, FromEnd, Offset, Position
from .options import LEAST_MS, time_ms

_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")
_QUEUE: Final = re.compile(r"(?:(?P<broker_group>[^/]+)/)?(?P<queue_id>[0-9]{1,9})")
_EXPECTED: Final = "beginning, end, an offset such as 1200, a number from the end such as -10, "


_EDGES: Final[Mapping[str, Edge]] = {
    "beginning": Edge.BEGINNING,
    "first": Edge.BEGINNING,
    "end": Edge.END,
    "last": Edge.END,
}


def parse_position(option: str, text: str) -> Position:
    """Return the place that a value of an option names. Raises `WrongUsageError`."""
    if text in _EDGES:
        return _EDGES[text]
    if _NUMBER.fullmatch(text) is not None and int(text) < LEAST_MS:
        return FromEnd(-int(text)) if text.startswith("-") else Offset(int(text))
    return AtTime(time_ms(option, text, otherwise=_EXPECTED))


def parse_end(option: str, text: str) -> Position:
    """Return the place to stop before, by `parse_position`. Raises `WrongUsageError` also for a time in the future."""
    position = parse_position(option, text)
    if isinstance(position, AtTime) and position.ms > time.time() * 1000:
        raise WrongUsageError(
            f"{option} {text!r} is still to come: without {option} all messages are shown as they come"
        )
    return position


class QueueName(NamedTuple):
    """The queue with this id on one broker group, or on each."""

    broker_group: str | None
    queue_id: int

    def matches(self, queue: MessageQueue) -> bool:
        """Return True if this name means `queue`."""
        return self.queue_id == queue.queue_id and self.broker_group in (None, queue.broker_group)


class QueueNameType(click.ParamType):  # type: ignore[type-arg]  # older versions, which are allowed, are not generic
    """`3`, the queue with this id on every broker group, or `broker-a/3`."""

    name = "queue"

    def convert(self, value: str | QueueName, param: click.Parameter | None, ctx: click.Context | None) -> QueueName:
        """Return the queue name in a value. Fail if the value is none."""
        if isinstance(value, QueueName):
            return value
        match = _QUEUE.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is no queue: its id such as 3, or broker-a/3, is expected", param, ctx)
        return QueueName(match["broker_group"], int(match["queue_id"]))


def chosen_queues(queues: Iterable[MessageQueue], names: Iterable[QueueName], topic: str) -> list[MessageQueue]:
    """Return the queues that are named, all without `names`. Raises `AdminError` for a name that matches no queue."""
    queues, names = list(queues), list(names)
    for name in names:
        if not any(name.matches(queue) for queue in queues):
            shown = name.queue_id if name.broker_group is None else f"{name.broker_group}/{name.queue_id}"
            raise AdminError(f"topic {topic} has no queue {shown}: `dledger topic describe {topic}` shows its queues")
    return [queue for queue in queues if not names or any(name.matches(queue) for name in names)]
