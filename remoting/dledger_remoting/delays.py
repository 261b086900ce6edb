"""Delay levels: a table of delays in RocketMQ's form. Messages name a delay by its number in the table, from 1 on."""

from __future__ import annotations

from typing import Final

DEFAULT_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MAX_LEVELS: Final = 64
_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays of a table in ms, level 1 first. Raises ValueError that says what is wrong."""
    delays: list[int] = []
    for word in text.split():
        number, unit = word[:-1], word[-1:]
        if unit not in _UNITS_MS or not (number.isascii() and number.isdigit() and int(number)):
            raise ValueError(f"{word!r} is no delay: expected a whole number above 0 and one of s, m, h, d")
        delays.append(int(number) * _UNITS_MS[unit])
    if not 1 <= len(delays) <= MAX_LEVELS:
        raise ValueError(f"{len(delays)} levels, expected 1 to {MAX_LEVELS}")
    return tuple(delays)
