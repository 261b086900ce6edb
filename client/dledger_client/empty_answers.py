"""Pauses after empty answers that came earlier than they should: the pulls could have waited for messages.

A broker that already holds its maximum of waiting pulls answers "not found" at once. Without pauses, consumers with
nothing to read would keep it busy.
"""

from __future__ import annotations

import asyncio
from typing import Final

from dledger_remoting.codes import ResponseCode

MIN_PAUSE_SECONDS: Final = 0.025
MAX_PAUSE_SECONDS: Final = 1.0


class EmptyAnswers:
    """The pulls of one queue, one after another."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._early_until = 0.0
        self._early_answers = 0

    def asked(self, suspend_seconds: float) -> None:
        """Note that a pull is about to be sent that may wait for `suspend_seconds`."""
        self._early_until = self._loop.time() + min(MAX_PAUSE_SECONDS, suspend_seconds) / 2

    def pause(self, code: int) -> float:
        """Return the pause before the next pull, in seconds. It grows with each early answer in a row."""
        if code != ResponseCode.PULL_NOT_FOUND or self._loop.time() >= self._early_until:
            self._early_answers = 0
            return 0.0
        self._early_answers += 1
        return min(MIN_PAUSE_SECONDS * (1 << min(self._early_answers - 1, 10)), MAX_PAUSE_SECONDS)
