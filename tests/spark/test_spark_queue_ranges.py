"""A range of a queue gives the planned messages, and never those of a later topic of the same name."""

from __future__ import annotations

from collections.abc import Container
from threading import Event

import pytest
from fake_log import FIRST_POSITION, GROUP, FakeLog, FakeNode, record, served, source

from dledger_remoting.command import RemotingCommand, make_response
from dledger_remoting.filters.tags import MAX_EXPRESSION_CHARS
from dledger_spark.errors import DataLossError
from dledger_spark.offsets import Queue
from dledger_spark.partitions import QueueRange
from dledger_spark.queues import read_range
from dledger_spark.wanted import RowFilter

PULL = 361
COMMIT = FIRST_POSITION + 1000
PER_ANSWER = 2
NO_MATCH = 20


class Topic:
    """Topic of one queue. Its first `before` messages lie below the planned commit, and the others behind it.

    All messages have the tag a, or only the `matching` ones. A pull with a filter skips the others as a broker does.
    """

    def __init__(
        self,
        before: int,
        messages: int = 6,
        matching: Container[int] | None = None,
        rotten: tuple[int, int] | None = None,
    ) -> None:
        """Create the topic. `rotten` names a byte of a record.

        `verified` gets the offsets that the node was told to check.
        """
        self.asked: list[str] = []
        self.verified: list[int] = []
        self.is_told = Event()
        """Set once the node was told to check its rotten record, or has none."""
        if rotten is None:
            self.is_told.set()
        self._rotten = rotten
        self._matching = range(messages) if matching is None else matching
        self._positions = [FIRST_POSITION + 100 * n if n < before else COMMIT + 100 * n for n in range(messages)]

    def __call__(self, node: FakeNode, request: RemotingCommand) -> RemotingCommand:
        if request.code != PULL:
            return request
        self.asked.append(request.ext["subscription"])
        start = int(request.ext["queueOffset"])
        if "verify" in request.ext:
            self.verified.append(start)
            self.is_told.set()
        matching = range(len(self._positions)) if self.asked[-1] == "*" else self._matching
        offsets = [offset for offset in range(start, len(self._positions)) if offset in matching][:PER_ANSWER]
        following = offsets[-1] + 1 if offsets else len(self._positions)
        body = b"".join(map(self._record, offsets))
        return make_response(request, 0 if offsets else NO_MATCH, ext={"nextBeginOffset": str(following)}, body=body)

    def _record(self, offset: int) -> bytes:
        data = bytearray(self._sound(offset))
        if self._rotten is not None and self._rotten[0] == offset:
            data[self._rotten[1]] ^= 0x40
        return bytes(data)

    def _sound(self, offset: int) -> bytes:
        properties = b"TAGS\x01a\x02" if offset in self._matching else b""
        return record("t", 0, offset, self._positions[offset], body=b"%d" % offset, properties=properties)


def values(*topics: Topic, fail_on_data_loss: bool, tags: frozenset[str] | None = None) -> list[bytes]:
    """Return the values that a read gets from followers with these topics."""
    followers = [FakeNode(FakeLog([]), misbehave=topic) for topic in topics]
    with served(FakeNode(FakeLog([]), "leader"), *followers) as namesrv:
        loss = {"fail_on_data_loss": fail_on_data_loss, "row_filter": RowFilter(tags=tags)}
        planned = source(namesrv, read_timeout_s=2.0, columns=("value", "offset"), **loss)
        part = QueueRange(planned, Queue("t", GROUP, 0), 0, 6, FIRST_POSITION, COMMIT, 0)
        found = [row["value"] for batch in read_range(part) for row in batch.to_pylist()]
        for topic in topics:
            assert topic.is_told.wait(30.0)  # a reader does not wait for the node's answer
        return found


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_a_range_gives_its_own_messages(fail_on_data_loss: bool) -> None:
    assert values(Topic(before=6), fail_on_data_loss=fail_on_data_loss) == [b"%d" % n for n in range(6)]


@pytest.mark.parametrize("place", [0, 5, 9, 13, 27, 88], ids=["size", "magic", "crc", "queue", "offset", "body"])
def test_rows_rotten_on_a_follower_are_read_from_another_follower(place: int) -> None:
    rotten, sound = Topic(before=6, rotten=(3, place)), Topic(before=6)
    assert values(rotten, sound, fail_on_data_loss=True) == [b"%d" % n for n in range(6)]
    assert sound.asked, "the rotten one was asked first"
    assert (rotten.verified, sound.verified) == ([2], [])


@pytest.mark.parametrize("read_before", [0, 2])
def test_the_messages_of_a_later_topic_of_the_same_name_fail_the_read_or_are_left_out(read_before: int) -> None:
    """The topic is deleted and made again before the read, or after its first answer."""
    with pytest.raises(DataLossError, match="gave way to others"):
        values(Topic(before=read_before), fail_on_data_loss=True)
    found = values(Topic(before=read_before), fail_on_data_loss=False)
    assert found == [b"%d" % n for n in range(read_before)]


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
@pytest.mark.parametrize("matching", [{7}, {1, 7}, {1, 4, 7}], ids=str)
def test_a_later_match_behind_the_range_does_not_count_as_a_loss(matching: set[int], fail_on_data_loss: bool) -> None:
    """A broker that filters continues behind the range until it finds a match."""
    topic = Topic(before=6, messages=9, matching=matching)
    found = values(topic, fail_on_data_loss=fail_on_data_loss, tags=frozenset({"a"}))
    assert found == [b"%d" % n for n in sorted(matching - {7})]


@pytest.mark.parametrize("matching", [set(), {1}, {8}, {1, 8}], ids=str)
def test_a_filter_hides_no_later_topic_of_the_same_name(matching: set[int]) -> None:
    """In the range, no message that passes the filter shows that the topic is another one."""
    with pytest.raises(DataLossError, match="gave way to others"):
        values(Topic(2, 9, matching), fail_on_data_loss=True, tags=frozenset({"a"}))
    found = values(Topic(2, 9, matching), fail_on_data_loss=False, tags=frozenset({"a"}))
    assert found == [b"%d" % n for n in sorted(matching - {8})]


@pytest.mark.parametrize(
    ("tags", "asked"),
    [({"a", "b"}, "a || b"), ({"a\u3000"}, "a\u3000"), ({" a"}, "*"), ({"a", "*"}, "*"), ({"a||b"}, "*"), ({""}, "*")],
)
def test_only_tags_that_the_broker_reads_literally_are_pushed_to_the_broker(tags: set[str], asked: str) -> None:
    topic = Topic(before=6)
    values(topic, fail_on_data_loss=True, tags=frozenset(tags))
    assert set(topic.asked[:3]) == {asked}


@pytest.mark.parametrize("chars", [MAX_EXPRESSION_CHARS, MAX_EXPRESSION_CHARS + 1])
def test_tag_expressions_above_the_brokers_limit_are_not_pushed_to_the_broker(chars: int) -> None:
    topic, long = Topic(before=6), "x" * (chars - len("a || "))
    assert len(values(topic, fail_on_data_loss=True, tags=frozenset({"a", long}))) == 6
    assert (topic.asked[0] == "*") == (chars > MAX_EXPRESSION_CHARS)
