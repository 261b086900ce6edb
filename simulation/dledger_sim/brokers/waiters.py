"""Clients that wait at the ends of queues, and pull before and beyond the ends."""

from __future__ import annotations

from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.filters.subscriptions import EXPRESSION_CLASS, EXPRESSION_SQL92, EXPRESSION_TAG, parse_filter
from dledger_sim.brokers.classes import CLASS_NAME
from dledger_sim.brokers.clients import Client, pull_fields
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.filters import codes_of
from dledger_sim.brokers.workload import Workload

GROUP: Final = "waiters"
SUBSCRIPTIONS: Final = (
    ("*", "TRUE"),
    ("*", "TAGS IS NULL OR NOT TAGS CONTAINS 'e'"),
    ("red", "TAGS = 'red'"),
    ("red || green", "NOT (TAGS <> 'red' AND TAGS NOT IN ('green', 'blue'))"),
    ("blue", "TAGS = 'blue'"),
)
"""Subscriptions by tags, used at even offsets, and in SQL92. No client sends a blue message."""
TYPES: Final = (EXPRESSION_TAG, EXPRESSION_SQL92)
CLASS_SHARE: Final = 0.5
"""Share of pulls with a class filter, where nodes have one."""
PLACES: Final = ("end", "end", "end", "end", "end", "beyond", "before")
"""Places at which a pull begins, relative to the known end of the queue."""
BEYOND: Final = 3
BEFORE: Final = 40


class Waiter(Client):
    """Consumer that waits for messages of any topic, lasting or passing, at its chosen node."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._known_ends: dict[tuple[str, int], int] = {}

    def act(self) -> None:
        """Ask for the bounds of a queue, or pull."""
        topic = self.workload.any_topic()
        queue_id = self.random.randrange(self.workload.settings.queues)
        end = self._known_ends.get((topic, queue_id))
        if end is None or self.random.random() < 0.05:
            self._ask_bounds(topic, queue_id)
        else:
            self._pull(topic, queue_id, end)

    def _ask_bounds(self, topic: str, queue_id: int) -> None:
        first = self.random.random() < 0.3
        judge = self.workload.questions

        def done(answer: Answer | None) -> None:
            if answer is not None and first:
                judge.beginning(topic, queue_id, answer)
            elif answer is not None and (end := judge.end(topic, queue_id, answer)) is not None:
                self._known_ends[topic, queue_id] = end
            self.pause()

        code = RequestCode.GET_MIN_OFFSET if first else RequestCode.GET_MAX_OFFSET
        if not self.call(code, {"topic": topic, "queueId": str(queue_id)}, done):
            self.pause()

    def _pull(self, topic: str, queue_id: int, end: int) -> None:
        random = self.random
        place = random.choice(PLACES)
        offset = end
        if place == "beyond":
            offset += random.randint(1, BEYOND)
        elif place == "before":
            offset = max(0, end - random.randint(1, BEFORE))
        in_sql = offset % len(TYPES)
        subscription = {"subscription": random.choice(SUBSCRIPTIONS)[in_sql], "expressionType": TYPES[in_sql]}
        if self.workload.brokers.class_filters and random.random() < CLASS_SHARE:
            subscription = {"subscription": CLASS_NAME, "expressionType": EXPRESSION_CLASS}
        codes = codes_of(parse_filter(subscription["expressionType"], subscription["subscription"]))
        poll_s = random.choice((0.2, 1.0, 4.0)) * random.uniform(0.5, 1.5)

        def done(answer: Answer | None) -> None:
            if answer is None or answer.code == ResponseCode.TOPIC_NOT_EXIST:
                self._known_ends.pop((topic, queue_id), None)
            if answer is not None:
                after = self.workload.pulled(topic, queue_id, offset, answer, codes)
                if after is not None and (place != "before" or after > end):
                    self._known_ends[topic, queue_id] = after
            self.pause()

        ext = {"consumerGroup": GROUP, "topic": topic, "queueId": str(queue_id)}
        ext |= pull_fields(offset, random.choice((1, 4, 32)), poll_s=poll_s) | subscription
        if not self.call(RequestCode.PULL_MESSAGE, ext, done, timeout_s=self.workload.settings.timeout_s + poll_s):
            self.pause()
