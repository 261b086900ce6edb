"""A name server over a socket: what it answers, what it keeps, and every limit."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from served_names import PATIENCE_S, A, B, connected, is_alone, serving

from dledger import loop_guard
from dledger.loop_guard import DiskWorkOnLoopError
from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.known import KnownGroupsError, KnownGroupsFile
from dledger_namesrv.kv import DEFAULT_MAX_BYTES, KVStore, KVStoreError
from dledger_namesrv.properties import told_configuration
from dledger_namesrv.records import KnownGroup
from dledger_namesrv.server import NameServer, StartError
from dledger_remoting.bodies import encode_body
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand, encode_command, make_response
from dledger_remoting.headers import (
    BrokerHeartbeatHeader,
    BrokerMemberGroupHeader,
    BrokerNameHeader,
    BrokerNodeHeader,
    ClusterHeader,
    IncludeAbsentHeader,
    KVKeyHeader,
    KVNamespaceHeader,
    PutKVHeader,
    RegisterBrokerHeader,
    RouteHeader,
    RouteWatchHeader,
    TopicInClusterHeader,
)
from dledger_remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicChangesBody,
    TopicConfigSerializeWrapper,
    encode_registration,
    registration_crc,
)
from dledger_remoting.route import BrokerData, QueueData, TopicRouteData, decode_cluster_info, decode_route
from dledger_remoting.topics import TOPIC_UNIT, TopicConfig


@pytest.fixture
async def server(tmp_path):
    async with serving(tmp_path) as running:
        yield running


@pytest.fixture
async def client(server):
    async with connected(server) as one:
        yield one


class AbsentRouteHeader(RouteHeader, frozen=True):
    """As the project's own client asks for routes."""

    include_absent: bool = True


# Routes


async def test_a_route_comes_in_the_dialect_of_the_client(client):
    await client.register()
    await client.register(2, B)
    old = await client.call(105, RouteHeader("T1"), version=317)
    assert old.body == (
        b'{"brokerDatas":[{"brokerAddrs":{0:"127.0.0.1:10911",2:"127.0.0.1:10921"},"brokerName":"broker-0",'
        b'"cluster":"C","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-0",'
        b'"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
    )
    standard = old.body.replace(b"{0:", b'{"0":').replace(b",2:", b',"2":')
    assert (await client.call(105, RouteHeader("T1"))).body == standard
    assert (await client.call(105, RouteHeader("T1", accept_standard_json_only=True), version=317)).body == standard


async def test_an_unknown_topic_is_answered_with_17(client):
    answer = await client.call(105, RouteHeader("X"))
    assert (answer.code, answer.body) == (17, b"")
    assert answer.remark == "No topic route info in name server for the topic: X"


async def test_cluster_information_tells_the_truth(client):
    await client.register(2, B, topics=("T1", "T2"))
    assert (await client.call(106)).body == (
        b'{"brokerAddrTable":{"broker-0":{"brokerAddrs":{"2":"127.0.0.1:10921"},"brokerName":"broker-0","cluster":"C",'
        b'"enableActingMaster":false}},"clusterAddrTable":{"C":["broker-0"]}}'
    )
    assert b'{2:"127.0.0.1:10921"}' in (await client.call(106, version=317)).body
    members = await client.call(901, BrokerMemberGroupHeader("C", "broker-0"))
    assert members.body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{"2":"127.0.0.1:10921"},"brokerName":"broker-0","cluster":"C"}}'
    )


async def test_topic_lists(client):
    assert (await client.call(206)).body == b'{"topicList":[]}'
    await client.register()
    assert (await client.call(206)).body == b'{"topicList":["T1","TBW102"]}'
    assert (await client.call(224, ClusterHeader("C"))).body == b'{"topicList":["T1","TBW102"]}'
    assert (await client.call(224, ClusterHeader("D"))).body == b'{"topicList":[]}'
    assert (await client.call(304)).body == b'{"topicList":["C","broker-0"],"brokerAddr":"127.0.0.1:10911"}'
    assert (await client.call(311)).body == b'{"topicList":[]}'


