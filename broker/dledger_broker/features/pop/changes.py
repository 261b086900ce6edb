"""Overlay of the leader's popped queues: changes that are collected or proposed, and not yet applied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

from dledger.environment import Environment
from dledger.errors import LogError, NotLeaderError
from dledger_broker.features.pop.commands import NO_ROW, Ack, AckRow, Pop, PopQueueKey, ResetPop
from dledger_broker.features.pop.deliveries import Delivery, PopQueue
from dledger_broker.features.pop.table import POPPED, PopTable
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.state import BrokerState

AckDone: TypeAlias = Callable[[LogError | None, int], None]
"""Called once with the outcome, and with the new pop time of a message that is hidden anew."""
MAX_ROWS: Final = 50
"""Maximum number of rows of one command. With the longest names they fit into the smallest segment."""


@dataclass(eq=False, slots=True)
class _Step:
    """Pop or reset in flight: the group's next offset in a queue once the change is applied."""

    next_offset: int
    messages: int


@dataclass(slots=True)
class _InFlight:
    """Changes in flight for one queue of a group."""

    steps: list[_Step] = field(default_factory=list)
    last_pop_ms: int = 0
    """Highest pop time of the changes that are in flight, or were so recently."""
    acking: Counter[tuple[int, int]] = field(default_factory=Counter)
    """Acknowledgements in flight, by (pop time, bit). A repeated acknowledgement may be in flight along with the first.
    """
    closing: set[tuple[int, int]] = field(default_factory=set)
    """Messages that are being revived, hidden anew or popped again in order, by (pop time, bit)."""

    @property
    def is_empty(self) -> bool:
        return not (self.steps or self.acking or self.closing)


