"""A stream publishes only what its micro-batches have processed as a group's offsets, and in the end all of it.

`Engine` plays Spark's part. It writes a batch's end to the checkpoint and runs the batch. With the next batch it tells
the reader of that end, or never if the query fails. A query that is started again repeats an unfinished batch.
"""

from __future__ import annotations

import json
from collections.abc import Container
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from dledger_spark import streaming
from dledger_spark.errors import OptionError, RefusedError, SourceError
from dledger_spark.offsets import Offsets, Queue, from_json, to_json
from dledger_spark.options import read_options
from dledger_spark.plans import GROUP_NOT_EXIST, GroupPlan, QueueBounds
from dledger_spark.progress import (
    GET_GROUP,
    GET_MEMBERS,
    QUERY_CONSUMER_OFFSET,
    UPDATE_CONSUMER_OFFSET,
    UPDATE_GROUP,
)
from dledger_spark.streaming import StreamReader
from dledger_spark.wire import Response

pytestmark = pytest.mark.long

GROUPS = ("broker-a", "broker-b")


class Brokers:
    """Two broker groups as a planner sees them, and the check of each published offset."""

    def __init__(self) -> None:
        self.ends: dict[Queue, int] = {Queue("T", group, 0): 2 for group in GROUPS}
        self.processed: Offsets = {}
        self.committed: Offsets = {}
        self.groups_there: dict[str, str] = {}
        self.members: list[str] = []
        self.foreign = False
        self.refusing = False
        self.commits = self.asked = 0

    def groups(self) -> list[str]:
        return list(GROUPS)

    def queues(self, *, all_exist: bool) -> list[Queue]:
        return sorted(self.ends)

    def subscribes(self, queue: Queue) -> bool:
        return True

    def left(self, plan: GroupPlan) -> set[Queue]:
        return set()

    def plan(self, group: str, topics: set[str]) -> GroupPlan:
        bounds = {queue: QueueBounds(0, end) for queue, end in self.ends.items() if queue.group == group}
        return GroupPlan(group, GROUPS.index(group), 0, 1000, [], dict.fromkeys(topics, 0), bounds)

    def ask(
        self,
        group: str,
        code: int,
        all_ext: list[dict[str, str]],
        body: bytes = b"",
        *,
        timeout_s: float,
        allowed: Container[int] = (),
    ) -> list[Response]:
        assert timeout_s <= 5, "a stream waits for what nothing depends on"
        self.asked += 1
        if self.refusing:
            raise SourceError("no node answers")
        if code == GET_GROUP:
            return [Response(0 if group in self.groups_there else GROUP_NOT_EXIST, {}, "", self._config(group))]
        if code == GET_MEMBERS:
            return [Response(0, {}, "", json.dumps({"consumerIdList": self.members}).encode())]
        if code == QUERY_CONSUMER_OFFSET:
            return [Response(0 if self.foreign else 22, {}, "", b"") for _ in all_ext]
        if code == UPDATE_GROUP:
            config = json.loads(body)
            assert config["groupName"] == "G"
            assert config.get("retryMaxTimes", 7) == 7, "settings stay"
            self.groups_there[group] = config["attributes"]["+spark.progress"]
        elif group not in self.groups_there:
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

    def _config(self, group: str) -> bytes:
        return json.dumps({"retryMaxTimes": 7, "attributes": {"spark.progress": self.groups_there.get(group)}}).encode()

    def close(self) -> None:
        pass


class Engine:
    """Micro-batches of one query, and its checkpoint, which survives the query's end."""

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
        """Run one micro-batch.

        It may fail after its plan, in its tasks, once they are done but not noted, or not at all.
        """
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
        """End the query and its reader."""
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
        if not self._planned:  # the user chooses where a new query begins, so everything before counts as processed
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
    monkeypatch.setattr(streaming, "PUBLISH_PAUSE_S", 0.0)


@pytest.mark.usefixtures("no_pauses")
def test_a_stream_publishes_only_processed_offsets_and_finally_all():
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


def test_progress_that_cannot_be_published_is_told_once_and_waits(monkeypatch, caplog):
    monkeypatch.setattr(streaming, "POLL_SECONDS", 0.0)
    brokers = Brokers()
    brokers.refusing = True
    engine = Engine(brokers, "earliest")
    for _ in range(3):
        engine.trigger(1, "done")
    assert (brokers.asked, len(caplog.records)) == (1, 1)
    monkeypatch.setattr(streaming, "PUBLISH_PAUSE_S", 0.0)
    engine.fail()
    for _ in range(3):
        engine.trigger(1, "done")
    assert (brokers.asked, len(caplog.records)) == (5, 2)


@pytest.mark.parametrize(("members", "foreign"), [(["c"], False), ([], True)], ids=["members", "offsets"])
def test_a_group_used_by_others_is_refused_for_new_and_logged_for_old_queries(members, foreign, caplog):
    brokers = Brokers()
    brokers.groups_there, brokers.members, brokers.foreign = dict.fromkeys(GROUPS, "other"), members, foreign
    with pytest.raises(OptionError, match=r"'groupId' is 'G': it has (members|offsets of T/broker-a/0)"):
        Engine(brokers, "earliest").trigger(None, "done")
    assert (brokers.commits, set(brokers.groups_there.values())) == (0, {"other"})
    old = Engine(brokers, "earliest")
    old._planned, old._done = [to_json(dict.fromkeys(brokers.ends, 0))], 1
    old.trigger(None, "done")
    assert ["group_of_others" in record.message for record in caplog.records] == [True, True]
    assert (brokers.commits, "other" in brokers.groups_there.values()) == (2, False)
    Engine(brokers, "earliest").trigger(None, "done")  # another query of the same subscription
