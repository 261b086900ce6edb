"""Reader of the delay that a message requests.

Names and rules are RocketMQ's. `DELAY` names a level; the other properties name a time. A time in the past is ignored.
A message may have at most one of these properties.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from dledger_remoting.errors import MessageIllegal
from dledger_remoting.properties import (
    DELAY,
    START_DELIVER_TIME,
    TIMER_DELAY_MS,
    TIMER_DELAY_SEC,
    TIMER_DELIVER_MS,
    find_property,
)

_MARK: Final = b"DEL"
"""Part of the name of each property that requests a delay."""
_NAMES: Final = (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, START_DELIVER_TIME)
_BYTES: Final = tuple(name.encode() for name in _NAMES)
_MAX_DIGITS: Final = 18


class RequestedDelay(NamedTuple):
    """Property that requests a delay, and its value, which is positive."""

    name: str
    value: int


def may_ask(data: bytes) -> bool:
    """Return whether properties may ask for a delay. This quick check excludes most messages without delay."""
    return data.find(_MARK) >= 0


def find_delay(properties: bytes, *, of_retry: bool = False) -> RequestedDelay | None:
    """Return the delay that a message requests, None if it is not delayed. Raises `MessageIllegal`.

    A message that a client stores for retry (`of_retry`) has the properties of the failed message. Its level was set by
    the client. A time beside the level belongs to the failed message, and is ignored.
    """
    if not may_ask(properties):
        return None
    delay: RequestedDelay | None = None
    for name, key in zip(_NAMES, _BYTES, strict=True):
        if of_retry and delay is not None and delay.name == DELAY:
            return delay
        text = (find_property(properties, key) or b"").strip()
        if not text:
            continue
        if len(text) > _MAX_DIGITS or not text.removeprefix(b"-").isdigit():
            shown = text[:32].decode(errors="replace")
            raise MessageIllegal(f"property {name} = {shown} is no number: it asks for a delay")
        value = int(text)
        if value <= 0:
            continue
        if delay is not None:
            raise MessageIllegal(f"properties {delay.name} and {name} both ask for a delay: keep one of them")
        delay = RequestedDelay(name, value)
    return delay


class Due(NamedTuple):
    """Due time of a message in ms since 1970, and its delay level; 0 if it has named a time."""

    ms: int
    level: int = 0


def due_time(delay: RequestedDelay, levels_ms: Sequence[int], now_ms: int, max_delay_s: int) -> Due | None:
    """Return when a message sent at `now_ms` is due, None for at once.

    Raises `MessageIllegal` if the delay is too long.


    `levels_ms` are the delays of the levels. A level above the last counts as the last.
    """
    name, value = delay
    if name == DELAY:
        level = min(value, len(levels_ms))
        return Due(now_ms + levels_ms[level - 1], level)
    if name == TIMER_DELAY_SEC:
        due_ms = now_ms + value * 1000
    elif name == TIMER_DELAY_MS:
        due_ms = now_ms + value
    else:
        due_ms = value
    if due_ms - now_ms > max_delay_s * 1000:
        raise MessageIllegal(
            f"property {name} = {value} asks for a delay of {(due_ms - now_ms) // 1000} s, the limit is {max_delay_s} s"
        )
    return Due(due_ms) if due_ms > now_ms else None
