"""Bugs of delayed messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from dledger_broker.features.delay.commands import MoveTimers, TimerRow
from dledger_broker.features.delay.in_flight import RowsInFlight
from dledger_broker.features.delay.index import RowsOfTimers
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.delay.moving import TimerMover
from dledger_broker.features.delay.recalls import Recalls, _Verdict
from dledger_broker.features.delay.row_units import MoveUnit
from dledger_broker.features.sending.dedup import comparing, idempotent
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.units import FixedRows
from dledger_broker.views.timefile import TimeFile
from dledger_broker.views.timerows import Counts, Key, RowChanges
from dledger_remoting.recalls import RecallHandle
from dledger_sim.brokers.schedules import timers
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("delays")

HURRY_MS = 5_000


def _hurry(self: DueMessages) -> int | None:
    now_ms = _real_time(self)
    return None if now_ms is None else now_ms + HURRY_MS


_real_time = DueMessages._group_time  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "fired-early",
    "no message is delivered before it is due",
    (DueMessages, "_group_time", _hurry),
)

CATALOGUE.add(
    "fired-again-in-flight",
    "a message whose delivery is in flight is not delivered again by a later run of the job",
    (RowsInFlight, "__contains__", lambda _self, _position: False),
    (RowsInFlight, "fires", 0),
    schedule=timers.fire_in_flight_across_a_handover_that_fails,
)


def _forget_moves(self: RowsInFlight, _positions: Collection[int]) -> None:
    _real_move(self, ())


_real_move = RowsInFlight.move

CATALOGUE.add(
    "fired-while-moved",
    "a message that is being moved to the log's end is not delivered from its old place",
    (RowsInFlight, "move", _forget_moves),
    schedule=timers.message_that_is_due_while_it_is_moved,
)

CATALOGUE.add(
    "trim-takes-what-waits",
    "the log is trimmed only below all waiting messages",
    (TimerMover, "is_free_below", lambda _self, _position: True),
)


def _keep_moved(self: MoveUnit) -> list[Command | FixedRows]:
    return [command for command in _real_done_commands(self) if not isinstance(command, MoveTimers)]


_real_done_commands = MoveUnit._done_commands  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "moved-and-kept",
    "a moved message is pending only at its new place",
    (MoveUnit, "_done_commands", _keep_moved),
)

CATALOGUE.add(
    "timers-forgotten-at-restart",
    "a node that starts finds the waiting messages in the log",
    (RowsOfTimers, "decode", lambda _self, _kind, _payload: None),
)


def _keep_gone(self: TimeFile, changes: Sequence[RowChanges], position: int, floor: int, counts: Counts | None) -> None:
    _real_write(self, [change._replace(removed=()) for change in changes], position, floor, counts)


_real_write = TimeFile.write

CATALOGUE.add(
    "gone-rows-kept",
    "the time index agrees with the state",
    (TimeFile, "write", _keep_gone),
)


def _answer_early(self: Recalls, rows: Sequence[TimerRow], told: Callable[[_Verdict | BaseException], None]) -> None:
    _real_cancel(self, rows, lambda _: None)
    told(_Verdict.RECALLED)


_real_cancel = Recalls._cancel  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "recall-answered-early",
    "a message whose recall was acknowledged stays recalled under every later leader",
    (Recalls, "_cancel", _answer_early),
)


def _decide_blindly(
    self: Recalls,
    rows: Sequence[TimerRow],
    moves: int,
    told: Callable[[_Verdict | BaseException], None],
    pending: set[Key] | BaseException,
) -> None:
    in_flight, self._in_flight = self._in_flight, RowsInFlight()
    self._in_flight.moves_ended = moves
    try:
        _real_decide(self, rows, moves, told, pending)
    finally:
        self._in_flight = in_flight


_real_decide = Recalls._decide  # noqa: SLF001 - patches private names

CATALOGUE.add(
    "recalled-in-flight",
    "a message whose delivery or move is in flight is not cancelled as well",
    (Recalls, "_decide", _decide_blindly),
    schedule=timers.recall_in_flight,
)


async def _believe(_self: Recalls, _handle: RecallHandle, _rows: Sequence[TimerRow]) -> None:
    """Believe that a message that no longer waits was recalled."""


CATALOGUE.add(
    "delayed-repetition-not-known",
    "a repeated send of a waiting message is answered like the first send",
    (comparing, "may_wait", lambda _messages: False),
    (idempotent, "may_wait", lambda _messages: False),
)

CATALOGUE.add(
    "delivered-taken-for-recalled",
    "a client that recalls a delivered message is told that it is too late",
    (Recalls, "_require_recalled", _believe),
)
