"""Part of a node for delayed messages: stores them, and has the jobs that deliver and move them.

Recalls are in `recalls`.

A leader whose time index is not whole, although it was built anew, hands over. Rows that the index lacks would be
delivered late. The job hands over only to a node whose index is whole, and seldom:
frequent changes of the leader would cost more than late messages. Without a candidate this node keeps leading, and
delivers the rows that its index has.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from dledger.environment import Environment
from dledger.errors import LogError
from dledger.format import MAX_UNIT_BYTES
from dledger.log import Log
from dledger_broker.clients.gossip import Gossip
from dledger_broker.features.delay.asked import Due, RequestedDelay, due_time
from dledger_broker.features.delay.commands import added_rows
from dledger_broker.features.delay.firing import TimerFirer
from dledger_broker.features.delay.in_flight import RowsInFlight
from dledger_broker.features.delay.index import TimerIndex
from dledger_broker.features.delay.limits import PendingLimits
from dledger_broker.features.delay.listing import DelayedListing
from dledger_broker.features.delay.moving import TimerMover
from dledger_broker.features.delay.reading import RecordReads
from dledger_broker.features.delay.recalls import Recalls
from dledger_broker.features.delay.records import FREE_BYTES, due_topic, waiting
from dledger_broker.features.delay.share import LogShare
from dledger_broker.features.delay.table import NOTHING, TIMERS, Pending
from dledger_broker.kernel import rights
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.jobs import Job, JobHandle
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, NO_EFFECT, Needs, Route
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.units import FixedRows, NewRecord, Told, UnitOutcome
from dledger_broker.kernel.writer import LogWriter
from dledger_broker.views.timeindex import TimeIndex
from dledger_remoting.codes import RequestCode
from dledger_remoting.errors import MessageIllegal, ServiceNotAvailable
from dledger_remoting.recalls import RecallHandle, parse_delay_levels
from dledger_remoting.topics import is_retry_topic

INDEX_WHOLE: Final = "time_index_whole"
"""Name of the gossip fact that is 1 if a node's index agrees with the state, else 0."""
LOOK_S: Final = 5.0
PAUSE_S: Final = 600.0
"""Minimum time in seconds between two handovers of a node because of its index."""

_logger = logging.getLogger(__name__)


class IndexHandover:
    """Leader job that hands over to a node with a whole index; implements `dledger_broker.kernel.jobs.Job`."""

    name: Final = "timer_index"

    def __init__(self, log: Log, env: Environment, gossip: Gossip, index: TimeIndex) -> None:
        self._log = log
        self._env = env
        self._gossip = gossip
        self._index = index
        self._next_handover_s = 0.0
        gossip.facts[INDEX_WHOLE] = self._is_whole

    def _is_whole(self) -> int:
        return int(self._index.follower.whole is True)

    def run(self, handle: JobHandle) -> None:
        """Check whether the index is whole, and hand over if it is not. Check again after `LOOK_S`."""
        handle.call_later(LOOK_S, partial(self.run, handle))
        now = self._env.now()
        if self._index.follower.whole is not False or now < self._next_handover_s:
            return
        voters = {str(voter.node_id) for voter in self._log.membership.voters}
        candidates = [
            node_id
            for node_id, whole in self._gossip.reported_facts(INDEX_WHOLE).items()
            if whole and node_id in voters
        ]
        if candidates and handle.hand_over(min(candidates)):
            self._next_handover_s = now + PAUSE_S
            _logger.warning("event=timer_index_hands_over to=%s reason='the time index is not whole'", min(candidates))


NAME: Final = "delay"


STEP_BACK_MS: Final = 1_000
"""Maximum backward step in ms that counts as a better estimate of other nodes' clocks.

A longer step means that a clock was set back.
"""


class WaitingMessage(NamedTuple):
    """Waiting form of a message: its record, its due time in ms, and its size in bytes of the log."""

    record: NewRecord
    due_ms: int
    size: int


