"""If the caller of a pop is gone, its messages are not lost, and the pop does not count as a delivery."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec
import pytest
from client_fakes import FakeCluster, HandClock, answer_to_pop, answering, fake_cluster, until

from dledger_client import NoBrokerError, SimpleConsumer
from dledger_client.cluster.core import ATTEMPT_SECONDS
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, make_response
from dledger_remoting.headers import encode_ext
from dledger_remoting.headers_pop import UNTAKEN_FIELD, ChangeInvisibleResponseHeader
from dledger_remoting.pop import parse_check_point
from dledger_remoting.properties import POP_CHECK_POINT

CLUSTER = {"nodes": 1, "topics": {"T": 1}}


class Broker:
    """Broker that answers pops when the test says so, and records messages that are given back."""

    def __init__(self, cluster: FakeCluster, group: int = 0) -> None:
        self.given_back: list[int] = []
        self.waiting: deque[asyncio.Future[list[bytes]]] = deque()
        self._group = cluster.groups[group]
        node = self._group.nodes[0]
        node.on[RequestCode.POP_MESSAGE] = self._pop
        node.on[RequestCode.CHANGE_MESSAGE_INVISIBLETIME] = self._change

    async def arrives(self, *bodies: bytes) -> None:
        """Answer the pop that has waited longest."""
        await until(lambda: self.waiting)
        self.waiting.popleft().set_result(list(bodies))

    async def _pop(self, command: RemotingCommand) -> RemotingCommand:
        waiting: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        self.waiting.append(waiting)
        records = [self._group.store("T", 0, body) for body in await waiting]
        return answer_to_pop(command, records)

    def _change(self, command: RemotingCommand) -> RemotingCommand:
        assert (command.ext[UNTAKEN_FIELD], command.ext["invisibleTime"]) == ("true", "0")
        self.given_back.append(int(command.ext["offset"]))
        return make_response(command, 0, ext=encode_ext(ChangeInvisibleResponseHeader(2_000, 1, 0)))


async def cut_off(broker: Broker, consumer: SimpleConsumer) -> None:
    """Begin to receive, and cancel once the broker has the pop."""
    call = asyncio.create_task(consumer.receive(wait=2.0))
    await until(lambda: broker.waiting)
    call.cancel()
    await asyncio.wait((call,))
    assert call.cancelled()


async def bodies(consumer: SimpleConsumer, max_messages: int = 32, wait: float = 2.0) -> list[bytes]:
    async with asyncio.timeout(10):
        return [message.body for message in await consumer.receive(max_messages, wait=wait)]


async def test_messages_of_a_cancelled_receive_come_with_the_next_receive(cluster):
    broker = Broker(cluster)
    async with SimpleConsumer(cluster.namesrv, "CG", "T") as consumer:
        await cut_off(broker, consumer)
        await broker.arrives(b"a", b"b")
        await until(lambda: consumer._pops._unclaimed)
        assert await bodies(consumer, 1) == [b"a"]
        assert await bodies(consumer, 1) == [b"b"]
    assert broker.given_back == []


async def test_the_next_receive_reuses_the_pop_that_is_under_way(cluster):
    broker = Broker(cluster)
    async with SimpleConsumer(cluster.namesrv, "CG", "T") as consumer:
        for _ in range(5):
            await cut_off(broker, consumer)
        assert len(broker.waiting) == 1
        call = asyncio.create_task(bodies(consumer, wait=5.0))
        await broker.arrives(b"a")
        assert await call == [b"a"]


async def test_unclaimed_messages_go_back_to_the_broker_after_a_while(cluster):
    broker = Broker(cluster)
    async with SimpleConsumer(cluster.namesrv, "CG", "T", invisible=40) as consumer:
        await cut_off(broker, consumer)
        await broker.arrives(b"a")
        await until(lambda: consumer._pops._unclaimed)
        with HandClock() as clock:
            await asyncio.sleep(0)  # the task that waits has only been made when the message is there
            clock.advance(10.1)
            await clock.until(lambda: broker.given_back)
        assert (broker.given_back, consumer._pops.take(1)) == ([0], [])


async def test_unclaimed_messages_go_back_to_the_broker_when_the_consumer_closes(cluster):
    broker = Broker(cluster)
    async with SimpleConsumer(cluster.namesrv, "CG", "T") as consumer:
        await cut_off(broker, consumer)
        await broker.arrives(b"a", b"b")
    assert sorted(broker.given_back) == [0, 1], "the answer was on its way when close was called"


async def test_messages_that_are_put_back_come_with_the_next_receive_and_go_back_when_the_consumer_closes(cluster):
    broker = Broker(cluster)
    async with SimpleConsumer(cluster.namesrv, "CG", "T") as consumer:
        call = asyncio.create_task(consumer.receive(wait=2.0))
        await broker.arrives(b"a", b"b")
        consumer.put_back(await call)
        assert await bodies(consumer, 1) == [b"a"]
    assert broker.given_back == [1]


async def test_a_consumer_that_has_received_nothing_acknowledges_what_another_has_received(cluster):
    broker = Broker(cluster)
    cluster.answer(RequestCode.ACK_MESSAGE, answering())
    async with SimpleConsumer(cluster.namesrv, "CG", "T") as receiver:
        call = asyncio.create_task(receiver.receive(wait=2.0))
        await broker.arrives(b"a")
        (message,) = await call
    async with SimpleConsumer(cluster.namesrv, "CG", "T", timeout=5.0) as other:
        assert await other.ack(message)
    assert [command.ext["offset"] for command in cluster.requests(RequestCode.ACK_MESSAGE)] == ["0"]


async def test_a_message_of_a_broker_group_that_the_topic_does_not_have_is_refused_at_once(cluster):
    broker = Broker(cluster)
    async with SimpleConsumer(cluster.namesrv, "CG", "T") as consumer:
        call = asyncio.create_task(consumer.receive(wait=2.0))
        await broker.arrives(b"a")
        (message,) = await call
        point = parse_check_point(message.properties[POP_CHECK_POINT])
        elsewhere = {POP_CHECK_POINT: msgspec.structs.replace(point, broker_name="nowhere").text}
        with pytest.raises(NoBrokerError, match="no broker group nowhere"):
            await consumer.ack(msgspec.structs.replace(message, properties=elsewhere))
        assert "nowhere" not in consumer._core.routes.groups, "strangers' names fill no table"


async def test_the_messages_of_a_late_answer_come_with_the_next_call(cluster):
    broker = Broker(cluster)
    async with SimpleConsumer(cluster.namesrv, "CG", "T") as consumer:
        call = asyncio.create_task(bodies(consumer))
        await until(lambda: broker.waiting)
        connection = consumer._core.pool.peek(cluster.group.nodes[0].address)
        with HandClock() as clock:
            clock.advance(ATTEMPT_SECONDS)
            # Pretend that other traffic has kept the connection alive.
            connection._silent_since = asyncio.get_running_loop().time()
        await until(lambda: len(broker.waiting) == 2)
        await broker.arrives(b"late")
        assert await call == [b"late"]
        await broker.arrives(b"next")
        assert await bodies(consumer) == [b"next"]


async def test_a_broker_group_without_a_leader_does_not_block_pops_of_others() -> None:
    async with fake_cluster(groups=2, nodes=1, topics={"T": 1}) as cluster:
        broker = Broker(cluster, 1)
        async with SimpleConsumer(cluster.namesrv, "CG", "T") as consumer:
            cluster.groups[0].leader = None
            cluster.groups[0].nodes[0].on[RequestCode.POP_MESSAGE] = cluster.groups[0].nodes[0].not_leader
            for body in (b"a", b"b", b"c"):
                call = asyncio.create_task(bodies(consumer))
                await until(lambda: broker.waiting, 5)
                await broker.arrives(body)
                assert await call == [body]
