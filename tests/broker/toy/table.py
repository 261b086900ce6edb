"""Table of reminders: those that are pending, and how many were stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final

import msgspec

from dledger.errors import CorruptionError
from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, Kinds, RawCommand
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey, in_slices

STORED_KIND: Final = 901
ROW: Final = Struct(">QQ")
"""Number of a reminder, position of its message in the log."""


class PutReminder(msgspec.Struct, frozen=True):
    """Store `body` in queue 0 of `topic` at `due_ms`, ms since 1970."""

    topic: str
    body: bytes
    due_ms: int


class StoredReminders(RawCommand, frozen=True):
    """Reminders whose messages stand in the same unit: a `ROW` for each."""

    rows: bytes

    def to_payload(self) -> bytes:
        """See `RawCommand`."""
        return self.rows

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> StoredReminders:
        """See `RawCommand`."""
        if len(payload) % ROW.size:
            raise CorruptionError(f"stored reminders: {len(payload)} bytes are no rows of {ROW.size}")
        return cls(bytes(payload))


REMINDER_COMMANDS: Final[Kinds] = {900: PutReminder, STORED_KIND: StoredReminders}


class Reminder(msgspec.Struct, frozen=True, array_like=True):
    """A reminder that is pending; the group numbers them in the order of the log."""

    number: int
    topic: str
    body: bytes
    due_ms: int


class ReminderFrame(msgspec.Struct, frozen=True, tag="reminders"):
    """Reminders that are pending."""

    rows: list[Reminder]


class ReminderCountFrame(msgspec.Struct, frozen=True, tag="reminder-count"):
    """How many reminders there ever were, and where the last one's message stands."""

    numbered: int
    stored: int
    last_position: int


class ReminderTable(Table):
    """The replicated part. A counter is state as well as rows are: it is in the digest, and in snapshots."""

    __slots__ = ("_rows_digest", "last_position", "numbered", "pending", "stored")

    frames = (ReminderFrame, ReminderCountFrame)

    def __init__(self) -> None:
        self.pending: dict[int, Reminder] = {}
        self.numbered = self.stored = self.last_position = 0
        self._rows_digest = 0

    @property
    def digest(self) -> int:
        """See `Table.digest`; that of an empty table is 0."""
        counts = (self.numbered, self.stored, self.last_position)
        return (self._rows_digest + (item_hash("reminder-count", *counts) if self.numbered else 0)) & MASK

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        """See `Table.apply`."""
        _ = entry, changes
        match command:
            case PutReminder(topic=topic, body=body, due_ms=due_ms):
                self.numbered += 1
                self._add(Reminder(self.numbered, topic, body, due_ms))

    def apply_raw(self, payload: bytes | memoryview, entry: CommittedEntry) -> None:
        """See `Table.apply_raw`; of a reminder that is not pending nothing changes."""
        _ = entry
        for number, position in ROW.iter_unpack(StoredReminders.from_payload(payload).rows):
            if self._remove(number):
                self.stored += 1
                self.last_position = position

    def on_topic_deleted(self, topic: str) -> None:
        """See `Table.on_topic_deleted`: what was to be stored there never is."""
        for reminder in [reminder for reminder in self.pending.values() if reminder.topic == topic]:
            self._remove(reminder.number)

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        """See `Table.capture_frames`."""
        _ = now
        if not self.numbered:
            return {}
        count = ReminderCountFrame(self.numbered, self.stored, self.last_position)
        return {"reminders": map(ReminderFrame, in_slices(list(self.pending.values()))), "reminder-count": [count]}

    def restore_frame(self, frame: Frame, now: float) -> None:
        """See `Table.restore_frame`."""
        _ = now
        match frame:
            case ReminderFrame(rows=rows):
                for reminder in rows:
                    self._add(reminder)
            case ReminderCountFrame(numbered=numbered, stored=stored, last_position=last_position):
                self.numbered, self.stored, self.last_position = numbered, stored, last_position

    def _add(self, reminder: Reminder) -> None:
        self.pending[reminder.number] = reminder
        self._rows_digest = (self._rows_digest + _hash(reminder)) & MASK

    def _remove(self, number: int) -> bool:
        reminder = self.pending.pop(number, None)
        if reminder is None:
            return False
        self._rows_digest = (self._rows_digest - _hash(reminder)) & MASK
        return True


REMINDERS: Final = TableKey("reminders", ReminderTable)


def _hash(reminder: Reminder) -> int:
    return item_hash("reminder", reminder.number, reminder.topic, reminder.body, reminder.due_ms)
