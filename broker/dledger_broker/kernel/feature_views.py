"""View of a feature: something that it derives from the log on each node, and that can be thrown away."""

from __future__ import annotations

from typing import Protocol


class FeatureView(Protocol):
    """What the machine tells it, on the event loop. What it is to know of applied commands its table tells it."""

    def restored(self, position: int) -> None:
        """The state is another one, as of a log position: at a start, before `start`, or because a snapshot came."""

    def start(self, incarnation: str) -> None:
        """The node is started; `incarnation` is that of its data directory."""

    def abandon(self) -> None:
        """Do nothing more: the log has failed."""

    async def close(self) -> None:
        """Make durable what is there; the node is still running."""
