"""Brokers that register with a name server over a socket, say goodbye or fall silent, and what is refused of them."""

import pytest
from served_names import A, B, connected, serving

from dledger_remoting.bodies import encode_body
from dledger_remoting.command import RemotingCommand
from dledger_remoting.headers import (
    BrokerHeartbeatHeader,
    BrokerNodeHeader,
    RegisterBrokerHeader,
    RouteHeader,
    RouteWatchHeader,
)
from dledger_remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicChangesBody,
    encode_registration,
    registration_crc,
)
from dledger_remoting.topics import TopicConfig


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