class PopChanges:
    """Proposer of changes of popped queues, which takes the changes in flight into account. Each `done` is called once.

    Only a ready leader changes popped queues, and its changes are applied in the order of their proposals. So the state
    that a change will find is known when the change is proposed, unless a trim or a deletion is applied in between.
    Acknowledgements are collected until the turn of the event loop ends. See `Overlay`.
    """

    def __init__(self, machine: BrokerMachine, env: Environment) -> None:
        self.table: PopTable
        self._machine = machine
        self._env = env
        self._in_flight: dict[PopQueueKey, _InFlight] = {}
        self._collected: list[tuple[AckRow, AckDone]] = []
        self._is_flush_due = False
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self.table = state.table(POPPED)

    # ---------------------------------------------------------------- what there is, when all is applied

    def next_offset(self, key: PopQueueKey) -> int:
        """Return the offset at which the next pop of a queue begins, or `NO_ROW` if the group never popped the
        queue.
        """
        flight = self._in_flight.get(key)
        if flight is not None and flight.steps:
            return flight.steps[-1].next_offset
        queue = self.table.queue(key)
        return NO_ROW if queue is None else queue.next_offset

    def changing(self, group: str, topic: str) -> set[int]:
        """Return the ids of the queues of a topic that have changes of a group in flight."""
        return {key.queue_id for key in self._in_flight if key.group == group and key.topic == topic}

    def last_pop_ms(self, key: PopQueueKey) -> int:
        """Return the pop time that the next pop of a queue must exceed."""
        queue, flight = self.table.queue(key), self._in_flight.get(key)
        last = 0 if queue is None else queue.last_pop_ms
        return last if flight is None else max(last, flight.last_pop_ms)

    def open_count(self, key: PopQueueKey) -> int:
        """Return the maximum number of messages of a queue that are delivered and not done with."""
        queue, flight = self.table.queue(key), self._in_flight.get(key)
        count = 0 if queue is None else queue.open_count
        return count if flight is None else count + sum(step.messages for step in flight.steps)

    def is_popping(self, key: PopQueueKey) -> bool:
        """Return whether a pop or a reset of a queue is in flight."""
        flight = self._in_flight.get(key)
        return flight is not None and bool(flight.steps)

    def is_free(self, queue: PopQueue, delivery: Delivery) -> bool:
        """Return whether no change is in flight for any message of a delivery."""
        return self.free_bits(queue, delivery) == delivery.open_bits

    def free_bits(self, queue: PopQueue, delivery: Delivery) -> int:
        """Return the open messages of a delivery that have no change in flight."""
        bits, flight = delivery.open_bits, self._in_flight.get(queue.key)
        if flight is not None:
            for pop_time_ms, bit in (*flight.acking, *flight.closing):
                if pop_time_ms == delivery.pop_time_ms:
                    bits &= ~bit
        return bits

    def is_closing(self, key: PopQueueKey, pop_time_ms: int, bit: int) -> bool:
        """Return whether a message is about to be delivered again, or hidden anew."""
        flight = self._in_flight.get(key)
        return flight is not None and (pop_time_ms, bit) in flight.closing

    def is_acking(self, key: PopQueueKey, pop_time_ms: int, bit: int) -> bool:
        """Return whether a message is about to be acknowledged."""
        flight = self._in_flight.get(key)
        return flight is not None and (pop_time_ms, bit) in flight.acking

    # ---------------------------------------------------------------- pops

    def pop(self, command: Pop, done: Done, proposed: Command | None = None) -> None:
        """Propose a pop whose rows were chosen by the state of this overlay. `proposed` is a command that contains it,
        if it is more than a pop.
        """
        steps: list[tuple[PopQueueKey, _Step]] = []
        closed: list[tuple[PopQueueKey, int, int]] = []
        for row in command.rows:
            key = PopQueueKey(command.group, row.topic, row.queue_id)
            steps.append((key, _Step(row.next_offset, len(row.offsets))))
            self._note_pop_time(key, command.pop_time_ms)
            again = self.table.delivery(key, row.again) if row.again else None
            if again is not None:
                closed += ((key, row.again, bit) for bit in bits_in(again.open_bits))
        self._stage(proposed or command, steps, closed, done)

    def reset(self, command: ResetPop, done: Done) -> None:
        """Propose that a group continues at another offset of a queue."""
        key = PopQueueKey(command.group, command.topic, command.queue_id)
        self.flush()
        self._stage(command, [(key, _Step(command.offset, 0))], [], done)

    def _stage(
        self,
        command: Command,
        steps: Sequence[tuple[PopQueueKey, _Step]],
        closed: Sequence[tuple[PopQueueKey, int, int]],
        done: Done,
    ) -> None:
        for key, step in steps:
            self._flight_of(key).steps.append(step)
        self.begin_closing(closed)

        def finished(error: LogError | None) -> None:
            for key, step in steps:
                self._in_flight[key].steps.remove(step)
            self.end_closing(closed)
            self._forget(key for key, _ in steps)
            done(error)

        self._propose(command, finished)

    def _propose(self, command: Command, finished: Done) -> None:
        try:
            privileged = self._machine.overlay.may_use_reserve
        except NotLeaderError as error:
            finished(error)
            return
        self._machine.stage_command(command, finished, privileged=privileged)

    # ---------------------------------------------------------------- revivals

    def begin_closing(self, messages: Sequence[tuple[PopQueueKey, int, int]]) -> None:
        """Note that these messages, as (queue, pop time, bit), are about to be delivered again."""
        for key, pop_time_ms, bit in messages:
            self._flight_of(key).closing.add((pop_time_ms, bit))

    def end_closing(self, messages: Sequence[tuple[PopQueueKey, int, int]]) -> None:
        """Note that the redelivery of these messages is applied, or lost."""
        for key, pop_time_ms, bit in messages:
            self._in_flight[key].closing.discard((pop_time_ms, bit))
        self._forget(key for key, _, _ in messages)

    # ---------------------------------------------------------------- acknowledgements

    def ack(self, row: AckRow, done: AckDone) -> None:
        """Take an acknowledgement, or a change of a message's invisible time, whose new pop time may be moved to a
        later time.
        """
        flight = self._flight_of(_key(row))
        for bit in bits_in(row.bits):
            if row.new_pop_time_ms:
                flight.closing.add((row.pop_time_ms, bit))
            else:
                flight.acking[row.pop_time_ms, bit] += 1
        self._collected.append((row, done))
        if not self._is_flush_due:
            self._is_flush_due = True
            self._env.call_soon(self.flush)

    def flush(self) -> None:
        """Propose the collected rows."""
        self._is_flush_due = False
        collected, self._collected = self._collected, []
        for begin in range(0, len(collected), MAX_ROWS):
            batch = [(self._dated(row), done) for row, done in collected[begin : begin + MAX_ROWS]]
            self._propose(Ack(tuple(row for row, _ in batch)), partial(self._acked, batch))

    def _dated(self, row: AckRow) -> AckRow:
        """Return the row with a pop time that no other delivery of its queue has."""
        if not row.new_pop_time_ms:
            return row
        pop_time_ms = max(row.new_pop_time_ms, self.last_pop_ms(_key(row)) + 1)
        self._note_pop_time(_key(row), pop_time_ms)
        return row._replace(new_pop_time_ms=pop_time_ms)

    def discard(self, error: NotLeaderError) -> None:
        """Fail the collected rows, because this replica no longer leads. None of them was proposed."""
        collected, self._collected = self._collected, []
        self._acked(collected, error)

    def _acked(self, batch: Sequence[tuple[AckRow, AckDone]], error: LogError | None) -> None:
        for row, _ in batch:
            flight = self._in_flight[_key(row)]
            for bit in bits_in(row.bits):
                if row.new_pop_time_ms:
                    flight.closing.discard((row.pop_time_ms, bit))
                else:
                    flight.acking[row.pop_time_ms, bit] -= 1
            flight.acking = +flight.acking
        self._forget(_key(row) for row, _ in batch)
        for row, done in batch:
            done(error, row.new_pop_time_ms)

    # ---------------------------------------------------------------- inside

    def _flight_of(self, key: PopQueueKey) -> _InFlight:
        return self._in_flight.setdefault(key, _InFlight())

    def _note_pop_time(self, key: PopQueueKey, pop_time_ms: int) -> None:
        flight = self._flight_of(key)
        flight.last_pop_ms = max(flight.last_pop_ms, pop_time_ms)

    def _forget(self, keys: Iterable[PopQueueKey]) -> None:
        for key in keys:
            flight = self._in_flight.get(key)
            if flight is not None and flight.is_empty:
                del self._in_flight[key]


def bits_in(bits: int) -> list[int]:
    """Return each of the set bits by itself, the lowest first."""
    return [1 << number for number in range(bits.bit_length()) if bits >> number & 1]


def _key(row: AckRow) -> PopQueueKey:
    return PopQueueKey(row.group, row.topic, row.queue_id)
