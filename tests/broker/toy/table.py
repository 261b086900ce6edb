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
"""Row: the number of a reminder, and the position of its message in the log."""


class PutReminder(msgspec.Struct, frozen=True):
    """Command to store `body` in queue 0 of `topic` at `due_ms`, ms since 1970."""

    topic: str
    body: bytes
    due_ms: int


class StoredReminders(RawCommand, frozen=True):
    """Command that names reminders whose messages stand in the same unit, with a `ROW` for each."""

    rows: bytes

    def to_payload(self) -> bytes:
        return self.rows

    @classmethod
    def from_payload(cls, payload: bytes | memoryview) -> StoredReminders:
        if len(payload) % ROW.size:
            raise CorruptionError(f"stored reminders: {len(payload)} bytes are no rows of {ROW.size}")
        return cls(bytes(payload))


REMINDER_COMMANDS: Final[Kinds] = {900: PutReminder, STORED_KIND: StoredReminders}


class Reminder(msgspec.Struct, frozen=True, array_like=True):
    """Reminder that is pending. The group numbers reminders in the order of the log."""

    number: int
    topic: str
    body: bytes
    due_ms: int


class ReminderFrame(msgspec.Struct, frozen=True, tag="reminders"):
    """Snapshot frame of pending reminders."""

    rows: list[Reminder]


class ReminderCountFrame(msgspec.Struct, frozen=True, tag="reminder-count"):
    """Snapshot frame of the counters: reminders ever made and stored, and the position of the last stored message."""

    numbered: int
    stored: int
    last_position: int


class ReminderTable(Table):
    """Replicated part. The counters are state as the rows are: they are in the digest and in snapshots."""

    __slots__ = ("_rows_digest", "last_position", "numbered", "pending", "stored")

    frames = (ReminderFrame, ReminderCountFrame)

    def __init__(self) -> None:
        self.pending: dict[int, Reminder] = {}
        self.numbered = self.stored = self.last_position = 0
        self._rows_digest = 0

    @property
    def digest(self) -> int:
        """Digest of the rows and counters, 0 for an empty table."""
        counts = (self.numbered, self.stored, self.last_position)
        return (self._rows_digest + (item_hash("reminder-count", *counts) if self.numbered else 0)) & MASK

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = entry, changes
        match command:
            case PutReminder(topic=topic, body=body, due_ms=due_ms):
                self.numbered += 1
                self._add(Reminder(self.numbered, topic, body, due_ms))

    def apply_raw(self, payload: bytes | memoryview, entry: CommittedEntry) -> None:
        """Count reminders as stored. A reminder that is not pending changes nothing."""
        _ = entry
        for number, position in ROW.iter_unpack(StoredReminders.from_payload(payload).rows):
            if self._remove(number):
                self.stored += 1
                self.last_position = position

    def on_topic_deleted(self, topic: str) -> None:
        """Drop the pending reminders of the topic, which are never stored."""
        for reminder in [reminder for reminder in self.pending.values() if reminder.topic == topic]:
            self._remove(reminder.number)

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        if not self.numbered:
            return {}
        count = ReminderCountFrame(self.numbered, self.stored, self.last_position)
        return {"reminders": map(ReminderFrame, in_slices(list(self.pending.values()))), "reminder-count": [count]}

    def restore_frame(self, frame: Frame, now: float) -> None:
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
