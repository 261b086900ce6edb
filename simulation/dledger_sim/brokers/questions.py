"""Judge of answers about offsets, topics and groups. Each must have been true at some moment since the question.

Questions about single messages are an exception: a node answers them from its applied state. It shows no message of a
topic that it knows to be deleted.
"""

from __future__ import annotations

import msgspec

from dledger_remoting.codes import ResponseCode
from dledger_remoting.headers_consume import TOPIC_CREATED_FIELD
from dledger_remoting.record import iter_records
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.expected import OffsetKey, Stored
from dledger_sim.brokers.history import History
from dledger_sim.brokers.message_bodies import operation_of
from dledger_sim.brokers.truth import Truth
from dledger_sim.log.invariants import require


class QuestionJudge:
    """Judge of a trial's answers."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._counts = truth.happened
        self._expected = truth.expected

    def offset(self, key: OffsetKey, answer: Answer) -> int | None:
        """Check a committed offset (14, without the rule for young topics).

        Return None if there is no offset or no answer.
        """
        if answer.code not in {ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND}:
            return None
        found = int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else None
        self._require(self._expected.offsets[key], found, answer, "a committed offset is the last commit", key)
        self._counts["offset read" if found is not None else "no offset read"] += 1
        return found

    def beginning_of_a_group(self, key: OffsetKey, answer: Answer, lost_before: int) -> None:
        """Check an offset (14, with the rule for young topics) where nothing is committed.

        It is 0 if the queue has lost no message, and absent otherwise. `lost_before` was the first kept offset when the
        question was asked.
        """
        seen, (_, topic, queue_id) = answer.seen, key
        if answer.code not in {ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND} or seen is None:
            return
        known = self._expected.topics[topic].during(seen.asked_at, self._now)
        offsets = self._expected.offsets[key].during(seen.asked_at, self._now)
        if len(known) != 1 or known[0] is None or offsets != [None]:
            return
        lost, stored = known[0].first_offsets.get(queue_id, 0), known[0].end_before(queue_id, seen.asked_at)
        if answer.code == ResponseCode.SUCCESS:
            found = int(answer.ext["offset"])
            require(
                found == 0 == lost_before,
                "a group without an offset begins at 0 only if the queue has lost no messages yet",
                key=key,
                found=found,
                lost=lost_before,
            )
            self._counts["group begins with a young queue"] += 1
        else:
            require(lost > 0 or stored == 0, "a group begins with a queue that has lost nothing yet", key=key)
            self._counts["group begins where it likes"] += 1

    def committed_oneway(self, key: OffsetKey, offset: int, sent_at: float, answer: Answer) -> bool:
        """Check a question (14) behind a one-way commit on the same connection, to the node that took the commit.

        No other commit of the group may still take effect. Return whether the commit is known to have taken effect.
        """
        seen = answer.seen
        if seen is None or not seen.steady or self._truth.disks_filled:
            return False
        if answer.code not in {ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND}:
            return False
        known = self._expected.offsets[key].during(sent_at, self._now)
        require(
            offset in known, "a client that commits and then asks is told its commit", key=key, sent=offset, known=known
        )
        self._counts["told what it committed"] += 1
        return True

    def committed(self, key: OffsetKey, offset: int, answer: Answer) -> None:
        """Check a commit (15) of the only member of a group. No other commit of it may still take effect."""
        if answer.code == ResponseCode.SUCCESS and answer.seen is not None:
            if TOPIC_CREATED_FIELD in answer.ext:
                creations = sum(name == key[1] for name, _ in self._expected.incarnations)
                require(creations > 1, "a commit is of an earlier creation of a topic only if there was one", key=key)
                self._counts["commit of an earlier topic"] += 1
                return
            known = self._expected.offsets[key].during(answer.seen.asked_at, self._now)
            require(offset in known, "a commit is acknowledged once it is applied", key=key, sent=offset, known=known)

    def end(self, topic: str, queue_id: int, answer: Answer) -> int | None:
        """Check the end of a queue (30). Return None without an answer."""
        if answer.code != ResponseCode.SUCCESS or answer.seen is None:
            return None
        found = int(answer.ext["offset"])
        known = self._expected.topics[topic].during(answer.seen.asked_at, self._now)
        bounds = [
            (0, 0)
            if one is None
            else (one.end_before(queue_id, answer.seen.asked_at), len(one.queues.get(queue_id, ())))
            for one in known
        ]
        require(
            any(low <= found <= high for low, high in bounds),
            "a queue ends where its topic's messages end",
            topic=topic,
            queue=queue_id,
            found=found,
            bounds=bounds,
        )
        return found

    def beginning(self, topic: str, queue_id: int, answer: Answer) -> None:
        """Check the first offset of a queue (31): no kept message lies before it."""
        if answer.code != ResponseCode.SUCCESS or answer.seen is None:
            return
        found = int(answer.ext["offset"])
        known = self._expected.topics[topic].during(answer.seen.asked_at, self._now)
        if len(known) == 1 and known[0] is not None:
            skipped = known[0].skipped(queue_id, 0, found)
            require(skipped is None, "a queue begins with its first kept message", found=found, skipped=skipped)

    def topic(self, name: str, answer: Answer) -> TopicConfig | None:
        """Check a topic's configuration (351). Return None if the topic is denied or there is no answer."""
        if answer.code not in {ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST}:
            return None
        found = msgspec.json.decode(answer.body, type=TopicConfig) if answer.code == ResponseCode.SUCCESS else None
        self._require(self._expected.configs[name], found, answer, "a topic is as the last change left it", name)
        return found

    def group(self, name: str, answer: Answer) -> SubscriptionGroupConfig | None:
        """Check a consumer group's configuration (352). Return None if the group is denied or there is no answer."""
        if answer.code not in {ResponseCode.SUCCESS, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}:
            return None
        found = (
            msgspec.json.decode(answer.body, type=SubscriptionGroupConfig)
            if answer.code == ResponseCode.SUCCESS
            else None
        )
        self._require(self._expected.groups[name], found, answer, "a group is as the last change left it", name)
        self._counts["group read"] += 1
        return found

    def message(self, stored: Stored, answer: Answer, *, by_key: bool) -> None:
        """Check the lookup of a message of a topic that comes and goes."""
        seen = answer.seen
        if self._truth.group.rotten or seen is None or seen.passed_on:
            return
        known = self._expected.topics[stored.topic].within(seen.first_index, seen.last_index)
        if answer.code == ResponseCode.SUCCESS:
            found = [(operation_of(record.body), record.physical_offset) for record in iter_records(answer.body)]
            require(
                found == [(stored.operation, stored.position)], "a lookup finds the message", stored=stored, found=found
            )
            require(
                any(one is not None and one.created == stored.created for one in known),
                "no message of a deleted topic is found",
                stored=stored,
                by_key=by_key,
                known=known,
            )
            self._counts["message of a passing topic found"] += 1
        elif answer.code == ResponseCode.QUERY_NOT_FOUND or "can not find" in answer.remark:
            group = self._expected.topics[stored.topic].during(seen.asked_at, self._now)
            if len(group) == 1 and group[0] is not None and group[0].created == stored.created:
                require(
                    group[0].skipped(stored.queue_id, stored.offset, stored.offset + 1) is None,
                    "stored messages are found",
                    stored=stored,
                    by_key=by_key,
                )
            self._counts["message of a passing topic denied"] += 1

    @property
    def _now(self) -> float:
        return self._truth.group.scheduler.now

    def _require(self, history: History, found: object, answer: Answer, promise: str, of: object) -> None:  # type: ignore[type-arg]
        if answer.seen is None:
            return
        known = history.during(answer.seen.asked_at, self._now)
        require(found in known, promise, of=of, found=found, known=known)
