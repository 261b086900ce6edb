"""Order of open halves by their next check: finds the halves that are due, however many other halves are open."""

from __future__ import annotations

from collections.abc import Iterator

MS_PER_S = 1_000


class CheckOrder:
    """Positions of halves by the second of their next check. Most halves end before that."""

    __slots__ = ("_seconds",)

    def __init__(self) -> None:
        self._seconds: dict[int, dict[int, None]] = {}

    def add(self, position: int, next_check_ms: int) -> None:
        """Add a half that is open."""
        self._seconds.setdefault(next_check_ms // MS_PER_S, {})[position] = None

    def remove(self, position: int, next_check_ms: int) -> None:
        """Remove a half that has ended, or whose next check has changed. `next_check_ms` is the value of its `add`."""
        second = next_check_ms // MS_PER_S
        positions = self._seconds[second]
        del positions[position]
        if not positions:
            del self._seconds[second]

    def begun(self, now_ms: int) -> Iterator[int]:
        """Yield the halves whose second has begun, the earliest second first.

        Nothing may be added or removed meanwhile.
        """
        now_s = now_ms // MS_PER_S
        for second in sorted(second for second in self._seconds if second <= now_s):
            yield from self._seconds[second]
