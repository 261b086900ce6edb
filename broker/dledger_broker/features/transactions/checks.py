"""Leader job that asks producers (39) for the outcome of halves they do not end, and finally gives halves up.

A check is noted, and the note applied, before the request to the producer. So a later leader neither begins again nor
checks more often. A check counts even if no producer is connected.
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
from dledger_broker.features.transactions.table import HALVES, EndHalf, Half, HalfOutcome, OpenHalf
from dledger_broker.features.transactions.units import ProposedHalves
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
"""Callback that continues with a half and its record, or None if the record cannot be read."""

LOOK_S: Final = 1.0
"""Maximum pause between two passes. A shorter `transaction_check_interval_ms` takes precedence."""
MOST_AT_ONCE: Final = 500
"""Maximum number of halves per pass.

Asking about all open halves at once would take the leader's core from sends. The other halves stay due, and the next
pass begins with those that have waited longest.
"""


class CheckBacks:
    """Leader job that checks halves every second, or at the interval of checks if that is shorter. A pass begins only
    after all reads of the earlier pass have ended. Implements `dledger_broker.kernel.jobs.Job`.
    """

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
        """Cancel the reads in progress."""
        for read in self._reads:
            read.cancel()

    def run(self, handle: JobHandle) -> None:
        """Begin to search for halves that are due."""
        self._schedule_search(handle)

    def _schedule_search(self, handle: JobHandle) -> None:
        pause_s = min(LOOK_S, self._live.config.transaction_check_interval_ms / 1000)
        handle.call_later(pause_s, partial(self._search_due, handle))

    def _search_due(self, handle: JobHandle) -> None:
        self._schedule_search(handle)
        now_ms = self._clock.now_ms()
        if now_ms is None or self._reads:
            return
        due = list(islice(filter(self._is_free, self._table.due(now_ms)), MOST_AT_ONCE))
        due_halves = [half for half in due if half.checks < self._live.config.transaction_check_max]
        if due_halves:
            noted = [_with_next_check(half, self._next_check_ms(now_ms), half.checks + 1) for half in due_halves]
            self._note(handle, noted, partial(self._read, handle, noted, self._ask))
        given_up = [half for half in due if half.checks >= self._live.config.transaction_check_max]
        if given_up and self._has_topic(handle):
            self._read(handle, given_up, partial(self._give_up, handle, self._next_check_ms(now_ms)))

    def _next_check_ms(self, now_ms: int) -> int:
        return now_ms + self._live.config.transaction_check_interval_ms

    def _is_free(self, half: Half) -> bool:
        """Return whether nothing is in flight for a half, and its record is kept."""
        position, proposed = half.position, self._proposed
        return (
            position not in proposed.ends and position not in proposed.checked and position >= self._machine.kept_from
        )

    def _note(self, handle: JobHandle, noted: Sequence[Half], callback: Callable[[], None]) -> None:
        """Record changes of halves in the log, so that every later leader knows them, then continue."""
        positions = [half.position for half in noted]
        go_on = handle.guarded(callback)

        def settled(error: LogError | None) -> None:
            self._proposed.checked.difference_update(positions)
            if error is None:
                go_on()

        self._proposed.checked.update(positions)  # This must be first, because a busy log calls `settled` at once.
        handle.stage_command(OpenHalf(tuple(noted)), settled)

    # ---------------------------------------------------------------- asking

    def _ask(self, half: Half, record: MessageRecord | None) -> None:
        if record is None:
            return  # The record may be readable at the next check.
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
        self._relay.call_producer(half.group, code, encode_ext(header), body, 0.0, _ignore_outcome)

    # ---------------------------------------------------------------- giving up

    def _has_topic(self, handle: JobHandle) -> bool:
        """Return whether the topic for halves that are given up exists. If not, create it."""
        if self._machine.topic(CHECK_MAX_TIME_TOPIC) is not None:
            return True
        config = TopicConfig(CHECK_MAX_TIME_TOPIC, read_queue_nums=1, write_queue_nums=1, perm=PERM_READ_WRITE)
        handle.require_running()
        self._machine.proposals.ensure_topic(config, _ignore_result)
        return False

    def _give_up(self, handle: JobHandle, again_ms: int, half: Half, record: MessageRecord | None) -> None:
        if record is None:  # Try again later. Otherwise this half would precede all other halves in each pass.
            self._note(handle, [_with_next_check(half, again_ms, half.checks)], _do_nothing)
            return
        position = half.position

        def settled(outcome: UnitOutcome) -> None:
            self._proposed.ends.finish(position)
            _log_given_up(half, record, outcome)

        try:
            handle.write([undecided(record)], [EndHalf(position, HalfOutcome.UNDECIDED)], done=settled)
        except (BusyError, LogFullError):
            return  # The next pass finds the half still open.
        self._proposed.ends.begin(position)

    # ---------------------------------------------------------------- records

    def _read(self, handle: JobHandle, halves: Sequence[Half], callback: OnRecord) -> None:
        """Read the records of the halves one after the other.

        `callback` is called in the turn that has a record, if its half is free.
        """
        go_on = handle.guarded(partial(self._on_record, callback))
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

    def _on_record(self, callback: OnRecord, position: int, record: MessageRecord | None) -> None:
        half = self._table.open.get(position)
        if half is not None and self._is_free(half):
            callback(half, record)


def _with_next_check(half: Half, next_check_ms: int, checks: int) -> Half:
    return msgspec.structs.replace(half, next_check_ms=next_check_ms, checks=checks)


def _do_nothing() -> None:
    """Do nothing: a half that could not be read waits for its next check."""


def _ignore_outcome(_outcome: Outcome) -> None:
    """Ignore the outcome: the next check may find a producer."""


def _ignore_result(_error: object) -> None:
    """Ignore the outcome: the next pass sees whether the topic exists."""


def _log_given_up(half: Half, record: MessageRecord, outcome: UnitOutcome) -> None:
    """Log a half that was given up, with the id of its copy. 323 needs that id, and no query finds the copy."""
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
