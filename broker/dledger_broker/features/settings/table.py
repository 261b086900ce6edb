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
"""Name of the feature. It must never change, because the activation of the feature is recorded under this name."""


class PutSettings(msgspec.Struct, frozen=True):
    """Command that sets these keys to these values. An empty text removes a setting."""

    values: dict[str, str]


SETTING_COMMANDS: Final[Kinds] = {55: PutSettings}


class SettingFrame(msgspec.Struct, frozen=True, tag="settings"):
    """Snapshot frame with all settings, and the number of their changes."""

    values: dict[str, str]
    changes: int


class SettingTable(Table):
    """Table of settings. It judges no value: each node decides by itself which settings it can follow."""

    __slots__ = ("changes", "digest", "values")

    digest: int

    frames = (SettingFrame,)

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.changes = 0
        self.digest = 0

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry, changes
        match command:
            case PutSettings(values=values):
                merged = {**self.values, **values}
                self._replace({key: text for key, text in merged.items() if text}, self.changes + 1)

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        return {"settings": (SettingFrame(dict(self.values), self.changes),)} if self.changes else {}

    def restore_frame(self, frame: Frame, now: float) -> None:
        _ = now
        match frame:
            case SettingFrame(values=values, changes=changes):
                self._replace(values, changes)

    def _replace(self, values: dict[str, str], changes: int) -> None:
        self.values, self.changes = dict(sorted(values.items())), changes
        self.digest = item_hash("settings", sorted(values.items()), changes) & MASK


SETTINGS: Final = TableKey("settings", SettingTable)
