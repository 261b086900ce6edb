"""Limiter of log lines that strangers can cause: it allows a few in an interval, and counts the others.

Otherwise a client that connects often would displace all other lines of a log that is rotated by size. Each host and
kind has one line in an interval. Strangers choose hosts, so the sum of lines has a limit, too.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Final

INTERVAL_S: Final = 60.0
MAX_LINES: Final = 32
"""Maximum number of lines in an interval."""
MAX_LINES_OF_HOST: Final = 8
LINES_OF_CLIENTS: Final = 16
"""Maximum number of lines about the connections of one host at a port for clients."""
MAX_CHARS: Final = 300
"""Maximum number of characters that a line repeats of a refusal's text. Accounts are compared up to this length."""


class Telling:
    """Limiter of log lines. `now` is a clock in seconds, `of_host` the maximum number of lines about one host."""

    def __init__(self, now: Callable[[], float] = time.monotonic, of_host: int = MAX_LINES_OF_HOST) -> None:
        self._now = now
        self._max_host_lines = of_host
        self._interval_start = -math.inf
        self._logged_kinds: dict[str, set[str]] = {}
        """Kinds of lines that were written in this interval, by host."""
        self._lines = 0
        self._left_out = 0

    def log(
        self,
        logger: logging.Logger,
        level: int,
        host: str,
        kind: str,
        text: str,
        *values: object,
        exc_info: BaseException | None = None,
    ) -> None:
        """Log a line that ends with the number of lines left out since the last one, or leave it out."""
        untold = self.untold(host, kind)
        if untold is not None:
            line = f"{text} untold=%d"
            logger.log(level, line, *values, untold, exc_info=exc_info)

    def untold(self, host: str, kind: str) -> int | None:
        """Return how many lines were left out since the last one, or None if this one is left out, too."""
        now = self._now()
        if now - self._interval_start >= INTERVAL_S:
            self._interval_start, self._lines = now, 0
            self._logged_kinds.clear()
        logged_kinds = self._logged_kinds.setdefault(host, set()) if self._lines < MAX_LINES else None
        if logged_kinds is None or kind in logged_kinds or len(logged_kinds) >= self._max_host_lines:
            self._left_out += 1
            return None
        logged_kinds.add(kind)
        self._lines += 1
        untold, self._left_out = self._left_out, 0
        return untold


class Refusals:
    """Log of access control's refusals, bounded so that a client refused a million times does not fill a disk.

    Each host, account and event gets one line in an interval of `INTERVAL_S`. Strangers choose hosts and accounts, so
    the number of lines is bounded, too, in all and per host. Refusals without a line are counted, and the next line
    says how many there were. `now` is a clock in seconds.
    """

    def __init__(self, logger: logging.Logger, now: Callable[[], float]) -> None:
        self._logger = logger
        self._telling = Telling(now)

    def tell(self, event: str, host: str, account: str, client: str, why: str) -> None:
        """Write a line for a refusal. Only count the refusal if it gets no line of its own in this interval."""
        untold = self._telling.untold(host, f"{event} {account[:MAX_CHARS]}")
        if untold is not None:
            self._logger.warning("event=%s client=%s refusal=%r untold=%d", event, client, why[:MAX_CHARS], untold)
