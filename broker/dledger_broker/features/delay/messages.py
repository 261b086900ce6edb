"""A node's part of due messages: takes messages that are not due yet, and has the jobs that deliver and
move them; `recalls` take them back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from dledger.environment import Environment
from dledger.errors import LogError
from dledger.format import MAX_UNIT_BYTES
from dledger.log import Log
from dledger_broker.clients.gossip import Gossip
from dledger_broker.features.delay.asked import Asked, Due, due_of
from dledger_broker.features.delay.commands import added_rows
from dledger_broker.features.delay.firing import FireTimersInTime
from dledger_broker.features.delay.handing_over import HandOverToAWholeIndex
from dledger_broker.features.delay.in_flight import RowsInFlight
from dledger_broker.features.delay.index import TimerIndex
from dledger_broker.features.delay.limits import PendingLimits
from dledger_broker.features.delay.moving import MoveTimersOutOfTheWay
from dledger_broker.features.delay.reading import RecordReads
from dledger_broker.features.delay.recalls import Recalls
from dledger_broker.features.delay.records import FREE_BYTES, due_topic, waiting
from dledger_broker.features.delay.share import LogShare
from dledger_broker.features.delay.table import NOTHING, TIMERS, Pending
from dledger_broker.kernel import rights
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.jobs import Job
from dledger_broker.kernel.live_config import LiveConfig
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Gauge, Part
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, Needs, Route
from dledger_broker.kernel.state import BrokerState
from dledger_broker.kernel.units import FixedRows, NewRecord, Told, UnitOutcome
from dledger_broker.kernel.writer import LogWriter
from dledger_remoting.codes import RequestCode
from dledger_remoting.delays import parse_delay_levels
from dledger_remoting.errors import MessageIllegal, ServiceNotAvailable
from dledger_remoting.recalls import RecallHandle
from dledger_remoting.topics import is_retry_topic

NAME: Final = "delay"


class WaitingMessage(NamedTuple):
    """A message as it waits: its record, when it is due, in ms, and how many bytes of the log it takes."""

    record: NewRecord
    due_ms: int
    size: int


class DueMessages(Part):
    """See the module: `index` tells what is due, `in_flight` what is on its way, `moves` if the log may be trimmed."""

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
        self._on_their_way = NOTHING
        self.in_flight, self.reads = RowsInFlight(), RecordReads(log)
        self.index = TimerIndex(machine, env)
        rows, in_flight, reads = self.index.rows, self.in_flight, self.reads
        shares = [LogShare(machine, log, env) for _ in range(2)]
        self.fires = FireTimersInTime(machine, env, rows, in_flight, reads, shares[0], self._group_time)
        self._recalls = Recalls(machine, live.own.broker_group, rows, in_flight, requests)
        self.moves = MoveTimersOutOfTheWay(machine, env, rows, in_flight, reads, shares[1])
        self._remedy = HandOverToAWholeIndex(log, env, gossip, rows)
        machine.on_state(self._keep_table)
        clock.needed_by(lambda: bool(self._table.total.rows))

    def _keep_table(self, state: BrokerState) -> None:
        self._table = state.table(TIMERS)

    @property
    def routes(self) -> Mapping[int, Route]:
        """See `Part.routes`."""
        return {
            RequestCode.RECALL_MESSAGE: Route(
                self._recalls.handle, Needs.LEADER, CHANGES, rights=(rights.topic("topic", Action.PUB),)
            )
        }

    @property
    def jobs(self) -> Sequence[Job]:
        """See `Part.jobs`."""
        return (self.fires, self.moves, self._remedy)

    @property
    def gauges(self) -> Sequence[Gauge]:
        """See `Part.gauges`."""
        return (
            Gauge("timers_pending", "Messages that are not due yet", lambda: self._table.total.rows),
            Gauge("timer_bytes_pending", "Bytes of their records in the log", lambda: self._table.total.bytes),
            Gauge("timers_fired", "Delayed messages that this node has delivered", lambda: self.fires.fired),
            Gauge("timers_recalled", "Delayed messages that it took back for their producers", self._recalled),
            Gauge("timers_moved", "Delayed messages that it wrote again before a trim", lambda: self.moves.moved),
            Gauge("timers_lost", "Delayed messages that a full disk or rot has cost", self._lost),
            Gauge("timers_late_ms", "How long what is being delivered has been due", lambda: self.fires.late_ms),
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
        """See `Part.close`."""
        self.reads.close()

    def reckoned_from_ms(self) -> int | None:
        """Leader: the time that a delay is reckoned from; None: it is not known, see `wait_for_time`."""
        return self._clock.reckoned_from_ms()

    def wait_for_time(self, request: Request) -> None:
        """Have a request handled again once that time is known, for which nothing was proposed."""
        self._clock.hold(request, self._requests)

    def due(self, asked: Asked, now_ms: int) -> Due | None:
        """When a message is due that asks at a time; None: at once. Raises `MessageIllegal` if it is too far off."""
        return due_of(asked, self._levels_ms, now_ms, self._live.config.timer_max_delay_s)

    def topic_missing(self, due: Due, then: Callable[[LogError | None], None]) -> bool:
        """Leader: whether the topic is missing where a message waits; it is made, and `then` is called."""
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
        """What the producer of a message holds of it, to take it back; empty where RocketMQ gives it none."""
        if due.level or is_retry_topic(topic):
            return b""
        key = unique_key.decode(errors="replace")
        return RecallHandle(topic, self._live.own.broker_group, due.ms, key).encode().encode()

    def waiting(self, message: NewRecord, due: Due) -> WaitingMessage:
        """The record in which a message waits. Raises `MessageIllegal` if that is too large."""
        record = waiting(message, due)
        size, limit = record.size, min(MAX_UNIT_BYTES, self._machine.log.segment_bytes) - FREE_BYTES
        if size > limit:
            raise MessageIllegal(f"a delayed message takes {size} bytes of the log, the limit is {limit}")
        return WaitingMessage(record, due.ms, size)

    def have_room(self, messages: Sequence[WaitingMessage]) -> bool:
        """Leader: whether all of them may wait, beside what does and what is on its way."""
        return self._limits.has_room(_sum(self._table.total, self._on_their_way), _size(messages))

    def store(
        self,
        messages: Sequence[WaitingMessage],
        done: Told,
        facts: Sequence[FixedRows] = (),
        *,
        sent_back: bool = False,
    ) -> None:
        """Leader: store messages that are delivered when they are due, in one unit with other facts about them.

        What consumers have `sent_back` may wait beyond the limits. Raises `RemotingError` and `LogError`, with nothing
        stored: if the topic is gone where they wait, see `topic_missing`; if not all of them may wait.
        """
        more, before = _size(messages), self._on_their_way
        self._limits.require_room(_sum(self._table.total, before), more, sent_back=sent_back)
        self._machine.activation.require(NAME)
        for topic, queue_id in {(message.record.topic, message.record.queue_id) for message in messages}:
            if self._machine.queue(topic, queue_id) is None:
                raise ServiceNotAvailable(f"queue {queue_id} of {topic} is gone, nothing was stored: try again later")
        rows = added_rows([(message.due_ms, message.size) for message in messages])
        records = [message.record for message in messages]
        self._writer.write(records, (rows, *facts), done=partial(self._stored, more, done))
        self._on_their_way = _sum(self._on_their_way, more)

    def _stored(self, more: Pending, done: Told, outcome: UnitOutcome) -> None:
        self._on_their_way = _sum(self._on_their_way, Pending(-more.rows, -more.bytes))
        done(outcome)


def _size(messages: Sequence[WaitingMessage]) -> Pending:
    return Pending(len(messages), sum([message.size for message in messages]))


def _sum(one: Pending, other: Pending) -> Pending:
    return Pending(one.rows + other.rows, one.bytes + other.bytes)
