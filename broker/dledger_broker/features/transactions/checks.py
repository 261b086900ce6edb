"""Job that asks producers (39) what has become of halves that they do not end, and gives up those that nobody ends.

A check is noted, and applied, before anybody is asked: a later leader neither begins again nor asks more often. It
counts whether a producer is there or not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

import msgspec

from dledger.errors import BusyError, LogError, LogFullError, TrimmedError
from dledger_broker.clients.relay import Outcome, Relay
from dledger_broker.features.transactions.messages import real_target, undecided
from dledger_broker.features.transactions.proposed import ProposedHalves
from dledger_broker.features.transactions.table import HALVES, EndHalf, Half, HalfOutcome, OpenHalf
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.units import NotStored, Stored, UnitOutcome
from dledger_remoting.codes import RequestCode
from dledger_remoting.headers import CheckTransactionHeader, encode_ext
from dledger_remoting.ids import offset_message_id
from dledger_remoting.properties import UNIQUE_KEY, find_property
from dledger_remoting.record import MessageRecord, encode_record
from dledger_remoting.topics import CHECK_MAX_TIME_TOPIC, PERM_READ_WRITE, TopicConfig

_logger: Final = logging.getLogger(__name__)

OnRecord: TypeAlias = Callable[[Half, MessageRecord | None], None]
"""Goes on with a half and its record; None if that cannot be read."""

LOOK_S: Final = 1.0
MOST_AT_ONCE: Final = 500
"""Halves of one look: asking about all that are open at once would take the leader's core from sends. The others stay
due, and those that have waited longest come first.
"""


class CheckBacks:
    """Looks every second, unless reads of an earlier look go on; implements `dledger_broker.kernel.jobs.Job`."""

    name: Final = "check_backs"

    def __init__(
        self,
        machine: BrokerMachine,
        proposed: ProposedHalves,
        clock: GroupClock,
        relay: Relay,
        live: LiveConfig,
    ) -> None:
        self._machine = machine
        self._proposed = proposed
        self._clock = clock
        self._relay = relay
        self._live = live
        self._reads: set[asyncio.Task[None]] = set()
        machine.on_state(self._keep_table)

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(HALVES)

    def close(self) -> None:
        """Give up reads in progress."""
        for read in self._reads:
            read.cancel()

    def run(self, handle: JobHandle) -> None:
        """See `Job.run`."""
        handle.call_later(LOOK_S, partial(self._look, handle))

    def _look(self, handle: JobHandle) -> None:
        handle.call_later(LOOK_S, partial(self._look, handle))
        now_ms = self._clock.now_ms()
        if now_ms is None or self._reads:
            return
        due = list(islice(filter(self._is_free, self._table.due(now_ms)), MOST_AT_ONCE))
        asked = [half for half in due if half.checks < self._live.config.transaction_check_max]
        if asked:
            noted = [_noted(half, self._later(now_ms), half.checks + 1) for half in asked]
            self._note(handle, noted, partial(self._read, handle, noted, self._ask))
        given_up = [half for half in due if half.checks >= self._live.config.transaction_check_max]
        if given_up and self._has_topic(handle):
            self._read(handle, given_up, partial(self._give_up, handle, self._later(now_ms)))

    def _later(self, now_ms: int) -> int:
        return now_ms + self._live.config.transaction_check_interval_ms

    def _is_free(self, half: Half) -> bool:
        """Whether nothing is in flight of a half, and its record stays."""
        position, proposed = half.position, self._proposed
        return (
            position not in proposed.ends and position not in proposed.checked and position >= self._machine.kept_from
        )

    def _note(self, handle: JobHandle, noted: Sequence[Half], then: Callable[[], None]) -> None:
        """Have every later leader know what is noted of halves, then go on."""
        positions = [half.position for half in noted]
        go_on = handle.guarded(then)

        def settled(error: LogError | None) -> None:
            self._proposed.checked.difference_update(positions)
            if error is None:
                go_on()

        self._proposed.checked.update(positions)  # before a busy log says that it did not take this
        handle.stage_command(OpenHalf(tuple(noted)), settled)

    # ---------------------------------------------------------------- asking

    def _ask(self, half: Half, record: MessageRecord | None) -> None:
        if record is None:
            return  # it may be readable when it is checked next
        topic, queue_id = real_target(record)
        unique_key = (find_property(record.properties, UNIQUE_KEY.encode()) or b"").decode(errors="replace")
        header = CheckTransactionHeader(
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.position,
            topic=topic,
            bname=self._live.config.broker_group,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=offset_message_id(record.store_host, half.position),
        )
        body = encode_record(msgspec.structs.replace(record, topic=topic, queue_id=queue_id))
        code = RequestCode.CHECK_TRANSACTION_STATE
        self._relay.call_producer(half.group, code, encode_ext(header), body, 0.0, _whoever_lives)

    # ---------------------------------------------------------------- giving up

    def _has_topic(self, handle: JobHandle) -> bool:
        """Whether what is given up can be kept; else its topic is on its way."""
        if self._machine.topic(CHECK_MAX_TIME_TOPIC) is not None:
            return True
        config = TopicConfig(CHECK_MAX_TIME_TOPIC, read_queue_nums=1, write_queue_nums=1, perm=PERM_READ_WRITE)
        handle.require_running()
        self._machine.proposals.ensure_topic(config, _looked_for_again)
        return False

    def _give_up(self, handle: JobHandle, again_ms: int, half: Half, record: MessageRecord | None) -> None:
        if record is None:  # tried again later, or it would stand before the others in each look
            self._note(handle, [_noted(half, again_ms, half.checks)], _nothing_else)
            return
        position = half.position

        def settled(outcome: UnitOutcome) -> None:
            self._proposed.ends.finish(position)
            _tell_given_up(half, record, outcome)

        try:
            handle.write([undecided(record)], [EndHalf(position, HalfOutcome.UNDECIDED)], done=settled)
        except (BusyError, LogFullError):
            return  # the next look finds it still open
        self._proposed.ends.begin(position)

    # ---------------------------------------------------------------- records

    def _read(self, handle: JobHandle, halves: Sequence[Half], then: OnRecord) -> None:
        """Go on with the record of each half, one after the other, in the turn that has it, if it is still free."""
        go_on = handle.guarded(partial(self._with_record, then))
        positions = [half.position for half in halves]
        task = asyncio.get_running_loop().create_task(self._read_later(handle, positions, go_on))
        self._reads.add(task)
        task.add_done_callback(self._reads.discard)

    async def _read_later(
        self, handle: JobHandle, positions: Sequence[int], go_on: Callable[[int, MessageRecord | None], None]
    ) -> None:
        for position in positions:
            if handle.is_stopped:
                return
            record: MessageRecord | None = None
            try:
                found = await self._machine.lookup.record_at(position)
                record = found[1] if found is not None else None
            except (LogError, TrimmedError) as error:
                _logger.warning("event=half_unreadable position=%d error=%r", position, str(error))
            go_on(position, record)

    def _with_record(self, then: OnRecord, position: int, record: MessageRecord | None) -> None:
        half = self._table.open.get(position)
        if half is not None and self._is_free(half):
            then(half, record)


def _noted(half: Half, next_check_ms: int, checks: int) -> Half:
    return msgspec.structs.replace(half, next_check_ms=next_check_ms, checks=checks)


def _nothing_else() -> None:
    """A half that could not be read waits for its next check."""


def _whoever_lives(_outcome: Outcome) -> None:
    """The next check may find a producer."""


def _looked_for_again(_error: object) -> None:
    """The next look sees whether the topic is there."""


def _tell_given_up(half: Half, record: MessageRecord, outcome: UnitOutcome) -> None:
    """With the id that 323 asks for: nobody can look it up where the copy stands."""
    if isinstance(outcome, NotStored):
        return
    place = outcome.places[0] if isinstance(outcome, Stored) else None
    kept_as = "unknown" if place is None else offset_message_id(record.store_host, place.position)
    _logger.warning(
        "event=transaction_undecided position=%d group=%s checks=%d kept_as=%s",
        half.position,
        half.group,
        half.checks,
        kept_as,
    )
