"""Node from which a queue's reader pulls, by the broker id that the last answer named."""

from __future__ import annotations

import asyncio
from typing import Final

from .leaders import LEADER_ID

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
