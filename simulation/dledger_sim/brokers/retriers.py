"""Consumers that fail to handle messages: they send them back (36), receive them again, and finally give some up."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.errors import OUTCOME_FIELD
from dledger_remoting.record import MessageRecord, iter_records
from dledger_remoting.topics import dead_letter_topic, retry_topic
from dledger_sim.brokers.clients import Client, pull_fields
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.message_bodies import operation_of
from dledger_sim.brokers.sent_back import Copy, SentBackTruth, copy_in
from dledger_sim.brokers.workload import Workload

MOST_KEPT: Final = 16
"""Maximum number of messages that were pulled and not sent back yet."""
LEVELS_S: Final = {1: 1.0, 2: 5.0}
BY_TIMES: Final = 0
"""Level whose delay grows with the number of deliveries. It begins with level 3."""
FIRST_BY_TIMES_S: Final = 10.0
DEAD: Final = -1
TWICE_SHARE: Final = 0.1
"""Share of messages that are sent back twice at once, as if the client had not read the first answer."""


class Retrier(Client):
    """The only member of its group. It pulls from a lasting topic and its retry topic, and sends many messages back."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self.group_name = f"retriers-{number}"
        self._limit = self.random.choice((1, 2, 3))
        topic = self.random.choice(sorted(workload.lasting))
        self._offsets = {(topic, queue_id): 0 for queue_id in range(workload.settings.queues)}
        self._offsets[retry_topic(self.group_name), 0] = 0
        self._records: deque[MessageRecord] = deque(maxlen=MOST_KEPT)

    def act(self) -> None:
        """Pull, or send a message back."""
        if self._records and self.random.random() < 0.6:
            self._send_back(self._records.popleft())
        else:
            self._pull(*self.random.choice(sorted(self._offsets)))

    def _pull(self, topic: str, queue_id: int) -> None:
        offset = self._offsets[topic, queue_id]

        def done(answer: Answer | None) -> None:
            after = None if answer is None else self.workload.pulled(topic, queue_id, offset, answer)
            if answer is not None and after is not None:
                self._offsets[topic, queue_id] = after
                if answer.code == ResponseCode.SUCCESS:
                    self._records += iter_records(answer.body)
            self.pause()

        key = {"consumerGroup": self.group_name, "topic": topic, "queueId": str(queue_id)}
        if not self.call(RequestCode.PULL_MESSAGE, key | pull_fields(offset, 4), done):
            self.pause()

    def _send_back(self, record: MessageRecord) -> None:
        level, delay_s = self._draw_level(record)
        is_dead = level == DEAD or record.reconsume_times >= self._limit
        topic = dead_letter_topic(self.group_name) if is_dead else retry_topic(self.group_name)
        copy = copy_in(topic, operation_of(record.body), record.reconsume_times + 1)
        assert copy is not None
        ext = {
            "offset": str(record.physical_offset),
            "group": self.group_name,
            "delayLevel": str(level),
            "maxReconsumeTimes": str(self._limit),
        }
        truth, due = self.workload.truth.sent_back, self.workload.group.scheduler.now + delay_s
        if self.random.random() < TWICE_SHARE:
            truth.ask(copy, due)
            if not self.call(RequestCode.CONSUMER_SEND_MSG_BACK, dict(ext), partial(hear, truth, copy)):
                truth.refuse(copy)

        def done(answer: Answer | None) -> None:
            hear(truth, copy, answer)
            self.pause()

        truth.ask(copy, due)
        if not self.call(RequestCode.CONSUMER_SEND_MSG_BACK, ext, done):
            truth.refuse(copy)
            self.pause()

    def _draw_level(self, record: MessageRecord) -> tuple[int, float]:
        """Return the level with which a message is sent back, and its delay in seconds."""
        chance = self.random.random()
        if chance < 0.1:
            return DEAD, 0.0
        if chance < 0.15 and record.reconsume_times == 0:
            return BY_TIMES, FIRST_BY_TIMES_S
        level = self.random.choice(sorted(LEVELS_S))
        return level, LEVELS_S[level]


def hear(truth: SentBackTruth, copy: Copy, answer: Answer | None) -> None:
    """Handle the answer to a consumer that has sent a message back."""
    if answer is not None and answer.code == ResponseCode.SUCCESS:
        truth.happened["message sent back"] += 1
        truth.answer(copy)
    elif answer is not None and OUTCOME_FIELD not in answer.ext:
        truth.happened["message not sent back"] += 1
        truth.refuse(copy)
    else:
        truth.happened["message sent back, or not"] += 1