async def test_unit_topics_are_told_by_their_flag(client):
    configs = {"U": TopicConfig("U", topic_sys_flag=TOPIC_UNIT), "T": TopicConfig("T")}
    body = encode_registration(RegisterBrokerBody(TopicConfigSerializeWrapper(configs)))
    await client.call(103, RegisterBrokerHeader("broker-0", A, "C", "", 0), body=body)
    assert (await client.call(311)).body == b'{"topicList":["U"]}'
    assert (await client.call(312)).body == (await client.call(313)).body == b'{"topicList":[]}'


async def test_write_permission_and_topic_deletion(client):
    await client.register()
    assert (await client.call(205, BrokerNameHeader("broker-0"))).ext == {"wipeTopicCount": "2"}
    assert b'"perm":4' in (await client.call(105, RouteHeader("T1"))).body
    assert (await client.call(327, BrokerNameHeader("broker-0"))).ext == {"addTopicCount": "2"}
    assert b'"perm":6' in (await client.call(105, RouteHeader("T1"))).body
    assert (await client.call(216, TopicInClusterHeader("T1", "C"))).code == 0
    assert (await client.call(105, RouteHeader("T1"))).code == 17


# Brokers


async def test_a_broker_that_says_goodbye_is_gone(client):
    await client.register(term=3)
    await client.call(104, BrokerNodeHeader("broker-0", A, "C", 0, state_version=2))
    assert (await client.call(105, RouteHeader("T1"))).code == 0
    await client.call(104, BrokerNodeHeader("broker-0", A, "C", 0))
    assert (await client.call(105, RouteHeader("T1"))).code == 17


async def test_a_follower_is_told_its_leader(client):
    await client.register()
    answer = await client.register(2, B)
    assert answer.ext == {"masterAddr": A, "haServerAddr": f"{A}-ha", "acceptsTopicChanges": "true"}


async def test_a_refused_registration_says_why(client):
    await client.register(0, A, term=5)
    answer = await client.register(0, B, term=4)
    assert answer.code == 1
    assert "term 4 is older than 5" in answer.remark


async def test_a_damaged_registration_changes_nothing(client):
    good = encode_registration(RegisterBrokerBody())
    header = RegisterBrokerHeader("broker-0", A, "C", "", 0, body_crc32=registration_crc(good))
    assert (await client.call(103, header, body=good)).code == 0
    answer = await client.call(103, header, body=good + b" ")
    assert answer.code == 1
    assert "crc32 not match" in answer.remark
    assert (await client.call(103, RegisterBrokerHeader("b", A, "C", "", 0, compressed=True), body=b"x")).code == 1


async def test_heartbeats_and_data_versions(client):
    node = BrokerNodeHeader("broker-0", A, "C", 0)
    same, other = b'{"stateVersion":1,"timestamp":0,"counter":2}', b'{"stateVersion":1,"timestamp":0,"counter":3}'
    assert (await client.call(904, BrokerHeartbeatHeader("C", A, "broker-0"))).code == 211
    assert (await client.call(322, node, body=same)).ext == {"changed": "true"}
    await client.register()
    assert (await client.call(904, BrokerHeartbeatHeader("C", A, "broker-0"))).code == 0
    answer = await client.call(322, node, body=same)
    assert (answer.ext, answer.body) == ({"changed": "false"}, same)
    assert (await client.call(322, node, body=other)).ext == {"changed": "true"}


async def test_a_broker_whose_connection_breaks_is_gone_and_another_stands_in(server, client):
    async with connected(server) as broker:
        await broker.register()
        await client.register(2, B)
        seen = int((await client.call(20001, RouteWatchHeader("T1", 0, 0))).ext["version"])
        opaque = client.send(20001, RouteWatchHeader("T1", seen, 60_000))
    woken = await client.receive()
    assert (woken.opaque, int(woken.ext["version"]) > seen) == (opaque, True)
    body = (await client.call(105, RouteHeader("T1"))).body
    assert b'"brokerAddrs":{"0":"127.0.0.1:10921","2":"127.0.0.1:10921"}' in body


async def test_a_silent_broker_is_gone_though_its_connection_stands(tmp_path, logged):
    async with serving(tmp_path, scan_interval_ms=10) as server, connected(server) as client:
        await client.register(heartbeat_timeout_millis=20)
        await logged(f"event=node_removed address={A} cluster=C reason=silent")
        assert (await client.call(105, RouteHeader("T1"))).code == 17


# Watches


