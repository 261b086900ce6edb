"""Consumers of topics that are deleted and made again, in consumer groups that are too."""

from __future__ import annotations

from typing import Final

from dledger_remoting.bodies import encode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.topics import SubscriptionGroupConfig
from dledger_sim.brokers.clients import Client, pull_fields
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.expected import OffsetKey
from dledger_sim.brokers.workload import NOT_STORED, Workload

NOT_DONE: Final = NOT_STORED | {ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}
"""Response codes after which a change was not made and never will be."""


class Tenant(Client):
    """The only consumer of its group, of topics that come and go: it pulls, commits and asks.

    In a topic that was made again it starts where the broker sends it, so its commits may be lower than before.
    """

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self.group_name = f"tenant-{number}"
        self._offsets: dict[tuple[str, int], int] = {}

    def act(self) -> None:
        """Pull, commit, ask for the committed offset, or look up a message."""
        choice = self.random.random()
        topic = self.random.choice(self.workload.passing)
        queue_id = self.random.randrange(self.workload.settings.queues)
        if choice < 0.35:
            self._pull(topic, queue_id)
        elif choice < 0.6:
            self._commit(topic, queue_id)
        elif choice < 0.85:
            self._ask_offset(topic, queue_id)
        else:
            self._look_up(topic, by_key=choice < 0.93)

    def _make_fields(self, topic: str, queue_id: int) -> dict[str, str]:
        return {"consumerGroup": self.group_name, "topic": topic, "queueId": str(queue_id)}

    def _pull(self, topic: str, queue_id: int) -> None:
        offset = self._offsets.get((topic, queue_id), 0)
        commits = self.random.random() < 0.2
        if commits:
            self.workload.truth.expected.attempt(("offset", self.group_name, topic, queue_id, offset))
        poll_s = self.random.choice((0.0, 0.0, 1.0))

        def done(answer: Answer | None) -> None:
            if answer is not None:
                after = self.workload.pulled(topic, queue_id, offset, answer)
                if after is not None:
                    self._offsets[topic, queue_id] = after
            self.pause()

        fields = pull_fields(offset, self.random.choice((1, 4, 32)), poll_s=poll_s, commits=commits)
        timeout_s = self.workload.settings.timeout_s + poll_s
        if not self.call(
            RequestCode.PULL_MESSAGE, self._make_fields(topic, queue_id) | fields, done, timeout_s=timeout_s
        ):
            self.pause()

    def _commit(self, topic: str, queue_id: int) -> None:
        offset = self._offsets.get((topic, queue_id), 0)
        key: OffsetKey = (self.group_name, topic, queue_id)
        change = ("offset", *key, offset)
        expected = self.workload.truth.expected
        oneway = self.random.random() < self.workload.settings.oneway_share
        expected.attempt(change)

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                self.workload.counts["commit"] += 1
            elif answer is not None and answer.code in NOT_DONE:
                self.workload.counts["commit refused"] += 1
                expected.refuse(change)
            self.pause()

        ext = self._make_fields(topic, queue_id) | {"commitOffset": str(offset)}
        if not self.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext, done, oneway=oneway):
            expected.refuse(change)
            self.pause()

    def _ask_offset(self, topic: str, queue_id: int) -> None:
        def done(answer: Answer | None) -> None:
            if answer is not None:
                offset = self.workload.questions.offset((self.group_name, topic, queue_id), answer)
                if offset is not None and self.random.random() < 0.3:
                    self._offsets[topic, queue_id] = offset
            self.pause()

        ext = self._make_fields(topic, queue_id) | {"setZeroIfNotFound": "false"}
        if not self.call(RequestCode.QUERY_CONSUMER_OFFSET, ext, done):
            self.pause()

    def _look_up(self, topic: str, *, by_key: bool) -> None:
        newest = self.workload.truth.newest[topic]
        if not newest:
            self.pause()
            return
        stored = self.random.choice(newest)

        def done(answer: Answer | None) -> None:
            if answer is not None:
                self.workload.questions.message(stored, answer, by_key=by_key)
            self.pause()

        code, ext = self.workload.make_lookup(stored, by_key=by_key)
        if not self.call(code, ext, done):
            self.pause()


