"""Acknowledgements of popped messages (200051, 200151), and changes of a message's invisible time (200053).

Each request is answered when its change is applied. A repeated acknowledgement gets 0 while the delivery has other open
messages. A message that is delivered again, or that is unknown, gets 208: another consumer may have it by now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from dledger.errors import LogError
from dledger_broker.features.pop.changes import PopChanges
from dledger_broker.features.pop.commands import AckRow, PopQueueKey
from dledger_broker.features.pop.held import HeldPops
from dledger_broker.features.pop.revival import Revivals
from dledger_broker.kernel import rights
from dledger_broker.kernel.group_clock import GroupClock
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.queues import TopicState
from dledger_broker.kernel.requests import Request, Requests
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import CHANGES, Needs, Route
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import BodyError, InvalidParameter, MessageIllegal, TopicNotExist
from dledger_remoting.headers import decode_ext, encode_ext
from dledger_remoting.headers_pop import (
    FAILURE_REASON_FIELD,
    UNTAKEN_FIELD,
    AckHeader,
    ChangeInvisibleHeader,
    ChangeInvisibleResponseHeader,
)
from dledger_remoting.pop import CheckPoint, Retry, parse_check_point, pop_retry_topic, revive_queue_of
from dledger_remoting.pop_bodies import BatchAck, decode_batch_ack
from dledger_remoting.properties import failure_reason
from dledger_remoting.topics import is_retry_topic, retry_topic

MIN_INVISIBLE_MS: Final = 1_000
"""Minimum invisible time. With less, a message would return before its consumer has handled it, again and again."""
UNTAKEN_MS: Final = 1
"""Invisible time of a message that no consumer received."""
MAX_INVISIBLE_MS: Final = 12 * 3_600_000
MAX_ACK_ROWS: Final = 1_000
"""Maximum number of deliveries in a batch of acknowledgements."""


def invisible_ms_of(asked: int) -> int:
    """Return the invisible time for the time that a client requested. Raises `InvalidParameter`."""
    if not 0 <= asked <= MAX_INVISIBLE_MS:
        raise InvalidParameter(f"invisibleTime {asked} is outside 0..{MAX_INVISIBLE_MS} ms")
    return max(asked, MIN_INVISIBLE_MS)


def _acked_topic(group: str, topic: str) -> tuple[str, ...]:
    """Return the topic whose right is required, or nothing for a retry topic of the group itself.

    The group's right is enough for its retry topics, whose names begin with the group's own retry topic. An
    acknowledgement finds only what the group itself has popped there.
    """
    return () if topic.startswith(retry_topic(group)) else (topic,)


def _popped_topic(group: str, topic: str, point: CheckPoint) -> str:
    """Return the topic that holds a message.

    Old clients do not know retry topics of the second form, and name the topic that they popped instead.
    """
    if point.retry is not Retry.V2 or is_retry_topic(topic):
        return topic
    return pop_retry_topic(group, topic, point.retry)


def _topic_of(request: Request) -> tuple[str, ...]:
    return _acked_topic(request.ext.get("consumerGroup", ""), request.ext.get("topic", ""))


def _topics_of(request: Request) -> list[str]:
    return [name for ack in decode_batch_ack(request.body) for name in _acked_topic(ack.consumer_group, ack.topic)]


def _groups_of(request: Request) -> list[str]:
    return [ack.consumer_group for ack in decode_batch_ack(request.body)]


_ACK: Final = (rights.group("consumerGroup", Action.SUB), rights.topics_in("topic", _topic_of, Action.SUB))
_BATCH_ACK: Final = (
    rights.groups_in("all in the body", _groups_of, Action.SUB),
    rights.topics_in("all in the body", _topics_of, Action.SUB),
)


class AckRequests:
    """Handler of acknowledgements and changes of invisible time, on the leader.

    An acknowledgement wakes the pops that are `held`, because the next messages of an ordered queue may be popped then.
    `revivals` note deliveries that no consumer received.
    """

    def __init__(
        self,
        machine: BrokerMachine,
        changes: PopChanges,
        clock: GroupClock,
        requests: Requests,
        held: HeldPops,
        revivals: Revivals,
    ) -> None:
        self._machine = machine
        self._changes = changes
        self._clock = clock
        self._requests = requests
        self._held = held
        self._revivals = revivals

    @property
    def routes(self) -> Mapping[int, Route]:
        """Routes of the requests that this handler takes."""
        return {
            RequestCode.ACK_MESSAGE: Route(self.ack, Needs.LEADER, CHANGES, rights=_ACK),
            RequestCode.BATCH_ACK_MESSAGE: Route(self.batch_ack, Needs.LEADER, CHANGES, rights=_BATCH_ACK),
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: Route(self.change, Needs.LEADER, CHANGES, rights=_ACK),
        }

    # ---------------------------------------------------------------- one message

    def ack(self, request: Request) -> None:
        """Acknowledge a message (200051)."""
        header = decode_ext(AckHeader, request.ext)
        point = parse_check_point(header.extra_info)
        name = _popped_topic(header.consumer_group, header.topic, point)
        topic = self._topic(name, header.queue_id)
        key = PopQueueKey(header.consumer_group, name, header.queue_id)
        bit = self._bit_of(key, point.pop_time_ms, header.offset)
        if bit is None:
            self._unknown(request, f"offset {header.offset} of {name}/{header.queue_id}")
            return
        row = AckRow(*_queue_of(key, topic), point.pop_time_ms, bit)
        self._changes.ack(row, partial(self._acked, request, [name]))

    def change(self, request: Request) -> None:
        """Hide a message for another invisible time, from now on (200053). End the hiding if no consumer received the
        message.
        """
        header = decode_ext(ChangeInvisibleHeader, request.ext)
        point = parse_check_point(header.extra_info)
        is_untaken = request.ext.get(UNTAKEN_FIELD) == "true" and not point.is_ordered
        invisible_ms = UNTAKEN_MS if is_untaken else invisible_ms_of(header.invisible_time)
        name = _popped_topic(header.consumer_group, header.topic, point)
        topic = self._topic(name, header.queue_id)
        key = PopQueueKey(header.consumer_group, name, header.queue_id)
        now_ms = self._clock.delay_base_ms()
        if now_ms is None:
            self._clock.hold(request, self._requests)
            return
        bit = self._open_bit_of(key, point.pop_time_ms, header.offset)
        if bit is None:
            self._unknown(request, f"offset {header.offset} of {name}/{header.queue_id}")
            return
        row = AckRow(*_queue_of(key, topic), point.pop_time_ms, bit, now_ms, invisible_ms)
        self._changes.ack(row, partial(self._changed, request, key, invisible_ms, point.is_ordered, is_untaken))

    def _topic(self, name: str, queue_id: int) -> TopicState:
        """Return the topic of a popped message. Raises `RemotingError`."""
        topic = self._machine.topic(name)
        if topic is None:
            raise TopicNotExist(f"topic {name} does not exist: what was popped of it is gone")
        if not 0 <= queue_id < topic.config.read_queue_nums:
            raise MessageIllegal(f"queueId {queue_id} of {name} is outside 0..{topic.config.read_queue_nums - 1}")
        return topic

    def _bit_of(self, key: PopQueueKey, pop_time_ms: int, offset: int) -> int | None:
        """Return the bit of a message that is open or acknowledged in its delivery, or None for any other message."""
        delivery = self._changes.table.delivery(key, pop_time_ms)
        bit = 0 if delivery is None else delivery.bit_of(offset)
        if delivery is None or not bit & ~delivery.closed or self._changes.is_closing(key, pop_time_ms, bit):
            return None
        return bit

    def _open_bit_of(self, key: PopQueueKey, pop_time_ms: int, offset: int) -> int | None:
        """Return the bit of a message that is open and has no acknowledgement in flight, or None for any other
        message.
        """
        bit = self._bit_of(key, pop_time_ms, offset)
        delivery = self._changes.table.delivery(key, pop_time_ms)
        if bit is None or delivery is None or not bit & delivery.open_bits:
            return None
        return None if self._changes.is_acking(key, pop_time_ms, bit) else bit

    # ---------------------------------------------------------------- many messages

    def batch_ack(self, request: Request) -> None:
        """Acknowledge messages of several deliveries (200151). The answer is 208 if some of them are not found."""
        acks = decode_batch_ack(request.body)
        if len(acks) > MAX_ACK_ROWS:
            raise BodyError(f"batch ack body: {len(acks)} acks, the limit is {MAX_ACK_ROWS}: send fewer at once")
        rows: list[AckRow] = []
        missing = 0
        for ack in acks:
            row, unknown = self._row_of(ack)
            missing += unknown
            if row is not None:
                rows.append(row)
        if not rows:
            self._unknown(request, f"{missing} messages")
            return
        batch = _Batch(len(rows), partial(self._batch_acked, request, [row.topic for row in rows], missing))
        for row in rows:
            self._changes.ack(row, batch.told)

    def _row_of(self, ack: BatchAck) -> tuple[AckRow | None, int]:
        """Return the row of the messages that can be acknowledged, or None, and the number of the other messages."""
        name, offsets = pop_retry_topic(ack.consumer_group, ack.topic, ack.retry), ack.offsets
        topic = self._machine.topic(name)
        if topic is None:
            return None, len(offsets)
        key = PopQueueKey(ack.consumer_group, name, ack.queue_id)
        found = [bit for offset in offsets if (bit := self._bit_of(key, ack.pop_time, offset)) is not None]
        if not found:
            return None, len(offsets)
        return AckRow(*_queue_of(key, topic), ack.pop_time, sum(found)), len(offsets) - len(found)

    # ---------------------------------------------------------------- answers

    def _unknown(self, request: Request, what: str) -> None:
        """Answer that a message is unknown, once a majority has confirmed that this leader is up to date."""
        why = f"{what}: not with this consumer, the time is over, it was hidden anew, or nobody popped it"
        self._requests.when_confirmed(request, partial(request.respond, ResponseCode.NO_MESSAGE, why))

    def _acked(self, request: Request, topics: Sequence[str], error: LogError | None, _pop_time_ms: int = 0) -> None:
        if error is None:
            request.respond()
            self._held.arrived(topics)
        else:
            self._requests.fail(request, error)

    def _batch_acked(self, request: Request, topics: Sequence[str], missing: int, error: LogError | None) -> None:
        if error is None and missing:
            why = f"{missing} of these messages are not with this consumer: the others are acknowledged"
            request.respond(ResponseCode.NO_MESSAGE, why)
            self._held.arrived(topics)
        else:
            self._acked(request, topics, error)

    def _changed(
        self,
        request: Request,
        key: PopQueueKey,
        invisible_ms: int,
        is_ordered: bool,
        is_untaken: bool,
        error: LogError | None,
        pop_time_ms: int,
    ) -> None:
        if error is None:
            if is_untaken:
                self._revivals.note_untaken(key, pop_time_ms)
            elif reason := failure_reason(request.ext.get(FAILURE_REASON_FIELD, "")):
                self._revivals.note_failed(key, pop_time_ms, reason)
            header = ChangeInvisibleResponseHeader(pop_time_ms, invisible_ms, revive_queue_of(is_ordered=is_ordered))
            request.respond(ext=encode_ext(header))
        else:
            self._requests.fail(request, error)


class _Batch:
    """Collector of the outcomes of one request's rows."""

    def __init__(self, rows: int, done: Callable[[LogError | None], None]) -> None:
        self._left = rows
        self._done = done
        self._error: LogError | None = None

    def told(self, error: LogError | None, _pop_time_ms: int) -> None:
        """Note that a row is applied or lost."""
        self._left -= 1
        self._error = self._error or error
        if not self._left:
            self._done(self._error)


def _queue_of(key: PopQueueKey, topic: TopicState) -> tuple[str, str, int, int]:
    """Return the first fields of an `AckRow`."""
    return key.group, key.topic, topic.created_position, key.queue_id
