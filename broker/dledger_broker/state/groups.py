"""Table of the consumer groups' settings."""

from __future__ import annotations

import msgspec

from dledger_broker.kernel.digest import MASK, item_hash
from dledger_remoting.topics import SubscriptionGroupConfig


class GroupTable:
    """All consumer groups; `by_name` is for readers and stays the same object."""

    __slots__ = ("by_name", "digest")

    def __init__(self) -> None:
        self.by_name: dict[str, SubscriptionGroupConfig] = {}
        self.digest = 0

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace a consumer group."""
        self._replace(self.by_name.get(config.group_name), config)
        self.by_name[config.group_name] = config

    def delete(self, name: str) -> None:
        """Remove a consumer group; none is no error."""
        self._replace(self.by_name.pop(name, None), None)

    def _replace(self, before: SubscriptionGroupConfig | None, after: SubscriptionGroupConfig | None) -> None:
        self.digest = (self.digest - _hash(before) + _hash(after)) & MASK


def _hash(config: SubscriptionGroupConfig | None) -> int:
    return 0 if config is None else item_hash("group", msgspec.to_builtins(config))
