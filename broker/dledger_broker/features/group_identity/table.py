"""Table of the broker group's identity (`dledger_base.group_identity`): one text, which only a rescue changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_base.group_identity import GroupIdentity
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey

NAME: Final = "group identity"
"""Name of the feature. It must never change, because the log records it when the feature is activated."""


class SetGroupIdentity(msgspec.Struct, frozen=True, omit_defaults=True):
    """Command that records the identity of the broker group.

    A recorded identity is replaced only by one of a later incarnation, or if `replaces` is set.
    """

    identity: str
    replaces: bool = False


GROUP_IDENTITY_COMMANDS: Final[Kinds] = {59: SetGroupIdentity}


class GroupIdentityFrame(msgspec.Struct, frozen=True, tag="group-identity"):
    """Frame with the identity."""

    identity: str


class GroupIdentityTable(Table):
    """Table of the broker group's identity. `identity` is empty until the log records it."""

    __slots__ = ("identity",)

    frames = (GroupIdentityFrame,)

    def __init__(self) -> None:
        self.identity = ""

    @property
    def digest(self) -> int:
        return item_hash("group-identity", self.identity) if self.identity else 0

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry
        match command:
            case SetGroupIdentity(identity=identity, replaces=replaces):
                if replaces or not self.identity or self._precedes(identity):
                    self.identity = identity
                    changes.members_changed = True

    def _precedes(self, identity: str) -> bool:
        return GroupIdentity.parse(self.identity).precedes(GroupIdentity.parse(identity))

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        return {"group-identity": (GroupIdentityFrame(self.identity),)} if self.identity else {}

    def restore_frame(self, frame: Frame, now: float) -> None:
        _ = now
        match frame:
            case GroupIdentityFrame(identity=identity):
                self.identity = identity


GROUP_IDENTITY: Final = TableKey("group identity", GroupIdentityTable)
