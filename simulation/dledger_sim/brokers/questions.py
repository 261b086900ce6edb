"""Judge of answers about offsets, topics and groups: each must have been true at some moment since it was asked.

A node that is asked for single messages answers from what it has: nothing of a topic that it knows to be deleted.
"""

from __future__ import annotations

import msgspec

from dledger_remoting.codes import ResponseCode
from dledger_remoting.record import iter_records
from dledger_remoting.topics import SubscriptionGroupConfig, TopicConfig
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.expected import OffsetKey, Stored
from dledger_sim.brokers.history import History
from dledger_sim.brokers.message_bodies import operation_of
from dledger_sim.brokers.truth import Truth
from dledger_sim.log.invariants import require


class QuestionJudge:
    """Judges the answers of a trial."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._counts = truth.happened
        self._expected = truth.expected

    def offset(self, key: OffsetKey, answer: Answer) -> int | None:
        """A committed offset (14, asked without the rule for young topics); None if there is none, or no answer."""
        if answer.code not in {ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND}:
            return None
        found = int(answer.ext["offset"]) if answer.code == ResponseCode.SUCCESS else None
        self._require(self._expected.offsets[key], found, answer, "a committed offset is what was committed last", key)
        self._counts["offset read" if found is not None else "no offset read"] += 1
        return found

    def beginning_of_a_group(self, key: OffsetKey, answer: Answer, lost_before: int) -> None:
        """An offset (14, asked with the rule for young topics) where nothing is committed.

        That is 0 where the queue has messages and has lost none, and none elsewhere; `lost_before` was the first kept
        offset when it was asked.
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
            found, there = int(answer.ext["offset"]), bool(known[0].queues.get(queue_id))
            require(
                found == 0 == lost_before and there,
                "a group without an offset begins at 0 only where nothing is lost yet",
                key=key,
                found=found,
                lost=lost_before,
            )
            self._counts["group begins with a young queue"] += 1
        else:
            require(lost > 0 or stored == 0, "a group begins with a queue that has lost nothing yet", key=key)
            self._counts["group begins where it likes"] += 1

    def committed_oneway(self, key: OffsetKey, offset: int, sent_at: float, answer: Answer) -> bool:
        """A question (14) behind a commit that nobody answers, over one connection: to the node that took that.

        No other commit of the group may still take effect. Returns whether the commit is known to have done so.
        """
        seen = answer.seen
        if seen is None or not seen.steady or self._truth.group.disks_filled:
            return False
        if answer.code not in {ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND}:
            return False
        known = self._expected.offsets[key].during(sent_at, self._now)
        require(offset in known, "who commits and asks is told what it committed", key=key, sent=offset, known=known)
        self._counts["told what it committed"] += 1
        return True

    def committed(self, key: OffsetKey, offset: int, answer: Answer) -> None:
        """A commit (15) of the only member of a group, none of whose other ones may still take effect."""
        if answer.code == ResponseCode.SUCCESS and answer.seen is not None:
            known = self._expected.offsets[key].during(answer.seen.asked_at, self._now)
            require(offset in known, "a commit is acknowledged once it is applied", key=key, sent=offset, known=known)

    def end(self, topic: str, queue_id: int, answer: Answer) -> int | None:
        """Where a queue ends (30); None if there is no answer."""
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
        """The first offset of a queue (31): nothing that is kept lies before it."""
        if answer.code != ResponseCode.SUCCESS or answer.seen is None:
            return
        found = int(answer.ext["offset"])
        known = self._expected.topics[topic].during(answer.seen.asked_at, self._now)
        if len(known) == 1 and known[0] is not None:
            skipped = known[0].skipped(queue_id, 0, found)
            require(skipped is None, "a queue begins with the first message that is kept", found=found, skipped=skipped)

    def topic(self, name: str, answer: Answer) -> TopicConfig | None:
        """A topic's configuration (351), None if it is denied or there is no answer."""
        if answer.code not in {ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST}:
            return None
        found = msgspec.json.decode(answer.body, type=TopicConfig) if answer.code == ResponseCode.SUCCESS else None
        self._require(self._expected.configs[name], found, answer, "a topic is as it was made", name)
        return found

    def group(self, name: str, answer: Answer) -> SubscriptionGroupConfig | None:
        """A consumer group's configuration (352), None if it is denied or there is no answer."""
        if answer.code not in {ResponseCode.SUCCESS, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST}:
            return None
        found = (
            msgspec.json.decode(answer.body, type=SubscriptionGroupConfig)
            if answer.code == ResponseCode.SUCCESS
            else None
        )
        self._require(self._expected.groups[name], found, answer, "a group is as it was made", name)
        self._counts["group read"] += 1
        return found

    def message(self, stored: Stored, answer: Answer, *, by_key: bool) -> None:
        """A message of a topic that comes and goes was looked for."""
        seen = answer.seen
        if self._truth.group.rotten or seen is None or seen.passed_on:
            return
        known = self._expected.topics[stored.topic].within(seen.first_index, seen.last_index)
        if answer.code == ResponseCode.SUCCESS:
            found = [(operation_of(record.body), record.physical_offset) for record in iter_records(answer.body)]
            require(found == [(stored.operation, stored.position)], "a lookup finds it", stored=stored, found=found)
            require(
                any(one is not None and one.created == stored.created for one in known),
                "nothing of a deleted topic is found",
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
                    "what is stored is found",
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
