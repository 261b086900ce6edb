"""Broker groups without a live node: who asks for them is told, over restarts, until they are forgotten."""

import asyncio

import pytest
from served_names import PATIENCE_S, A, connected, serving

from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.known import KnownGroupsError, KnownGroupsFile
from dledger_namesrv.records import KnownGroup
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
    """As the project's own client asks for routes."""

    include_absent: bool = True


async def test_who_asks_is_told_of_absent_groups_and_others_are_not(server):
    async with connected(server) as client:
        async with connected(server) as broker:
            await broker.register()
            seen = int((await client.call(20001, RouteWatchHeader("T1", 0, 0))).ext["version"])
            watch = client.send(20001, RouteWatchHeader("T1", seen, 60_000))
        assert (await client.receive()).opaque == watch
        assert (await client.call(105, RouteHeader("T1"))).code == 17
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
        assert (await client.call(105, RouteHeader("T1"))).code == 17
        assert (await client.call(105, AbsentRouteHeader("T1"))).code == 0
        assert (await client.call(20003, BrokerNameHeader("broker-1"))).code == 22
        await client.register()
        refused = await client.call(20003, BrokerNameHeader("broker-0"))
        assert (refused.code, refused.remark) == (29, "broker group broker-0 has registered nodes: stop them first")
        await client.call(104, BrokerNodeHeader("broker-0", A, "C", 0))
        assert (await client.call(20003, BrokerNameHeader("broker-0"))).code == 0
        assert (await client.call(105, AbsentRouteHeader("T1"))).code == 17
    async with serving(tmp_path) as server, connected(server) as client:
        assert (await client.call(105, AbsentRouteHeader("T1"))).code == 17


async def test_groups_are_written_while_the_server_runs(tmp_path):
    """It may end without notice."""
    async with serving(tmp_path) as server, connected(server) as broker:
        await broker.register()
        async with asyncio.timeout(PATIENCE_S):
            # It may be written before the registration, too.
            while list(KnownGroupsFile(tmp_path).load()) != ["broker-0"]:  # noqa: ASYNC110 -- nothing tells of it
                await asyncio.sleep(0.01)


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
