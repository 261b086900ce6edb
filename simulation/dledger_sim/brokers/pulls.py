"""Judge of answers to pulls: their messages, their offsets, and the nodes to which they point.

- 0 brings messages that are stored and committed at their place. It skips no kept and wanted message.
- 19 says that there is no message yet. This is true for the state that the node had applied when it answered.
- 20 sends no consumer past kept and wanted messages, nor back.
- 21 sends on to kept messages, or back to the end of a queue. This is true for the whole group since the question. For
  a topic that was made again it sends back to the beginning.
- 17 says that the topic does not exist. This is true for the whole group at some moment since the question.

If a topic was deleted and made again, every answer is about a single incarnation, which the node knew.
"""

from __future__ import annotations

from collections.abc import Iterator

from dledger_broker.features.pulling.answers import TOPIC_MADE_AGAIN
from dledger_remoting.codes import ResponseCode
from dledger_remoting.errors import RecordError
from dledger_remoting.record import MessageRecord, iter_records
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.expected import Incarnation
from dledger_sim.brokers.message_bodies import operation_of
from dledger_sim.brokers.truth import Truth
from dledger_sim.log.invariants import Violation, require


class PullJudge:
    """Judge of the pulls of a trial."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._counts = truth.happened

    def pulled(
        self, topic: str, queue_id: int, offset: int, answer: Answer, codes: frozenset[int] | None = None
    ) -> int | None:
        """Check the answer to a pull, which `codes` may filter by tag.

        Return the next offset, or None if it is unknown.
        """
        match answer.code:
            case ResponseCode.SUCCESS:
                return self._judge_found(topic, queue_id, offset, answer, codes)
            case ResponseCode.PULL_NOT_FOUND:
                return self._judge_not_found(topic, queue_id, offset, answer, codes)
            case ResponseCode.PULL_RETRY_IMMEDIATELY:
                return self._judge_retry(topic, queue_id, offset, answer, codes)
            case ResponseCode.PULL_OFFSET_MOVED:
                return self._judge_moved(topic, queue_id, offset, answer)
            case ResponseCode.TOPIC_NOT_EXIST:
                known = self._get_known_by_group(topic, answer)
                require(None in known, "a topic that exists is never denied", topic=topic, known=known)
        return None

    # ---------------------------------------------------------------- one method per code

    def _judge_found(
        self, topic: str, queue_id: int, offset: int, answer: Answer, codes: frozenset[int] | None
    ) -> int | None:
        if self._truth.group.rotten and not is_sound(self._truth, answer):
            self._counts["rot noticed by a client"] += 1
            return None
        incarnation = self._truth.topics.get(topic)
        for record in iter_records(answer.body, verify_crc=True):
            stored = self._truth.by_position.get(record.physical_offset)
            require(
                stored is not None and _is_stored(self._truth, record) and record.queue_offset >= offset,
                "a delivered message is committed, and stored at the offset of the delivery",
                found=(operation_of(record.body), record.topic, record.queue_id, record.queue_offset),
                stored=stored,
                asked=offset,
            )
            assert stored is not None
            known = self._get_known_by_node(topic, answer)
            require(
                known is None or any(one is not None and one.created == stored.created for one in known),
                "a delivered message belongs to a topic that the node knew",
                stored=stored,
                known=known,
            )
            incarnation = self._truth.expected.incarnations[stored.topic, stored.created]
            self._require_none_skipped(incarnation, queue_id, offset, record.queue_offset, codes)
            require(
                codes is None or stored.tag_code in codes,
                "a filter by tags accepts only messages with these tags",
                stored=stored,
            )
            offset = record.queue_offset + 1
            self._counts["read"] += 1
        after = int(answer.ext["nextBeginOffset"])
        require(after >= offset, "a consumer is never sent back", topic=topic, asked=offset, sent_to=after)
        if incarnation is not None:
            self._require_none_skipped(incarnation, queue_id, offset, after, codes)
        return after

    def _judge_not_found(
        self, topic: str, queue_id: int, offset: int, answer: Answer, codes: frozenset[int] | None
    ) -> int:
        after = int(answer.ext["nextBeginOffset"])
        incarnation, end = self._get_unchanged_on_node(topic, queue_id, answer)
        if incarnation is None:
            return max(after, offset)
        skipped = incarnation.skipped(queue_id, offset, end, codes)
        let_go = self._truth.resets.has_reset(topic, queue_id)  # consumers that waited there must come again
        require(
            skipped is None or let_go,
            "no consumer is told that there are no messages while there are some",
            asked=offset,
            stored=skipped,
        )
        require(
            offset <= end or self._truth.group.rotten,
            "a consumer that asks beyond the end is told the end",
            topic=topic,
            queue=queue_id,
            asked=offset,
            end=end,
        )
        require(
            offset <= after <= max(offset, end),
            "a consumer that waits in vain goes on at the end of the queue",
            topic=topic,
            asked=offset,
            sent_to=after,
            end=end,
        )
        return after

    def _judge_retry(self, topic: str, queue_id: int, offset: int, answer: Answer, codes: frozenset[int] | None) -> int:
        after = int(answer.ext["nextBeginOffset"])
        require(after >= offset, "a consumer is never sent back", topic=topic, asked=offset, sent_to=after)
        for incarnation in self._iter_unchanged(self._get_known_by_node(topic, answer)):
            self._require_none_passed(incarnation, queue_id, offset, after, codes)
        return after

    def _judge_moved(self, topic: str, queue_id: int, offset: int, answer: Answer) -> int:
        after = int(answer.ext["nextBeginOffset"])
        self._counts["offset moved"] += 1
        if answer.remark == TOPIC_MADE_AGAIN:
            self._judge_topic_made_again(topic, queue_id, after, answer)
            return after
        for incarnation in self._iter_unchanged(self._get_known_by_group(topic, answer)):
            self._require_none_passed(incarnation, queue_id, offset, after, None)
            if after < offset and answer.seen is not None:
                self._counts["told where the end is"] += 1
                ends = (
                    incarnation.end_before(queue_id, answer.seen.asked_at),
                    len(incarnation.queues.get(queue_id, ())),
                )
                require(
                    ends[0] <= after <= ends[1],
                    "a consumer is never sent back",
                    topic=topic,
                    asked=offset,
                    sent_to=after,
                    ends=ends,
                )
        return after

    def _judge_topic_made_again(self, topic: str, queue_id: int, after: int, answer: Answer) -> None:
        self._counts["told that a topic was made again"] += 1
        creations = sum(name == topic for name, _ in self._truth.expected.incarnations)
        require(creations > 1, "only a topic that was created twice is reported as created again", topic=topic)
        for incarnation in self._iter_unchanged(self._get_known_by_group(topic, answer)):
            self._require_none_passed(incarnation, queue_id, 0, after, None)

    # ---------------------------------------------------------------- skipped messages

    @staticmethod
    def _require_none_skipped(
        incarnation: Incarnation, queue_id: int, start: int, end: int, codes: frozenset[int] | None
    ) -> None:
        skipped = incarnation.skipped(queue_id, start, end, codes)
        require(skipped is None, "a pull skips nothing that is kept", asked=start, found=end, skipped=skipped)

    @staticmethod
    def _require_none_passed(
        incarnation: Incarnation, queue_id: int, start: int, end: int, codes: frozenset[int] | None
    ) -> None:
        skipped = incarnation.skipped(queue_id, start, end, codes)
        require(
            skipped is None, "a consumer is never sent past kept messages", asked=start, sent_to=end, skipped=skipped
        )

    # ---------------------------------------------------------------- knowledge of the node and the group

    def _get_known_by_node(self, topic: str, answer: Answer) -> list[Incarnation | None] | None:
        """Return the incarnations of a topic that the answering node knew between question and answer.

        Return None if this is unknown.
        """
        seen = answer.seen
        if seen is None or seen.passed_on:
            return None
        return self._truth.expected.topics[topic].within(seen.first_index, seen.last_index)

    def _get_unchanged_on_node(self, topic: str, queue_id: int, answer: Answer) -> tuple[Incarnation | None, int]:
        """Return the topic's incarnation if it did not change in between, and the end of its queue at the answer."""
        for incarnation in self._iter_unchanged(self._get_known_by_node(topic, answer)):
            assert answer.seen is not None
            return incarnation, incarnation.end_after(queue_id, answer.seen.last_index)
        return None, 0

    def _get_known_by_group(self, topic: str, answer: Answer) -> list[Incarnation | None]:
        """Return the incarnations of a topic that the group had between question and answer."""
        if answer.seen is None:
            return [self._truth.topics.get(topic)]
        now = self._truth.group.scheduler.now
        return self._truth.expected.topics[topic].during(answer.seen.asked_at, now)

    @staticmethod
    def _iter_unchanged(known: list[Incarnation | None] | None) -> Iterator[Incarnation]:
        """Yield the topic's incarnation if it existed and did not change in between."""
        if known is not None and len(known) == 1 and known[0] is not None:
            yield known[0]


def is_sound(truth: Truth, answer: Answer) -> bool:
    """Return whether records are unchanged since they were stored.

    Without their entry no node can tell; clients check the body's crc.
    """
    try:
        return all(_is_stored(truth, record) for record in iter_records(answer.body, verify_crc=True))
    except (RecordError, Violation):
        return False


def _is_stored(truth: Truth, record: MessageRecord) -> bool:
    stored = truth.by_position.get(record.physical_offset)
    found = (operation_of(record.body), record.topic, record.queue_id, record.queue_offset)
    return stored is not None and (stored.operation, stored.topic, stored.queue_id, stored.offset) == found
