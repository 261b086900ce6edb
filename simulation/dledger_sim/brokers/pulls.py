"""Judge of answers to pulls: their messages, their offsets, and the nodes they point to.

- 0 brings what is stored and committed, where it stands, and passes over nothing that is kept and wanted.
- 19 says that there is nothing to come: true of what the node had applied when it said so.
- 20 sends nobody past what is kept and wanted, nor back.
- 21 sends on to what is kept, or back to the end of a queue: true of the whole group since the question.
- 17 says that there is no such topic: true of the whole group at some moment since the question.

Of a topic that was deleted and made again every answer is about one incarnation, one that the node knew.
"""

from __future__ import annotations

from collections.abc import Iterator

from dledger_remoting.codes import ResponseCode
from dledger_remoting.errors import RecordError
from dledger_remoting.record import MessageRecord, iter_records
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.expected import Incarnation
from dledger_sim.brokers.message_bodies import operation_of
from dledger_sim.brokers.truth import Truth
from dledger_sim.log.invariants import Violation, require


class PullJudge:
    """Judges the pulls of a trial."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth
        self._counts = truth.happened

    def pulled(
        self, topic: str, queue_id: int, offset: int, answer: Answer, codes: frozenset[int] | None = None
    ) -> int | None:
        """What a pull brought, which `codes` may filter by tag; returns where to go on, None if nothing is known."""
        match answer.code:
            case ResponseCode.SUCCESS:
                return self._found(topic, queue_id, offset, answer, codes)
            case ResponseCode.PULL_NOT_FOUND:
                return self._nothing(topic, queue_id, offset, answer, codes)
            case ResponseCode.PULL_RETRY_IMMEDIATELY:
                return self._again(topic, queue_id, offset, answer, codes)
            case ResponseCode.PULL_OFFSET_MOVED:
                return self._moved(topic, queue_id, offset, answer)
            case ResponseCode.TOPIC_NOT_EXIST:
                known = self._in_the_group(topic, answer)
                require(None in known, "a topic that exists is never denied", topic=topic, known=known)
        return None

    # ---------------------------------------------------------------- one code each

    def _found(
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
                "what is delivered is committed, and stands where it is delivered from",
                found=(operation_of(record.body), record.topic, record.queue_id, record.queue_offset),
                stored=stored,
                asked=offset,
            )
            assert stored is not None
            known = self._on_the_node(topic, answer)
            require(
                known is None or any(one is not None and one.created == stored.created for one in known),
                "what is delivered belongs to a topic that the node knew",
                stored=stored,
                known=known,
            )
            incarnation = self._truth.expected.incarnations[stored.topic, stored.created]
            self._not_skipped(incarnation, queue_id, offset, record.queue_offset, codes)
            require(codes is None or stored.tag_code in codes, "a filter lets through what it names", stored=stored)
            offset = record.queue_offset + 1
            self._counts["read"] += 1
        after = int(answer.ext["nextBeginOffset"])
        require(after >= offset, "a consumer is never sent back", topic=topic, asked=offset, sent_to=after)
        if incarnation is not None:
            self._not_skipped(incarnation, queue_id, offset, after, codes)
        return after

    def _nothing(self, topic: str, queue_id: int, offset: int, answer: Answer, codes: frozenset[int] | None) -> int:
        after = int(answer.ext["nextBeginOffset"])
        incarnation, end = self._one_on_the_node(topic, queue_id, answer)
        if incarnation is None:
            return max(after, offset)
        skipped = incarnation.skipped(queue_id, offset, end, codes)
        let_go = self._truth.resets.has_reset(topic, queue_id)  # who waited there is to come again
        require(
            skipped is None or let_go,
            "nobody is told that there is nothing while there is",
            asked=offset,
            stored=skipped,
        )
        require(
            offset <= end or self._truth.group.rotten,
            "who asks beyond the end is told where that is",
            topic=topic,
            queue=queue_id,
            asked=offset,
            end=end,
        )
        require(
            offset <= after <= max(offset, end),
            "who waits in vain goes on where there is nothing yet",
            topic=topic,
            asked=offset,
            sent_to=after,
            end=end,
        )
        return after

    def _again(self, topic: str, queue_id: int, offset: int, answer: Answer, codes: frozenset[int] | None) -> int:
        after = int(answer.ext["nextBeginOffset"])
        require(after >= offset, "a consumer is never sent back", topic=topic, asked=offset, sent_to=after)
        for incarnation in self._one(self._on_the_node(topic, answer)):
            self._not_sent_past(incarnation, queue_id, offset, after, codes)
        return after

    def _moved(self, topic: str, queue_id: int, offset: int, answer: Answer) -> int:
        after = int(answer.ext["nextBeginOffset"])
        self._counts["offset moved"] += 1
        for incarnation in self._one(self._in_the_group(topic, answer)):
            self._not_sent_past(incarnation, queue_id, offset, after, None)
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

    # ---------------------------------------------------------------- what is passed over

    @staticmethod
    def _not_skipped(
        incarnation: Incarnation, queue_id: int, start: int, end: int, codes: frozenset[int] | None
    ) -> None:
        skipped = incarnation.skipped(queue_id, start, end, codes)
        require(skipped is None, "a pull skips nothing that is kept", asked=start, found=end, skipped=skipped)

    @staticmethod
    def _not_sent_past(
        incarnation: Incarnation, queue_id: int, start: int, end: int, codes: frozenset[int] | None
    ) -> None:
        skipped = incarnation.skipped(queue_id, start, end, codes)
        require(
            skipped is None, "a consumer is never sent past what is kept", asked=start, sent_to=end, skipped=skipped
        )

    # ---------------------------------------------------------------- what was known

    def _on_the_node(self, topic: str, answer: Answer) -> list[Incarnation | None] | None:
        """What the node that answered had of a topic, from question to answer; None if that is not known."""
        seen = answer.seen
        if seen is None or seen.passed_on:
            return None
        return self._truth.expected.topics[topic].within(seen.first_index, seen.last_index)

    def _one_on_the_node(self, topic: str, queue_id: int, answer: Answer) -> tuple[Incarnation | None, int]:
        """The topic if it was the same all the time, and where the queue ended there when the node answered."""
        for incarnation in self._one(self._on_the_node(topic, answer)):
            assert answer.seen is not None
            return incarnation, incarnation.end_after(queue_id, answer.seen.last_index)
        return None, 0

    def _in_the_group(self, topic: str, answer: Answer) -> list[Incarnation | None]:
        """What the group had of a topic, from question to answer."""
        if answer.seen is None:
            return [self._truth.topics.get(topic)]
        now = self._truth.group.scheduler.now
        return self._truth.expected.topics[topic].during(answer.seen.asked_at, now)

    @staticmethod
    def _one(known: list[Incarnation | None] | None) -> Iterator[Incarnation]:
        """The topic if it was there, and the same, all the time."""
        if known is not None and len(known) == 1 and known[0] is not None:
            yield known[0]


def is_sound(truth: Truth, answer: Answer) -> bool:
    """Whether records are what was stored.  Without their entry no node can tell; clients check the body's crc."""
    try:
        return all(_is_stored(truth, record) for record in iter_records(answer.body, verify_crc=True))
    except (RecordError, Violation):
        return False


def _is_stored(truth: Truth, record: MessageRecord) -> bool:
    stored = truth.by_position.get(record.physical_offset)
    found = (operation_of(record.body), record.topic, record.queue_id, record.queue_offset)
    return stored is not None and (stored.operation, stored.topic, stored.queue_id, stored.offset) == found
