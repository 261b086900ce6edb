"""Limiter of wrong signatures, for each pair of an account and a client address.

The account alone is never limited, because its owner at another address would be locked out. A connection that has
signed correctly once is not limited, because many clients may share an address.
"""

from __future__ import annotations

from typing import Final

BURST: Final = 20
"""Number of wrong signatures of an account from an address that are judged without delay."""
PER_S: Final = 2.0
"""Number of further wrong signatures that are judged per second."""
MAX_PAIRS: Final = 4_096


class WrongSignatures:
    """Counter of wrong signatures by account and address. Time is an argument, in seconds."""

    def __init__(self) -> None:
        self._levels: dict[tuple[str, str], tuple[float, float]] = {}
        """Level of each pair, and the time at which it was computed. A level falls by `PER_S`."""

    def are_too_many(self, account: str, address: str, now: float) -> bool:
        """Return whether a request must wait before it is judged."""
        return self._level((account, address), now) > BURST - 1

    def note(self, account: str, address: str, now: float) -> None:
        """Count a wrong signature."""
        pair = account, address
        level = self._level(pair, now) + 1
        self._levels.pop(pair, None)
        if len(self._levels) >= MAX_PAIRS:
            del self._levels[next(iter(self._levels))]  # the pair without a wrong signature for the longest time
        self._levels[pair] = level, now

    def _level(self, pair: tuple[str, str], now: float) -> float:
        level, at = self._levels.get(pair, (0.0, now))
        return max(0.0, level - (now - at) * PER_S)
