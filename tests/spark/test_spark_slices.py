"""A slice gives the same rows whatever happens to the replicas that serve it, and never a byte that does not verify."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from fake_log import FIRST_POSITION, GROUP, Answer, FakeLog, FakeNode, served

from dledger_remoting.command import RemotingCommand, encode_command, make_response
from dledger_spark import batches
from dledger_spark.entries import verify_entries
from dledger_spark.errors import CorruptDataError, DataLossError, NoNameServerError, NoReplicaError
from dledger_spark.nodes import NameServers, ReplicaReader
from dledger_spark.partitions import LogSlice
from dledger_spark.plans import READ_PLAN, parse_plan
from dledger_spark.segments import read_slice
from dledger_spark.throttle import Throttle

RANGE = 20011


@pytest.fixture
def log() -> FakeLog:
    return FakeLog([[("t", b"%d" % entry), ("other", b"x"), ("t", b"%d'" % entry)] for entry in range(9)])


WHOLE = [value for entry in range(9) for value in (b"%d" % entry, b"%d'" % entry)]


def rows(part: LogSlice) -> list[dict[str, Any]]:
    return [row for batch in read_slice(part) for row in batch.to_pylist()]


def values(part: LogSlice) -> list[bytes]:
    return [row["value"] for row in rows(part)]


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

        nodes = FakeNode(log, "leader"), FakeNode(log, misbehave=dies), FakeNode(log)
        with served(*nodes) as namesrv:
            assert values(log.slice("t", namesrv)) == WHOLE
        assert nodes[0].reads == 0


def test_a_replica_that_becomes_the_leader_refuses_and_the_other_goes_on(log: FakeLog) -> None:
    def promoted(node: FakeNode, request: RemotingCommand) -> RemotingCommand | None:
        node.role = "leader" if node.reads >= 2 else "follower"
        return request

    changed, other = FakeNode(log, misbehave=promoted), FakeNode(log)
    with served(FakeNode(log, "leader"), changed, other) as namesrv:
        assert values(log.slice("t", namesrv)) == WHOLE
    assert (changed.reads, other.reads) == (2, 3)


def test_a_replica_that_falls_silent_is_replaced(log: FakeLog) -> None:
    finished = threading.Event()

    def stands_still(node: FakeNode, request: RemotingCommand) -> RemotingCommand | None:
        if node.reads >= 2:
            finished.wait(60)
            return None
        return request

    silent, other = FakeNode(log, misbehave=stands_still), FakeNode(log)
    with served(FakeNode(log, "leader"), silent, other) as namesrv:
        assert values(log.slice("t", namesrv, read_timeout_s=0.9)) == WHOLE
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
    with served(FakeNode(log, "leader"), slow, other) as namesrv:
        assert values(log.slice("t", namesrv, read_timeout_s=0.9, min_bytes_per_second=1000)) == WHOLE
        finished.set()
    assert (slow.reads, other.reads) == (2, 3)


def test_reading_is_held_back_to_the_bytes_a_second_that_are_allowed(
    log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(batches, "Throttle", lambda rate: Throttle(rate, lambda: 100.0, waited.append))
    with served(FakeNode(log, "leader"), FakeNode(log)) as namesrv:
        assert values(log.slice("t", namesrv, max_bytes_per_second=100)) == WHOLE
    size = log.end - FIRST_POSITION
    assert max(waited) == pytest.approx(size / 100 - 0.5)


def test_learners_are_read_if_they_are_asked_for(log: FakeLog) -> None:
    leader, follower, learner = FakeNode(log, "leader"), FakeNode(log), FakeNode(log, "learner")
    with served(leader, follower, learner) as namesrv:
        assert values(log.slice("t", namesrv, read_from="learner", roles="learner")) == WHOLE
    assert (leader.reads, follower.reads, learner.reads) == (0, 0, 5)


def test_a_range_that_goes_while_it_is_read_fails_or_is_left_out(log: FakeLog) -> None:
    def trimmed(node: FakeNode, request: RemotingCommand) -> RemotingCommand | None:
        if node.reads == 1:
            node.first_position = log.cuts[6]["position"]
        return request

    gone = f"positions {log.cuts[2]['position']} to {log.end} of broker-a's log are gone"
    with served(FakeNode(log, "leader"), FakeNode(log, misbehave=trimmed)) as namesrv:
        with pytest.raises(DataLossError, match=gone):
            values(log.slice("t", namesrv))
    with served(FakeNode(log, "leader"), FakeNode(log, misbehave=trimmed)) as namesrv:
        assert values(log.slice("t", namesrv, fail_on_data_loss=False)) == WHOLE[:4] + WHOLE[12:]


def test_bytes_that_do_not_verify_are_read_elsewhere(log: FakeLog) -> None:
    def rotten(node: FakeNode, request: RemotingCommand) -> RemotingCommand | None:
        if node.reads < 1:
            return request
        data, end = log.run(int(request.ext["start"]), 2)
        damaged = bytearray(data)
        damaged[len(data) // 2] ^= 1
        ext = {"start": request.ext["start"], "end": str(end)}
        return make_response(request, 0, ext=ext, body=bytes(damaged))

    with served(FakeNode(log, "leader"), FakeNode(log, misbehave=rotten), FakeNode(log)) as namesrv:
        assert values(log.slice("t", namesrv)) == WHOLE
    with (
        served(FakeNode(log, "leader"), FakeNode(log, misbehave=rotten)) as namesrv,
        pytest.raises(NoReplicaError, match="bytes that do not verify"),
    ):
        values(log.slice("t", namesrv, read_timeout_s=0.3))


def test_another_log_that_verifies_by_itself_is_not_taken_for_this_one(log: FakeLog) -> None:
    impostor = FakeLog([[("t", b"%d" % entry), ("other", b"x"), ("t", b"%d!" % entry)] for entry in range(9)])
    nodes = FakeNode(log, "leader"), FakeNode(impostor)
    with served(*nodes) as namesrv, pytest.raises(NoReplicaError, match="chain crc"):
        values(log.slice("t", namesrv, first=4, read_timeout_s=0.3))


def test_without_a_replica_the_error_names_the_way_out(log: FakeLog) -> None:
    leader = FakeNode(log, "leader")
    with served(leader) as namesrv:
        with pytest.raises(NoReplicaError, match="readFrom=any also reads from the leader") as raised:
            values(log.slice("t", namesrv, read_timeout_s=0.2))
        assert f"no replica of {GROUP} that readFrom=follower allows served the read within 0.2 s" in str(raised.value)
        roles = "follower,learner,leader"
        assert values(log.slice("t", namesrv, read_from="any", roles=roles)) == WHOLE
    assert leader.reads == 5


class NameServersAreAway:
    """Nobody answers the first `times` questions."""

    def __init__(self, times: int, groups: dict[str, dict[int, str]]) -> None:
        self.times = times
        self._groups = groups

    def groups(self) -> dict[str, dict[int, str]]:
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


def test_a_range_that_is_gone_fails_or_is_left_out(log: FakeLog) -> None:
    kept = log.cuts[4]["position"]
    nodes = FakeNode(log, "leader"), FakeNode(log, first_position=kept)
    with served(*nodes) as namesrv:
        with pytest.raises(DataLossError, match=f"positions {FIRST_POSITION} to {log.end} of broker-a's log are gone"):
            values(log.slice("t", namesrv))
        assert values(log.slice("t", namesrv, fail_on_data_loss=False)) == WHOLE[8:]
        assert values(log.slice("t", namesrv, 0, 3, fail_on_data_loss=False)) == []


def test_every_damaged_byte_of_an_entry_is_noticed(log: FakeLog) -> None:
    data = log.entries[0]
    cut = log.cuts[0]
    assert len(verify_entries(data, cut["position"], cut["index"], cut["previousChain"])[0]) == 1
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        with pytest.raises(CorruptDataError):
            verify_entries(bytes(damaged), cut["position"], cut["index"], cut["previousChain"])
    with pytest.raises(CorruptDataError):
        verify_entries(data[:-1], cut["position"], cut["index"], cut["previousChain"])
