"""Ends of transactions (37): a half is committed, rolled back, or left open, once.

Only one end of a half is on its way at a time. What comes meanwhile waits for its outcome, and every answer but that of
an end that the request itself has staged is a confirmed leader's:

1. A leader stages the commit of a half, and is deposed without knowing it.
2. Its successor takes the rollback, for the commit never reached a majority.
3. The old leader, asked again, still has the half open; it must not say what has become of it.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Final, NamedTuple, assert_never

from dledger.environment import Environment
from dledger.errors import LogError, TooLargeError
from dledger_broker.features.sending.gathering import Gathering
from dledger_broker.features.sending.on_their_way import waits_for_others
from dledger_broker.features.transactions.messages import committed, real_target
from dledger_broker.features.transactions.proposed import ProposedHalves
from dledger_broker.features.transactions.table import HALVES, EndHalf, Half, HalfOutcome
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
    """What is asked for: that the half at a position is rolled back, or the message of this one stored."""

    request: Request
    position: int
    half: MessageRecord | None


class End(NamedTuple):
    """What is staged: the end of a half, and the message that its commit stores."""

    request: Request
    command: EndHalf
    record: NewRecord | None


class HalfEnds:
    """Answers 37 on the leader; the ends of one turn are one unit, or two."""

    def __init__(
        self,
        machine: BrokerMachine,
        writer: LogWriter,
        env: Environment,
        requests: Requests,
        proposed: ProposedHalves,
        access: Access,
    ) -> None:
        self._access = access
        self._machine = machine
        self._writer = writer
        self._requests = requests
        self._ends = proposed.ends
        self._staged = 0
        """Ends whose units are on their way."""
        self._gathering = Gathering(env, self._waits, self._stage)
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(HALVES)

    def handle(self, request: Request) -> None:
        """37: what a producer says of a half. One that does not know yet is asked again later."""
        header = decode_ext(EndTransactionHeader, request.ext)
        if self._access.is_on:
            self._requests.spawn(request, self._judge(request, header))
        else:
            self._take(request, header)

    async def _judge(self, request: Request, header: EndTransactionHeader) -> None:
        """The topic of the half says who may end it, or hear what has become of it; nothing is told before."""
        found = await self._machine.lookup.record_at(header.commit_log_offset)
        if found is not None and found[1].topic == HALF_TOPIC:
            self._access.require(request, Demand((Action.PUB,), ResourceKind.TOPIC, real_target(found[1])[0]))
            self._take(request, header)
        elif request.confirmed:
            raise ServerError(_none_at(header.commit_log_offset))
        else:
            self._requests.confirm(request)

    def _take(self, request: Request, header: EndTransactionHeader) -> None:
        """End the half, or say why not."""
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
        """What a confirmed leader says of a half that it does not end."""
        position = header.commit_log_offset
        if half is not None:
            mismatch = _mismatch(header, half)
            if mismatch:
                raise ServerError(f"the transaction at {position} {mismatch}")
            request.respond()
            return
        outcome = self._table.ended.get(position)
        if outcome is None:
            raise ServerError(_none_at(position))
        if wish is HalfOutcome.COMMITTED and outcome is HalfOutcome.NO_TOPIC:
            raise TopicNotExist(_no_topic(position))
        if wish is not None and wish is not outcome:
            raise ServerError(f"the transaction at {position} {_told(outcome)}")
        request.respond()

    # ---------------------------------------------------------------- ends

    async def _commit(self, request: Request, position: int) -> None:
        """Read the half, and look again at everything in the turn that has it."""
        found = await self._machine.lookup.record_at(position)
        half = self._table.open.get(position)
        if half is None or position in self._ends or not self._machine.leadership.ready:
            self._requests.run(request)
        elif found is None:
            raise ServerError(f"the transaction's message at {position} cannot be read: try again later")
        else:
            self._add(request, position, found[1])

    def _add(self, request: Request, position: int, record: MessageRecord | None) -> None:
        """Take an end into the unit of this turn; `record` is the half of a commit, None rolls back."""
        self._ends.begin(position)
        self._gathering.add(
            _Wish(request, position, record), 0 if record is None else len(record.body) + len(record.properties)
        )

    def _stage(self, wishes: list[_Wish]) -> None:
        """Stage ends: those with messages, and those that are commands alone, which a full disk takes too.

        Everything is looked at anew: since an end was asked for, its half may have been lost to a trim, its topic be
        about to be deleted.
        """
        ends = [end for end in map(self._decided, wishes) if end is not None]
        for unit in ([end for end in ends if end.record], [end for end in ends if not end.record]):
            if unit:
                self._stage_unit(unit)

    def _decided(self, wish: _Wish) -> End | None:
        """What becomes of a half; None if nothing does, after which its request is handled again."""
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
            _logger.warning("event=transaction_without_topic position=%d topic=%s", position, name)
            return End(request, EndHalf(position, HalfOutcome.NO_TOPIC), None)
        return End(request, EndHalf(position, HalfOutcome.COMMITTED), committed(half, topic))

    def _stage_unit(self, ends: list[End]) -> None:
        """Stage ends of which all have messages, or none."""
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
        """A unit is applied or lost."""
        self._staged -= len(ends)
        for end in ends:
            self._ends.finish(end.command.position)
        for end in ends:
            position = end.command.position
            if not isinstance(outcome, Stored):
                self._requests.fail(end.request, failure(outcome, _unknown(end.command)))
            elif end.command.outcome is HalfOutcome.NO_TOPIC:
                self._requests.fail(end.request, TopicNotExist(_no_topic(position)))
            else:
                end.request.respond()
        self._gathering.flush_later()

    def _waits(self, ends: int, size: int) -> bool:
        return waits_for_others(ends, size, self._staged)

    def close(self) -> None:
        """Stage what was added: nothing does any more."""
        self._gathering.flush()


def _mismatch(header: EndTransactionHeader, half: Half) -> str:
    """How a request contradicts the half that it names; empty if it does not."""
    if header.tran_state_table_offset != half.queue_offset:
        return f"has queue offset {half.queue_offset}, not {header.tran_state_table_offset}"
    if header.producer_group != half.group:
        return f"is of the producer group {half.group}, not of {header.producer_group}"
    return ""


def _told(outcome: HalfOutcome) -> str:
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


def _none_at(position: int) -> str:
    return f"no transaction is open at {position}: it has ended before, or never began"


def _no_topic(position: int) -> str:
    return f"the topic of the transaction at {position} does not exist any more: it has ended, and nothing was stored"


def _unknown(end: EndHalf) -> str:
    if end.outcome is HalfOutcome.COMMITTED:
        return f"leadership was lost before the commit of the transaction at {end.position} was: it may be committed"
    return UNKNOWN_CHANGE
