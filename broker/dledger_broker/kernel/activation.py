"""Table of activated features: the features that the group uses, each with the log position from which it is used.

A feature that is declared as `activated` may write commands at which an older version stops. It is used only once every
voter understands them and the leader has recorded that with `ActivateFeatures`. This command is never taken back. A
member that lacks a feature stops at that command, and at every snapshot that contains it. Kinds that the feature gets
later belong to another feature, because an activation says nothing about them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from dledger.errors import CorruptionError
from dledger.statemachine import CommittedEntry
from dledger_base.invariants import invariant
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.feature import Replicated
from dledger_broker.kernel.tables import Changes, Frame, Table

ACTIVATE_FEATURES: Final = 29


class ActivateFeatures(msgspec.Struct, frozen=True):
    """Command after which the group uses these features. A feature that is already active does not change."""

    names: tuple[str, ...]


ACTIVATION_COMMANDS: Final[Kinds] = {ACTIVATE_FEATURES: ActivateFeatures}


class ActivationFrame(msgspec.Struct, frozen=True, tag="activated"):
    """The position from which each active feature is used."""

    rows: dict[str, int]


class ActivationTable(Table):
    """The activated features by name, each with the end of the entry that activated it (`since`).

    Records from that position on may be the feature's. `kinds` are the command kinds of this version's features that
    need activation.
    """

    __slots__ = ("_owners", "digest", "kinds", "since")

    digest: int

    frames = (ActivationFrame,)

    def __init__(self, features: Sequence[Replicated]) -> None:
        self.kinds: Mapping[str, tuple[int, ...]] = {
            feature.name: tuple(feature.commands) for feature in features if feature.activated
        }
        invariant(all(self.kinds.values()), "an activated feature has commands: who lacks it stops at them")
        self._owners = {kind: name for name, kinds in self.kinds.items() for kind in kinds}
        self.since: dict[str, int] = {}
        self.digest = 0

    def owner_of(self, kind: int) -> str | None:
        """Return the activated feature that a command kind belongs to, None if it does not belong to an activated
        feature.
        """
        return self._owners.get(kind)

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        """Apply one of its commands. Raises `CorruptionError` for a feature that this version lacks."""
        match command:
            case ActivateFeatures(names=names):
                for name in names:
                    self._activate(name, entry.end)
                changes.members_changed = True

    def _activate(self, name: str, position: int) -> None:
        if name not in self.kinds:
            raise CorruptionError(
                f"the group uses the feature '{name}' since position {position} of its log, and this version does not"
                " have it: upgrade this node"
            )
        if name not in self.since:
            self.since[name] = position
            self.digest = (self.digest + item_hash("activated", name, position)) & MASK

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        return {"activated": (ActivationFrame(dict(self.since)),)} if self.since else {}

    def restore_frame(self, frame: Frame, now: float) -> None:
        """Restore the rows of a frame. Raises `CorruptionError` for a feature that this version lacks."""
        _ = now
        match frame:
            case ActivationFrame(rows=rows):
                for name, position in rows.items():
                    self._activate(name, position)
