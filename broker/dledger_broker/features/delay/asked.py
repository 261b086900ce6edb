"""The time at which a message asks to be delivered.

Names and rules are RocketMQ's: `DELAY` names a level, the others a time; a time that has come means nothing. A message
names one of them at most.
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
"""Part of the name of every property that asks for a delay."""
_NAMES: Final = (DELAY, TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS, START_DELIVER_TIME)
_BYTES: Final = tuple(name.encode() for name in _NAMES)
_MAX_DIGITS: Final = 18


class Asked(NamedTuple):
    """A property that asks for a delay, and its value, above 0."""

    name: str
    value: int


def may_ask(data: bytes) -> bool:
    """Whether properties may ask for a delay; False for most that do not."""
    return data.find(_MARK) >= 0


def asked_delay(properties: bytes, *, of_retry: bool = False) -> Asked | None:
    """What a message asks for; None if it is an ordinary one. Raises `MessageIllegal`.

    One that a client stores for retry (`of_retry`) has the properties of the message that failed: a level is the
    client's, beside which a time is what that one has once asked for.
    """
    if not may_ask(properties):
        return None
    asked: Asked | None = None
    for name, key in zip(_NAMES, _BYTES, strict=True):
        if of_retry and asked is not None and asked.name == DELAY:
            return asked
        text = (find_property(properties, key) or b"").strip()
        if not text:
            continue
        if len(text) > _MAX_DIGITS or not text.removeprefix(b"-").isdigit():
            shown = text[:32].decode(errors="replace")
            raise MessageIllegal(f"property {name} = {shown} is no number: it asks for a delay")
        value = int(text)
        if value <= 0:
            continue
        if asked is not None:
            raise MessageIllegal(f"properties {asked.name} and {name} both ask for a delay: keep one of them")
        asked = Asked(name, value)
    return asked


class Due(NamedTuple):
    """When a message is due, ms since 1970, and its delay level; 0: it has named a time."""

    ms: int
    level: int = 0


def due_of(asked: Asked, levels_ms: Sequence[int], now_ms: int, max_delay_s: int) -> Due | None:
    """When a message is due that asks at `now_ms`; None: at once. Raises `MessageIllegal` if it is too far off.

    `levels_ms` are the delays of the levels; a level above the last one is the last one.
    """
    name, value = asked
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
