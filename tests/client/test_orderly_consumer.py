"""Consuming in order with locks: nothing is handed out without one, and it is given up behind what is committed."""

from __future__ import annotations

import asyncio
import json

import pytest
from client_fakes import FakeCluster, fake_cluster, until

import dledger_client.consumer
from dledger_client import InvalidArgumentError, OrderlyConsumer, PushConsumer, SyncConsumer, locks
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, make_response


class LockingBrokers:
    """The locks of a fake group: who owns which queue, and what was asked."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.owners: dict[tuple[str, int], str] = {}
        self.asked: list[int] = []
        for node in cluster.group.nodes:
            node.on[RequestCode.LOCK_BATCH_MQ] = self._lock
            node.on[RequestCode.UNLOCK_BATCH_MQ] = self._unlock

    def _lock(self, command: RemotingCommand) -> RemotingCommand:
        body = json.loads(command.body)
        granted = [
            queue
            for queue in body["mqSet"]
            if self.owners.setdefault((queue["topic"], queue["queueId"]), body["clientId"]) == body["clientId"]
        ]
        return make_response(command, 0, body=json.dumps({"lockOKMQSet": granted}).encode())

    def _unlock(self, command: RemotingCommand) -> RemotingCommand:
        body = json.loads(command.body)
        for queue in body["mqSet"]:
            if self.owners.get((queue["topic"], queue["queueId"])) == body["clientId"]:
                del self.owners[queue["topic"], queue["queueId"]]
        return make_response(command, 0)


@pytest.fixture(autouse=True)
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "RENEWAL_S", 0.05)
    monkeypatch.setattr(locks, "ASK_AGAIN_S", 0.02)


def fill(cluster: FakeCluster, count: int) -> None:
    for number in range(count):
        cluster.group.store("T", 0, b"%d" % number, b"")


async def test_messages_of_a_queue_come_once_another_member_has_given_its_lock_up() -> None:
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 3)
        brokers, seen = LockingBrokers(cluster), []
        brokers.owners["T", 0] = "other"

        async def handler(message):
            seen.append(int(message.body))

        async with OrderlyConsumer(cluster.namesrv, "CG", "T", handler, client_id="me"):
            await until(lambda: brokers.owners.get(("%RETRY%CG", 0)) == "me" or len(brokers.owners) == 1)
            await asyncio.sleep(0.1)
            assert seen == []
            del brokers.owners["T", 0]
            await until(lambda: seen == [0, 1, 2])
        assert cluster.group.offsets["CG", "T", 0] == 3


async def test_a_message_that_is_never_finished_is_told() -> None:
    async def hangs(_message):
        await asyncio.Event().wait()

    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 2)
        LockingBrokers(cluster)
        options = {"warn_after": 0.05, "close_timeout": 0.0}
        async with OrderlyConsumer(cluster.namesrv, "CG", "T", hangs, **options) as consumer:
            await until(lambda: consumer.stalls == 1)
            assert [(stall.offset, stall.reason) for stall in consumer.stalled] == [(0, "not finished")]
            assert consumer.flow_stops == {"count": 0, "bytes": 0, "span": 0}


async def test_a_lock_is_given_up_behind_what_is_committed() -> None:
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 3)
        brokers, seen = LockingBrokers(cluster), []

        async def handler(message):
            seen.append(message.queue_offset)

        async with OrderlyConsumer(cluster.namesrv, "CG", "T", handler, client_id="me"):
            await until(lambda: len(seen) == 3)
            assert brokers.owners["T", 0] == "me"
        assert ("T", 0) not in brokers.owners
        codes = [command.code for node in cluster.group.nodes for command in node.received]
        commit, unlock, leave = (codes.index(code) for code in (15, 42, 35))
        assert commit < unlock < leave


async def test_what_is_in_work_at_the_end_keeps_its_lock() -> None:
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 1)
        brokers, begun = LockingBrokers(cluster), asyncio.Event()

        async def handler(_message):
            begun.set()
            await asyncio.Event().wait()

        async with OrderlyConsumer(cluster.namesrv, "CG", "T", handler, client_id="me", close_timeout=0.05):
            await begun.wait()
        assert brokers.owners["T", 0] == "me"
        codes = [command.code for node in cluster.group.nodes for command in node.received]
        assert 35 not in codes


async def test_a_queue_whose_lock_was_lost_is_read_again_from_what_was_committed() -> None:
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 3)
        brokers, seen, go_on = LockingBrokers(cluster), [], asyncio.Event()

        async def handler(message):
            seen.append(message.queue_offset)
            if len(seen) == 1:
                brokers.owners["T", 0] = "other"
                await go_on.wait()

        async with OrderlyConsumer(cluster.namesrv, "CG", "T", handler, client_id="me"):
            await until(lambda: seen == [0])
            await asyncio.sleep(0.2)
            go_on.set()
            await asyncio.sleep(0.1)
            assert seen == [0]
            cluster.group.offsets["CG", "T", 0] = 2  # the other member has done so much
            del brokers.owners["T", 0]
            await until(lambda: len(seen) == 2)
        assert seen == [0, 2]


async def test_a_message_that_fails_is_tried_again_in_its_place_and_at_last_put_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dledger_client.consumer, "pause_seconds", lambda _failures: 0.0)
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 2)
        LockingBrokers(cluster)
        seen = []

        async def handler(message):
            seen.append((message.queue_offset, message.reconsume_times))
            if message.queue_offset == 0:
                raise ValueError("never")

        async with OrderlyConsumer(cluster.namesrv, "CG", "T", handler, max_reconsume_times=2):
            await until(lambda: (1, 0) in seen)
        assert seen == [(0, 0), (0, 1), (0, 2), (1, 0)]
        assert cluster.group.bodies("%DLQ%CG") == [b"0"]


async def test_a_broker_that_takes_messages_back_is_told_that_one_is_not_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tries were this consumer's: the broker has counted none, and would begin with its own."""
    monkeypatch.setattr(dledger_client.consumer, "pause_seconds", lambda _failures: 0.0)
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 2)
        LockingBrokers(cluster)
        leader = cluster.group.nodes[0]
        leader.on[RequestCode.CONSUMER_SEND_MSG_BACK] = lambda command: make_response(command, 0)
        seen = []

        async def handler(message):
            seen.append(message.queue_offset)
            if message.queue_offset == 0:
                raise ValueError("never")

        async with OrderlyConsumer(cluster.namesrv, "CG", "T", handler, max_reconsume_times=1):
            await until(lambda: 1 in seen)
        [command] = [command for command in leader.received if command.code == RequestCode.CONSUMER_SEND_MSG_BACK]
        assert (command.ext["delayLevel"], seen) == ("-1", [0, 0, 1])


