"""Pauses after empty answers that came earlier than they should: the pulls could have waited for messages.

A broker that already holds its maximum of waiting pulls answers "not found" at once. Without pauses, consumers with
nothing to read would keep it busy. `Placed` has the node from which a queue's reader pulls, as the last answer named
it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from dledger_remoting.codes import ResponseCode

from ..cluster.leaders import LEADER_ID

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


SHUNNED_SECONDS: Final = 30.0
"""Time in seconds for which advice to pull from a node that did not serve is ignored."""


class Placed:
    """Node for the pulls of one queue: the leader, until an answer has named another node."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.broker_id = LEADER_ID
        self._loop = loop
        self._shunned: tuple[int, float] = (LEADER_ID, 0.0)

    @property
    def shunned_id(self) -> int:
        """The named node that recently did not serve; `LEADER_ID` without such a node."""
        broker_id, until = self._shunned
        return broker_id if self._loop.time() < until else LEADER_ID

    def follow(self, broker_id: int) -> None:
        """Follow an answer that names the node for the next pull."""
        self.broker_id = LEADER_ID if broker_id == self.shunned_id else broker_id

    def shun(self) -> None:
        """Ignore advice to pull from the named node for `SHUNNED_SECONDS`, because it did not serve.

        The leader may still reach that node, and would name it again.
        """
        if self.broker_id != LEADER_ID:
            self._shunned = self.broker_id, self._loop.time() + SHUNNED_SECONDS
