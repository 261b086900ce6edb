"""Ends of transactions (37): a half is committed, rolled back, or left open, once.

Only one end of a half is in flight at a time. Requests that arrive meanwhile wait for its outcome. An answer is that of
a confirmed leader, unless the request itself has staged the end:

1. A leader stages the commit of a half, and is deposed without knowing it.
2. Its successor takes the rollback, because the commit never reached a majority.
3. The old leader gets the request again, and still has the half open. It must not answer with an outcome.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final, NamedTuple, assert_never

from dledger.environment import Environment
from dledger.errors import LogError, TooLargeError
from dledger_base.telling import Telling
from dledger_broker.features.quotas.gate import QuotaGate
from dledger_broker.features.sending.gathering import Gathering
from dledger_broker.features.sending.on_their_way import waits_for_others
from dledger_broker.features.transactions.messages import committed, real_target
from dledger_broker.features.transactions.table import HALVES, EndHalf, Half, HalfOutcome
from dledger_broker.features.transactions.units import ProposedHalves
from dledger_broker.kernel.access import Access
from dledger_broker.kernel.contexts import UNKNOWN_CHANGE
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action, Demand, ResourceKind
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.units import NewRecord, Stored, UnitOutcome, failure
from dledger_broker.kernel.writer import LogWriter
from dledger_remoting.errors import InvalidParameter, ServerError, SystemBusy, TopicNotExist
from dledger_remoting.headers import EndTransactionHeader, decode_ext
from dledger_remoting.record import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_ROLLBACK, MessageRecord
from dledger_remoting.topics import HALF_TOPIC

_logger: Final = logging.getLogger(__name__)

_WISHES: Final = {
    SYS_TRANSACTION_COMMIT: HalfOutcome.COMMITTED,
    SYS_TRANSACTION_ROLLBACK: HalfOutcome.ROLLED_BACK,
}


class _Wish(NamedTuple):
    """Requested end: a rollback of the half at `position`, or, with the record `half`, its commit."""

    request: Request
    position: int
    half: MessageRecord | None


class End(NamedTuple):
    """Staged end of a half, and the message that its commit stores."""

    request: Request
    command: EndHalf
    record: NewRecord | None


class HalfEnds:
    """Handler of 37 on the leader. The ends of one turn are one unit, or two."""

    def __init__(
        self,
        machine: BrokerMachine,
        writer: LogWriter,
        env: Environment,
        requests: Requests,
        proposed: ProposedHalves,
        access: Access,
        quotas: QuotaGate,
    ) -> None:
        self._access = access
        self._quotas = quotas
        self._machine = machine
        self._writer = writer
        self._requests = requests
        self._ends = proposed.ends
        self._telling = Telling(env.now)
        self._staged = 0
        """Number of ends whose units are in flight."""
        self._gathering = Gathering(env, self._waits, self._stage)
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(HALVES)

    def handle(self, request: Request) -> None:
        """Take a producer's decision about a half (37).

        If a producer does not know the outcome yet, a later check asks it again.
        """
        header = decode_ext(EndTransactionHeader, request.ext)
        if self._access.is_on:
            self._requests.spawn(request, self._judge(request, header))
        else:
            self._take(request, header)

    async def _judge(self, request: Request, header: EndTransactionHeader) -> None:
        """Check the right to end the half.

        Its topic decides who may end it or learn its outcome, so nothing is disclosed before.
        """
        found = await self._machine.lookup.record_at(header.commit_log_offset)
        if found is not None and found[1].topic == HALF_TOPIC:
            self._access.require(request, Demand((Action.PUB,), ResourceKind.TOPIC, real_target(found[1])[0]))
            self._take(request, header)
        elif request.confirmed:
            raise ServerError(_no_half_text(header.commit_log_offset))
        else:
            self._requests.confirm(request)

    def _take(self, request: Request, header: EndTransactionHeader) -> None:
        """End the half, or answer why not."""
        if header.commit_or_rollback not in (0, *_WISHES):
            raise InvalidParameter(
                f"commitOrRollback {header.commit_or_rollback}: 8 commits, 12 rolls back, 0 leaves it open"
            )
        position = header.commit_log_offset
        if position in self._ends:
            self._ends.wait(position, partial(self._requests.run, request))
            return
        wish = _WISHES.get(header.commit_or_rollback)
        half = self._table.open.get(position)
        if half is None or wish is None or _mismatch(header, half):
            if request.confirmed:
                self._answer(request, header, half, wish)
            else:
                self._requests.confirm(request)
        elif position < self._machine.kept_from:
            raise SystemBusy(f"the log below {self._machine.kept_from} is about to be trimmed: try again later")
        elif wish is HalfOutcome.COMMITTED:
            self._requests.spawn(request, self._commit(request, position))
        else:
            self._add(request, position, None)

    # ---------------------------------------------------------------- answers that stage nothing

    def _answer(
        self, request: Request, header: EndTransactionHeader, half: Half | None, wish: HalfOutcome | None
    ) -> None:
        """Answer for a half that is not ended by this request, as a confirmed leader."""
        position = header.commit_log_offset
        if half is not None:
            mismatch = _mismatch(header, half)
            if mismatch:
                raise ServerError(f"the transaction at {position} {mismatch}")
            request.respond()
            return
        outcome = self._table.ended.get(position)
        if outcome is None:
            raise ServerError(_no_half_text(position))
        if wish is HalfOutcome.COMMITTED and outcome is HalfOutcome.NO_TOPIC:
            raise TopicNotExist(_no_topic_text(position))
        if wish is not None and wish is not outcome:
            raise ServerError(f"the transaction at {position} {_outcome_text(outcome)}")
        request.respond()

    # ---------------------------------------------------------------- ends

    async def _commit(self, request: Request, position: int) -> None:
        """Read the half, and check everything again in the turn that has its record."""
        found = await self._machine.lookup.record_at(position)
        half = self._table.open.get(position)
        if half is None or position in self._ends or not self._machine.leadership.ready:
            self._requests.run(request)
        elif found is None:
            raise ServerError(f"the transaction's message at {position} cannot be read: try again later")
        else:
            self._add(request, position, found[1])

    def _add(self, request: Request, position: int, record: MessageRecord | None) -> None:
        """Take an end into the unit of this turn. `record` is the half to commit, or None for a rollback."""
        self._ends.begin(position)
        self._gathering.add(
            _Wish(request, position, record), 0 if record is None else len(record.body) + len(record.properties)
        )
        self._gathering.flush_later()

    def _stage(self, wishes: list[_Wish]) -> None:
        """Stage ends in two units: ends with messages, and ends with commands alone, which a full disk takes, too.

        Everything is checked anew. Since an end was requested, its half may have been lost to a trim, or its topic may
        be about to be deleted.
        """
        ends = [end for end in map(self._decided, wishes) if end is not None]
        for unit in ([end for end in ends if end.record], [end for end in ends if not end.record]):
            if unit:
                self._stage_unit(unit)

    def _decided(self, wish: _Wish) -> End | None:
        """Return the end of a half, or None if it cannot be ended now. Then its request is handled again."""
        request, position, half = wish
        if position not in self._table.open or position < self._machine.kept_from:
            self._ends.finish(position)
            self._requests.run(request)
            return None
        if half is None:
            return End(request, EndHalf(position, HalfOutcome.ROLLED_BACK), None)
        name, _ = real_target(half)
        topic = self._machine.topic(name)
        if topic is None:
            line = "event=transaction_without_topic position=%d topic=%s"
            self._telling.log(_logger, logging.WARNING, request.origin.address.ip, name, line, position, name)
            return End(request, EndHalf(position, HalfOutcome.NO_TOPIC), None)
        return End(request, EndHalf(position, HalfOutcome.COMMITTED), committed(half, topic))

    def _stage_unit(self, ends: list[End]) -> None:
        """Stage ends that either all have messages or all lack them."""
        records = [end.record for end in ends if end.record is not None]
        commands = [end.command for end in ends]
        try:
            self._writer.write(records, commands, done=partial(self._done, ends), privileged=not records)
        except LogError as error:
            if isinstance(error, TooLargeError) and len(ends) > 1:
                for end in ends:
                    self._stage_unit([end])
            else:
                self._fail(ends, error)
            return
        self._staged += len(ends)

    def _fail(self, ends: list[End], error: Exception) -> None:
        """Answer ends of which nothing was proposed."""
        for end in ends:
            self._ends.finish(end.command.position)
            self._requests.fail(end.request, error)

    def _done(self, ends: list[End], outcome: UnitOutcome) -> None:
        """Answer the ends of a unit that is applied or lost."""
        self._staged -= len(ends)
        for end in ends:
            self._ends.finish(end.command.position)
        for end in ends:
            position = end.command.position
            if not isinstance(outcome, Stored):
                self._requests.fail(end.request, failure(outcome, _unknown(end.command)))
            elif end.command.outcome is HalfOutcome.NO_TOPIC:
                self._requests.fail(end.request, TopicNotExist(_no_topic_text(position)))
            else:
                size = 0 if end.record is None else len(end.record.body) + len(end.record.properties)
                self._quotas.charge_account(end.request.account, 1, size)
                end.request.respond()
        self._gathering.flush_later()

    def _waits(self, ends: int, size: int) -> bool:
        return waits_for_others(ends, size, self._staged)

    def close(self) -> None:
        """Stage what was added, because nothing else will do so any more."""
        self._gathering.flush()


def _mismatch(header: EndTransactionHeader, half: Half) -> str:
    """Return how a request contradicts the half that it names, or an empty text if it does not."""
    if header.tran_state_table_offset != half.queue_offset:
        return f"has queue offset {half.queue_offset}, not {header.tran_state_table_offset}"
    if header.producer_group != half.group:
        return f"is of the producer group {half.group}, not of {header.producer_group}"
    return ""


def _outcome_text(outcome: HalfOutcome) -> str:
    match outcome:
        case HalfOutcome.COMMITTED:
            return "is committed"
        case HalfOutcome.ROLLED_BACK:
            return "is rolled back"
        case HalfOutcome.LOST:
            return "was lost when a full disk had the log trimmed"
        case HalfOutcome.UNDECIDED:
            return "has ended: no producer said what is to become of it, however often they were asked"
        case HalfOutcome.NO_TOPIC:
            return "was committed when its topic was gone"
        case HalfOutcome.REOPENED:
            return "is open again under another offset"
    assert_never(outcome)


def _no_half_text(position: int) -> str:
    return f"no transaction is open at {position}: it has ended before, or never began"


def _no_topic_text(position: int) -> str:
    return f"the topic of the transaction at {position} does not exist any more: it has ended, and nothing was stored"


def _unknown(end: EndHalf) -> str:
    if end.outcome is HalfOutcome.COMMITTED:
        return f"leadership was lost before the commit of the transaction at {end.position} was: it may be committed"
    return UNKNOWN_CHANGE
