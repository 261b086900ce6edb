"""Brokers register with a name server over a socket, unregister or fall silent. Invalid registrations are refused."""

import asyncio
import zlib
from struct import pack

import msgspec
import pytest
from served_names import A, B, C, connected, registration, serving

from dledger_base.request_turns import RequestTurns
from dledger_namesrv import processors, table
from dledger_namesrv.records import TableLimits
from dledger_namesrv.table import RouteTable
from dledger_remoting import registration as wire
from dledger_remoting.bodies import encode_body
from dledger_remoting.headers import BrokerHeartbeatHeader, BrokerNodeHeader, RegisterBrokerHeader, RouteWatchHeader
from dledger_remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicChangesBody,
    encode_registration,
    registration_crc,
)
from dledger_remoting.topics import TopicConfig

NODE = BrokerNodeHeader("broker-0", A, "C", 0)


async def test_a_broker_that_says_goodbye_is_gone(client):
    await client.register(term=3)
    await client.call(104, BrokerNodeHeader("broker-0", A, "C", 0, state_version=2))
    assert (await client.route()).code == 0
    await client.call(104, NODE)
    assert (await client.route()).code == 17


async def test_a_follower_is_told_its_leader(client):
    await client.register()
    answer = await client.register(2, B)
    assert answer.ext == {"masterAddr": A, "haServerAddr": f"{A}-ha", "acceptsTopicChanges": "true"}


async def test_a_damaged_registration_changes_nothing(client):
    good = encode_registration(RegisterBrokerBody())
    header = RegisterBrokerHeader("broker-0", A, "C", "", 0, body_crc32=registration_crc(good))
    assert (await client.call(103, header, body=good)).code == 0
    code, remark = await client.refusal(103, header, body=good + b" ")
    assert (code, "crc32 not match" in remark) == (1, True)
    assert (await client.call(103, RegisterBrokerHeader("b", A, "C", "", 0, compressed=True), body=b"x")).code == 1


async def test_heartbeats_and_data_versions(client):
    same, other = b'{"stateVersion":1,"timestamp":0,"counter":2}', b'{"stateVersion":1,"timestamp":0,"counter":3}'
    assert (await client.call(904, BrokerHeartbeatHeader("C", A, "broker-0"))).code == 211
    assert (await client.call(322, NODE, body=same)).ext == {"changed": "true"}
    await client.register()
    assert (await client.call(904, BrokerHeartbeatHeader("C", A, "broker-0"))).code == 0
    answer = await client.call(322, NODE, body=same)
    assert (answer.ext, answer.body) == ({"changed": "false"}, same)
    assert (await client.call(322, NODE, body=other)).ext == {"changed": "true"}


async def test_a_broken_broker_connection_removes_the_broker_and_wakes_watches(server, client):
    async with connected(server) as broker:
        await broker.register()
        await client.register(2, B)
        seen = int((await client.call(20001, RouteWatchHeader("T1", 0, 0))).ext["version"])
        opaque = client.watch("T1", seen)
    woken = await client.receive()
    assert (woken.opaque, int(woken.ext["version"]) > seen) == (opaque, True)
    body = (await client.route()).body
    assert b'"brokerAddrs":{"0":"127.0.0.1:10921","2":"127.0.0.1:10921"}' in body


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
async def test_names_above_the_length_limit_are_refused(server, client, logged, changes, what):
    """Otherwise a name could take the 16 MiB of a header, for each of the maximum number of nodes."""
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
    async def change(name: str) -> tuple[int, str]:
        configs = {"T1": TopicConfig(name, 4, 4)}
        body = TopicChangesBody(DataVersion(1, 0, 2), DataVersion(1, 0, 3), configs)
        return await client.refusal(20005, NODE, body=encode_body(body))

    await client.register()
    code, remark = await change(f"{LONGEST}1")
    assert (code, "the topic name nnn" in remark) == (1, True)
    assert await change(LONGEST) == (0, "")
    assert LONGEST in server.table.topics()


