"""Group of three nodes: each serves every request of a client, also while the leadership moves."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from broker_group import BrokerGroup, client_of

from dledger.replica.status import NodeStatus
from dledger_broker.features.client_membership import members
from dledger_broker.features.client_membership.members import LEADER_CHANGED_CODE, GroupMembers
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.node import Broker
from dledger_remoting.bodies import KVTable, decode_body
from dledger_remoting.record import iter_records


async def test_a_follower_takes_every_request_of_a_client(group: BrokerGroup) -> None:
    (follower, _), leader = await group.followers(), await group.leader()
    client = await client_of(follower)
    sent = [await client.send(b"%d" % number) for number in range(5)]
    assert [answer.ext["queueOffset"] for answer in sent] == ["0", "1", "2", "3", "4"]
    assert int(sent[0].ext["msgId"][8:16], 16) == leader.config.port
    pulled = await (await client_of(leader)).pull(0)
    records = list(iter_records(pulled.body))
    assert [record.body for record in records] == [b"0", b"1", b"2", b"3", b"4"]
    assert {record.born_host.ip for record in records} == {"127.0.0.1"}
    assert (
        await client.call(15, {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "3"})
    ).code == 0
    stored = await client.call(14, {"consumerGroup": "CG", "topic": "T1", "queueId": "0"})
    assert stored.ext["offset"] == "3"
    assert (await client.call(30, {"topic": "T1", "queueId": "0"})).ext["offset"] == "5"
    assert (await client.call(351, {"topic": "Unknown"})).code == 17
    assert follower.counter.forwarded > 0


async def test_a_follower_answers_a_heartbeat_once_group_and_retry_topic_exist_there_or_are_not_made(
    group: BrokerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client locks queues next, which is refused for a group that does not exist."""
    follower, _ = await group.followers()
    client = await client_of(follower)
    for number in range(20):
        name = f"fresh-{number}"
        assert (await client.heartbeat("c1", name)).code == 0
        assert name in follower.state.table(GROUPS).by_name
        assert f"%RETRY%{name}" in follower.state.topics
    monkeypatch.setattr(members, "MADE_S", 0.05)
    monkeypatch.setattr(GroupMembers, "ensure_all", lambda *_: None)
    assert (await client.heartbeat("c1", "refused")).code == 0
    assert "refused" not in follower.state.table(GROUPS).by_name


async def test_no_send_fails_while_the_leader_drains(group: BrokerGroup) -> None:
    leader = await group.leader()
    client, watcher = await client_of(leader), await client_of((await group.followers())[0])
    assert (await client.send(b"before")).code == 0
    await watcher.heartbeat("c1", dledgerNotify="true")
    watcher.pushed.clear()
    draining = asyncio.create_task(leader.drain())
    codes = []
    while not leader.group.leader_id or leader.group.leader_id == leader.config.node_id or len(codes) < 10:
        codes.append((await client.send(b"x")).code)
    assert set(codes) == {0}
    new_leader = await group.leader(other_than=leader)
    push = await watcher.next_push()
    while push.code != LEADER_CHANGED_CODE:
        push = await watcher.next_push()
    assert push.ext["leaderAddr"] == str(new_leader.config.advertised)
    assert (await client.send(b"still forwarded")).code == 0
    assert leader.stop_waits_for.startswith("clients are led to the other nodes, for ")
    leader.cut_drain()
    await draining
    assert "clients are led" not in leader.stop_waits_for


async def told(broker: Broker) -> dict[str, str]:
    """Return what a node says of itself on its client port."""
    return decode_body(KVTable, (await (await client_of(broker)).call(28)).body).table


async def test_runtime_info_of_a_group_has_member_addresses_status_and_draining(group: BrokerGroup) -> None:
    leader = await group.understanding()
    table = await told(leader)
    assert msgspec.json.decode(table["dledgerAddresses"]) == {
        node_id: str(broker.config.advertised) for node_id, broker in group.brokers.items()
    }
    status = msgspec.json.decode(table["dledgerStatus"], type=NodeStatus)
    assert (status.node_id, status.role, len(status.peers)) == (leader.config.node_id, "leader", 2)
    draining = asyncio.create_task(leader.drain())
    successor = await group.leader(other_than=leader)
    assert (await told(leader))["dledgerDraining"] == "true"
    assert (await told(successor))["dledgerDraining"] == "false"
    leader.cut_drain()
    await draining