async def test_a_watch_waits_for_its_own_topics_only(server, client):
    await client.register()
    seen = int((await client.call(20001, RouteWatchHeader("T2", 0, 60_000))).ext["version"])
    watch = client.send(20001, RouteWatchHeader("T2,T3", seen, 60_000))
    async with connected(server) as other:
        await other.register(2, B)
        assert (await client.call(206)).code == 0, "the watch is not answered before this"
        await other.register(0, A, topics=("T1", "TBW102", "T3"))
    assert (await client.receive()).opaque == watch


async def test_a_watch_of_too_many_topics_does_not_wait(server, client):
    await client.register()
    version = server.table.version
    for topics, body in ((",".join(["topic"] * 50_000), b""), ("T1", bytes(300_000))):
        answer = await client.call(20001, RouteWatchHeader(topics, version, 60_000), body=body)
        assert (answer.code, "cannot wait here" in answer.remark) == (29, True)
    assert server.watch_count == 0


async def test_a_watch_ends_at_its_time_with_the_version_it_had(client):
    await client.register()
    seen = (await client.call(20001, RouteWatchHeader("T1", 0, 60_000))).ext["version"]
    assert (await client.call(20001, RouteWatchHeader("T1", int(seen), 10))).ext == {"version": seen}


async def test_a_version_of_another_server_is_answered_at_once(client):
    await client.register()
    answer = await client.call(20001, RouteWatchHeader("T1", 2**62, 60_000))
    assert int(answer.ext["version"]) < 2**62


async def test_a_stopping_server_answers_its_watches(tmp_path):
    async with serving(tmp_path) as server, connected(server) as client:
        await client.register()
        seen = int((await client.call(20001, RouteWatchHeader("T1", 0, 0))).ext["version"])
        watch = client.send(20001, RouteWatchHeader("T1", seen, 60_000))
        assert (await client.call(206)).code == 0
        await server.stop()
        assert (await client.receive()).opaque == watch
        assert await client.is_closed()


# Stored values


async def test_values_survive_a_restart(tmp_path):
    async with serving(tmp_path) as server, connected(server) as client:
        assert (await client.call(101, KVKeyHeader("n", "k"))).code == 22
        assert (await client.call(219, KVNamespaceHeader("n"))).code == 22
        assert (await client.call(100, PutKVHeader("n", "k", "ü"))).code == 0
        assert (await client.call(100, PutKVHeader("n", "k2", "2"))).code == 0
        assert (await client.call(102, KVKeyHeader("n", "k2"))).code == 0
        assert (await client.call(102, KVKeyHeader("n", "none"))).code == 0
    async with serving(tmp_path) as server, connected(server) as client:
        assert (await client.call(101, KVKeyHeader("n", "k"))).ext == {"value": "ü"}
        assert (await client.call(219, KVNamespaceHeader("n"))).body == '{"table":{"k":"ü"}}'.encode()


async def test_order_configuration_reaches_brokers_and_routes(tmp_path):
    async with serving(tmp_path, order_message_enable=True) as server, connected(server) as client:
        await client.call(100, PutKVHeader("ORDER_TOPIC_CONFIG", "T1", "broker-0:4"))
        assert (await client.register()).body == b'{"table":{"T1":"broker-0:4"}}'
        assert b'"orderTopicConf":"broker-0:4"' in (await client.call(105, RouteHeader("T1"))).body
        assert b"orderTopicConf" not in (await client.call(105, RouteHeader("TBW102"))).body


async def test_a_damaged_file_of_values_stops_the_start(tmp_path):
    (tmp_path / "kvConfig.json").write_text("{")
    with pytest.raises(KVStoreError, match=r"kvConfig\.json cannot be read"):
        await NameServer(NameServerConfig(port=0, data=tmp_path)).start()
    assert not (tmp_path / "pid").exists()


# Absent broker groups


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


