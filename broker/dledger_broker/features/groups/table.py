"""Table of the consumer groups' settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey, in_slices
from dledger_remoting.topics import SubscriptionGroupConfig


class PutGroup(msgspec.Struct, frozen=True):
    """Command that creates or replaces a consumer group."""

    config: SubscriptionGroupConfig


class DeleteGroup(msgspec.Struct, frozen=True):
    """Command that removes a consumer group. With `clean_offsets` its committed offsets are removed, too."""

    group: str
    clean_offsets: bool = False


GROUP_COMMANDS: Final[Kinds] = {18: PutGroup, 19: DeleteGroup}


class GroupFrame(msgspec.Struct, frozen=True, tag="groups"):
    """Frame with consumer groups."""

    rows: list[SubscriptionGroupConfig]


class GroupTable(Table):
    """Table of all consumer groups. `by_name` is for readers, and stays the same object."""

    __slots__ = ("by_name", "digest")

    digest: int

    frames = (GroupFrame,)

    def __init__(self) -> None:
        self.by_name: dict[str, SubscriptionGroupConfig] = {}
        self.digest = 0

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry
        match command:
            case PutGroup(config=config):
                self.put(config)
                changes.groups_changed = True
            case DeleteGroup(group=name, clean_offsets=clean_offsets):
                self.delete(name)
                changes.group_deleted(name, clean_offsets=clean_offsets)

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace a consumer group."""
        self._replace(self.by_name.get(config.group_name), config)
        self.by_name[config.group_name] = config

    def delete(self, name: str) -> None:
        """Remove a consumer group. A missing group counts as removed."""
        self._replace(self.by_name.pop(name, None), None)

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        return {"groups": map(GroupFrame, in_slices(list(self.by_name.values())))}

    def restore_frame(self, frame: Frame, now: float) -> None:
        _ = now
        match frame:
            case GroupFrame(rows=rows):
                for config in rows:
                    self.put(config)

    def _replace(self, before: SubscriptionGroupConfig | None, after: SubscriptionGroupConfig | None) -> None:
        self.digest = (self.digest - _hash(before) + _hash(after)) & MASK


GROUPS: Final = TableKey("groups", GroupTable)


def _hash(config: SubscriptionGroupConfig | None) -> int:
    return 0 if config is None else item_hash("group", msgspec.to_builtins(config))
