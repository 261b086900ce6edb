"""View of a feature: files that it derives from the log on each node, and that can be thrown away."""

from __future__ import annotations

from typing import Protocol


class FeatureView(Protocol):
    """Receiver of the machine's notices, on the event loop. Applied commands reach it through the feature's table."""

    def restored(self, position: int) -> None:
        """Note that the state was replaced, as of a log position: at a start, before `start`, or by a snapshot."""

    def start(self, incarnation: str) -> None:
        """Begin to work, because the node has started. `incarnation` is that of its data directory."""

    def abandon(self) -> None:
        """Do nothing more, because the log has failed."""

    async def close(self) -> None:
        """Make the present content durable. The node is still running."""
