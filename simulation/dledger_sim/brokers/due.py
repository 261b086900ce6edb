"""Truth about delayed messages, read from the log independently of the code under test.

- A message is delivered when it is due, never before. It is delivered exactly once (`Truth`), and only if it was
  pending.
- A recalled message is not delivered any more. No other message is cancelled.
- A pending message is in the log. A trim takes none of them, except those that were given up for a full disk.
- A moved message is pending again at its new place, with the same due time.
- A message that was sent back (`sent_back`) waits as a separate message, identified by its position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Final, NamedTuple

from dledger.statemachine import CommittedEntry
from dledger_broker.features.delay.commands import (
    AddTimers,
    CancelTimers,
    EndTimers,
    FireTimers,
    MoveTimers,
    TimerRows,
)
from dledger_broker.features.delay.records import DUE_TOPICS, real_of
from dledger_broker.features.delay.table import STRETCH_BYTES
from dledger_remoting.record import iter_records
from dledger_sim.brokers.sent_back import Copy, SentBackTruth, copy_in
from dledger_sim.log.environment import WALL_EPOCH_MS
from dledger_sim.log.invariants import require

WAITING_TOPICS: Final = frozenset(topic.encode() for topic in DUE_TOPICS)


EARLY_S: Final = 0.25
"""Tolerance in seconds: group time extrapolates each clock for up to 1 s.