async def test_values_are_stored_up_to_a_limit(server, client):
    """More would make answers that no frame holds, those to registrations among them."""
    half = "v" * (DEFAULT_MAX_BYTES // 2)
    assert (await client.call(100, PutKVHeader("n", "k1", half))).code == 0
    refused = await client.call(100, PutKVHeader("n", "k2", half))
    assert (refused.code, "more than max_stored_bytes = 1048576: delete some first" in refused.remark) == (1, True)
    assert server.counters.limits["max_stored_bytes"] == 1
    assert (await client.call(102, KVKeyHeader("n", "k1"))).code == 0
    assert (await client.call(100, PutKVHeader("n", "k2", half))).code == 0


@pytest.mark.parametrize(("limit", "allowed"), [("max_nodes", 1), ("max_routes", 4)])
async def test_registrations_beyond_a_limit_are_refused_and_counted(tmp_path, limit, allowed):
    async with serving(tmp_path, **{limit: allowed}) as server, connected(server) as client:
        assert (await client.register(topics=("T1", "T2"))).code == 0
        refused = await client.register(0, B, name="broker-1", topics=("T1", "T2", "T3"))
        assert (refused.code, f"more than {limit} = {allowed}" in refused.remark) == (1, True)
        assert server.counters.limits[limit] == 1
        assert (await client.register(topics=("T1", "T2"))).code == 0


LONGEST, LONGEST_ADDRESS = "n" * 255, f"{'h' * 253}:10911"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"name": LONGEST}, "broker name"),
        ({"cluster": LONGEST}, "cluster name"),
        ({"node_id": LONGEST}, "node id"),
        ({"address": LONGEST_ADDRESS, "ha": "h"}, "broker address"),
        ({"ha": LONGEST_ADDRESS}, "HA address"),
        ({"alias_addr": LONGEST_ADDRESS}, "alias address"),
        ({"topics": ("T1", LONGEST)}, "topic name"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_names_are_as_long_as_brokers_have_them_and_no_longer(server, client, logged, changes, what):
    """A header holds 16 MiB, and so would each of as many nodes as there may be."""
    assert (await client.register(**changes)).code == 0
    groups = server.table.known_groups()
    longer = {
        key: f"{value}1" if isinstance(value, str) else (*value[:-1], f"{value[-1]}1") for key, value in changes.items()
    }
    refused = await client.register(term=2, **longer)
    length = 260 if "address" in what else 256
    assert refused.code == 1
    assert f"refused: the {what}" in refused.remark
    assert f"has {length} characters, the limit is {length - 1}" in refused.remark
    assert len(await logged("event=registration_refused")) < 700
    assert (server.table.known_groups(), server.counters.registrations_refused) == (groups, 1)


async def test_names_in_changes_of_topics_are_no_longer_either(server, client):
    async def change(name: str) -> RemotingCommand:
        configs = {"T1": TopicConfig(name, 4, 4)}
        body = TopicChangesBody(DataVersion(1, 0, 2), DataVersion(1, 0, 3), configs)
        return await client.call(20005, BrokerNodeHeader("broker-0", A, "C", 0), body=encode_body(body))

    await client.register()
    refused = await change(f"{LONGEST}1")
    assert (refused.code, "the topic name nnn" in refused.remark) == (1, True)
    assert (await change(LONGEST)).code == 0
    assert LONGEST in server.table.topics()


async def test_watches_that_wait_have_a_limit_in_sum(tmp_path):
    async with serving(tmp_path, max_watch_bytes=1024) as server, connected(server) as client:
        await client.register()
        topics = ",".join(["T1"] * 200)
        seen = int((await client.call(20001, RouteWatchHeader("T1", 0, 0))).ext["version"])
        watch = client.send(20001, RouteWatchHeader(topics, seen, 60_000))
        refused = await client.call(20001, RouteWatchHeader(topics, seen, 60_000))
        assert (refused.code, "max_watch_bytes is 1024" in refused.remark) == (2, True)
        assert server.counters.limits["max_watch_bytes"] == 1
        async with connected(server) as other:
            await other.register(2, B)
        assert (await client.receive()).opaque == watch
        assert server.watch_bytes == 0
        assert (await client.call(20001, RouteWatchHeader(topics, 0, 60_000))).code == 0


async def test_an_answer_that_no_frame_holds_is_an_error_and_the_connection_stays(server, client, monkeypatch):
    def handle(request, _):
        return make_response(request, 0, body=bytes(17 << 20 if request.code == 206 else 0))

    monkeypatch.setattr(server, "handle", handle)
    answer = await client.call(206)
    assert (answer.code, "larger than 16777216" in answer.remark) == (1, True)
    assert (await client.call(207)).code == 0


async def test_a_client_that_leaves_takes_no_stored_value_of_another_with_it(tmp_path, slow_disk):
    """Its own value is still being written when the other one's comes."""
    slow_disk.begin()
    async with serving(tmp_path) as server, connected(server) as other:
        async with connected(server) as leaver:
            leaver.send(100, PutKVHeader("n", "first", "1"))
            await slow_disk.writing.wait()
        await is_alone(server)
        opaque = other.send(100, PutKVHeader("n", "second", "2"))
        await asyncio.sleep(0.1)
        slow_disk.go_on.set()
        answer = await other.receive()
        assert (answer.opaque, answer.code) == (opaque, 0)
        assert (await other.call(100, PutKVHeader("n", "third", "3"))).code == 0
    async with serving(tmp_path) as server, connected(server) as client:
        assert (await client.call(101, KVKeyHeader("n", "second"))).ext["value"] == "2"


async def test_no_other_server_has_the_directory_before_the_last_value_is_stored(tmp_path, slow_disk, monkeypatch):
    """It would begin without the value, and write over it."""
    monkeypatch.setattr("dledger_namesrv.server.STOP_GRACE_S", 0.01)
    server = NameServer(NameServerConfig(port=0, data=tmp_path))
    await server.start()
    async with connected(server) as client:
        slow_disk.begin()
        client.send(100, PutKVHeader("n", "k", "v"))
        await slow_disk.writing.wait()
        stopping = asyncio.create_task(server.stop())
        assert await client.is_closed()
        await asyncio.wait((stopping,), timeout=0.2)
        with pytest.raises(StartError, match="in use by process"):
            await NameServer(NameServerConfig(port=0, data=tmp_path)).start()
        slow_disk.go_on.set()
        await stopping
    async with serving(tmp_path) as after, connected(after) as client:
        assert (await client.call(101, KVKeyHeader("n", "k"))).ext["value"] == "v"


async def test_deleted_values_leave_nothing_behind(tmp_path, client):
    for number in range(3):
        await client.call(100, PutKVHeader(f"namespace-{number}", "k", "v"))
        await client.call(102, KVKeyHeader(f"namespace-{number}", "k"))
    assert (tmp_path / "kvConfig.json").read_bytes() == b'{"configTable":{}}'


async def test_values_that_cannot_be_written_are_refused_and_not_seen(tmp_path, client, server):
    (tmp_path / "kvConfig.tmp").mkdir()
    answer = await client.call(100, PutKVHeader("n", "k", "v"))
    assert answer.code == 1
    assert "cannot be written" in answer.remark
    assert (await client.call(101, KVKeyHeader("n", "k"))).code == 22


# Configuration over the wire


async def test_the_configuration_can_be_read_and_some_of_it_changed(client):
    assert b"enableTopicList=true\n" in (await client.call(319)).body
    assert (await client.call(318, body=b"# comment\n\nenableTopicList = false")).code == 0
    assert b"enableTopicList=false\n" in (await client.call(319)).body
    answer = await client.call(206)
    assert (answer.code, answer.remark) == (1, "topic lists are disabled: enable_topic_list = false")


def told(**keys) -> dict[str, str]:
    return dict(line.split("=", 1) for line in told_configuration(NameServerConfig(**keys)).decode().splitlines())


def test_the_configuration_is_told_in_rocketmqs_words():
    table = told(idle_timeout_ms=60_000, log_levels={"a": "INFO"})
    assert (table["orderMessageEnable"], table["enableTopicList"], table["enableAllTopicList"]) == (
        "false",
        "true",
        "true",
    )
    assert (table["tls.server.mode"], table["tls.server.certPath"]) == ("disabled", "")
    assert (table["serverChannelMaxIdleTimeSeconds"], table["max_routes"], table["log_levels"]) == (
        "60",
        "1000000",
        "a-INFO",
    )
    assert not {"order_message_enable", "tls_cert_file", "idle_timeout_ms"} & table.keys()
    assert "None" not in table.values()
    assert told(idle_timeout_ms=1_500)["idle_timeout_ms"] == "1500", "no whole seconds"


def test_where_secrets_lie_is_not_told(tmp_path):
    text = told_configuration(NameServerConfig(access_key_file=tmp_path / "in1", tls_key_file=tmp_path / "in2"))
    assert str(tmp_path).encode() not in text


async def test_both_names_of_a_key_can_be_set(client):
    for line, told in ((b"orderMessageEnable=true", b"true"), (b"order_message_enable=false", b"false")):
        assert (await client.call(318, body=line)).code == 0
        assert b"\norderMessageEnable=%b\n" % told in (await client.call(319)).body


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"kvConfigPath=/x", 16),
        (b"port=1", 29),
        (b"nonsense=1", 29),
        (b"enableTopicList", 29),
        (b"enableTopicList=maybe", 29),
        (b"\xff", 1),
    ],
)
async def test_a_change_that_is_not_allowed_changes_nothing(client, body, code):
    before = (await client.call(319)).body
    assert (await client.call(318, body=body)).code == code
    assert (await client.call(319)).body == before


