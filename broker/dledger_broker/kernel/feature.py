"""Declaration of the replicated half of a feature: what it adds to the state that all nodes have."""

from __future__ import annotations

from dataclasses import dataclass, field

from dledger_broker.kernel.commands import Kinds
from dledger_broker.kernel.tables import Table, TableKey


@dataclass(frozen=True, kw_only=True)
class Replicated:
    """A feature's commands, and its table, which applies them; many features have neither.

    `activated`: its commands are proposed, and its requests are taken, once the group has activated it, by its name
    (`kernel.activation`); no such feature is ever renamed.
    """

    name: str
    commands: Kinds = field(default_factory=dict)
    table: TableKey[Table] | None = None
    activated: bool = False
