"""Table of the group's members: the command kinds that each understands, and the group's ordinal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table


class Features(msgspec.Struct, frozen=True):
    """Command that records the command kinds that the member `node_id` understands."""

    node_id: str
    kinds: tuple[int, ...]


class SetOrdinal(msgspec.Struct, frozen=True):
    """Command that numbers the group among the groups of its cluster; a second number is ignored."""

    ordinal: int


MEMBER_COMMANDS: Final[Kinds] = {23: Features, 24: SetOrdinal}


class FeatureFrame(msgspec.Struct, frozen=True, tag="features"):
    """The command kinds of every member."""

    rows: dict[str, tuple[int, ...]]


class OrdinalFrame(msgspec.Struct, frozen=True, tag="ordinal"):
    """The group's number, if it is set."""

    ordinal: int


class MemberTable(Table):
    """The command kinds of members by node id (`kinds`), and the group's number in its cluster (`ordinal`), once set.

    A member that has never reported its kinds is not in the table.
    """

    __slots__ = ("digest", "kinds", "ordinal")

    digest: int

    frames = (FeatureFrame, OrdinalFrame)

    def __init__(self) -> None:
        self.kinds: dict[str, tuple[int, ...]] = {}
        self.ordinal: int | None = None
        self.digest = 0

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry
        match command:
            case Features(node_id=node_id, kinds=kinds):
                self.put(node_id, kinds)
                changes.members_changed = True
            case SetOrdinal(ordinal=ordinal):
                self.set_ordinal(ordinal)

    def put(self, node_id: str, kinds: tuple[int, ...]) -> None:
        """Remember the command kinds that a member understands."""
        before = self.kinds.get(node_id)
        removed = 0 if before is None else item_hash("features", node_id, before)
        self.digest = (self.digest - removed + item_hash("features", node_id, kinds)) & MASK
        self.kinds[node_id] = kinds

    def understood_by_all(self, kind: int, members: Iterable[str]) -> bool:
        """Return whether every member advertises the command kind."""
        return all(kind in self.kinds.get(member, ()) for member in members)

    def set_ordinal(self, ordinal: int) -> None:
        """Number the group, if it has no number yet."""
        if self.ordinal is None:
            self.ordinal = ordinal
            self.digest = (self.digest + item_hash("ordinal", ordinal)) & MASK

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        ordinal = () if self.ordinal is None else (OrdinalFrame(self.ordinal),)
        return {"features": (FeatureFrame(dict(self.kinds)),), "ordinal": ordinal}

    def restore_frame(self, frame: Frame, now: float) -> None:
        _ = now
        match frame:
            case FeatureFrame(rows=rows):
                for node_id, kinds in rows.items():
                    self.put(node_id, kinds)
            case OrdinalFrame(ordinal=ordinal):
                self.set_ordinal(ordinal)