async def test_a_blocking_consumer_locks_its_queues_too() -> None:
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 3)
        brokers = LockingBrokers(cluster)

        def read() -> list[int]:
            with SyncConsumer(cluster.namesrv, "CG", "T", orderly=True, queue_locks=True, client_id="me") as consumer:
                seen = []
                for message in consumer:
                    seen.append(message.queue_offset)
                    if len(seen) == 3:
                        assert brokers.owners["T", 0] == "me"
                        message.ack()
                        return seen
            raise AssertionError("the consumer was closed")

        assert await asyncio.to_thread(read) == [0, 1, 2]
        assert ("T", 0) not in brokers.owners


async def test_locks_are_for_consumers_that_share_queues_in_order() -> None:
    with pytest.raises(InvalidArgumentError, match="queue_locks"):
        PushConsumer("127.0.0.1:9", "CG", "T", queue_locks=True)


async def test_a_message_that_is_given_back_is_tried_again_in_its_place_when_its_handler_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pause of a failure is long here: what is asked for is waited for instead."""
    monkeypatch.setattr(dledger_client.consumer, "pause_seconds", lambda _failures: 1000.0)
    async with fake_cluster(topics={"T": 1}) as cluster:
        fill(cluster, 2)
        LockingBrokers(cluster)
        seen = []

        async def handler(message):
            seen.append((message.queue_offset, message.reconsume_times))
            if len(seen) < 3:
                consumer.nack(message, delay_s=0.01)

        consumer = OrderlyConsumer(cluster.namesrv, "CG", "T", handler)
        async with consumer:
            await until(lambda: (1, 0) in seen)
        assert seen == [(0, 0), (0, 1), (0, 2), (1, 0)]
