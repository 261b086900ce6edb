"""What a stream publishes as the offsets of a consumer group is what its micro-batches have processed, and in the end
all of it.

Spark's part is played by `Engine`: it writes a batch's end to the checkpoint, runs the batch, and tells the reader of
its end with the next one, or never if the query fails; a query that is started again repeats a batch that was not done.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from dledger_spark import streaming
from dledger_spark.errors import RefusedError, SourceError
from dledger_spark.offsets import Offsets, Queue, from_json
from dledger_spark.options import read_options
from dledger_spark.plans import GROUP_NOT_EXIST, GroupPlan, QueueBounds
from dledger_spark.progress import UPDATE_CONSUMER_OFFSET, UPDATE_GROUP
from dledger_spark.streaming import StreamReader
from dledger_spark.wire import Response

GROUPS = ("broker-a", "broker-b")


class Brokers:
    """Two broker groups as a planner sees them, and the judge of what is published."""

    def __init__(self) -> None:
        self.ends: dict[Queue, int] = {Queue("T", group, 0): 2 for group in GROUPS}
        self.processed: Offsets = {}
        self.committed: Offsets = {}
        self.has_group: set[str] = set()
        self.refusing = False
        self.commits = 0

    def groups(self) -> list[str]:
        return list(GROUPS)

    def queues(self, *, all_exist: bool) -> list[Queue]:
        return sorted(self.ends)

    def plan(self, group: str, topics: set[str]) -> GroupPlan:
        bounds = {queue: QueueBounds(0, end) for queue, end in self.ends.items() if queue.group == group}
        return GroupPlan(group, GROUPS.index(group), 0, 1000, [], dict.fromkeys(topics, 0), bounds)

    def ask(self, group: str, code: int, all_ext: list[dict[str, str]], body: bytes = b"") -> list[Response]:
        if self.refusing:
            raise SourceError("no node answers")
        if code == UPDATE_GROUP:
            assert b"G" in body
            self.has_group.add(group)
        elif group not in self.has_group:
            raise RefusedError(GROUP_NOT_EXIST, "no such group")
        else:
            assert code == UPDATE_CONSUMER_OFFSET
            self.commits += len(all_ext)
            for ext in all_ext:
                queue, offset = Queue(ext["topic"], group, int(ext["queueId"])), int(ext["commitOffset"])
                done = self.processed.get(queue, 0)
                assert offset <= done, f"{queue}: {offset} is published, and only what is below {done} is processed"
                self.committed[queue] = offset
        return [Response(0, {}, "", b"") for _ in all_ext]

    def close(self) -> None:
        pass


class Engine:
    """The micro-batches of one query and its checkpoint, which survives the query's end."""

    def __init__(self, brokers: Brokers, starting: str) -> None:
        self._brokers = brokers
        self._options = read_options(
            {"namesrv": "127.0.0.1:1", "subscribe": "T", "groupId": "G", "startingOffsets": starting}, "stream"
        )
        self._planned: list[dict] = []
        self._done = 0
        self._reader: StreamReader | None = None
        self._untold: dict | None = None

    def trigger(self, limit: int | None, ending: str) -> None:
        """One micro-batch; it fails before its tasks, in them, once they are done and not yet noted, or not at all."""
        reader = self._running()
        if self._untold is not None:
            reader.commit(self._untold)
            self._untold = None
        start = self._start(reader)
        if len(self._planned) == self._done:
            end = reader.latestOffset(start, ReadAllAvailable() if limit is None else ReadMaxRows(limit))
            if end == start:
                return
            self._planned.append(end)
        end = self._planned[self._done]
        read = {}
        for part in reader.partitions(start, end):
            read[part.queue] = max(part.end, read.get(part.queue, 0))
        if ending in ("planned", "read"):
            self.fail()
            return
        self._brokers.processed.update(from_json(end))
        assert read.items() <= self._brokers.processed.items()
        if ending == "processed":
            self.fail()
            return
        self._done += 1
        self._untold = end
        if ending == "noted":
            self.fail()

    def fail(self) -> None:
        """The query ends, and its reader with it."""
        self._reader, self._untold = None, None

    def _running(self) -> StreamReader:
        if self._reader is None:
            self._reader = StreamReader(self._options)
            self._reader._cluster = self._brokers
        return self._reader

    def _start(self, reader: StreamReader) -> dict:
        if self._done:
            return self._planned[self._done - 1]
        start = reader.initialOffset()
        if not self._planned:  # where a new query begins is its user's word: nothing before it is to be processed
            self._brokers.processed.update(from_json(start))
        return start


class Step(NamedTuple):
    what: str
    number: int
    ending: str


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(["trigger", "trigger", "trigger", "send", "grow", "refuse", "answer"]),
        st.integers(0, 5),
        st.sampled_from(["planned", "read", "processed", "noted", "done", "done", "done"]),
    ),
    max_size=25,
)


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(streaming, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(streaming, "DISCOVERY_SECONDS", 0.0)


@pytest.mark.usefixtures("no_pauses")
def test_a_stream_publishes_only_what_is_processed_and_in_the_end_all_of_it():
    @given(STEPS, st.sampled_from(["earliest", "latest"]))
    @settings(max_examples=300, derandomize=True, deadline=None)
    def lives(steps, starting):
        brokers = Brokers()
        engine = Engine(brokers, starting)
        for step in steps:
            if step.what == "trigger":
                engine.trigger(step.number or None, step.ending)
            elif step.what == "send":
                for queue in brokers.ends:
                    brokers.ends[queue] += step.number
            elif step.what == "grow":
                brokers.ends.setdefault(Queue("T", GROUPS[step.number % 2], 1 + step.number // 2), step.number)
            else:
                brokers.refusing = step.what == "refuse"
        brokers.refusing = False
        for _ in range(3):
            engine.trigger(None, "done")
        assert brokers.processed == brokers.ends
        assert brokers.committed == brokers.ends
        published = brokers.commits
        engine.trigger(None, "done")
        assert brokers.commits == published, "what has not changed is not published again"

    lives()