class DueMessages(Part):
    """Part of a node for delayed messages.

    `index` finds due messages, `in_flight` has the rows with a change in flight. `moves` decides whether the log may be
    trimmed.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        writer: LogWriter,
        log: Log,
        env: Environment,
        live: LiveConfig,
        clock: GroupClock,
        requests: Requests,
        gossip: Gossip,
    ) -> None:
        self._machine = machine
        self._writer = writer
        self._clock = clock
        self._requests = requests
        self._live = live
        self._levels_ms = parse_delay_levels(live.own.delay_levels)
        self._limits = PendingLimits(log, gossip, live)
        self._in_flight = NOTHING
        self._last_base_ms = 0
        self.in_flight, self.reads = RowsInFlight(), RecordReads(log)
        self.index = TimerIndex(machine, env)
        rows, in_flight, reads = self.index.rows, self.in_flight, self.reads
        shares = [LogShare(machine, log, env) for _ in range(2)]
        self.fires = TimerFirer(machine, env, rows, in_flight, reads, shares[0], self._group_time)
        self._recalls = Recalls(machine, live.own.broker_group, rows, in_flight, requests)
        self._listing = DelayedListing(machine, rows, requests, lambda: self._table.total.rows)
        self.moves = TimerMover(machine, env, rows, in_flight, reads, shares[1])
        self._index_handover = IndexHandover(log, env, gossip, rows)
        machine.on_state(self._keep_table)
        clock.add_dependent(lambda: bool(self._table.total.rows))

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(TIMERS)

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.RECALL_MESSAGE: Route(
                self._recalls.handle, Needs.LEADER, CHANGES, rights=(rights.topic("topic", Action.PUB),)
            ),
            RequestCode.LIST_DELAYED: Route(
                self._listing.handle, Needs.LEADER, NO_EFFECT, rights=(rights.cluster(Action.GET),)
            ),
        }

    @property
    def jobs(self) -> Sequence[Job]:
        return (self.fires, self.moves, self._index_handover)

    @property
    def gauges(self) -> Sequence[Gauge]:
        return (
            Gauge("timers_pending", "Messages that are not due yet", lambda: self._table.total.rows),
            Gauge(
                "timer_bytes_pending",
                "Bytes in the log of the records of messages that are not due yet",
                lambda: self._table.total.bytes,
            ),
            Gauge("timers_fired", "Delayed messages that this node has delivered", lambda: self.fires.fired),
            Gauge("timers_recalled", "Delayed messages that this node recalled for their producers", self._recalled),
            Gauge(
                "timers_moved", "Delayed messages that this node wrote again before a trim", lambda: self.moves.moved
            ),
            Gauge("timers_lost", "Delayed messages that were lost by a full disk or rot", self._lost),
            Gauge(
                "timers_late_ms",
                "Time in ms since the messages that are being delivered were due",
                lambda: self.fires.late_ms,
            ),
            Gauge("timers_set_aside", "Due messages that could not be read", lambda: self.fires.unreadable),
            Gauge("timers_without_topic", "Due messages whose topic was gone", lambda: self.fires.without_topic),
            *self._limits.gauges,
            *self.index.gauges,
        )

    def _lost(self) -> int:
        return self._table.lost + self.moves.lost

    def _recalled(self) -> int:
        return self._recalls.recalled

    def _group_time(self) -> int | None:
        return self._clock.now_ms()

    def close(self) -> None:
        self.reads.close()

    def delay_base_ms(self) -> int | None:
        """Return the time from which a leader counts delays; None while unknown, see `wait_for_time`.

        The time does not take small steps back when the estimate of other nodes' clocks improves. Otherwise, of two
        messages with the same delay, the later could be due first. It does go back when clocks are set back.
        """
        now_ms = self._clock.delay_base_ms()
        if now_ms is not None:
            if 0 < self._last_base_ms - now_ms <= STEP_BACK_MS:
                now_ms = self._last_base_ms
            self._last_base_ms = now_ms
        return now_ms

    def wait_for_time(self, request: Request) -> None:
        """Have a request, for which nothing was proposed, handled again once `delay_base_ms` is known."""
        self._clock.hold(request, self._requests)

    def due(self, delay: RequestedDelay, now_ms: int) -> Due | None:
        """Return when a message is due, None for at once. Raises `MessageIllegal` if the delay is too long."""
        return due_time(delay, self._levels_ms, now_ms, self._live.config.timer_max_delay_s)

    def topic_missing(self, due: Due, then: Callable[[LogError | None], None]) -> bool:
        """Return whether the topic where a message waits is missing, or has too few queues.

        If so, the leader makes the topic, and then calls `then`.
        """
        config = due_topic(due.level, len(self._levels_ms))
        topic = self._machine.topic(config.topic_name)
        if topic is not None and topic.queue_count >= config.write_queue_nums:
            return False
        if topic is None:
            self._machine.proposals.ensure_topic(config, then)
        else:
            self._machine.proposals.put_topic(config, then)
        return True

    def recall_handle(self, topic: str, due: Due, unique_key: bytes) -> bytes:
        """Return the handle by which a producer can recall a message; empty if RocketMQ would return no handle."""
        if due.level or is_retry_topic(topic):
            return b""
        key = unique_key.decode(errors="replace")
        return RecallHandle(topic, self._live.own.broker_group, due.ms, key).encode().encode()

    def waiting(self, message: NewRecord, due: Due) -> WaitingMessage:
        """Return a message in its waiting form. Raises `MessageIllegal` if it is too large."""
        record = waiting(message, due)
        size, limit = record.size, min(MAX_UNIT_BYTES, self._machine.log.segment_bytes) - FREE_BYTES
        if size > limit:
            raise MessageIllegal(f"a delayed message takes {size} bytes of the log, the limit is {limit}")
        return WaitingMessage(record, due.ms, size)

    def have_room(self, messages: Sequence[WaitingMessage]) -> bool:
        """Return whether all messages may wait, beside the messages that wait already or are in flight. Only a leader
        knows.
        """
        return self._limits.has_room(_sum(self._table.total, self._in_flight), _size(messages))

    def store(
        self,
        messages: Sequence[WaitingMessage],
        done: Told,
        facts: Sequence[FixedRows] = (),
        *,
        sent_back: bool = False,
    ) -> None:
        """Store messages that are delivered when they are due, in one unit with other facts about them, as the leader.

        Messages that consumers have `sent_back` may exceed the limits. Raises `RemotingError` and `LogError` with
        nothing stored, for example if the topic where they wait is gone (see `topic_missing`) or the limits are
        exceeded.
        """
        more, before = _size(messages), self._in_flight
        self._limits.require_room(_sum(self._table.total, before), more, sent_back=sent_back)
        self._machine.activation.require(NAME)
        for topic, queue_id in {(message.record.topic, message.record.queue_id) for message in messages}:
            if self._machine.queue(topic, queue_id) is None:
                raise ServiceNotAvailable(f"queue {queue_id} of {topic} is gone, nothing was stored: try again later")
        rows = added_rows([(message.due_ms, message.size) for message in messages])
        records = [message.record for message in messages]
        self._writer.write(records, (rows, *facts), done=partial(self._stored, more, done))
        self._in_flight = _sum(self._in_flight, more)

    def _stored(self, more: Pending, done: Told, outcome: UnitOutcome) -> None:
        self._in_flight = _sum(self._in_flight, Pending(-more.rows, -more.bytes))
        done(outcome)


def _size(messages: Sequence[WaitingMessage]) -> Pending:
    return Pending(len(messages), sum([message.size for message in messages]))


def _sum(one: Pending, other: Pending) -> Pending:
    return Pending(one.rows + other.rows, one.bytes + other.bytes)
