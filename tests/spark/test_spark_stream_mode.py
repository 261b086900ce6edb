"""A stream with `mode=auto` chooses once how it reads, and gives the same rows either way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fake_log import FIRST_POSITION, GROUP, Answer, FakeLog, FakeNode, served
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dledger_remoting.command import RemotingCommand, make_response
from dledger_remoting.record import encode_record, iter_records
from dledger_spark import plans, stream_mode, streaming
from dledger_spark.offsets import Queue, StreamMode, to_json
from dledger_spark.options import read_options
from dledger_spark.partitions import LogSlice, QueueRange
from dledger_spark.plans import READ_COMMIT, Cluster
from dledger_spark.queues import LITE_PULL_MESSAGE
from dledger_spark.reading import read_partition
from dledger_spark.segments import READ_RANGE
from dledger_spark.stream_mode import choose
from dledger_spark.streaming import StreamReader

QUEUE = Queue("t", GROUP, 0)
ALL = ReadAllAvailable()


def of_queues_too(node: FakeNode, request: RemotingCommand) -> Answer:
    """Have a node answer pulls and tell its commit position."""
    if request.code == READ_COMMIT:
        return make_response(request, 0, ext={"commit": str(node.log.end)})
    if request.code != LITE_PULL_MESSAGE:
        return request
    records = [record for entry in node.log.entries for record in iter_records(entry[48:], verify_crc=True)]
    mine = [record for record in records if record.topic == request.ext["topic"]]
    begin = int(request.ext["queueOffset"])
    found = mine[begin : begin + int(request.ext["maxMsgNums"])]
    ext = {"nextBeginOffset": str(begin + len(found))}
    return make_response(request, 0 if found else 19, ext=ext, body=b"".join(map(encode_record, found)))


def no_slices(node: FakeNode, request: RemotingCommand) -> Answer:
    return make_response(request, 16, "no Log") if request.code == READ_RANGE else of_queues_too(node, request)


def no_pulls(node: FakeNode, request: RemotingCommand) -> Answer:
    return make_response(request, 16, "no Sub") if request.code == LITE_PULL_MESSAGE else of_queues_too(node, request)


def log_with(other_bytes: int) -> FakeLog:
    """Nine entries, in which messages of `t` have 6 bytes of body beside others with so many."""
    other = ("other", b"x" * other_bytes)
    return FakeLog([[("t", b"m-%04d" % entry), other, ("t", b"n-%04d" % entry)] for entry in range(9)])


def options(namesrv: str, **more: str) -> dict[str, str]:
    given = {"namesrv": namesrv, "subscribe": "t", "startingOffsets": "earliest"}
    return given | {"mode": "auto", "readTimeout": "5s"} | more


@pytest.fixture(autouse=True)
def one_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(plans.Cluster, "queues", lambda *_, **__: [QUEUE])
    monkeypatch.setattr(plans.Cluster, "left", lambda *_: {QUEUE})


def chosen(log: FakeLog, misbehave: Any = of_queues_too) -> StreamMode:
    with served(FakeNode(log, "leader", misbehave=misbehave), FakeNode(log, misbehave=misbehave)) as namesrv:
        given = read_options(options(namesrv), "stream")
        cluster = Cluster(given)
        try:
            return choose(given, cluster, [QUEUE])
        finally:
            cluster.close()


def test_slices_are_chosen_where_the_topic_is_most_of_a_log_that_may_be_read() -> None:
    assert chosen(log_with(6)) == "segments"
    assert chosen(log_with(600)) == "queues"
    empty = FakeLog([])
    empty.offsets["t"] = 0
    assert chosen(empty) == "queues"
    assert [chosen(log_with(6), misbehave) for misbehave in (no_slices, no_pulls)] == ["queues"] * 2


def test_what_does_not_verify_or_is_trimmed_is_no_sample() -> None:
    def rotten(node: FakeNode, request: RemotingCommand) -> Answer:
        if request.code == READ_RANGE and int(request.ext["start"]) == node.log.cuts[-1]["position"]:
            return make_response(request, 0, ext={"start": "0", "end": "0"}, body=bytes(100))
        if request.code == READ_RANGE and int(request.ext["start"]) == node.log.cuts[-2]["position"]:
            return make_response(request, 20112, "trimmed")
        return of_queues_too(node, request)

    assert chosen(log_with(6), rotten) == "segments"


@pytest.fixture
def log() -> FakeLog:
    return log_with(6)


@pytest.fixture
def namesrv(log: FakeLog) -> Iterator[str]:
    nodes = [FakeNode(log, role, 1, of_queues_too) for role in ("leader", "follower")]
    with served(*nodes) as address:
        yield address


def stream(namesrv: str, **more: str) -> StreamReader:
    return StreamReader(read_options(options(namesrv, **more), "stream"))


def rows(parts: list[Any]) -> list[dict[str, Any]]:
    found = [row for part in parts for batch in read_partition(part) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row["offset"])


@pytest.mark.parametrize(("begin", "stop"), [(0, 18), (3, 11), (17, 18)])
def test_rows_are_those_of_queues(namesrv: str, begin: int, stop: int) -> None:
    start, end = to_json({QUEUE: begin}), to_json({QUEUE: stop})
    by_slices = stream(namesrv).partitions(start, end | {"mode": "segments"})
    by_queues = stream(namesrv, mode="queues").partitions(start, end)
    assert {type(part) for part in by_slices} == {LogSlice}
    assert {type(part) for part in by_queues} == {QueueRange}
    assert rows(by_slices) == rows(by_queues)
    assert [row["offset"] for row in rows(by_slices)] == list(range(begin, stop))


def test_a_micro_batch_reads_no_slice_before_its_first_message(namesrv: str, log: FakeLog) -> None:
    (*_, last) = stream(namesrv).partitions(to_json({QUEUE: 16}), to_json({QUEUE: 18}) | {"mode": "segments"})
    assert isinstance(last, LogSlice)
    assert (last.start, last.pin) == (log.cuts[-1]["position"], None)
    assert last.start > FIRST_POSITION


def test_messages_that_cannot_be_located_are_read_queue_by_queue(monkeypatch: pytest.MonkeyPatch, namesrv: str) -> None:
    monkeypatch.setattr("dledger_spark.planning.MAX_LOCATED", 0)
    parts = stream(namesrv).partitions(to_json({QUEUE: 3}), to_json({QUEUE: 9}) | {"mode": "segments"})
    assert [type(part) for part in parts] == [QueueRange]


def test_a_checkpoint_keeps_the_choice(monkeypatch: pytest.MonkeyPatch, namesrv: str) -> None:
    answers: list[StreamMode] = ["queues", "segments"]
    monkeypatch.setattr(stream_mode, "choose", lambda *_: answers.pop())
    query = stream(namesrv)
    end = query.latestOffset(query.initialOffset(), ALL)
    assert (end["mode"], [type(part) for part in query.partitions(to_json({}), end)]) == ("segments", [LogSlice] * 9)
    for restarted in (query, stream(namesrv)):
        assert restarted.latestOffset(to_json({QUEUE: 5}) | {"mode": "segments"}, ALL)["mode"] == "segments"
    assert stream(namesrv).latestOffset(to_json({QUEUE: 5}), ALL)["mode"] == "queues", "that of an earlier version"
    assert not answers


def test_without_messages_nothing_is_chosen_and_a_stream_that_is_told_queues_reads_queues(
    monkeypatch: pytest.MonkeyPatch, namesrv: str
) -> None:
    monkeypatch.setattr(stream_mode, "choose", lambda *_: pytest.fail("there is nothing to judge by"))
    query = stream(namesrv)
    assert "mode" not in query.latestOffset(to_json({QUEUE: 18}), ALL)
    assert query.latestOffset(to_json({}) | {"mode": "queues"}, ALL)["mode"] == "queues"
    told = stream(namesrv, mode="queues")
    start = to_json({QUEUE: 5}) | {"mode": "segments"}
    end = told.latestOffset(start, ALL)
    assert "mode" not in end
    assert [type(part) for part in told.partitions(start, end | {"mode": "segments"})] == [QueueRange]