class Steward(Client):
    """Administrator who alone makes and deletes a consumer group, commits offsets for it, and queries both."""

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self.group_name = f"club-{number}"
        self._topic = self.random.choice(sorted(workload.lasting))
        self._numbers = 0
        """Number of the last change. Each change has a unique number that identifies it in the log."""

    def act(self) -> None:
        """Make, change or delete the group, commit, or ask."""
        choice = self.random.random()
        if choice < 0.15:
            self._put_group()
        elif choice < 0.25:
            self._delete_group()
        elif choice < 0.5:
            self._commit()
        elif choice < 0.75:
            self._ask_offset()
        else:
            self._query()

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    @property
    def _make_fields(self) -> dict[str, str]:
        return {"consumerGroup": self.group_name, "topic": self._topic, "queueId": "0"}

    def _put_group(self) -> None:
        number = self._next_number()
        expected, change = self.workload.truth.expected, ("group", self.group_name, number)
        expected.attempt(change)

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code in NOT_DONE:
                self.workload.counts["group change refused"] += 1
                expected.refuse(change)
            self.pause()

        body = encode_body(SubscriptionGroupConfig(self.group_name, retry_max_times=number))
        if not self.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, done, body=body):
            expected.refuse(change)
            self.pause()

    def _delete_group(self) -> None:
        clean = self.random.random() < 0.6
        ext = {"groupName": self.group_name, "cleanOffset": "true" if clean else "false"}
        if self.random.random() < 0.5:
            self._commit_oneway()
        done = self.call(RequestCode.DELETE_SUBSCRIPTION_GROUP, ext, lambda _: self.pause())
        if self.random.random() < 0.5:
            self._commit_oneway()
        if not done:
            self.pause()

    def _commit_oneway(self) -> None:
        """Commit at the moment of a deletion, before or after it."""
        offset = self._next_number()
        self.workload.truth.expected.attempt(("offset", self.group_name, self._topic, 0, offset))
        ext = self._make_fields | {"commitOffset": str(offset)}
        self.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext, lambda _: None, oneway=True)

    def _commit(self) -> None:
        offset = self._next_number()
        expected, change = self.workload.truth.expected, ("offset", self.group_name, self._topic, 0, offset)
        expected.attempt(change)

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code in NOT_DONE:
                self.workload.counts["commit refused"] += 1
                expected.refuse(change)
            self.pause()

        ext = self._make_fields | {"commitOffset": str(offset)}
        if not self.call(RequestCode.UPDATE_CONSUMER_OFFSET, ext, done):
            expected.refuse(change)
            self.pause()

    def _ask_offset(self) -> None:
        def done(answer: Answer | None) -> None:
            if answer is not None:
                self.workload.questions.offset((self.group_name, self._topic, 0), answer)
            self.pause()

        ext = self._make_fields | {"setZeroIfNotFound": "false"}
        if not self.call(RequestCode.QUERY_CONSUMER_OFFSET, ext, done):
            self.pause()

    def _query(self) -> None:
        def done(answer: Answer | None) -> None:
            if answer is not None:
                self.workload.questions.group(self.group_name, answer)
            self.pause()

        if not self.call(RequestCode.GET_SUBSCRIPTION_GROUP_CONFIG, {"group": self.group_name}, done):
            self.pause()


class Resizer(Client):
    """Administrator who changes the number of queues of a lasting topic, down and up again.

    A queue comes back with its messages.
    """

    def __init__(self, workload: Workload, number: int) -> None:
        super().__init__(workload, number)
        self._topic = self.random.choice(sorted(workload.lasting))
        self._number = 1000 * number

    def act(self) -> None:
        """Resize the topic, or query it."""
        if self.random.random() < 0.3:
            self._resize(self.random.randint(1, self.workload.settings.queues))
        else:
            self._query()

    def _resize(self, queues: int) -> None:
        self._number += 1
        expected, change = self.workload.truth.expected, ("topic", self._topic, self._number)
        expected.attempt(change)

        def done(answer: Answer | None) -> None:
            if answer is not None and answer.code in NOT_DONE:
                self.workload.counts["topic change refused"] += 1
                expected.refuse(change)
            self.pause()

        fields = self.workload.topic_fields(self._topic, queues) | {"topicSysFlag": str(self._number)}
        if not self.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields, done):
            expected.refuse(change)
            self.pause()

    def _query(self) -> None:
        def done(answer: Answer | None) -> None:
            if answer is not None:
                self.workload.questions.topic(self._topic, answer)
            self.pause()

        if not self.call(RequestCode.GET_TOPIC_CONFIG, {"topic": self._topic}, done):
            self.pause()