# The protocol and its limits


@pytest.mark.parametrize(("code", "name"), [(310, "SEND_MESSAGE_V2"), (9999, "unknown")])
async def test_a_code_that_is_not_served_is_named(client, code, name):
    answer = await client.call(code)
    assert answer.code == 3
    assert f"request type {code} ({name}) not supported" in answer.remark


async def test_a_missing_field_is_named_and_the_connection_stays(client):
    answer = await client.call(105)
    assert answer.code == 1
    assert "'topic'" in answer.remark
    assert (await client.call(206)).code == 0


async def test_an_answer_uses_the_serializer_of_its_request(client):
    answer = await client.call(206, serialize_type=1)
    assert (answer.code, answer.serialize_type) == (0, 1)


async def test_oneway_requests_and_responses_get_no_answer(client):
    client.send(206, flag=FLAG_ONEWAY)
    client.send(206, flag=1)
    assert (await client.call(206)).code == 0


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\1xxxx", b"\0\0\0\6\0\0\0\2xx", b"\0\0\0\4\2\0\0\0"]
)
async def test_garbage_closes_its_connection_and_no_other(server, client, garbage, logged):
    async with connected(server) as vandal:
        vandal.writer.write(garbage)
        assert await vandal.is_closed()
    await logged("event=connection_closed peer=127.0.0.1")
    assert (await client.call(206)).code == 0


