"""Recalls (370): a message that waits until it is due is taken back, unless it is too late.

Answer 0 says that nothing of the message is delivered any more, and may be asked for again, whoever leads then. Any
other answer but one of unknown outcome leaves the message as it is. Several records may wait under one unique key, of a
send that was repeated: all of them are taken back.

What waits is found by its key in the log, and looked up in the time index. Whether it may be cancelled is decided in
the turn that proposes it, when nothing else is on its way for it. Meanwhile it may have been moved:

1. The record at A is found by its key. 2. A move is applied: the message waits at B now. 3. The time index says that
nothing waits at A. Answered 0 by that, the message would be delivered from B.

So a record that does not wait any more counts only if no move has ended since it was looked for. Then the message was
delivered, and its copy stands in its topic behind it, or it was taken back before, or lost. A leader says so only once
a majority has confirmed it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Final, TypeAlias

from dledger.environment import called_back
from dledger.errors import LogError, NotLeaderError
from dledger_broker.features.delay.by_key import records_with_key
from dledger_broker.features.delay.commands import CancelTimers, TimerRow
from dledger_broker.features.delay.in_flight import RowsInFlight
from dledger_broker.features.delay.records import real_of
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.views.timeindex import TimeIndex
from dledger_broker.views.timerows import Key
from dledger_remoting.errors import IllegalOperation, SystemBusy, TopicNotExist
from dledger_remoting.headers import RecallMessageHeader, RecallMessageResponseHeader, decode_ext, encode_ext
from dledger_remoting.properties import TIMER_OUT_MS, find_property
from dledger_remoting.recalls import RecallHandle
from dledger_remoting.topics import TIMER_TOPIC, is_retry_topic

_TIMER_OUT_MS: Final = TIMER_OUT_MS.encode()


class _Found(Enum):
    """What a look at the records of a message has come to."""

    TAKEN_BACK = auto()
    LOOK_AGAIN = auto()
    NOTHING_WAITS = auto()


_Told: TypeAlias = Callable[[_Found | BaseException], None]


class Recalls:
    """Answers 370 on the leader of `broker_group`. `recalled` counts the rows that this node has cancelled for it."""

    def __init__(
        self,
        machine: BrokerMachine,
        broker_group: str,
        index: TimeIndex,
        in_flight: RowsInFlight,
        requests: Requests,
    ) -> None:
        self.recalled = 0
        self._machine = machine
        self._broker_group = broker_group
        self._index = index
        self._in_flight = in_flight
        self._requests = requests

    def handle(self, request: Request) -> None:
        """370: take a message back."""
        header = decode_ext(RecallMessageHeader, request.ext)
        if self._machine.topic(header.topic) is None:
            raise TopicNotExist(f"recall failed, the topic[{header.topic}] not exist")
        handle = RecallHandle.decode(header.recall_handle)
        if handle.topic != header.topic:
            raise IllegalOperation(f"recall failed, topic not match: the handle is for {handle.topic}")
        if handle.broker_group != self._broker_group:
            raise IllegalOperation(
                f"recall failed, broker service not available: the message is in the group {handle.broker_group}, this "
                f"is {self._broker_group}"
            )
        if is_retry_topic(handle.topic):
            raise IllegalOperation("recall failed: what a consumer has sent back is not taken back")
        self._requests.spawn(request, self._recall(request, handle))

    async def _recall(self, request: Request, handle: RecallHandle) -> None:
        found, rows = _Found.LOOK_AGAIN, list[TimerRow]()
        while found is _Found.LOOK_AGAIN:
            moves = self._in_flight.moves_ended
            rows = await self._rows(handle)
            found = await called_back(partial(self._take_back, rows, moves))
        if found is _Found.NOTHING_WAITS:
            if not request.confirmed:
                self._requests.confirm(request)
                return
            await self._require_taken_back(handle, rows)
        request.respond(ext=encode_ext(RecallMessageResponseHeader(handle.unique_key)))

    # ---------------------------------------------------------------- what waits

    async def _rows(self, handle: RecallHandle) -> list[TimerRow]:
        """The rows of all records that wait for the message to be due, or have."""
        rows: list[TimerRow] = []
        for data, record in await records_with_key(self._machine, TIMER_TOPIC, handle.unique_key.encode()):
            real = real_of(record)
            if real is not None and real.topic == handle.topic:
                rows.append((real.due_ms, record.physical_offset, len(data)))
        return rows

    # ---------------------------------------------------------------- decisions

    def _take_back(self, rows: Sequence[TimerRow], moves: int, told: _Told) -> None:
        self._index.pending([row[:2] for row in rows], partial(self._decide, rows, moves, told))

    def _decide(self, rows: Sequence[TimerRow], moves: int, told: _Told, pending: set[Key] | BaseException) -> None:
        """Cancel those of the rows that are pending now, if nothing else is on its way for them."""
        if isinstance(pending, BaseException):
            told(SystemBusy(f"what waits cannot be read now, nothing was recalled: {pending}"))
            return
        waiting = [row for row in rows if row[:2] in pending]
        busy = next((row[1] for row in waiting if row[1] in self._in_flight), None)
        if not self._machine.leadership.ready:
            told(NotLeaderError(None, 0, "this node does not lead any more"))
        elif any(self._in_flight.is_fired(row[1]) for row in waiting):
            told(IllegalOperation("recall failed: too late, the message is being delivered"))
        elif busy is not None:
            self._in_flight.when_ended(busy, partial(told, _Found.LOOK_AGAIN))
        elif self._in_flight.moves_ended != moves and (not waiting or len(waiting) < len(rows)):
            told(_Found.LOOK_AGAIN)
        elif waiting:
            self._cancel(waiting, told)
        else:
            told(_Found.NOTHING_WAITS)

    def _cancel(self, rows: Sequence[TimerRow], told: _Told) -> None:
        """Propose it, on a full disk too: it makes room for others."""
        positions = [row[1] for row in rows]

        def ended(error: LogError | None) -> None:
            self._in_flight.cancelled(positions)
            if error is None:
                self.recalled += len(rows)
            told(_Found.TAKEN_BACK if error is None else error)

        privileged = self._machine.overlay.may_use_reserve
        self._in_flight.cancel(positions)
        self._machine.stage_command(CancelTimers.of(rows), ended, privileged=privileged)

    async def _require_taken_back(self, handle: RecallHandle, rows: Sequence[TimerRow]) -> None:
        """Raise `IllegalOperation` unless a message that does not wait any more was taken back, or lost."""
        unknown = IllegalOperation(f"recall failed: no message with the unique key {handle.unique_key} waits here")
        waited_at = [position for due_ms, position, _ in rows if due_ms == handle.due_ms]
        if not waited_at:
            raise unknown
        due = b"%d" % handle.due_ms
        for _, record in await records_with_key(self._machine, handle.topic, handle.unique_key.encode()):
            if find_property(record.properties, _TIMER_OUT_MS) == due:
                raise IllegalOperation("recall failed: too late, the message has been delivered")
        # 1. The record is found. 2. A trim takes it, and the copy behind it. 3. No copy is found; it was delivered.
        if min(waited_at) < self._machine.log.first_position:
            raise unknown
