"""Broker groups without a live node.

A client that asks for absent groups sees them in its answers, also after restarts, until they are forgotten.
"""

import msgspec
import pytest
from served_names import A, connected, serving

from dledger_namesrv import known as known_groups
from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.known import KnownGroupsError, KnownGroupsFile
from dledger_namesrv.records import Alias, KnownGroup
from dledger_namesrv.server import NameServer
from dledger_remoting.headers import (
    BrokerNameHeader,
    BrokerNodeHeader,
    IncludeAbsentHeader,
    RouteHeader,
    RouteWatchHeader,
)
from dledger_remoting.route import BrokerData, QueueData, TopicRouteData, decode_cluster_info, decode_route


class AbsentRouteHeader(RouteHeader, frozen=True):
    """Request for a route, as the project's own client sends it."""

    include_absent: bool = True


async def test_absent_groups_are_reported_only_on_request(server):
    async with connected(server) as client:
        async with connected(server) as broker:
            await broker.register()
            seen = int((await client.call(20001, RouteWatchHeader("T1", 0, 0))).ext["version"])
            watch = client.watch("T1", seen)
        assert (await client.receive()).opaque == watch
        assert (await client.route()).code == 17
        assert (await client.call(106)).body == b'{"brokerAddrTable":{},"clusterAddrTable":{}}'
        assert (await client.call(206)).body == b'{"topicList":[]}'
        route = await client.call(105, AbsentRouteHeader("T1"))
        assert decode_route(route.body) == TopicRouteData(
            [QueueData("broker-0", 4, 4, 6)], [BrokerData("broker-0", "C")]
        )
        info = await client.call(106, IncludeAbsentHeader(include_absent=True))
        assert decode_cluster_info(info.body).broker_addr_table == {"broker-0": BrokerData("broker-0", "C")}
        topics = await client.call(206, IncludeAbsentHeader(include_absent=True))
        assert topics.body == b'{"topicList":["T1","TBW102"]}'


async def test_groups_are_known_after_a_restart_until_they_are_forgotten(tmp_path):
    async with serving(tmp_path) as server, connected(server) as broker:
        await broker.register()
    async with serving(tmp_path) as server, connected(server) as client:
        assert (await client.route()).code == 17
        assert (await client.call(105, AbsentRouteHeader("T1"))).code == 0
        assert (await client.call(20003, BrokerNameHeader("broker-1"))).code == 22
        await client.register()
        refusal = await client.refusal(20003, BrokerNameHeader("broker-0"))
        assert refusal == (29, "broker group broker-0 has registered nodes: stop them first")
        await client.call(104, BrokerNodeHeader("broker-0", A, "C", 0))
        assert (await client.call(20003, BrokerNameHeader("broker-0"))).code == 0
        assert (await client.call(105, AbsentRouteHeader("T1"))).code == 17
    async with serving(tmp_path) as server, connected(server) as client:
        assert (await client.call(105, AbsentRouteHeader("T1"))).code == 17


async def test_a_damaged_file_of_groups_stops_the_start(tmp_path):
    (tmp_path / "knownGroups.json").write_text('{"groups":{"broker-0":{"cluster":1}}}')
    with pytest.raises(KnownGroupsError, match=r"knownGroups\.json cannot be read: .* repair it or move it away"):
        await NameServer(NameServerConfig(port=0, data=tmp_path)).start()
    assert not (tmp_path / "pid").exists()


def test_groups_that_cannot_be_written_are_told_of_once_and_written_later(tmp_path, caplog):
    file = KnownGroupsFile(tmp_path)
    known = {"broker-0": KnownGroup("C", {})}
    (tmp_path / "knownGroups.tmp").mkdir()
    file.save(known)
    file.save(known)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    (tmp_path / "knownGroups.tmp").rmdir()
    file.save(known)
    assert KnownGroupsFile(tmp_path).load() == known


def test_the_text_of_many_topics_is_made_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(known_groups, "PIECE_TOPICS", 10)
    queues = {f"T{number}": QueueData("broker-0", 1, 1, 6) for number in range(25)}
    known = {
        "broker-0": KnownGroup("C", queues, {1: Alias("n1", A, A)}, "founded"),
        'broker-"1"': KnownGroup('"D"', {}),
    }
    of_ten = msgspec.json.encode(dict(list(queues.items())[-10:]))
    assert max(map(len, known_groups._encode_pieces(known))) <= len(of_ten)
    file = KnownGroupsFile(tmp_path)
    for groups in ({}, known):
        file.save(groups)
        assert (tmp_path / "knownGroups.json").read_bytes() == msgspec.json.encode({"groups": groups})
        assert KnownGroupsFile(tmp_path).load() == groups
    (tmp_path / "knownGroups.json").unlink()
    file.save(known)
    assert not (tmp_path / "knownGroups.json").exists(), "what stands there already is not written again"