async def test_during_a_large_registration_only_nodes_of_the_same_group_wait(server, client, monkeypatch):
    monkeypatch.setattr(processors, "MAX_SMALL_BYTES", 1_000)
    began, go_on, register_steps = asyncio.Event(), asyncio.Event(), RequestTurns.run

    async def with_a_pause(turns, steps):
        if not began.is_set():
            next(steps)
            began.set()
            await go_on.wait()
        return await register_steps(turns, steps)

    monkeypatch.setattr(RequestTurns, "run", with_a_pause)
    monkeypatch.setattr(table, "SLICE_TOPICS", 10)
    sent = asyncio.create_task(client.register(topics=[f"T{number}" for number in range(100)]))
    async with connected(server) as same, connected(server) as other:
        await began.wait()
        follower = asyncio.create_task(same.register(2, B, topics=["T1", "T2"]))
        assert (await other.register(address=C, name="broker-1")).code == 0
        assert not follower.done()
        go_on.set()
        for answer in await asyncio.gather(sent, follower):
            assert answer.code == 0
        assert server.table.route_count == 102, "topics of a follower are none of its group"


async def test_a_registration_whose_client_goes_between_its_slices_is_gone_as_a_whole(server, client, monkeypatch):
    monkeypatch.setattr(table, "SLICE_TOPICS", 2)
    routes = server.table
    pausing = routes.register_steps(*registration_of(10), now_ms=0, connection=77)
    next(pausing)
    assert 0 < routes.route_count < 10
    routes.drop_connection(77)
    assert routes.route_count == 0
    with pytest.raises(StopIteration) as end:
        next(pausing)
    assert "went while its topics were taken" in end.value.value.refusal
    assert (routes.route_count, routes.node_count) == (0, 0)


async def test_registrations_that_wait_have_a_limit_in_sum(server, client, monkeypatch):
    monkeypatch.setattr(processors, "MAX_SMALL_BYTES", 0)
    await server._processors._registration_lock.acquire()
    server._processors._registration_bytes = server.config.max_partial_bytes
    assert (await client.register()).code == 2
    server._processors._registration_bytes = 0
    server._processors._registration_lock.release()
    assert (await client.register()).code == 0


@pytest.mark.parametrize("compressed", [True, False])
async def test_a_registration_of_too_many_topics_is_refused_before_it_is_decoded(client, compressed, monkeypatch):
    def decode(*_):
        raise AssertionError("a topic was decoded")

    monkeypatch.setattr(wire, "_decode_topic_line", decode)
    monkeypatch.setattr(wire, "_decode_pieces", decode)
    header, _ = registration_of(1)
    if compressed:
        line = pack(">i", 12) + b"a 1 1 6 S {}"
        body = zlib.compress(pack(">i", 2) + b"{}" + pack(">i", 4_000_000) + line * 4_000_000, 9)
    else:
        body = b'{"topicConfigSerializeWrapper":{"topicConfigTable":{' + b'"a":{"attributes":{}},' * 140_000 + b"}}}"
    code, remark = await client.refusal(103, msgspec.structs.replace(header, compressed=compressed), body=body)
    assert (code, "the limit is 65536" in remark) == (1, True)


async def test_changes_count_by_the_names_of_their_topics(tmp_path):
    """A key in the table of changes may differ from its topic's name. The stored name counts."""
    limited = RouteTable(limits=TableLimits(max_routes=100))
    header, body = registration_of(100)
    assert not limited.register(header, body, now_ms=0, connection=1).refusal
    base = body.topic_config_serialize_wrapper.data_version
    after = msgspec.structs.replace(base, counter=base.counter + 1)
    renamed = {f"T{number}": TopicConfig(f"other-{number}") for number in range(100)}
    node = BrokerNodeHeader(header.broker_name, header.broker_addr, header.cluster_name, 0, 1)
    assert not limited.change_topics(node, TopicChangesBody(base, after, renamed, []), now_ms=0)
    assert limited.route_count == 100


def registration_of(count):
    return RegisterBrokerHeader("b", A, "C", A, 0), registration(f"T{number}" for number in range(count))