async def test_a_frame_beyond_the_limit_closes_the_connection(tmp_path, logged):
    async with serving(tmp_path, max_frame_bytes=1024) as server, connected(server) as client:
        client.send(206, body=bytes(1024))
        assert await client.is_closed()
        await logged("larger than the limit of 1024")


async def test_requests_that_do_not_fully_arrive_are_bounded_in_sum_and_keep_nobody_out(tmp_path, logged):
    options = {"max_frame_bytes": 4 << 20, "max_partial_bytes": 8 << 20, "slow_sender_timeout_ms": 50}
    part = encode_command(RemotingCommand(206, body=bytes(3 << 20)))[: 2 << 20]
    async with serving(tmp_path, **options) as server, connected(server) as client, AsyncExitStack() as stack:
        for _ in range(20):
            stalled = await stack.enter_async_context(connected(server))
            stalled.writer.write(part)
        assert (await client.call(206, body=bytes(3 << 20))).code == 0
        await logged("that it lacks did not come within 0.05 s")
        assert (await client.call(206)).code == 0
        assert 0 < server.request_memory.held_bytes <= 8 << 20
        assert server.counters.limits["max_partial_bytes"] > 0
        assert server.counters.limits["slow_sender_timeout_ms"] > 0
        await stack.aclose()
        async with asyncio.timeout(PATIENCE_S):
            while server.request_memory.held_bytes:
                await client.call(206)


async def test_many_large_requests_at_a_time_are_all_answered(tmp_path):
    options = {"max_frame_bytes": 4 << 20, "max_partial_bytes": 8 << 20}
    async with serving(tmp_path, **options) as server, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(server)) for _ in range(20)]
        answers = await asyncio.gather(*(client.call(206, body=bytes(3 << 20)) for client in clients))
        assert [answer.code for answer in answers] == [0] * len(clients)
        assert server.counters.limits["max_partial_bytes"] > 0
        assert server.counters.limits["slow_sender_timeout_ms"] == 0
        assert server.request_memory.held_bytes == 0