With drift that is wrong twice, when a delay is computed and when it ends.
"""


class Waiting(NamedTuple):
    """Message that waits: its operation, its destination topic, and its due time in milliseconds."""

    operation: int
    topic: str
    due_ms: int
    again: Copy | None = None
    """Copy that was sent back. Its operation is not from a client."""


class DueTruth:
    """Delayed messages by the positions of their records.

    `lasting` are topics that are never deleted. `remembered` are positions of sends that are recognised when they are
    repeated. From `remembers_from` on, all sends are.
    """

    def __init__(
        self, happened: Counter[str], lasting: set[str], sent_back: SentBackTruth, remembered: Container[int]
    ) -> None:
        self.happened = happened
        self._sent_back = sent_back
        self._lasting_topics = lasting
        self._remembered_positions = remembered
        self.remembers_from: int | None = None
        self.pending: dict[int, Waiting] = {}
        self.asked: dict[int, int] = {}
        self.wanted: dict[int, float] = {}
        """Simulated time in seconds before which each operation must not be delivered.

        It does not depend on any node's clock.
        """
        self.acknowledged: set[int] = set()
        self.early_s = EARLY_S
        self.checked_at = 0.0
        self.delivered: set[int] = set()
        self.lost: set[int] = set()
        """Operations that were given up."""
        self.unreadable: set[int] = set()
        """Operations whose records a leader cannot read. It may give them up one by one."""
        self.recalls: dict[int, bool] = {}
        """Operations whose clients asked to recall them.

        True if the client got a success, or may assume a success.
        """
        self.cancelled: set[int] = set()
        self._acknowledged_recalls: set[int] = set()
        self._seen_in_topic: set[int] = set()
        self._records: dict[int, Waiting] = {}
        self._positions_by_operation: dict[int, list[int]] = {}
        self._being_moved: set[int] = set()
        self._trimmed_to = 0
        self.stored_again: set[int] = set()
        """Idempotent sends that were repeated after the group had forgotten the first attempt."""

    def ask(self, operation: int, wanted: float) -> None:
        """Note that a client is about to send a message that is due at a simulated moment."""
        self.wanted[operation] = wanted

    def acknowledge(self, operation: int, position: int) -> None:
        """Check a message by an answer that names the position at which it waits or waited."""
        self.acknowledged.add(operation)
        require(
            position in self._positions_by_operation.get(operation, ()),
            "an acknowledged delayed message waits where the answer says",
            operation=operation,
            answered=position,
            stored=self._positions_by_operation.get(operation),
        )

    def recall(self, operation: int) -> None:
        """Note that a client is about to recall its message."""
        self.recalls.setdefault(operation, False)

    def recalled(self, operation: int, *, told: bool) -> None:
        """Check a recall that was acknowledged, or, without `told`, note one of unknown outcome."""
        self.recalls[operation] = True
        if told:
            self.happened["message taken back"] += 1
            self._acknowledged_recalls.add(operation)
            waiting = [at for at, waiting in self.pending.items() if waiting.operation == operation]
            require(
                not waiting and operation not in self._seen_in_topic,
                "a message whose recall was acknowledged neither waits nor is delivered",
                operation=operation,
                waiting=waiting,
            )

    def not_delivered(self) -> list[int]:
        """Return the operations that are acknowledged or in the log, and not delivered, given up or recalled."""
        waiting = {waiting.operation for waiting in self.pending.values()} | self.acknowledged
        return sorted(waiting - self.delivered - self.lost - self.cancelled)

    def check_recalls(self) -> None:
        """Check at the end that no message was cancelled whose recall was answered as too late."""
        silent = [operation for operation in self.cancelled if not self.recalls[operation]]
        require(not silent, "a message is recalled only if its client may believe so", operations=silent)

    def see_records(self, entry: CommittedEntry) -> None:
        """Note the delayed records of an entry. The commands of the entry decide about them."""
        self._records = {}
        for record in iter_records(bytes(entry.records)):
            if record.topic in DUE_TOPICS:
                real = real_of(record)
                require(real is not None, "a waiting record names its topic and queue", position=record.physical_offset)
                if real is not None:
                    operation = int.from_bytes(record.body[4:12], "big")
                    again = copy_in(real.topic, operation, record.reconsume_times)
                    if again is not None:
                        operation = -record.physical_offset
                    self._records[record.physical_offset] = Waiting(operation, real.topic, real.due_ms, again)

    def see_delivered(self, operation: int, moment: float, *, clocks_jumped: bool) -> None:
        """Check a message in its destination topic, at a simulated moment. Clocks drift a little, or may jump."""
        if operation not in self.asked:
            return
        self.happened["delayed message delivered"] += 1
        self.delivered.add(operation)
        self._seen_in_topic.add(operation)
        is_taken_back = operation in self.cancelled or operation in self._acknowledged_recalls
        require(not is_taken_back, "a recalled message is not delivered", operation=operation)
        wanted = self.wanted.get(operation, 0.0)
        require(
            clocks_jumped or moment >= wanted - self.early_s,
            "no message is delivered before it is due",
            operation=operation,
            due=wanted,
            at=moment,
        )

    def see_command(self, command: TimerRows | EndTimers, *, may_forget: bool = False) -> None:
        """Handle a command about rows. The group may forget idempotent sends, for example after clocks have jumped."""
        if isinstance(command, EndTimers):
            below = command.below + -command.below % STRETCH_BYTES
            for position in [position for position in self.pending if position < below]:
                self.lost.add(self.pending.pop(position).operation)
                self.happened["delayed message given up"] += 1
            return
        for due_ms, position, _ in TimerRows.unpack(command.rows):
            if isinstance(command, AddTimers):
                self._add_row(due_ms, position, may_forget=may_forget)
            else:
                self._remove_row(command, position)

    def _add_row(self, due_ms: int, position: int, *, may_forget: bool) -> None:
        waiting = self._records.get(position)
        require(
            waiting is not None and waiting.due_ms == due_ms,
            "a row names a record of its own unit, and the record's due time",
            position=position,
            due=due_ms,
            record=waiting,
        )
        if waiting is not None:
            self.pending[position] = waiting
            if waiting.again is not None:
                self._sent_back.see_waiting(waiting.again)
                self.wanted[waiting.operation] = (waiting.due_ms - WALL_EPOCH_MS) / 1000
            self.asked.setdefault(waiting.operation, due_ms)
            self._check_position(waiting.operation, position, may_forget=may_forget)
            self.happened["delayed message stored"] += 1

    def _is_remembered(self, position: int) -> bool:
        return position in self._remembered_positions or (
            self.remembers_from is not None and position >= self.remembers_from
        )

    def _check_position(self, operation: int, position: int, *, may_forget: bool) -> None:
        """Check the position of a message: its first, or the place to which it was moved."""
        places = self._positions_by_operation.setdefault(operation, [])
        if places and operation not in self._being_moved:
            kept = [at for at in places if self._is_remembered(at) and (at >= self._trimmed_to or at in self.pending)]
            require(
                may_forget or not kept,
                "a delayed message is stored once",
                operation=operation,
                kept=kept,
                again=position,
            )
            self.stored_again.add(operation)
            self.cancelled.discard(operation)  # the recalled message was the first one
            self._acknowledged_recalls.discard(operation)
            self.happened["delayed send forgotten and stored again"] += 1
        self._being_moved.discard(operation)
        places.append(position)

    def _remove_row(self, command: TimerRows, position: int) -> None:
        waiting = self.pending.pop(position, None)
        require(waiting is not None, "only pending messages are delivered, moved or cancelled", position=position)
        if waiting is None:
            return
        match command:
            case FireTimers():
                self.happened["row fired"] += 1
                require(
                    waiting.operation in self.delivered or waiting.topic not in self._lasting_topics,
                    "a delivered message is in its topic",
                    operation=waiting.operation,
                    topic=waiting.topic,
                )
                self.delivered.add(waiting.operation)  # or its topic was gone
            case MoveTimers():
                self.happened["row moved"] += 1
                self._being_moved.add(waiting.operation)
                if waiting.again is not None:
                    self._sent_back.see_moved(waiting.again)
            case CancelTimers():
                self.happened["row cancelled"] += 1
                if waiting.operation in self.unreadable:
                    self.lost.add(waiting.operation)
                    return
                require(
                    waiting.operation in self.recalls,
                    "a cancelled message was recalled by its client",
                    operation=waiting.operation,
                )
                self.cancelled.add(waiting.operation)

    def see_trim(self, position: int) -> None:
        """Check a trim that is about to happen."""
        below = [at for at in self.pending if at < position]
        require(not below, "no waiting message is trimmed", below=below, trim=position)
        self._trimmed_to = max(self._trimmed_to, position)
