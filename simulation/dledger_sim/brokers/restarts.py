"""Consumers that are started again and again: they ask where to go on, commit as they leave, seek, and begin anew."""

from __future__ import annotations

from functools import partial
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_sim.brokers.clients import Client, pull_fields
from dledger_sim.brokers.connection import Answer, SimConnection
from dledger_sim.brokers.expected import OffsetKey
from dledger_sim.brokers.workload import NOT_STORED, Workload

ASKS_AFTER_S: Final = 3.0
"""So long after a one-way commit its group asks at most: at once, when the leader proposes what it has collected, or
when that is long done."""
PROPOSAL_S: Final = 0.01
"""A proposal is under way for about so long."""


class Restarter(Client):
    """The only consumer of its group, of any topic.

    It commits one-way, as clients do that leave, and asks over the same connection what is committed. It seeks back,
    but only over the connection that its last commit went over: what comes over another one may count as delayed. Now
    and then it takes another group, which has committed nothing yet.
    """

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._generation = 0
        self._group_name = ""
        self._exists = False
        """The group has been seen to exist."""
        self._highest: dict[tuple[str, int], int] = {}
        """The highest offset that was sent, of each queue."""
        self._committed_over: dict[tuple[str, int], SimConnection] = {}
        self._unsure: set[tuple[str, int]] = set()
        """Queues of which a commit may still take effect that nobody has answered."""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._generation += 1
        self._group_name = f"restarter-{self.number}-{self._generation}"
        self.workload.truth.seeking.add(self._group_name)
        self._exists = False
        self._highest.clear()
        self._committed_over.clear()
        self._unsure = set()  # a new one: what is under way belongs to the group before

    def act(self) -> None:
        """Begin anew, pull, commit, or ask."""
        choice = self.random.random()
        if choice < 0.05:
            self._begin_anew()
        topic = self.workload.any_topic()
        queue_id = self.random.randrange(self.workload.settings.queues)
        if not self._exists and choice < 0.5:
            self._pull(topic, queue_id)
        elif not self._exists or choice < 0.4:
            self._ask(topic, queue_id)
        else:
            self._commit(topic, queue_id, asks=choice < 0.8)

    def _fields(self, topic: str, queue_id: int) -> dict[str, str]:
        return {"consumerGroup": self._group_name, "topic": topic, "queueId": str(queue_id)}

    def _key(self, topic: str, queue_id: int) -> OffsetKey:
        return self._group_name, topic, queue_id

    def _pull(self, topic: str, queue_id: int) -> None:
        def done(answer: Answer | None) -> None:
            if answer is not None:
                self.workload.pulled(topic, queue_id, 0, answer)
                self._exists = answer.code == ResponseCode.SUCCESS
            self.pause()

        if not self.call(RequestCode.PULL_MESSAGE, self._fields(topic, queue_id) | pull_fields(0, 4), done):
            self.pause()

    def _ask(self, topic: str, queue_id: int) -> None:
        key = self._key(topic, queue_id)
        young = self.random.random() < 0.5
        incarnation = self.workload.truth.topics.get(topic)
        lost_before = 0 if incarnation is None else incarnation.first_offsets.get(queue_id, 0)

        def done(answer: Answer | None) -> None:
            if answer is not None and young:
                self.workload.questions.beginning_of_a_group(key, answer, lost_before)
            elif answer is not None:
                self.workload.questions.offset(key, answer)
            self.pause()

        ext = self._fields(topic, queue_id) | ({} if young else {"setZeroIfNotFound": "false"})
        if not self.call(RequestCode.QUERY_CONSUMER_OFFSET, ext, done):
            self.pause()

    # ---------------------------------------------------------------- commits

    def _commit(self, topic: str, queue_id: int, *, asks: bool) -> None:
        """Commit; without an answer to that, ask what is committed."""
        connection, queue = self._connect(), (topic, queue_id)
        if connection is None:
            self.pause()
            return
        highest = self._highest.get(queue, 0)
        seeks = self._committed_over.get(queue) is connection and self.random.random() < 0.4
        offset = self.random.randrange(highest) if seeks and highest else highest + self.random.randint(1, 3)
        self._highest[queue] = max(highest, offset)
        self._committed_over[queue] = connection
        if asks:
            self._commit_and_ask(queue, offset)
        else:
            self._commit_and_wait(queue, offset, connection)

    def _commit_and_wait(self, queue: tuple[str, int], offset: int, connection: SimConnection) -> None:
        key, sure = self._key(*queue), queue not in self._unsure
        self._unsure.add(queue)

        def done(answer: Answer | None) -> None:
            if answer is not None and sure and over is connection:
                self.workload.questions.committed(key, offset, answer)
            if sure and answer is not None and answer.code in NOT_STORED | {ResponseCode.SUCCESS}:
                self._unsure.discard(queue)
            self.pause()

        ext = self._fields(*queue) | {"commitOffset": str(offset)}
        if not self.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext, done):
            self.pause()
        over = self._connection  # another one if this node is about to stop

    def _commit_and_ask(self, queue: tuple[str, int], offset: int) -> None:
        key, sent_at = self._key(*queue), self.workload.group.scheduler.now
        judged = queue not in self._unsure and queue[0] in self.workload.lasting and self._has_messages(*queue, sent_at)
        self._unsure.add(queue)

        def told(answer: Answer | None) -> None:
            if answer is not None:
                self.workload.questions.offset(key, answer)
            if answer is not None and judged and self.workload.questions.committed_oneway(key, offset, sent_at, answer):
                self._unsure.discard(queue)
            self.pause()

        def ask() -> None:
            question = self._fields(*queue) | {"setZeroIfNotFound": "false"}
            if not self.call(RequestCode.QUERY_CONSUMER_OFFSET, question, told):
                self.pause()

        ext = self._fields(*queue) | {"commitOffset": str(offset)}
        self.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext, lambda _: None, oneway=True)
        proposed_s = self.workload.brokers.offset_flush_ms / 1000 + self.random.random() * PROPOSAL_S
        delay_s = self.random.choice((0.0, 0.0, proposed_s, ASKS_AFTER_S))
        self.workload.group.scheduler.after(delay_s, partial(self._act, ask))

    def _has_messages(self, topic: str, queue_id: int, moment: float) -> bool:
        """Whether a queue is there for sure, even if its topic was given fewer queues."""
        incarnation = self.workload.truth.topics.get(topic)
        return incarnation is not None and incarnation.end_before(queue_id, moment) > 0
