"""Declarations of a feature: its addition to the state of all nodes, and its view, files derived from the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from dledger_broker.kernel.commands import Kinds
from dledger_broker.kernel.tables import Table, TableKey


@dataclass(frozen=True, kw_only=True)
class Replicated:
    """A feature's commands, and the table that applies them. Many features have neither.

    If `activated`, its commands are proposed and its requests taken only once the group has activated it, by its name
    (`kernel.activation`). Such a feature is never renamed.
    """

    name: str
    commands: Kinds = field(default_factory=dict)
    table: TableKey[Table] | None = None
    activated: bool = False


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
