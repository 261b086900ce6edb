"""Reopening of halves (323): a half that was given up is opened again, once."""

from __future__ import annotations

from functools import partial

from dledger_broker.features.transactions.messages import opened_again
from dledger_broker.features.transactions.sends import HalfSends
from dledger_broker.features.transactions.table import HALVES, HalfOutcome, ReopenHalf
from dledger_broker.features.transactions.units import NewHalf, ProposedHalves, opened
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.units import Stored, UnitOutcome, failure
from dledger_broker.kernel.writer import LogWriter
from dledger_remoting.errors import InvalidParameter, ServerError, ServiceNotAvailable, SystemBusy
from dledger_remoting.headers import ResumeHalfHeader, decode_ext
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.properties import PRODUCER_GROUP, find_property
from dledger_remoting.topics import CHECK_MAX_TIME_TOPIC, HALF_TOPIC


class HalfResumption:
    """Handler of 323 on a confirmed leader."""

    def __init__(
        self,
        machine: BrokerMachine,
        writer: LogWriter,
        requests: Requests,
        proposed: ProposedHalves,
        sends: HalfSends,
        clock: GroupClock,
        live: LiveConfig,
    ) -> None:
        self._machine = machine
        self._writer = writer
        self._requests = requests
        self._proposed = proposed
        self._ends = proposed.ends
        self._sends = sends
        self._clock = clock
        self._live = live

    def handle(self, request: Request) -> None:
        """Reopen a half, named by the id of the message that was kept of it (323)."""
        if not request.confirmed:
            self._requests.confirm(request)
            return
        header = decode_ext(ResumeHalfHeader, request.ext)
        try:
            _, position = parse_offset_message_id(header.msg_id)
        except ValueError as error:
            raise InvalidParameter(f"msgId {header.msg_id!r} is no id with a position: {error}") from error
        self._requests.spawn(request, self._resume(request, position))

    async def _resume(self, request: Request, position: int) -> None:
        kept = await self._machine.lookup.record_at(position)
        if kept is None or kept[1].topic != CHECK_MAX_TIME_TOPIC or not await self._machine.lookup.is_listed(kept[1]):
            raise ServerError(f"no transaction that was given up is kept at {position}")
        record = kept[1]
        half_position = record.prepared_transaction_offset
        if half_position in self._ends:
            self._ends.wait(half_position, partial(self._requests.run, request))
            return
        outcome = self._machine.state.table(HALVES).ended.get(half_position)
        if outcome is not HalfOutcome.UNDECIDED:
            reason = "it is open again, or was" if outcome is HalfOutcome.REOPENED else "it was given up too long ago"
            raise ServerError(f"the transaction that is kept at {position} cannot be opened again: {reason}")
        now_ms = self._clock.delay_base_ms()
        queue = self._machine.queue(HALF_TOPIC, 0)
        if now_ms is None or queue is None:
            raise ServiceNotAvailable("the group's time, or its topic for transactions, is not there: try again later")
        if self._sends.is_full():
            limit = self._live.config.max_open_halves
            raise SystemBusy(f"{limit} transactions are open, which is the limit max_open_halves: end some")
        group = (find_property(record.properties, PRODUCER_GROUP.encode()) or b"").decode(errors="replace")
        half = NewHalf(opened_again(record), group, now_ms + self._live.config.transaction_timeout_ms)
        done = partial(self._resumed, request, half_position)
        self._writer.write([half.record], [opened([half], queue), ReopenHalf(half_position)], done=done)
        self._proposed.opening += 1
        self._ends.begin(half_position)

    def _resumed(self, request: Request, half_position: int, outcome: UnitOutcome) -> None:
        self._proposed.opening -= 1
        self._ends.finish(half_position)
        if isinstance(outcome, Stored):
            request.respond()
        else:
            self._requests.fail(request, failure(outcome, "leadership was lost: the transaction may be open again"))
