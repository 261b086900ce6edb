"""Truth about delayed messages, read from the log beside the code under test.

- A message is delivered when it is due, never before; exactly once (`Truth`), and only if it was pending.
- What its producer took back is not delivered any more; nothing else is cancelled.
- What is pending stands in the log: a trim takes none of it, but what was given up for a full disk.
- A message that is moved is pending again at its new place, due when it was.
- A message that was sent back (`sent_back`) waits as a message of its own, known by where it waits.
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
"""By how much monotonic clocks that run fast and slow are wrong about the second for which a clock is reckoned on, once
when a delay is reckoned and once when it is over.
"""


class Waiting(NamedTuple):
    """A message that waits: its operation, the topic that it is for, when it is due (ms)."""

    operation: int
    topic: str
    due_ms: int
    again: Copy | None = None
    """What was sent back; its operation is no client's."""


class DueTruth:
    """What waits, by the positions of the records.

    `lasting` are topics that are never deleted; `remembered` are positions of sends that are known when they are
    repeated, as all are from `remembers_from` on.
    """

    def __init__(
        self, happened: Counter[str], lasting: set[str], sent_back: SentBackTruth, remembered: Container[int]
    ) -> None:
        self.happened = happened
        self._sent_back = sent_back
        self._lasting = lasting
        self._remembered = remembered
        self.remembers_from: int | None = None
        self.pending: dict[int, Waiting] = {}
        self.asked: dict[int, int] = {}
        self.wanted: dict[int, float] = {}
        """Simulated seconds before which operations are not to be delivered, by the clock of nobody."""
        self.acknowledged: set[int] = set()
        self.early_s = EARLY_S
        self.checked_at = 0.0
        self.delivered: set[int] = set()
        self.lost: set[int] = set()
        """Operations that were given up."""
        self.unreadable: set[int] = set()
        """Operations whose records a leader cannot read: it may give them up one by one."""
        self.recalls: dict[int, bool] = {}
        """Operations that their clients asked to take back; whether one was told so, or may believe it."""
        self.cancelled: set[int] = set()
        self._told: set[int] = set()
        self._copied: set[int] = set()
        self._records: dict[int, Waiting] = {}
        self._stored_at: dict[int, list[int]] = {}
        self._moving: set[int] = set()
        self._trimmed_to = 0
        self.stored_again: set[int] = set()
        """Idempotent sends that were repeated when nothing was kept of the first ones."""

    def ask(self, operation: int, wanted: float) -> None:
        """A client is about to send a message that is due at a simulated moment."""
        self.wanted[operation] = wanted

    def acknowledge(self, operation: int, position: int) -> None:
        """A client was told that its message waits at a position, or did."""
        self.acknowledged.add(operation)
        require(
            position in self._stored_at.get(operation, ()),
            "what is acknowledged waits where the answer says",
            operation=operation,
            answered=position,
            stored=self._stored_at.get(operation),
        )

    def recall(self, operation: int) -> None:
        """A client is about to ask for its message back."""
        self.recalls.setdefault(operation, False)

    def recalled(self, operation: int, *, told: bool) -> None:
        """A client was told that its message is taken back, or, not `told`, may believe so: nobody answered."""
        self.recalls[operation] = True
        if told:
            self.happened["message taken back"] += 1
            self._told.add(operation)
            waiting = [at for at, waiting in self.pending.items() if waiting.operation == operation]
            require(
                not waiting and operation not in self._copied,
                "a message that is answered as taken back does not wait, and is not delivered",
                operation=operation,
                waiting=waiting,
            )

    def not_delivered(self) -> list[int]:
        """Operations that were acknowledged, or stand in the log, and are not delivered, given up or taken back."""
        waiting = {waiting.operation for waiting in self.pending.values()} | self.acknowledged
        return sorted(waiting - self.delivered - self.lost - self.cancelled)

    def check_recalls(self) -> None:
        """At the end: who was told that it is too late has its message."""
        silent = [operation for operation in self.cancelled if not self.recalls[operation]]
        require(not silent, "a message is taken back only if its client may believe so", operations=silent)

    def see_records(self, entry: CommittedEntry) -> None:
        """Records of an entry: those that wait are remembered until commands say so."""
        self._records = {}
        for record in iter_records(bytes(entry.records)):
            if record.topic in DUE_TOPICS:
                real = real_of(record)
                require(real is not None, "a waiting record says what it is for", position=record.physical_offset)
                if real is not None:
                    operation = int.from_bytes(record.body[4:12], "big")
                    again = copy_in(real.topic, operation, record.reconsume_times)
                    if again is not None:
                        operation = -record.physical_offset
                    self._records[record.physical_offset] = Waiting(operation, real.topic, real.due_ms, again)

    def see_delivered(self, operation: int, moment: float, *, clocks_jumped: bool) -> None:
        """A message stands in its topic, at a simulated moment; clocks run apart a little, or may jump."""
        if operation not in self.asked:
            return
        self.happened["delayed message delivered"] += 1
        self.delivered.add(operation)
        self._copied.add(operation)
        is_taken_back = operation in self.cancelled or operation in self._told
        require(not is_taken_back, "what is taken back is not delivered", operation=operation)
        wanted = self.wanted.get(operation, 0.0)
        require(
            clocks_jumped or moment >= wanted - self.early_s,
            "nothing is delivered before it is due",
            operation=operation,
            due=wanted,
            at=moment,
        )

    def see_command(self, command: TimerRows | EndTimers, *, may_forget: bool = False) -> None:
        """A command about rows; the group may forget idempotent sends if clocks have jumped, say."""
        if isinstance(command, EndTimers):
            below = command.below + -command.below % STRETCH_BYTES
            for position in [position for position in self.pending if position < below]:
                self.lost.add(self.pending.pop(position).operation)
                self.happened["delayed message given up"] += 1
            return
        for due_ms, position, _ in TimerRows.unpack(command.rows):
            if isinstance(command, AddTimers):
                self._add(due_ms, position, may_forget=may_forget)
            else:
                self._remove(command, position)

    def _add(self, due_ms: int, position: int, *, may_forget: bool) -> None:
        waiting = self._records.get(position)
        require(
            waiting is not None and waiting.due_ms == due_ms,
            "a row names a record of its own unit, and when that is due",
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
            self._see_place(waiting.operation, position, may_forget=may_forget)
            self.happened["delayed message stored"] += 1

    def _is_known(self, position: int) -> bool:
        return position in self._remembered or (self.remembers_from is not None and position >= self.remembers_from)

    def _see_place(self, operation: int, position: int, *, may_forget: bool) -> None:
        """A message waits at a position: its first one, or it was moved there."""
        places = self._stored_at.setdefault(operation, [])
        if places and operation not in self._moving:
            kept = [at for at in places if self._is_known(at) and (at >= self._trimmed_to or at in self.pending)]
            require(
                may_forget or not kept,
                "a delayed message is stored once",
                operation=operation,
                kept=kept,
                again=position,
            )
            self.stored_again.add(operation)
            self.cancelled.discard(operation)  # what was taken back was the first one
            self._told.discard(operation)
            self.happened["delayed send forgotten and stored again"] += 1
        self._moving.discard(operation)
        places.append(position)

    def _remove(self, command: TimerRows, position: int) -> None:
        waiting = self.pending.pop(position, None)
        require(waiting is not None, "only what is pending is fired, moved or cancelled", position=position)
        if waiting is None:
            return
        match command:
            case FireTimers():
                self.happened["row fired"] += 1
                require(
                    waiting.operation in self.delivered or waiting.topic not in self._lasting,
                    "what is fired stands in its topic",
                    operation=waiting.operation,
                    topic=waiting.topic,
                )
                self.delivered.add(waiting.operation)  # or its topic was gone
            case MoveTimers():
                self.happened["row moved"] += 1
                self._moving.add(waiting.operation)
                if waiting.again is not None:
                    self._sent_back.see_moved(waiting.again)
            case CancelTimers():
                self.happened["row cancelled"] += 1
                if waiting.operation in self.unreadable:
                    self.lost.add(waiting.operation)
                    return
                require(
                    waiting.operation in self.recalls,
                    "what is cancelled was asked for by its client",
                    operation=waiting.operation,
                )
                self.cancelled.add(waiting.operation)

    def see_trim(self, position: int) -> None:
        """The log is about to be trimmed."""
        below = [at for at in self.pending if at < position]
        require(not below, "nothing that waits is trimmed", below=below, trim=position)
        self._trimmed_to = max(self._trimmed_to, position)
