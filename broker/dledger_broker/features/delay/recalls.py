"""Recalls (370): a producer takes a delayed message back before it is due.

Answer 0 says that the message will not be delivered. A producer may repeat the request, also to a later leader. With
any other answer the message is unchanged, unless the outcome is unknown. A repeated send leaves several records with
one unique key; all of them are recalled.

Records are found by their key in the log, and their rows are looked up in the time index. The decision to cancel is
made in the turn that proposes it, if no other change of the rows is in flight. A move may interfere:

1. The record at A is found by its key.
2. A move is applied. The message waits at B now.
3. The time index says that nothing waits at A. If that led to answer 0, the message would be delivered from B.

So a record without a pending row counts only if no move has ended since the search began. Then the message was
delivered, recalled earlier, or lost. If it was delivered, its copy is in its topic, later in the log. A leader gives
this answer only after a majority has confirmed it.

The look-up by key also finds records of messages that wait or have waited. Clients' queries do not find these records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import partial
from typing import Final, TypeAlias

from dledger.environment import called_back
from dledger.errors import LogError, NotLeaderError
from dledger_broker.features.delay.commands import CancelTimers, TimerRow
from dledger_broker.features.delay.in_flight import RowsInFlight
from dledger_broker.features.delay.records import real_of
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.views.timeindex import TimeIndex
from dledger_broker.views.timerows import Key
from dledger_remoting.errors import IllegalOperation, SystemBusy, TopicNotExist
from dledger_remoting.headers import RecallMessageHeader, RecallMessageResponseHeader, decode_ext, encode_ext
from dledger_remoting.properties import TIMER_OUT_MS, UNIQUE_KEY, find_property
from dledger_remoting.recalls import RecallHandle
from dledger_remoting.record import MessageRecord
from dledger_remoting.topics import TIMER_TOPIC, is_retry_topic

MAX_RECORDS: Final = 4_096
"""Maximum number of records that are read for one key. Records of other keys may have the same hash."""
_END_MS: Final = (1 << 63) - 1
_UNIQUE_KEY: Final = UNIQUE_KEY.encode()


async def records_with_key(machine: BrokerMachine, topic: str, unique_key: bytes) -> list[tuple[bytes, MessageRecord]]:
    """Return the stored records of a topic whose message has a unique key, the newest first.

    Raises `IllegalOperation` if there may be more than `MAX_RECORDS`, and what `Lookup` raises.
    """
    records: list[tuple[bytes, MessageRecord]] | None = None
    while records is None:
        kept_from = machine.log.first_position
        positions = await machine.keys.candidates(topic, unique_key, MAX_RECORDS + 1, 0, _END_MS)
        if len(positions) > MAX_RECORDS:
            shown = unique_key.decode(errors="replace")
            raise IllegalOperation(f"too many messages have the unique key {shown} of the topic {topic}, or its hash")
        records = await _read(machine, topic, unique_key, positions)
        if machine.log.first_position != kept_from:
            records = None  # a record may have been moved and its old place trimmed: search for the copy
    return records


async def _read(
    machine: BrokerMachine, topic: str, unique_key: bytes, positions: Sequence[int]
) -> list[tuple[bytes, MessageRecord]]:
    records: list[tuple[bytes, MessageRecord]] = []
    for number, position in enumerate(positions, 1):
        await machine.keys.leave_turn(number)
        found = await machine.lookup.record_at(position)
        if found is None:
            continue
        record = found[1]
        if record.topic == topic and find_property(record.properties, _UNIQUE_KEY) == unique_key:
            records.append(found)
    return records


_TIMER_OUT_MS: Final = TIMER_OUT_MS.encode()


class _Verdict(Enum):
    """Result of one search for the records of a message."""

    RECALLED = auto()
    RETRY = auto()
    NOT_PENDING = auto()


_VerdictCallback: TypeAlias = Callable[[_Verdict | BaseException], None]


class Recalls:
    """Handler of 370 on the leader of `broker_group`. `recalled` counts the rows that this node has cancelled."""

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
        """Handle 370: recall a message."""
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
        verdict, rows = _Verdict.RETRY, list[TimerRow]()
        while verdict is _Verdict.RETRY:
            moves = self._in_flight.moves_ended
            rows = await self._find_rows(handle)
            verdict = await called_back(partial(self._check_pending, rows, moves))
        if verdict is _Verdict.NOT_PENDING:
            if not request.confirmed:
                self._requests.confirm(request)
                return
            await self._require_recalled(handle, rows)
        request.respond(ext=encode_ext(RecallMessageResponseHeader(handle.unique_key)))

    # ---------------------------------------------------------------- records

    async def _find_rows(self, handle: RecallHandle) -> list[TimerRow]:
        """Return the rows of all records of the message that wait, or have waited, until it is due."""
        rows: list[TimerRow] = []
        for data, record in await records_with_key(self._machine, TIMER_TOPIC, handle.unique_key.encode()):
            real = real_of(record)
            if real is not None and real.topic == handle.topic:
                rows.append((real.due_ms, record.physical_offset, len(data)))
        return rows

    # ---------------------------------------------------------------- decisions

    def _check_pending(self, rows: Sequence[TimerRow], moves: int, callback: _VerdictCallback) -> None:
        self._index.pending([row[:2] for row in rows], partial(self._decide, rows, moves, callback))

    def _decide(
        self, rows: Sequence[TimerRow], moves: int, callback: _VerdictCallback, pending: set[Key] | BaseException
    ) -> None:
        """Cancel the rows that are pending now, unless another change of them is in flight.

        `callback` gets the verdict, `RETRY` if the search has to begin anew, or an error.
        """
        if isinstance(pending, BaseException):
            callback(SystemBusy(f"what waits cannot be read now, nothing was recalled: {pending}"))
            return
        waiting = [row for row in rows if row[:2] in pending]
        busy_position = next((row[1] for row in waiting if row[1] in self._in_flight), None)
        if not self._machine.leadership.ready:
            callback(NotLeaderError(None, 0, "this node does not lead any more"))
        elif any(self._in_flight.is_fired(row[1]) for row in waiting):
            callback(IllegalOperation("recall failed: too late, the message is being delivered"))
        elif busy_position is not None:
            self._in_flight.call_when_ended(busy_position, partial(callback, _Verdict.RETRY))
        elif self._in_flight.moves_ended != moves and (not waiting or len(waiting) < len(rows)):
            callback(_Verdict.RETRY)
        elif waiting:
            self._cancel(waiting, callback)
        else:
            callback(_Verdict.NOT_PENDING)

    def _cancel(self, rows: Sequence[TimerRow], callback: _VerdictCallback) -> None:
        """Propose to cancel rows. That makes room, so it is allowed on a full disk, too."""
        positions = [row[1] for row in rows]

        def on_applied(error: LogError | None) -> None:
            self._in_flight.cancelled(positions)
            if error is None:
                self.recalled += len(rows)
            callback(_Verdict.RECALLED if error is None else error)

        privileged = self._machine.overlay.may_use_reserve
        self._in_flight.cancel(positions)
        self._machine.stage_command(CancelTimers.of(rows), on_applied, privileged=privileged)

    async def _require_recalled(self, handle: RecallHandle, rows: Sequence[TimerRow]) -> None:
        """Raise `IllegalOperation` unless a message that does not wait any more was recalled or lost."""
        not_found = IllegalOperation(f"recall failed: no message with the unique key {handle.unique_key} waits here")
        waited_at = [position for due_ms, position, _ in rows if due_ms == handle.due_ms]
        if not waited_at:
            raise not_found
        due = b"%d" % handle.due_ms
        for _, record in await records_with_key(self._machine, handle.topic, handle.unique_key.encode()):
            if find_property(record.properties, _TIMER_OUT_MS) == due:
                raise IllegalOperation("recall failed: too late, the message has been delivered")
        # 1. A record is found. 2. A trim removes it, and the copy later in the log. 3. No copy is found, although the
        #    message was delivered.
        if min(waited_at) < self._machine.log.first_position:
            raise not_found
