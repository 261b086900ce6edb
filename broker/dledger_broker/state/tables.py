"""The replicated state, put together from its tables; applied commands and records alone change it."""

from __future__ import annotations

from collections.abc import Mapping

from dledger_broker.kernel.commands import RawHandler
from dledger_broker.kernel.digest import MASK
from dledger_broker.kernel.members import MemberTable
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.topics import TopicTable
from dledger_broker.kernel.trims import Trims
from dledger_broker.state.groups import GroupTable
from dledger_broker.state.offsets import OffsetTable
from dledger_broker.state.pins import PinTable
from dledger_broker.state.recent_commits import RecentCommits
from dledger_broker.state.remembered import REMEMBER_SENDS, RememberedSends


class BrokerState:
    """All tables.

    Two replicas that applied the same entries have equal states and equal digests; `trims` and `recent_commits` have no
    part in the digest.  `topics`, `topics_by_bytes` and `groups` are what the tables have, to be read;
    `raw_handlers` apply the kinds of which no object is made.
    """

    def __init__(self) -> None:
        self.topic_table = TopicTable()
        self.topics = self.topic_table.by_name
        self.topics_by_bytes = self.topic_table.by_bytes
        self.members = MemberTable()
        self.trims = Trims()
        self.group_table = GroupTable()
        self.groups = self.group_table.by_name
        self.offsets = OffsetTable()
        self.recent_commits = RecentCommits()
        self.pins = PinTable()
        self.remembered = RememberedSends()
        self.raw_handlers: Mapping[int, RawHandler] = {REMEMBER_SENDS: self.remembered.apply_rows}

    def delete_topic(self, name: str) -> TopicState | None:
        """Remove a topic, its queues and the offsets committed on it; None if there is none."""
        topic = self.topic_table.delete(name)
        if topic is not None:
            self.offsets.on_topic_deleted(name)
        return topic

    def delete_group(self, name: str, *, clean_offsets: bool) -> None:
        """Remove a consumer group, with its offsets if asked; none is no error."""
        self.group_table.delete(name)
        self.offsets.on_group_deleted(name, clean_offsets=clean_offsets)

    def digest(self) -> int:
        """The order-independent 64-bit digest of the state."""
        parts = (self.topic_table, self.members, self.group_table, self.offsets, self.pins, self.remembered)
        return sum(part.digest for part in parts) & MASK
