"""Consumers that are restarted again and again: they ask for their offset, commit as they leave, seek, start over."""

from __future__ import annotations

from functools import partial
from typing import Final

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_sim.brokers.clients import Client, pull_fields
from dledger_sim.brokers.connection import Answer, SimConnection
from dledger_sim.brokers.expected import OffsetKey
from dledger_sim.brokers.workload import NOT_STORED, Workload

ASKS_AFTER_S: Final = 3.0
"""Maximum pause between a one-way commit and the question for it, in seconds.

The question comes at once, when the leader proposes its collected commits, or long after that.
"""
PROPOSAL_S: Final = 0.01
"""Approximate time that a proposal is under way, in seconds."""


class Restarter(Client):
    """The only consumer of its group, for any topic.

    It commits one-way, as leaving clients do, and asks for the committed offset on the same connection. It seeks back
    only on the connection of its last commit: a lower commit on another connection may count as delayed. Now and then
    it switches to another group that has committed nothing yet.
    """

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._generation = 0
        self._group_name = ""
        self._group_exists = False
        """True once the group has been seen to exist."""
        self._highest_offsets: dict[tuple[str, int], int] = {}
        """Highest offset that was sent for each queue."""
        self._commit_connections: dict[tuple[str, int], SimConnection] = {}
        self._unsure_queues: set[tuple[str, int]] = set()
        """Queues with an unanswered commit that may still take effect."""
        self._start_new_group()

    def _start_new_group(self) -> None:
        self._generation += 1
        self._group_name = f"restarter-{self.number}-{self._generation}"
        self.workload.truth.seeking.add(self._group_name)
        self._group_exists = False
        self._highest_offsets.clear()
        self._commit_connections.clear()
        self._unsure_queues = set()  # a new set: commits under way belong to the previous group

    def act(self) -> None:
        """Start anew, pull, commit, or ask."""
        choice = self.random.random()
        if choice < 0.05:
            self._start_new_group()
        topic = self.workload.any_topic()
        queue_id = self.random.randrange(self.workload.settings.queues)
        if not self._group_exists and choice < 0.5:
            self._pull(topic, queue_id)
        elif not self._group_exists or choice < 0.4:
            self._ask_offset(topic, queue_id)
        else:
            self._commit(topic, queue_id, asks=choice < 0.8)

    def _make_fields(self, topic: str, queue_id: int) -> dict[str, str]:
        return {"consumerGroup": self._group_name, "topic": topic, "queueId": str(queue_id)}

    def _make_key(self, topic: str, queue_id: int) -> OffsetKey:
        return self._group_name, topic, queue_id

    def _pull(self, topic: str, queue_id: int) -> None:
        def done(answer: Answer | None) -> None:
            if answer is not None:
                self.workload.pulled(topic, queue_id, 0, answer)
                self._group_exists = answer.code == ResponseCode.SUCCESS
            self.pause()

        if not self.call(RequestCode.PULL_MESSAGE, self._make_fields(topic, queue_id) | pull_fields(0, 4), done):
            self.pause()

    def _ask_offset(self, topic: str, queue_id: int) -> None:
        key = self._make_key(topic, queue_id)
        young = self.random.random() < 0.5
        incarnation = self.workload.truth.topics.get(topic)
        lost_before = 0 if incarnation is None else incarnation.first_offsets.get(queue_id, 0)

        def done(answer: Answer | None) -> None:
            if answer is not None and young:
                self.workload.questions.beginning_of_a_group(key, answer, lost_before)
            elif answer is not None:
                self.workload.questions.offset(key, answer)
            self.pause()

        ext = self._make_fields(topic, queue_id) | ({} if young else {"setZeroIfNotFound": "false"})
        if not self.call(RequestCode.QUERY_CONSUMER_OFFSET, ext, done):
            self.pause()

    # ---------------------------------------------------------------- commits

    def _commit(self, topic: str, queue_id: int, *, asks: bool) -> None:
        """Commit with an answer, or, if it `asks`, commit one-way and then ask for the committed offset."""
        connection, queue = self._connect(), (topic, queue_id)
        if connection is None:
            self.pause()
            return
        highest = self._highest_offsets.get(queue, 0)
        seeks = self._commit_connections.get(queue) is connection and self.random.random() < 0.4
        offset = self.random.randrange(highest) if seeks and highest else highest + self.random.randint(1, 3)
        self._highest_offsets[queue] = max(highest, offset)
        if asks:
            self._commit_and_ask(queue, offset)
        else:
            self._commit_connections[queue] = connection
            self._commit_and_wait(queue, offset, connection)

    def _commit_and_wait(self, queue: tuple[str, int], offset: int, connection: SimConnection) -> None:
        key, sure = self._make_key(*queue), queue not in self._unsure_queues
        self._unsure_queues.add(queue)

        def done(answer: Answer | None) -> None:
            if answer is not None and sure and over is connection:
                self.workload.questions.committed(key, offset, answer)
            if sure and answer is not None and answer.code in NOT_STORED | {ResponseCode.SUCCESS}:
                self._unsure_queues.discard(queue)
            self.pause()

        ext = self._make_fields(*queue) | {"commitOffset": str(offset)}
        if not self.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext, done):
            self.pause()
        over = self._connection  # another connection if this node is about to stop

    def _commit_and_ask(self, queue: tuple[str, int], offset: int) -> None:
        key, sent_at = self._make_key(*queue), self.workload.group.scheduler.now
        questions = self.workload.questions
        ext = self._make_fields(*queue) | {"commitOffset": str(offset)}
        if not self.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext, lambda _: None, oneway=True):
            self.pause()
            return
        over = asked_over = self._connection
        assert over is not None
        self._commit_connections[queue] = over
        judged = (
            queue not in self._unsure_queues
            and queue[0] in self.workload.lasting
            and self._has_messages(*queue, sent_at)
        )
        judged = judged and not over.dropped_last
        self._unsure_queues.add(queue)

        def done(answer: Answer | None) -> None:
            if answer is not None:
                questions.offset(key, answer)
            over_one = judged and asked_over is over
            if over_one and answer is not None and questions.committed_oneway(key, offset, sent_at, answer):
                self._unsure_queues.discard(queue)
            self.pause()

        def ask() -> None:
            nonlocal asked_over
            question = self._make_fields(*queue) | {"setZeroIfNotFound": "false"}
            if not self.call(RequestCode.QUERY_CONSUMER_OFFSET, question, done):
                self.pause()
            asked_over = self._connection

        proposed_s = self.workload.brokers.offset_flush_ms / 1000 + self.random.random() * PROPOSAL_S
        delay_s = self.random.choice((0.0, 0.0, proposed_s, ASKS_AFTER_S))
        self.workload.group.scheduler.after(delay_s, partial(self._act, ask))

    def _has_messages(self, topic: str, queue_id: int, moment: float) -> bool:
        """Return whether a queue certainly exists, even if its topic was given fewer queues."""
        incarnation = self.workload.truth.topics.get(topic)
        return incarnation is not None and incarnation.end_before(queue_id, moment) > 0
