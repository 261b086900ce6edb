"""Which queues a stream reads while name servers and topics come and go, on a cluster that a test makes up."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from dledger_spark import streaming
from dledger_spark.errors import DataLossError, OptionError
from dledger_spark.offsets import Queue, to_json
from dledger_spark.options import read_options
from dledger_spark.plans import GroupPlan, QueueBounds
from dledger_spark.streaming import StreamReader

QUEUE = Queue("t", "broker-a", 0)


class MadeUpCluster:
    """One queue; `listed` says whether name servers know its group, `topics` which topics there are."""

    def __init__(self) -> None:
        self.listed = True
        self.topics = {"t"}
        self.end = 5

    def groups(self) -> list[str]:
        return ["broker-a"] if self.listed else []

    def queues(self) -> list[Queue]:
        if not self.listed:
            raise OptionError("subscribe", "t", "topic 't' does not exist")
        return [QUEUE] if "t" in self.topics else []

    def plan(self, group: str, topics: Iterable[str]) -> GroupPlan:
        return GroupPlan(group, 0, 0, 100, [], dict.fromkeys(topics, 0), {QUEUE: QueueBounds(0, self.end)})

    def close(self) -> None:
        """Nothing is open."""


def reader(cluster: MadeUpCluster, monkeypatch: pytest.MonkeyPatch, **options: str) -> StreamReader:
    monkeypatch.setattr(streaming, "DISCOVERY_SECONDS", 0.0)
    monkeypatch.setattr(streaming, "POLL_SECONDS", 0.0)
    monkeypatch.setattr("dledger_spark.plans.Cluster", lambda _: cluster)
    return StreamReader(read_options({"namesrv": "a:1", "subscribePattern": ".*"} | options, "stream"))


def test_a_name_server_that_does_not_list_a_group_yet_ends_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MadeUpCluster()
    stream = reader(cluster, monkeypatch)
    start = stream.initialOffset()
    cluster.listed = False
    cluster.end = 9
    assert stream.latestOffset(start, ReadAllAvailable()) == to_json({QUEUE: 9})


def test_what_is_lost_is_said_once_and_not_at_every_look(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = MadeUpCluster()
    stream = reader(cluster, monkeypatch, failOnDataLoss="false")
    start = stream.initialOffset()
    cluster.topics.clear()
    for _ in range(3):
        assert stream.latestOffset(start, ReadAllAvailable()) == start
    assert len([record for record in caplog.records if "does not exist any more" in record.getMessage()]) == 1
    with pytest.raises(DataLossError):
        reader(cluster, monkeypatch).latestOffset(start, ReadAllAvailable())
