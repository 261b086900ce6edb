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
from typing import Final, assert_never

from dledger.errors import LogError
from dledger_broker.features.transactions.messages import committed, real_target
from dledger_broker.features.transactions.proposed import ProposedHalves
from dledger_broker.features.transactions.table import HALVES, EndHalf, Half, HalfOutcome
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.units import Stored, UnitOutcome, failure
from dledger_broker.kernel.writer import LogWriter
from dledger_remoting.errors import InvalidParameter, ServerError, SystemBusy, TopicNotExist
from dledger_remoting.headers import EndTransactionHeader, decode_ext
from dledger_remoting.record import SYS_TRANSACTION_COMMIT, SYS_TRANSACTION_ROLLBACK, MessageRecord

_logger: Final = logging.getLogger(__name__)

_WISHES: Final = {
    SYS_TRANSACTION_COMMIT: HalfOutcome.COMMITTED,
    SYS_TRANSACTION_ROLLBACK: HalfOutcome.ROLLED_BACK,
}


class HalfEnds:
    """Answers 37 on the leader."""

    def __init__(self, machine: BrokerMachine, writer: LogWriter, requests: Requests, proposed: ProposedHalves) -> None:
        self._machine = machine
        self._writer = writer
        self._requests = requests
        self._ends = proposed.ends
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(HALVES)

    def handle(self, request: Request) -> None:
        """37: what a producer says of a half. One that does not know yet is asked again later."""
        header = decode_ext(EndTransactionHeader, request.ext)
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
            self._end_without_record(request, position, HalfOutcome.ROLLED_BACK)

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
            raise ServerError(f"no transaction is open at {position}: it has ended before, or never began")
        if wish is HalfOutcome.COMMITTED and outcome is HalfOutcome.NO_TOPIC:
            raise TopicNotExist(_no_topic(position))
        if wish is not None and wish is not outcome:
            raise ServerError(f"the transaction at {position} {_told(outcome)}")
        request.respond()

    # ---------------------------------------------------------------- ends

    async def _commit(self, request: Request, position: int) -> None:
        """Read the half, and look again at everything in the turn that stages what its commit stores."""
        found = await self._machine.lookup.record_at(position)
        half = self._table.open.get(position)
        if half is None or position in self._ends or not self._machine.leadership.ready:
            self._requests.run(request)
        elif found is None:
            raise ServerError(f"the transaction's message at {position} cannot be read: try again later")
        else:
            self._commit_record(request, found[1])

    def _commit_record(self, request: Request, record: MessageRecord) -> None:
        position = record.physical_offset
        name, _ = real_target(record)
        topic = self._machine.topic(name)
        if topic is None:
            _logger.warning("event=transaction_without_topic position=%d topic=%s", position, name)
            self._end_without_record(request, position, HalfOutcome.NO_TOPIC)
            return
        end = EndHalf(position, HalfOutcome.COMMITTED)
        self._writer.write([committed(record, topic)], [end], done=partial(self._committed, request, position))
        self._ends.begin(position)

    def _committed(self, request: Request, position: int, outcome: UnitOutcome) -> None:
        self._ends.finish(position)
        if isinstance(outcome, Stored):
            request.respond()
        else:
            self._requests.fail(request, failure(outcome, _unknown(position)))

    def _end_without_record(self, request: Request, position: int, outcome: HalfOutcome) -> None:
        """End a half by a command alone, on a full disk too: its part of the log can go then."""

        def ended(error: LogError | None) -> None:
            self._ends.finish(position)
            if error is not None:
                self._requests.fail(request, error)
            elif outcome is HalfOutcome.NO_TOPIC:
                self._requests.fail(request, TopicNotExist(_no_topic(position)))
            else:
                request.respond()

        self._ends.begin(position)
        try:
            self._machine.stage_command(EndHalf(position, outcome), ended, privileged=True)
        except BaseException:
            self._ends.finish(position)  # or whoever asks about this half would wait for ever
            raise


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


def _no_topic(position: int) -> str:
    return f"the topic of the transaction at {position} does not exist any more: it has ended, and nothing was stored"


def _unknown(position: int) -> str:
    return f"leadership was lost before the commit of the transaction at {position} was: it may be committed"
