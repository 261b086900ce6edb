"""Consumers that pop: one group takes all, one messages with a tag, one all in order."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.filters.subscriptions import EXPRESSION_CLASS, EXPRESSION_TAG
from dledger_remoting.filters.tags import tag_code
from dledger_remoting.pop import CheckPoint, Retry, parse_check_point, pop_retry_topic
from dledger_remoting.pop_bodies import BatchAck, bits_of, encode_batch_ack
from dledger_remoting.properties import POP_CHECK_POINT, parse_properties
from dledger_remoting.record import MessageRecord, iter_records
from dledger_sim.brokers.classes import CLASS_NAME, RED
from dledger_sim.brokers.clients import Client
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.expected import OffsetKey
from dledger_sim.brokers.message_bodies import operation_of
from dledger_sim.brokers.pop_truth import PopTruth
from dledger_sim.brokers.pulls import is_sound
from dledger_sim.brokers.workload import Workload
from dledger_sim.log.group import SimGroup
from dledger_sim.log.invariants import require

ALL_GROUP: Final = "pop-all"
RED_GROUP: Final = "pop-red"
ORDERED_GROUP: Final = "pop-ordered"
GROUPS: Final = (ALL_GROUP, RED_GROUP, ORDERED_GROUP)
INVISIBLE_S: Final = (1.0, 2.0, 5.0)
POLLS_S: Final = (0.0, 0.0, 0.5)
ACK_SHARE: Final = 0.7
HIDE_SHARE: Final = 0.15
"""Shares of messages that are acknowledged, and hidden anew; the others are left alone."""
BATCH_SHARE: Final = 0.3
"""Share of pops whose messages are acknowledged in one request, those that are."""
TWICE_SHARE: Final = 0.1
"""Share of acknowledgements that are sent twice at once."""
COMMIT_SHARE: Final = 0.1
"""Share of steps in which a consumer commits an offset, as one that pulls does: it means nothing."""
LATE_S: Final = 25.0
"""A group that is whole again delivers again within so long after the invisible time: a new leader waits for 10."""


class _Message(NamedTuple):
    """A message that was popped: where, how it is acknowledged, and what it is."""

    key: OffsetKey
    point: CheckPoint
    operation: int


class Popper(Client):
    """A member of one of three groups: one takes all, one messages with a tag, one all in order."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self.group_name = GROUPS[number % len(GROUPS)]
        workload.truth.pops.codes[RED_GROUP] = frozenset((tag_code(RED),))
        self._left = 0

    def act(self) -> None:
        """Pop, or say what means nothing."""
        if self.random.random() < COMMIT_SHARE:
            self._commit()
        else:
            self._pop()

    def _commit(self) -> None:
        workload, random = self.workload, self.random
        queue_id, topic = random.randrange(workload.settings.queues), random.choice(sorted(workload.lasting))
        key = (self.group_name, topic, queue_id)
        if not workload.truth.pops.governs(key):
            self.pause()
            return
        ext = {"consumerGroup": key[0], "topic": topic, "queueId": str(queue_id), "commitOffset": "100000"}
        if not self.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext, lambda _answer: self.pause()):
            self.pause()

    def _pop(self) -> None:
        workload, random = self.workload, self.random
        topic, invisible_s = random.choice(sorted(workload.lasting)), random.choice(INVISIBLE_S)
        is_any = random.random() < 0.7
        ext = {
            "consumerGroup": self.group_name,
            "topic": topic,
            "queueId": "-1" if is_any else str(random.randrange(workload.settings.queues)),
            "maxMsgNums": str(random.choice((1, 3, 32))),
            "invisibleTime": str(int(invisible_s * 1000)),
            "pollTime": str(int(random.choice(POLLS_S) * 1000)),
            "bornTime": "0",
            "initMode": "0",
            "order": "true" if self.group_name == ORDERED_GROUP else "false",
        }
        if self.group_name == RED_GROUP:
            by_class = workload.brokers.class_filters
            ext |= {"exp": CLASS_NAME if by_class else RED, "expType": EXPRESSION_CLASS if by_class else EXPRESSION_TAG}
        done = partial(self._popped, topic, workload.group.scheduler.now)
        if not self.call(RequestCode.POP_MESSAGE, ext, done):
            self.pause()

    def _popped(self, topic: str, sent_at: float, answer: Answer | None) -> None:
        if answer is None or answer.code != ResponseCode.SUCCESS:
            if answer is not None:
                self.workload.counts[f"pop answered {answer.code}"] += 1
            self.pause()
            return
        workload, group = self.workload, self.workload.group
        if group.rotten and not is_sound(workload.truth, answer):
            workload.truth.happened["rot noticed by a client"] += 1
            self.pause()
            return
        starts = dict(row.split(" ")[1:] for row in answer.ext["startOffsetInfo"].split(";") if row.startswith("0 "))
        self._left = 1
        together: list[_Message] | None = [] if self.random.random() < BATCH_SHARE else None
        for record in iter_records(answer.body, verify_crc=True):
            point = _point_of(record, starts, answer)
            key = (self.group_name, pop_retry_topic(self.group_name, topic, point.retry), point.queue_id)
            operation = operation_of(record.body)
            workload.pops.shown(key, point, operation, sent_at, group.scheduler.now, is_sure=not group.clocks_jumped)
            self._handle(_Message(key, point, operation), together)
        if together:
            self._acknowledge_all(topic, together)
        self._go_on()

    def _handle(self, message: _Message, together: list[_Message] | None) -> None:
        """Decide what becomes of a message; those that are acknowledged `together` are only noted."""
        key, point, operation = message
        chance = self.random.random()
        if chance < ACK_SHARE and together is not None:
            together.append(message)
        elif chance < ACK_SHARE:
            self._acknowledge(key, point, operation)
            if self.random.random() < TWICE_SHARE:
                self._acknowledge(key, point, operation)
        elif chance < ACK_SHARE + HIDE_SHARE:
            self._hide(key, point, operation)

    def _acknowledge(self, key: OffsetKey, point: CheckPoint, operation: int) -> None:
        self.workload.truth.pops.ack_asked.add((key, point.pop_time_ms, point.queue_offset))

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self.workload.pops.acknowledged(key, point, operation, self.workload.group.scheduler.now)
            elif answer is not None:
                self.workload.counts[f"acknowledgement answered {answer.code}"] += 1
            self._go_on()

        if self.call(RequestCode.ACK_MESSAGE, _ack_ext(key, point), done):
            self._left += 1

    def _acknowledge_all(self, topic: str, messages: list[_Message]) -> None:
        """In one request, which says of each delivery what is done with."""
        deliveries: dict[tuple[OffsetKey, int], list[_Message]] = {}
        for message in messages:
            self.workload.truth.pops.ack_asked.add((message.key, message.point.pop_time_ms, message.point.queue_offset))
            deliveries.setdefault((message.key, message.point.pop_time_ms), []).append(message)

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                for key, point, operation in messages:
                    self.workload.pops.acknowledged(key, point, operation, self.workload.group.scheduler.now)
                self.workload.counts["batch of popped messages acknowledged"] += 1
            elif answer is not None:
                self.workload.counts[f"batch of acknowledgements answered {answer.code}"] += 1
            self._go_on()

        body = encode_batch_ack("broker", [_batch_of(topic, one) for one in deliveries.values()])
        if self.call(RequestCode.BATCH_ACK_MESSAGE, {}, done, body=body):
            self._left += 1

    def _hide(self, key: OffsetKey, point: CheckPoint, operation: int) -> None:
        pops, sent_at = self.workload.pops, self.workload.group.scheduler.now
        invisible_ms = int(self.random.choice(INVISIBLE_S) * 1000)

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                pops.hidden(key[0], operation, sent_at, invisible_ms)
            self._go_on()

        ext = _ack_ext(key, point) | {"invisibleTime": str(invisible_ms)}
        if self.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext, done):
            pops.hiding(key[0], operation, sent_at, invisible_ms)
            self._left += 1

    def _go_on(self) -> None:
        """Do the next thing once all of this one is answered."""
        self._left -= 1
        if not self._left:
            self.pause()


