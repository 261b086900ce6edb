"""Table of settings: values that operators have set for the group, as text by the key of the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey

NAME: Final = "settings"
"""Name of the feature, which is never another one: it is recorded when it is activated."""


class PutSettings(msgspec.Struct, frozen=True):
    """These keys have these values from now on; an empty text takes what was set back."""

    values: dict[str, str]


SETTING_COMMANDS: Final[Kinds] = {55: PutSettings}


class SettingFrame(msgspec.Struct, frozen=True, tag="settings"):
    """All that is set, and how often that has changed."""

    values: dict[str, str]
    changes: int


class SettingTable(Table):
    """What is set. Nothing is judged here: a node looks by itself what it can follow."""

    __slots__ = ("changes", "digest", "values")

    digest: int

    frames = (SettingFrame,)

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changes = 0
        self.digest = 0

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        """See `Table.apply`."""
        _ = entry, changes
        match command:
            case PutSettings(values=values):
                kept = {**self.values, **values}
                self._become({key: text for key, text in kept.items() if text}, self.changes + 1)

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        """See `Table.capture_frames`."""
        _ = now
        return {"settings": (SettingFrame(dict(self.values), self.changes),)} if self.changes else {}

    def restore_frame(self, frame: Frame, now: float) -> None:
        """See `Table.restore_frame`."""
        _ = now
        match frame:
            case SettingFrame(values=values, changes=changes):
                self._become(values, changes)

    def _become(self, values: dict[str, str], changes: int) -> None:
        self.values, self.changes = dict(sorted(values.items())), changes
        self.digest = item_hash("settings", sorted(values.items()), changes) & MASK


SETTINGS: Final = TableKey("settings", SettingTable)
