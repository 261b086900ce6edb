"""A slice gives the same rows in spite of failing replicas, and never a byte that does not verify."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fake_log import FIRST_POSITION, GROUP, Answer, FakeLog, FakeNode, served

from dledger_remoting.command import RemotingCommand, encode_command, make_response
from dledger_spark import batches
from dledger_spark.batch import batch_reader
from dledger_spark.entries import verify_entries
from dledger_spark.errors import CorruptDataError, DataLossError, DeniedError, NoNameServerError, NoReplicaError
from dledger_spark.nodes import NameServers, ReplicaReader
from dledger_spark.options import read_options
from dledger_spark.partitions import LogSlice
from dledger_spark.planning import BatchPlanner
from dledger_spark.plans import READ_PLAN, parse_plan
from dledger_spark.segments import read_slice
from dledger_spark.throttle import Throttle
from dledger_spark.wanted import TopicRange


@pytest.fixture
def log() -> FakeLog:
    return FakeLog([[("t", b"%d" % entry), ("other", b"x"), ("t", b"%d'" % entry)] for entry in range(9)])


WHOLE = [value for entry in range(9) for value in (b"%d" % entry, b"%d'" % entry)]


def rows(part: LogSlice) -> list[dict[str, Any]]:
    return [row for batch in read_slice(part) for row in batch.to_pylist()]


def values(part: LogSlice) -> list[bytes]:
    return [row["value"] for row in rows(part)]


def read(log: FakeLog, *followers: FakeNode, leader: FakeNode | None = None, **changes: Any) -> list[bytes]:
    """Return the values of a slice that these followers of a leader serve, of the whole log unless `changes` say so."""
    with served(leader or FakeNode(log, "leader"), *followers) as namesrv:
        return values(log.slice("t", namesrv, **changes))


def denies(_: FakeNode, request: RemotingCommand) -> RemotingCommand:
    return make_response(request, 16, "app needs Log on Cluster:c")


def test_a_slice_gives_its_own_rows_with_their_entries(log: FakeLog) -> None:
    leader, follower = FakeNode(log, "leader"), FakeNode(log)
    with served(leader, follower) as namesrv:
        assert rows(log.slice("t", namesrv, 1, 3)) == [
            {"value": b"1", "offset": 2, "log_index": 6},
            {"value": b"1'", "offset": 3, "log_index": 6},
            {"value": b"2", "offset": 4, "log_index": 7},
            {"value": b"2'", "offset": 5, "log_index": 7},
        ]
        assert values(log.slice("t", namesrv)) == WHOLE
    assert leader.reads == 0


def test_a_replica_that_dies_after_any_answer_is_replaced(log: FakeLog) -> None:
    for survived in range(5):

        def dies(node: FakeNode, request: RemotingCommand, survived: int = survived) -> RemotingCommand | None:
            return None if node.reads >= survived else request

        leader = FakeNode(log, "leader")
        assert read(log, FakeNode(log, misbehave=dies), FakeNode(log), leader=leader) == WHOLE
        assert leader.reads == 0


def test_a_read_moves_to_another_follower_when_its_replica_becomes_the_leader(log: FakeLog) -> None:
    def promoted(node: FakeNode, request: RemotingCommand) -> RemotingCommand | None:
        node.role = "leader" if node.reads >= 2 else "follower"
        return request

    changed, other = FakeNode(log, misbehave=promoted), FakeNode(log)
    assert read(log, changed, other) == WHOLE
    assert (changed.reads, other.reads) == (2, 3)


def test_a_replica_that_falls_silent_is_replaced(log: FakeLog) -> None:
    finished = threading.Event()

    def stands_still(node: FakeNode, request: RemotingCommand) -> RemotingCommand | None:
        if node.reads >= 2:
            finished.wait(60)
            return None
        return request

    silent, other = FakeNode(log, misbehave=stands_still), FakeNode(log)
    assert read(log, silent, other, read_timeout_s=0.9) == WHOLE
    finished.set()
    assert (silent.reads, other.reads) == (2, 3)


def test_a_replica_that_only_dribbles_is_replaced(log: FakeLog) -> None:
    finished = threading.Event()

    def dribble(frame: bytes) -> Iterator[bytes]:
        for place in range(len(frame)):
            yield frame[place : place + 1]
            if finished.wait(0.02):
                return

    def dribbles(node: FakeNode, request: RemotingCommand) -> Answer:
        if node.reads < 2:
            return request
        data, end = log.run(int(request.ext["start"]), 2)
        ext = {"start": request.ext["start"], "end": str(end)}
        return dribble(encode_command(make_response(request, 0, ext=ext, body=data)))

    slow, other = FakeNode(log, misbehave=dribbles), FakeNode(log)
    assert read(log, slow, other, read_timeout_s=0.9, min_bytes_per_second=1000) == WHOLE
    finished.set()
    assert (slow.reads, other.reads) == (2, 3)


def test_reading_is_held_back_to_the_bytes_a_second_that_are_allowed(
    log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(batches, "Throttle", lambda rate: Throttle(rate, lambda: 100.0, waited.append))
    assert read(log, FakeNode(log), max_bytes_per_second=100) == WHOLE
    assert max(waited) == pytest.approx((log.end - FIRST_POSITION) / 100 - 0.5)


def test_learners_are_read_if_they_are_asked_for(log: FakeLog) -> None:
    leader, follower, learner = FakeNode(log, "leader"), FakeNode(log), FakeNode(log, "learner")
    assert read(log, follower, learner, leader=leader, read_from="learner", roles="learner") == WHOLE
    assert (leader.reads, follower.reads, learner.reads) == (0, 0, 5)


def test_a_range_that_is_gone_or_trimmed_during_its_read_fails_or_is_left_out(log: FakeLog) -> None:
    def trimmed(node: FakeNode, request: RemotingCommand) -> RemotingCommand | None:
        if node.reads == 1:
            node.first_position = log.cuts[6]["position"]
        return request

    gone = f"positions {log.cuts[2]['position']} to {log.end} of broker-a's log are gone"
    with pytest.raises(DataLossError, match=gone):
        read(log, FakeNode(log, misbehave=trimmed))
    assert read(log, FakeNode(log, misbehave=trimmed), fail_on_data_loss=False) == WHOLE[:4] + WHOLE[12:]
    begun = FakeNode(log, first_position=log.cuts[4]["position"])
    with pytest.raises(DataLossError, match=f"positions {FIRST_POSITION} to {log.end} of broker-a's log are gone"):
        read(log, begun)
    assert read(log, begun, fail_on_data_loss=False) == WHOLE[8:]
    assert read(log, begun, first=0, last=3, fail_on_data_loss=False) == []


def test_bytes_that_do_not_verify_are_read_elsewhere(log: FakeLog) -> None:
    told: list[bool] = []

    def rotten(node: FakeNode, request: RemotingCommand) -> RemotingCommand | None:
        if node.reads < 1:
            return request
        told.append("verify" in request.ext)
        data, end = log.run(int(request.ext["start"]), 2)
        damaged = bytearray(data)
        damaged[len(data) // 2] ^= 1
        ext = {"start": request.ext["start"], "end": str(end)}
        return make_response(request, 0, ext=ext, body=bytes(damaged))

    assert read(log, FakeNode(log, misbehave=rotten), FakeNode(log)) == WHOLE
    assert told == [False, True], "the node looks at its log"
    with pytest.raises(NoReplicaError, match="bytes that do not verify"):
        read(log, FakeNode(log, misbehave=rotten), read_timeout_s=0.3)


def test_data_shared_by_all_tasks_of_a_read_is_pickled_once(log: FakeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """40,000 queues in each of 8,000 tasks were 3.5 GB in the driver."""
    with served(FakeNode(log, "leader"), FakeNode(log)) as namesrv:
        whole = [log.slice("t", namesrv, first, first + 2) for first in (0, 2, 4)]
        for part in whole:
            part.topics += [TopicRange("other" * 20, dict.fromkeys(range(1000), (0, 9)))]
        planned: list[int] = []

        def partitions(_: BatchPlanner) -> list[LogSlice]:
            planned.append(1)
            return whole

        monkeypatch.setattr(BatchPlanner, "partitions", partitions)
        reader = batch_reader(read_options({"namesrv": namesrv, "subscribe": "t"}, "batch"))
        for_tasks = pickle.loads(pickle.dumps(reader))
        parts = [pickle.dumps(part) for part in reader.partitions()]
        assert (len(planned), max(map(len, parts)) < 1000) == (1, True)
        batches_of_tasks = [batch for part in parts for batch in for_tasks.read(pickle.loads(part))]
        assert [row["value"] for batch in batches_of_tasks for row in batch.to_pylist()] == WHOLE[:12]


def test_an_error_of_the_planner_is_raised_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def partitions(_: BatchPlanner) -> list[LogSlice]:
        raise DataLossError("gone")

    monkeypatch.setattr(BatchPlanner, "partitions", partitions)
    reader = batch_reader(read_options({"namesrv": "a:1", "subscribe": "t"}, "batch"))
    pickle.dumps(reader)
    with pytest.raises(DataLossError, match="gone"):
        reader.partitions()


def test_a_replica_without_rights_is_skipped_and_a_missing_right_ends_the_read(log: FakeLog) -> None:
    assert read(log, FakeNode(log, misbehave=denies), FakeNode(log)) == WHOLE
    leader, *followers = (FakeNode(log, role, misbehave=denies) for role in ("leader", "follower", "follower"))
    with pytest.raises(DeniedError, match="app needs Log on Cluster:c"):
        read(log, *followers, leader=leader, read_timeout_s=3600.0)
    with pytest.raises(NoReplicaError, match="app needs Log"):
        read(log, FakeNode(log, misbehave=denies), read_timeout_s=0.3)


def test_a_consistent_log_of_another_history_is_not_read(log: FakeLog) -> None:
    impostor = FakeLog([[("t", b"%d" % entry), ("other", b"x"), ("t", b"%d!" % entry)] for entry in range(9)])
    with pytest.raises(NoReplicaError, match="chain crc"):
        read(log, FakeNode(impostor), first=4, read_timeout_s=0.3)


def test_without_a_replica_the_error_names_the_way_out(log: FakeLog) -> None:
    leader = FakeNode(log, "leader")
    with pytest.raises(NoReplicaError, match="readFrom=any also reads from the leader") as raised:
        read(log, leader=leader, read_timeout_s=0.2)
    assert f"no replica of {GROUP} that readFrom=follower allows served the read within 0.2 s" in str(raised.value)
    assert read(log, leader=leader, read_from="any", roles="follower,learner,leader") == WHOLE
    assert leader.reads == 5


class NameServersAreAway:
    """Name servers that do not answer `times` questions, after they have answered the first `before`."""

    def __init__(self, times: int, groups: dict[str, dict[int, str]], *, before: int = 0) -> None:
        self.times = times
        self._before = before
        self._groups = groups

    def groups(self) -> dict[str, dict[int, str]]:
        self._before -= 1
        if self._before < 0:
            self.times -= 1
            if self.times >= 0:
                raise NoNameServerError("no name server answered: gone")
        return self._groups


def test_name_servers_may_be_away_as_long_as_replicas(log: FakeLog) -> None:
    with served(FakeNode(log, "leader"), FakeNode(log)) as namesrv:
        known = NameServers((namesrv,)).groups()
        with ReplicaReader(NameServersAreAway(3, known), GROUP, "follower", 5.0) as replicas:
            assert parse_plan(replicas.request(READ_PLAN, {}).body).commit == log.end
        with (
            ReplicaReader(NameServersAreAway(1000, known), GROUP, "follower", 0.2) as replicas,
            pytest.raises(NoReplicaError, match="no name server answered: gone"),
        ):
            replicas.request(READ_PLAN, {})


def test_name_servers_may_be_away_when_a_replica_lacks_rights(log: FakeLog) -> None:
    with served(FakeNode(log, "leader"), FakeNode(log, misbehave=denies)) as namesrv:
        known = NameServers((namesrv,)).groups()
        with (
            ReplicaReader(NameServersAreAway(1000, known, before=1), GROUP, "follower", 0.3) as replicas,
            pytest.raises(NoReplicaError, match="app needs Log"),
        ):
            replicas.request(READ_PLAN, {})


def test_every_damaged_byte_of_an_entry_is_noticed(log: FakeLog) -> None:
    cut, data = log.cuts[0], log.entries[0]
    expected = cut["position"], cut["index"], cut["previousChain"]
    assert len(verify_entries(data, *expected)[0]) == 1
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        with pytest.raises(CorruptDataError):
            verify_entries(bytes(damaged), *expected)
    with pytest.raises(CorruptDataError):
        verify_entries(data[:-1], *expected)
