"""Place of a queue's reader: the broker id of the node that it pulls from, as the last answer named it."""

from __future__ import annotations

import asyncio
from typing import Final

from .leaders import LEADER_ID

SHUNNED_SECONDS: Final = 30.0
"""For so long word to pull from a node that did not serve is not followed."""


class Placed:
    """Where one queue is read; the leader, as long as no answer has led elsewhere."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.broker_id = LEADER_ID
        self._loop = loop
        self._shunned: tuple[int, float] = (LEADER_ID, 0.0)

    @property
    def shunned_id(self) -> int:
        """The node that was led to and did not serve; `LEADER_ID` if there was none of late."""
        broker_id, until = self._shunned
        return broker_id if self._loop.time() < until else LEADER_ID

    def follow(self, broker_id: int) -> None:
        """An answer says where to pull next."""
        self.broker_id = LEADER_ID if broker_id == self.shunned_id else broker_id

    def shun(self) -> None:
        """Nothing came from where an answer had led: the leader, which may reach that node, would lead there again."""
        if self.broker_id != LEADER_ID:
            self._shunned = self.broker_id, self._loop.time() + SHUNNED_SECONDS
