"""A range of a queue gives the messages that were planned, and never those of a later topic of the same name."""

from __future__ import annotations

from collections.abc import Container

import pytest
from fake_log import FIRST_POSITION, GROUP, HOST, FakeLog, FakeNode, served

from dledger_remoting.command import RemotingCommand, make_response
from dledger_remoting.filters.tags import MAX_EXPRESSION_CHARS
from dledger_remoting.record import MessageRecord, encode_record
from dledger_spark.errors import DataLossError
from dledger_spark.offsets import Queue
from dledger_spark.partitions import QueueRange, Source
from dledger_spark.queues import read_range
from dledger_spark.wanted import RowFilter

PULL = 361
COMMIT = FIRST_POSITION + 1000
PER_ANSWER = 2
NO_MATCH = 20


class Topic:
    """A topic of one queue; its first `before` messages lie below the planned commit, the others behind it.

    All messages have the tag a, or the `matching` ones only; a pull with a filter skips the others as a broker does.
    """

    def __init__(self, before: int, messages: int = 6, matching: Container[int] | None = None) -> None:
        self.asked: list[str] = []
        self._matching = range(messages) if matching is None else matching
        self._positions = [FIRST_POSITION + 100 * n if n < before else COMMIT + 100 * n for n in range(messages)]

    def __call__(self, node: FakeNode, request: RemotingCommand) -> RemotingCommand:
        if request.code != PULL:
            return request
        self.asked.append(request.ext["subscription"])
        start = int(request.ext["queueOffset"])
        matching = range(len(self._positions)) if self.asked[-1] == "*" else self._matching
        offsets = [offset for offset in range(start, len(self._positions)) if offset in matching][:PER_ANSWER]
        following = offsets[-1] + 1 if offsets else len(self._positions)
        body = b"".join(map(self._record, offsets))
        return make_response(request, 0 if offsets else NO_MATCH, ext={"nextBeginOffset": str(following)}, body=body)

    def _record(self, offset: int) -> bytes:
        return encode_record(
            MessageRecord(
                topic="t",
                queue_id=0,
                queue_offset=offset,
                physical_offset=self._positions[offset],
                body=b"%d" % offset,
                properties=b"TAGS\x01a\x02" if offset in self._matching else b"",
                born_timestamp=1,
                born_host=HOST,
                store_timestamp=1,
                store_host=HOST,
            )
        )


def values(topic: Topic, *, fail_on_data_loss: bool, tags: frozenset[str] | None = None) -> list[bytes]:
    with served(FakeNode(FakeLog([]), "leader"), FakeNode(FakeLog([]), misbehave=topic)) as namesrv:
        source = Source(
            (namesrv,),
            GROUP,
            0,
            "follower",
            "follower",
            2.0,
            fail_on_data_loss,
            ("value", "offset"),
            RowFilter(tags=tags),
        )
        part = QueueRange(source, Queue("t", GROUP, 0), 0, 6, FIRST_POSITION, COMMIT, 0)
        return [row["value"] for batch in read_range(part) for row in batch.to_pylist()]


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_range_gives_its_own_messages(fail_on_data_loss: bool) -> None:
    assert values(Topic(before=6), fail_on_data_loss=fail_on_data_loss) == [b"%d" % n for n in range(6)]


@pytest.mark.parametrize("read_before", [0, 2])
def test_the_messages_of_a_later_topic_of_the_same_name_fail_the_read_or_are_left_out(read_before: int) -> None:
    """The topic is deleted and made again before the read, or after its first answer."""
    with pytest.raises(DataLossError, match="gave way to others"):
        values(Topic(before=read_before), fail_on_data_loss=True)
    found = values(Topic(before=read_before), fail_on_data_loss=False)
    assert found == [b"%d" % n for n in range(read_before)]


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
@pytest.mark.parametrize("matching", [{7}, {1, 7}, {1, 4, 7}], ids=str)
def test_a_match_behind_the_range_that_came_after_the_plan_is_no_loss(
    matching: set[int], fail_on_data_loss: bool
) -> None:
    """A broker that filters goes on behind the range until it finds something."""
    topic = Topic(before=6, messages=9, matching=matching)
    found = values(topic, fail_on_data_loss=fail_on_data_loss, tags=frozenset({"a"}))
    assert found == [b"%d" % n for n in sorted(matching - {7})]


@pytest.mark.parametrize("matching", [set(), {1}, {8}, {1, 8}], ids=str)
def test_a_filter_hides_no_later_topic_of_the_same_name(matching: set[int]) -> None:
    """Of the messages that were to be read, and that may have passed the filter, none is left to be shown."""
    with pytest.raises(DataLossError, match="gave way to others"):
        values(Topic(2, 9, matching), fail_on_data_loss=True, tags=frozenset({"a"}))
    found = values(Topic(2, 9, matching), fail_on_data_loss=False, tags=frozenset({"a"}))
    assert found == [b"%d" % n for n in sorted(matching - {8})]


@pytest.mark.parametrize(
    ("tags", "asked"),
    [({"a", "b"}, "a || b"), ({"a\u3000"}, "a\u3000"), ({" a"}, "*"), ({"a", "*"}, "*"), ({"a||b"}, "*"), ({""}, "*")],
)
def test_a_broker_is_asked_for_tags_only_if_it_takes_them_for_what_they_are(tags: set[str], asked: str) -> None:
    topic = Topic(before=6)
    values(topic, fail_on_data_loss=True, tags=frozenset(tags))
    assert set(topic.asked[:3]) == {asked}


@pytest.mark.parametrize("chars", [MAX_EXPRESSION_CHARS, MAX_EXPRESSION_CHARS + 1])
def test_a_broker_is_asked_for_no_more_tags_than_it_takes(chars: int) -> None:
    topic, long = Topic(before=6), "x" * (chars - len("a || "))
    assert len(values(topic, fail_on_data_loss=True, tags=frozenset({"a", long}))) == 6
    assert (topic.asked[0] == "*") == (chars > MAX_EXPRESSION_CHARS)