async def test_connections_of_one_host_have_a_limit_of_their_own_which_can_be_changed(server, client, logged):
    async with connected(server) as second:
        for one in (client, second):
            assert (await one.call(206)).code == 0
        assert (await client.call(318, body=b"max_connections_per_host=1")).code == 0
        async with connected(server) as third:
            assert await third.is_closed()
        await logged("reason='max_connections_per_host = 1 of this one are open' refused=1")
        assert (server.counters.limits["max_connections_per_host"], server.counters.limits["max_connections"]) == (1, 0)
        assert (await second.call(206)).code == 0, "those that are open stay"
    assert (await client.call(318, body=b"max_connections_per_host=2")).code == 0
    await is_alone(server)
    async with connected(server) as again:
        assert (await again.call(206)).code == 0


def test_as_many_clients_have_room_as_a_broker_takes():
    assert NameServerConfig().max_connections == 10_000


async def test_waiting_requests_beyond_the_limit_are_answered_with_2(tmp_path):
    async with serving(tmp_path, max_in_flight=2) as server, connected(server) as client:
        seen = int((await client.call(20001, RouteWatchHeader("T1", 0, 0))).ext["version"])
        for _ in range(2):
            client.send(20001, RouteWatchHeader("T1", seen, 60_000))
        answer = await client.call(20001, RouteWatchHeader("T1", seen, 60_000))
        assert answer.code == 2
        assert "max_in_flight" in answer.remark
        assert (await client.call(206)).code == 0


async def test_an_idle_connection_is_closed(tmp_path, logged):
    async with serving(tmp_path, idle_timeout_ms=20, scan_interval_ms=10) as server, connected(server) as client:
        assert await client.is_closed()
        await logged("idle for more than 20 ms")


async def test_a_client_that_never_reads_is_closed_and_others_are_served(tmp_path, logged):
    options = {"max_write_buffer_bytes": 1024, "slow_reader_timeout_ms": 20}
    async with serving(tmp_path, **options) as server, connected(server) as client:
        await client.register(topics=[f"topic-{number:05d}" for number in range(5000)])
        async with connected(server, limit=1) as sloth:
            for _ in range(500):
                sloth.send(206)
            await logged("left 1024 bytes unread for 20 ms")
        assert (await client.call(206)).code == 0


async def test_a_client_that_reads_late_but_in_time_gets_every_answer(tmp_path):
    options = {"max_write_buffer_bytes": 1024, "slow_reader_timeout_ms": 60_000}
    async with serving(tmp_path, **options) as server, connected(server) as client:
        await client.register(topics=[f"topic-{number:05d}" for number in range(2000)])
        async with connected(server) as slow:
            sent = [slow.send(206) for _ in range(300)]
            assert (await client.call(206)).code == 0
            assert [(await slow.receive()).opaque for _ in sent] == sent


async def test_a_host_that_cannot_be_is_named(tmp_path):
    with pytest.raises(StartError, match=r"^host = 'names\.\.example': no host has such a name; "):
        await NameServer(NameServerConfig(host="names..example", port=0, data=tmp_path)).start()


async def test_a_port_in_use_is_one_clear_error(server, tmp_path):
    with pytest.raises(StartError, match=f"127.0.0.1:{server.port} is already in use"):
        await NameServer(NameServerConfig(port=server.port, data=tmp_path / "other")).start()
    assert not (tmp_path / "other" / "pid").exists()


async def test_a_data_directory_serves_one_process_at_a_time(server, tmp_path):
    with pytest.raises(StartError, match=r"in use by process [0-9]+"):
        await NameServer(NameServerConfig(port=0, data=tmp_path)).start()
    assert (tmp_path / "pid").exists()


async def test_listening_beyond_this_machine_is_warned_about(tmp_path, logged):
    async with serving(tmp_path, host="0.0.0.0"):
        await logged("event=no_access_control host=0.0.0.0")


async def test_a_stale_pid_file_does_no_harm(tmp_path):
    (tmp_path / "pid").write_text("1\n")
    async with serving(tmp_path) as server, connected(server) as client:
        assert (await client.call(206)).code == 0
    assert not (tmp_path / "pid").exists()


async def test_a_file_that_is_replaced_on_the_event_loop_is_found_out(tmp_path):
    values = KVStore(tmp_path)
    with pytest.raises(DiskWorkOnLoopError, match="kvConfig"):
        values.put("space", "key", "value")
    loop_guard.violations.clear()
    assert list(tmp_path.iterdir()) == []
    await asyncio.to_thread(values.put, "space", "key", "value")
    assert KVStore(tmp_path).get("space", "key") == "value"