def _point_of(record: MessageRecord, starts: dict[str, str], answer: Answer) -> CheckPoint:
    """The check point of a message, as RocketMQ's client makes it."""
    text = parse_properties(record.properties).get(POP_CHECK_POINT)
    if text is not None:
        return parse_check_point(text)
    ext = answer.ext
    return CheckPoint(
        start_offset=int(starts[str(record.queue_id)]),
        pop_time_ms=int(ext["popTime"]),
        invisible_ms=int(ext["invisibleTime"]),
        is_ordered=ext["reviveQid"] == "999",
        retry=Retry.NONE,
        broker_name="broker",
        queue_id=record.queue_id,
        queue_offset=record.queue_offset,
    )


def _batch_of(topic: str, messages: list[_Message]) -> BatchAck:
    """The row of messages of one delivery, which were popped of a topic."""
    key, point, _ = messages[0]
    bits = bits_of(point.start_offset, (message.point.queue_offset for message in messages))
    return BatchAck(key[0], topic, point.retry, point.start_offset, key[2], point.pop_time_ms, bits)


def _ack_ext(key: OffsetKey, point: CheckPoint) -> dict[str, str]:
    return {
        "consumerGroup": key[0],
        "topic": key[1],
        "queueId": str(key[2]),
        "extraInfo": point.text,
        "offset": str(point.queue_offset),
    }


def check_come_again(group: SimGroup, truth: PopTruth) -> None:
    """A whole group delivers again what is not acknowledged: wait until nothing but what is in order is open."""
    scheduler = group.scheduler
    until = scheduler.now + max(INVISIBLE_S) + LATE_S + group.longest_pause_s
    while truth.open_messages(but_of=ORDERED_GROUP):
        require(
            scheduler.now < until or group.clocks_jumped,
            "what is not acknowledged comes again",
            waiting=truth.open_messages(but_of=ORDERED_GROUP)[:5],
        )
        if scheduler.now >= until:
            return
        scheduler.run_until(scheduler.now + 0.5)
