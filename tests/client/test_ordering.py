"""Messages with one ordering key keep their order, also if single attempts fail."""

from __future__ import annotations

import asyncio
from itertools import count

from client_fakes import CLOSE, fake_cluster, refusing

from dledger_client import Message, Producer, SendError
from dledger_client.cluster.routes import queue_of_key
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response

CLUSTER = {"topics": {"T": 4}}


async def test_order_per_key_survives_refusals_and_lost_connections(cluster, producer):
    leader = cluster.group.nodes[0]
    numbers = count(1)

    def sometimes(command):
        number = next(numbers)
        if number % 5 == 2:
            return make_response(command, ResponseCode.SYSTEM_BUSY, "busy")
        return CLOSE if number % 7 == 3 else leader._send(command)

    leader.on[RequestCode.SEND_MESSAGE_V2] = sometimes
    sends = [producer.send("T", b"%03d" % number, ordering_key="k") for number in range(60)]
    results = await asyncio.gather(*sends)
    assert len({result.queue_id for result in results}) == 1
    assert cluster.group.bodies("T") == [b"%03d" % number for number in range(60)]


async def test_order_per_key_survives_a_new_leader(cluster, producer):
    sends = [asyncio.create_task(producer.send("T", b"%03d" % n, ordering_key="k")) for n in range(100)]
    while len(cluster.group.bodies("T")) < 20:
        await cluster.group.arrived.wait()
    await cluster.group.elect(cluster.group.nodes[1])
    await asyncio.gather(*sends)
    assert cluster.group.bodies("T") == [b"%03d" % number for number in range(100)]


async def test_batches_and_single_messages_of_one_key_share_the_order(cluster):
    async with Producer(cluster.namesrv, max_batch_bytes=1000) as producer:
        batch = [Message(b"b%02d" % number * 30) for number in range(30)]
        await asyncio.gather(
            producer.send("T", b"first", ordering_key="k"),
            producer.send_batch("T", batch, ordering_key="k"),
            producer.send("T", b"last", ordering_key="k"),
        )
        assert cluster.group.bodies("T") == [b"first", *(message.body for message in batch), b"last"]


async def test_a_key_always_goes_to_the_same_queue_and_keys_spread_over_all():
    async with fake_cluster(groups=2) as cluster, Producer(cluster.namesrv) as producer:
        queues = await producer.queues("T")
        route = producer._core.routes.cached("T")
        assert {queue_of_key(route, str(key)) for key in range(200)} == set(queues)
        assert queue_of_key(route, "order-17") == queue_of_key(route, "order-17")
        assert len(queues) == 8


async def test_a_failed_message_does_not_block_its_successors(cluster, producer):
    leader = cluster.group.nodes[0]
    leader.answer_in_turn(RequestCode.SEND_MESSAGE_V2, refusing(ResponseCode.NO_PERMISSION), leader._send)
    first, second = await asyncio.gather(
        producer.send("T", b"1", ordering_key="k"), producer.send("T", b"2", ordering_key="k"), return_exceptions=True
    )
    assert isinstance(first, SendError)
    assert second.queue_offset == 0


async def test_a_new_send_does_not_overtake_a_send_that_waited_for_the_route(cluster, producer):
    sends = [asyncio.create_task(producer.send("T", b"0", ordering_key="k"))]
    core, _ = producer._require_started()
    core.routes.listeners.append(
        lambda _: sends.append(asyncio.create_task(producer.send("T", b"1", ordering_key="k")))
    )
    await sends[0]
    await asyncio.gather(*sends)
    assert cluster.group.bodies("T") == [b"0", b"1"]
