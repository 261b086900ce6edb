"""Position below which the group trims its logs."""

from __future__ import annotations

from typing import Final

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.tables import Changes, Table
from dledger_broker.kernel.topics import TopicTable


class TrimQueues(msgspec.Struct, frozen=True):
    """Command with first kept offsets as (topic, created position of the topic, queue id, offset).

    The leader finds them before it trims the log below `before_position`. A topic that was created anew meanwhile does
    not match its created position and keeps its offsets.
    """

    before_position: int
    first_offsets: tuple[tuple[str, int, int, int], ...]


TRIM_COMMANDS: Final[Kinds] = {22: TrimQueues}


class Trims(Table):
    """The log is trimmed below `before`, or about to be, on every replica, whatever this replica still keeps.

    The digest of the state leaves it out.
    """

    __slots__ = ("_topics", "before")

    def __init__(self, topics: TopicTable) -> None:
        self._topics = topics
        self.before = 0

    @property
    def digest(self) -> int:
        """Always 0: the digest leaves the table out."""
        return 0

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry
        match command:
            case TrimQueues(before_position=before_position, first_offsets=first_offsets):
                self.raise_to(before_position)
                changes.log_trimmed(before_position)
                for name, created_position, queue_id, first_offset in first_offsets:
                    if self._topics.trim_queue(name, created_position, queue_id, first_offset):
                        changes.queue_trimmed(name, queue_id, first_offset)

    def raise_to(self, position: int) -> None:
        """Note that a trim below a position is decided. A lower position changes nothing."""
        self.before = max(self.before, position)
