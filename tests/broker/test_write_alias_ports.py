"""Three nodes with alias ports: the current leader stores what is sent to any of them, also if the leader changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio
from broker_group import BrokerGroup, client_of, running
from broker_in_process import Client

from dledger_broker.node import Broker
from dledger_remoting.codes import RequestCode


@pytest_asyncio.fixture
async def group(tmp_path: Path) -> AsyncIterator[BrokerGroup]:
    """Provide a group that holds forwarded requests longer: on a busy machine an election may exceed the default."""
    async with running(BrokerGroup(tmp_path, forward_hold_ms=60_000)) as made:
        yield made


async def alias_of(broker: Broker) -> Client:
    return await Client.connect(broker.config.alias_port)


async def test_every_node_takes_sends_at_its_alias_port(group: BrokerGroup) -> None:
    leader = await group.leader()
    for broker in (leader, *await group.followers()):
        client = await alias_of(broker)
        answer = await client.send(b"x")
        assert answer.code == 0
        queues = broker.state.topics["T1"].config.write_queue_nums
        assert int(answer.ext["queueId"]) == broker.config.alias_number % queues
        assert (await client.call(RequestCode.PULL_MESSAGE, {})).code == 17


async def test_no_send_to_an_alias_fails_when_the_leader_goes(group: BrokerGroup) -> None:
    """A send to the port of a node itself waits for the next leader too, but is not sent again."""
    leader = await group.leader()
    followers = await group.followers()
    clients = [await alias_of(follower) for follower in followers for _ in range(4)]
    own = await client_of(followers[0])
    for client in (clients[0], own):
        assert (await client.send(b"before")).code == 0
    sent = [asyncio.create_task(client.send(b"%d" % number)) for number, client in enumerate(clients)]
    await leader.stop()
    del group.brokers[leader.config.node_id]
    lost = [answer for answer in [await own.send(b"%d" % number) for number in range(3)] if answer.code != 0]
    answers = await asyncio.gather(*sent)
    answers += [await client.send(b"later") for client in clients]
    assert {answer.code for answer in answers} == {0}
    assert [answer.ext.get("outcome") for answer in lost] in ([], ["unknown"])
    assert sum(follower.counter.forward_expired for follower in followers) == 0
