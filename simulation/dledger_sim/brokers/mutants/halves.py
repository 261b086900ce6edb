"""Bugs of transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from dledger_broker.features.transactions.checks import CheckBacks
from dledger_broker.features.transactions.ends import End, HalfEnds
from dledger_broker.features.transactions.table import EndHalf, Half, HalfOutcome, HalfTable
from dledger_broker.features.transactions.units import ProposedEnds
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.requests import Request
from dledger_remoting.record import MessageRecord
from dledger_sim.brokers.schedules import transactions
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("halves")


def _end_only(self: HalfEnds, ends: list[End]) -> None:
    _real_stage_unit(self, [end._replace(record=None) for end in ends])


_real_stage_unit = HalfEnds._stage_unit  # noqa: SLF001 - patches private names


CATALOGUE.add(
    "commit-without-its-message",
    "a commit stores the message and ends the half in one unit; with this bug only the half ends",
    (HalfEnds, "_stage_unit", _end_only),
)


def _store_only(self: HalfEnds, ends: list[End]) -> None:
    records = [end.record for end in ends if end.record is not None]
    if not records:
        _real_stage_unit(self, ends)
        return
    self._writer.write(records, done=partial(self._done, ends))
    self._staged += len(ends)


CATALOGUE.add(
    "commit-without-its-end",
    "a commit stores the message and ends the half in one unit; with this bug the half stays open",
    (HalfEnds, "_stage_unit", _store_only),
)


def _finish_waiting(self: ProposedEnds, position: int) -> None:
    for callback in self._waiting.pop(position, []):
        callback()


CATALOGUE.add(
    "ends-in-flight-not-waited-for",
    "only one end of a half is in flight at a time",
    (ProposedEnds, "__contains__", lambda _self, _position: False),
    (ProposedEnds, "finish", _finish_waiting),
)


def _end_at_once(self: HalfEnds, request: Request, position: int, record: MessageRecord | None) -> None:
    if record is not None:
        _real_add(self, request, position, record)
        return
    self._machine.stage_command(EndHalf(position, HalfOutcome.ROLLED_BACK), lambda _error: None, privileged=True)
    request.respond()


_real_add = HalfEnds._add  # noqa: SLF001 - patches private names


CATALOGUE.add(
    "rollback-answered-when-staged",
    "a rollback is answered once it is applied",
    (HalfEnds, "_add", _end_at_once),
)


def _continue_at_once(_self: CheckBacks, handle: JobHandle, _noted: Sequence[Half], then: Callable[[], None]) -> None:
    handle.guarded(then)()


CATALOGUE.add(
    "checks-not-noted",
    "each check of a half is recorded before a producer is asked, so that the number of checks is limited",
    (CheckBacks, "_note", _continue_at_once),
)


def _due_early(self: HalfTable, now_ms: int) -> Iterator[Half]:
    return _real_due(self, now_ms + HURRY_MS)


_real_due = HalfTable.due
HURRY_MS = 1_500

CATALOGUE.add(
    "asked-while-immune",
    "no producer is asked about a half before the producer's time to end it is over",
    (HalfTable, "due", _due_early),
)

CATALOGUE.add(
    "given-up-while-it-ends",
    "a half whose end is in flight is neither checked nor given up",
    (CheckBacks, "_is_free", lambda _self, _half: True),
    (ProposedEnds, "finish", _finish_waiting),
    schedule=transactions.commit_on_its_way_when_its_half_is_to_be_given_up,
)
