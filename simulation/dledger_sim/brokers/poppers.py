"""Consumers that pop: a group takes all messages, another those with a tag, a third all in order."""

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
"""Share of messages that are hidden anew. `ACK_SHARE` of them are acknowledged, and the others are left alone."""
BATCH_SHARE: Final = 0.3
"""Share of pops whose acknowledged messages are acknowledged in a single request."""
TWICE_SHARE: Final = 0.1
"""Share of acknowledgements that are sent twice at once."""
COMMIT_SHARE: Final = 0.1
"""Share of steps in which a consumer commits an offset like a pulling consumer. Such a commit has no effect."""
LATE_S: Final = 45.0
"""Time limit in seconds, after the invisible time, within which a whole group delivers again.

A new leader waits for 10 s of it, and for 30 s before it ends leases.
"""


class _Message(NamedTuple):
    """Popped message: its place, the check point for its acknowledgement, and its operation."""

    key: OffsetKey
    point: CheckPoint
    operation: int


class Popper(Client):
    """Member of one of three groups: a group takes all messages, another those with a tag, a third all in order."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self.group_name = GROUPS[number % len(GROUPS)]
        workload.truth.pops.codes[RED_GROUP] = frozenset((tag_code(RED),))
        self._requests_left = 0

    def act(self) -> None:
        """Pop, or commit without effect."""
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
        ext |= self._extra_fields()
        done = partial(self._handle_popped, topic, workload.group.scheduler.now)
        if not self.call(RequestCode.POP_MESSAGE, ext, done):
            self.pause()

    def _extra_fields(self) -> dict[str, str]:
        """Return further fields of a pop."""
        return {}

    def _handle_message(self, key: OffsetKey, point: CheckPoint, operation: int) -> bool:
        """Return whether a subclass has taken a message over, whose fate is then not chosen at once."""
        _ = key, point, operation
        return False

    def _end_answer(self, topic: str) -> None:
        """Note that all messages of an answer are handled."""

    def _handle_popped(self, topic: str, sent_at: float, answer: Answer | None) -> None:
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
        counts = dict(row.split(" ")[1:] for row in answer.ext.get("orderCountInfo", "").split(";") if row)
        self._requests_left = 1
        batch: list[_Message] | None = [] if self.random.random() < BATCH_SHARE else None
        for record in iter_records(answer.body, verify_crc=True):
            point = _make_check_point(record, starts, answer)
            key = (self.group_name, pop_retry_topic(self.group_name, topic, point.retry), point.queue_id)
            operation = operation_of(record.body)
            workload.pops.shown(key, point, operation, sent_at, group.scheduler.now, is_sure=not group.clocks_jumped)
            queue, offset = str(point.queue_id), point.queue_offset
            workload.pops.counted(key, point, int(counts.get(f"qo{queue}%{offset}", counts.get(queue, "0"))))
            self._handle(_Message(key, point, operation), batch)
        if batch:
            self._acknowledge_all(topic, batch)
        self._end_answer(topic)
        self._finish_request()

    def _handle(self, message: _Message, batch: list[_Message] | None) -> None:
        """Choose the fate of a message. Messages that are acknowledged `together` are only noted."""
        key, point, operation = message
        if self._handle_message(key, point, operation):
            return
        chance = self.random.random()
        if chance < ACK_SHARE and batch is not None:
            batch.append(message)
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
            self._finish_request()

        if self.call(RequestCode.ACK_MESSAGE, _make_ack_fields(key, point), done):
            self._requests_left += 1

    def _acknowledge_all(self, topic: str, messages: list[_Message]) -> None:
        """Acknowledge messages in a single request with a row for each delivery."""
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
            self._finish_request()

        body = encode_batch_ack("broker", [_make_batch_row(topic, one) for one in deliveries.values()])
        if self.call(RequestCode.BATCH_ACK_MESSAGE, {}, done, body=body):
            self._requests_left += 1

    def _hide(self, key: OffsetKey, point: CheckPoint, operation: int) -> None:
        pops, sent_at = self.workload.pops, self.workload.group.scheduler.now
        invisible_ms = int(self.random.choice(INVISIBLE_S) * 1000)

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                pops.hidden(key[0], operation, sent_at, invisible_ms)
            self._finish_request()

        ext = _make_ack_fields(key, point) | {"invisibleTime": str(invisible_ms)}
        if self.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext, done):
            pops.hiding(key[0], operation, sent_at, invisible_ms)
            self._requests_left += 1

    def _finish_request(self) -> None:
        """Continue once all requests of this step are answered."""
        self._requests_left -= 1
        if not self._requests_left:
            self.pause()


def _make_check_point(record: MessageRecord, starts: dict[str, str], answer: Answer) -> CheckPoint:
    """Return the check point of a message, as RocketMQ's client makes it."""
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


def _make_batch_row(topic: str, messages: list[_Message]) -> BatchAck:
    """Return the row for messages of one delivery, which were popped from a topic."""
    key, point, _ = messages[0]
    bits = bits_of(point.start_offset, (message.point.queue_offset for message in messages))
    return BatchAck(key[0], topic, point.retry, point.start_offset, key[2], point.pop_time_ms, bits)


def _make_ack_fields(key: OffsetKey, point: CheckPoint) -> dict[str, str]:
    return {
        "consumerGroup": key[0],
        "topic": key[1],
        "queueId": str(key[2]),
        "extraInfo": point.text,
        "offset": str(point.queue_offset),
    }


def check_come_again(group: SimGroup, truth: PopTruth) -> None:
    """Wait until a whole group has no open deliveries, except those of the ordered group.

    It must deliver unacknowledged messages again.
    """
    scheduler = group.scheduler
    until = scheduler.now + max(INVISIBLE_S) + LATE_S + group.longest_pause_s
    while truth.open_messages(but_of=ORDERED_GROUP):
        require(
            scheduler.now < until or group.clocks_jumped,
            "a message without acknowledgement is delivered again",
            waiting=truth.open_messages(but_of=ORDERED_GROUP)[:5],
        )
        if scheduler.now >= until:
            return
        scheduler.run_until(scheduler.now + 0.5)
