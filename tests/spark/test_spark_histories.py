"""Each way of reading gives the messages of a model of the topic, after any history of the topic.

The planner and the tasks of batches in both modes run in this process. A stream is read by one reader after the other,
as by a query that is killed and started again. Each micro-batch is planned and read twice, by different readers.
"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadMaxRows
from raw_sends import send_raw

from dledger_client import Message, MessageQueue, SyncAdmin, SyncProducer
from dledger_client.testing import LocalCluster
from dledger_spark.filters import PushedFilters
from dledger_spark.options import read_options
from dledger_spark.planning import BatchPlanner
from dledger_spark.reading import read_partition
from dledger_spark.streaming import StreamReader

GROUP = "broker-a"
NUMBERS = itertools.count()
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "send", "send", "bad", "queues", "stream", "recreate", "follower"]),
        st.integers(0, 3),
        st.sampled_from([0, 10, 6000]),
    ),
    min_size=5,
    max_size=12,
)


class History:
    """Topic, the messages that it must hold by queue, and a stream that follows it."""

    def __init__(self, cluster: LocalCluster, admin: SyncAdmin, producer: SyncProducer) -> None:
        self._cluster = cluster
        self._admin = admin
        self._producer = producer
        self._topic = f"history-{next(NUMBERS)}"
        self._queues = 2
        self._held: dict[int, list[bytes]] = {}
        self._streamed: list[tuple[int, bytes]] = []
        self._sent: list[tuple[int, bytes]] = []
        self._offset: dict | None = None
        self._bad: set[bytes] = set()
        self._down: str | None = None
        admin.create_topic(self._topic, queues=self._queues, broker_groups=[GROUP])

    def step(self, what: str, number: int, size: int) -> None:
        queue = number % self._queues
        text = b"%d " % next(NUMBERS) + b"x" * size
        if what == "send":
            message = Message(text, key="k", tags="t" if number else None, properties={"size": str(size)})
            self._producer.send(self._topic, message, queue=MessageQueue(self._topic, GROUP, queue))
            self._sends(queue, text)
        elif what == "bad":
            send_raw(self._cluster.namesrv, self._topic, text, sys_flag=1)
            self._sends(0, text)
            self._bad.add(text)
        elif what == "queues":
            self._queues = number + 1
            self._admin.create_topic(self._topic, queues=self._queues, broker_groups=[GROUP])
        elif what == "stream":
            self.stream()
        elif what == "recreate":
            self.stream()
            self._admin.delete_topic(self._topic)
            # Otherwise a new topic that outgrows the old one before the next look would be taken for the old one.
            self.stream()
            self._admin.create_topic(self._topic, queues=self._queues, broker_groups=[GROUP])
            self._held.clear()
        elif self._down is None:
            leader = self._cluster.leader(GROUP)
            self._down = next(node for node in self._cluster.members(GROUP) if node != leader)
            self._cluster.kill(self._down)
        else:
            self.heal()

    def heal(self) -> None:
        if self._down is not None:
            self._cluster.restart(self._down)
            self._down = None

    def stream(self) -> None:
        """Read all messages, in micro-batches that are each planned and read twice."""
        while True:
            reader, again = self._reader(), self._reader()
            try:
                start = reader.initialOffset() if self._offset is None else self._offset
                end = reader.latestOffset(start, ReadMaxRows(4))
                if end == start:
                    self._offset = end
                    return
                rows = self._read(reader.partitions(start, end))
                assert self._read(again.partitions(start, end)) == rows
                self._streamed += rows
                self._offset = end
            finally:
                reader.stop()
                again.stop()

    def check(self) -> None:
        self.stream()
        assert sorted(self._streamed) == sorted(self._sent)
        everything = sorted((queue, text) for queue, texts in self._held.items() for text in texts)
        for mode in ("segments", "queues"):
            for bad_records in ("PERMISSIVE", "DROPMALFORMED"):
                options = self._options(mode=mode, badRecords=bad_records, pinLease="0" if mode == "segments" else None)
                rows = self._read(BatchPlanner(read_options(options, "batch"), PushedFilters()).partitions())
                dropped = self._bad if bad_records == "DROPMALFORMED" else ()
                assert sorted(rows) == [row for row in everything if row[1] not in dropped]

    def _sends(self, queue: int, text: bytes) -> None:
        self._held.setdefault(queue, []).append(text)
        self._sent.append((queue, text))

    def _reader(self) -> StreamReader:
        options = self._options(startingOffsets="earliest", failOnDataLoss="false", badRecords="PERMISSIVE")
        return StreamReader(read_options(options, "stream"))

    def _options(self, **more: str | None) -> dict[str, str]:
        options = {"namesrv": self._cluster.namesrv, "subscribe": self._topic, **more}
        return {name: value for name, value in options.items() if value is not None}

    def _read(self, parts: list) -> list[tuple[int, bytes]]:
        rows = [row for part in parts for batch in read_partition(part) for row in batch.to_pylist()]
        return [(row["queue_id"], row.get("_corrupt_record") or row["value"]) for row in rows]


def lives(cluster: LocalCluster, examples: int) -> None:
    with SyncAdmin(cluster.namesrv) as admin, SyncProducer(cluster.namesrv, group="histories") as producer:

        @given(STEPS)
        @settings(max_examples=examples, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
        def live(steps: list[tuple[str, int, int]]) -> None:
            history = History(cluster, admin, producer)
            try:
                for step in steps:
                    history.step(*step)
                history.check()
            finally:
                history.heal()

        live()
    cluster.wait_ready()


def test_each_way_of_reading_gives_the_models_messages(cluster: LocalCluster) -> None:
    lives(cluster, 3)


@pytest.mark.long
def test_each_way_of_reading_gives_the_models_messages_over_many_histories(cluster: LocalCluster) -> None:
    lives(cluster, 30)
