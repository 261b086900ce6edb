"""An ordered consumer with locks delivers only under a lock, and releases the lock after the commit."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from client_fakes import FakeCluster, until
from consuming import AtWork, Share, fill, topic_queues

import dledger_client.consumer
import dledger_client.consuming.settlements
from dledger_client import OrderlyConsumer, SyncConsumer
from dledger_client.consuming import locks
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, make_response


class LockingBrokers:
    """Locks of a fake group, and the member `me` of the group, whose share the test may take away."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.owners: dict[tuple[str, int], str] = {}
        self.share = Share()
        self._cluster = cluster
        cluster.answer(RequestCode.LOCK_BATCH_MQ, self.lock)
        cluster.answer(RequestCode.UNLOCK_BATCH_MQ, self._unlock)

    @property
    def owner(self) -> str | None:
        """Owner of the only queue of `T`."""
        return self.owners.get(("T", 0))

    def member(self, handler, **options) -> OrderlyConsumer:
        return OrderlyConsumer(
            self._cluster.namesrv, "CG", "T", handler, strategy=self.share, client_id="me", **options
        )

    def codes(self) -> list[int]:
        return [code for node in self._cluster.nodes for code in node.codes()]

    def requests_for_t(self, code: int) -> list[RemotingCommand]:
        return [one for one in self._cluster.requests(code) if is_for_t(one)]

    def lock(self, command: RemotingCommand) -> RemotingCommand:
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


def is_for_t(command: RemotingCommand) -> bool:
    return any(queue["topic"] == "T" for queue in json.loads(command.body)["mqSet"])


@pytest.fixture
def brokers(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> LockingBrokers:
    monkeypatch.setattr(locks, "RENEWAL_S", 0.05)
    monkeypatch.setattr(locks, "ASK_AGAIN_S", 0.02)
    return LockingBrokers(cluster)


async def test_messages_come_once_another_member_has_given_its_lock_up(cluster, brokers):
    fill(cluster, 3)
    brokers.owners["T", 0], seen = "other", []

    async def handler(message):
        seen.append(int(message.body))

    async with brokers.member(handler):
        await until(lambda: brokers.owners.get(("%RETRY%CG", 0)) == "me" or len(brokers.owners) == 1)
        await asyncio.sleep(0.1)
        assert seen == []
        del brokers.owners["T", 0]
        await until(lambda: seen == [0, 1, 2])
        assert brokers.owner == "me"
    assert cluster.group.offsets["CG", "T", 0] == 3
    assert brokers.owner is None
    commit, unlock, leave = (brokers.codes().index(code) for code in (15, 42, 35))
    assert commit < unlock < leave


async def test_an_orderly_message_that_is_never_finished_is_reported_as_a_stall(cluster, brokers):
    async def hangs(_message):
        await asyncio.Event().wait()

    fill(cluster, 2)
    async with brokers.member(hangs, warn_after=0.05, close_timeout=0.0) as consumer:
        await until(lambda: consumer.stalls == 1)
        assert [(stall.offset, stall.reason) for stall in consumer.stalled] == [(0, "not finished")]
        assert consumer.flow_stops == {"count": 0, "bytes": 0, "span": 0}


async def test_a_handler_that_is_cut_off_at_the_end_keeps_no_lock(cluster, brokers):
    fill(cluster, 1)
    begun, ended = asyncio.Event(), asyncio.Event()

    async def handler(_message):
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert brokers.owner == "me", "while it works"
            ended.set()

    async with brokers.member(handler, close_timeout=0.05):
        await begun.wait()
    assert ended.is_set()
    assert brokers.owners == {}
    assert not cluster.group.offsets.get(("CG", "T", 0))
    assert RequestCode.UNREGISTER_CLIENT in brokers.codes()


async def test_a_handler_that_cannot_be_cut_off_keeps_its_lock(cluster, brokers, monkeypatch):
    monkeypatch.setattr(dledger_client.consumer, "_CUT_OFF_SECONDS", 0.05)
    fill(cluster, 1)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handler(_message):
        begun.set()
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await go_on.wait()

    async with brokers.member(handler, close_timeout=0.05):
        await begun.wait()
        asyncio.get_running_loop().call_later(0.4, go_on.set)
    assert brokers.owner == "me"
    assert RequestCode.UNREGISTER_CLIENT not in brokers.codes()


@pytest.mark.parametrize("reset_between", [False, True])
async def test_a_lock_is_kept_during_work_although_the_share_changes(cluster, brokers, reset_between):
    """During the work on a message the queue goes to another member, comes back, and goes again."""
    fill(cluster, 3)
    handler = AtWork()
    async with brokers.member(handler) as member:
        consumer = member._consumer
        await handler.begun.wait()
        if reset_between:
            consumer._running.assignments.reset(dict.fromkeys(topic_queues(consumer), 0))
        for part in (0, None, 0, None):
            await brokers.share.becomes(consumer, part)
            await asyncio.sleep(0.05)
            assert (brokers.owner, handler.seen) == ("me", [0])
        handler.finish.set()
        await until(lambda: handler.seen[-1] == 2)
    assert handler.seen in ([0, 1, 2], [0, 0, 1, 2])


@pytest.mark.parametrize("how", ["taken", "lapsed"])
async def test_a_queue_is_read_from_its_committed_offset_after_a_lost_lock(cluster, brokers, how):
    fill(cluster, 3)
    seen, go_on = [], asyncio.Event()

    async def handler(message):
        seen.append(message.queue_offset)
        if len(seen) == 1:
            if how == "taken":
                brokers.owners["T", 0] = "other"
            await go_on.wait()

    async with brokers.member(handler) as consumer:
        await until(lambda: seen == [0])
        if how == "lapsed":  # another member may have owned the queue before it is granted again
            held = consumer._consumer._running.assignments._locks._held_until
            held.update(dict.fromkeys(held, 0.0))
        await asyncio.sleep(0.2)
        cluster.group.offsets["CG", "T", 0] = 2  # the other member has consumed up to here
        go_on.set()
        await asyncio.sleep(0.1)
        assert how == "lapsed" or seen == [0]
        brokers.owners.pop(("T", 0), None)
        await until(lambda: len(seen) == 2)
    assert seen == [0, 2]


@pytest.mark.parametrize("takes_back", [False, True])
async def test_a_failing_message_is_tried_in_its_place_and_at_last_put_aside(cluster, brokers, monkeypatch, takes_back):
    """A broker that takes it back gets the level of dead letters: it has not counted this consumer's own attempts."""
    monkeypatch.setattr(dledger_client.consuming.settlements, "pause_seconds", lambda _failures: 0.0)
    fill(cluster, 2)
    seen = []
    if takes_back:
        cluster.answer(RequestCode.CONSUMER_SEND_MSG_BACK, lambda command: make_response(command, 0))

    async def handler(message):
        seen.append((message.queue_offset, message.reconsume_times))
        if message.queue_offset == 0:
            raise ValueError("never")

    async with brokers.member(handler, max_reconsume_times=2):
        await until(lambda: (1, 0) in seen)
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 0)]
    [back] = cluster.requests(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert back.ext["delayLevel"] == "-1"
    assert cluster.group.bodies("%DLQ%CG") == ([] if takes_back else [b"0000"])


async def test_a_blocking_consumer_locks_its_queues_too(cluster, brokers):
    fill(cluster, 3)

    def read() -> list[int]:
        with SyncConsumer(cluster.namesrv, "CG", "T", orderly=True, queue_locks=True, client_id="me") as consumer:
            messages = [next(consumer) for _ in range(3)]
            assert brokers.owner == "me"
            messages[-1].ack()
            return [message.queue_offset for message in messages]

    assert await asyncio.to_thread(read) == [0, 1, 2]
    assert brokers.owner is None


async def ignore(_message):
    pass


async def test_a_lock_granted_after_the_queue_left_the_share_is_released(cluster, brokers):
    """A member asks for a lock, the queue leaves its share, and then the broker grants the lock."""
    asked, grant = asyncio.Event(), asyncio.Event()

    async def slow(command):
        if is_for_t(command):
            asked.set()
            await grant.wait()
        return brokers.lock(command)

    cluster.answer(RequestCode.LOCK_BATCH_MQ, slow)
    async with brokers.member(ignore) as consumer:
        await asked.wait()
        await brokers.share.becomes(consumer._consumer, 0)
        grant.set()
        await until(lambda: brokers.requests_for_t(RequestCode.UNLOCK_BATCH_MQ))
        await until(lambda: brokers.owner is None)


async def test_a_lock_is_kept_while_a_commit_of_its_queue_is_under_way(cluster, brokers):
    """A commit waits for its answer. Meanwhile the group is reset, and the queue goes to another member."""
    fill(cluster, 1)
    handled, committing, answer = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def commit(command):
        if command.ext["topic"] == "T":
            committing.set()
            await answer.wait()
        return make_response(command, 0)

    async def handler(_message):
        handled.set()

    cluster.answer(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    async with brokers.member(handler) as member:
        assignments = member._consumer._running.assignments
        await handled.wait()
        commits = asyncio.ensure_future(assignments.commit())
        await committing.wait()
        assignments.reset(dict.fromkeys(topic_queues(member), 0))
        await asyncio.sleep(0.05)
        await brokers.share.becomes(member._consumer, 0)
        await asyncio.sleep(0.1)
        assert brokers.owner == "me"
        answer.set()
        await until(lambda: brokers.owner is None)
        await commits


@pytest.mark.parametrize("late", ["repeated", "answered"])
async def test_a_renewal_that_takes_effect_behind_its_release_brings_no_lock_back(cluster, brokers, late):
    """A renewal is under way while the queue and its lock are given up.

    Afterwards the broker grants the renewal, or its earlier answer arrives.
    """
    fill(cluster, 1)
    renewing, go_on = asyncio.Event(), asyncio.Event()

    async def held_up(command):
        if not is_for_t(command) or brokers.owner != "me" or go_on.is_set():
            return brokers.lock(command)
        answer = brokers.lock(command) if late == "answered" else None
        renewing.set()
        await go_on.wait()
        return answer or brokers.lock(command)

    cluster.answer(RequestCode.LOCK_BATCH_MQ, held_up)
    async with brokers.member(ignore) as consumer:
        await renewing.wait()
        await brokers.share.becomes(consumer._consumer, 0)
        await until(lambda: brokers.requests_for_t(RequestCode.UNLOCK_BATCH_MQ))
        await until(lambda: brokers.owner is None)
        renewal, release = (
            brokers.requests_for_t(code)[-1].ext for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ)
        )
        assert renewal["lockSession"] == release["lockSession"], "the broker can tell that the renewal is void"
        assert int(renewal["lockNumber"]) < int(release["lockNumber"])
        go_on.set()
        await asyncio.sleep(0.2)
        await until(lambda: brokers.owner is None)
        held = consumer._consumer._running.assignments._locks._held_until
        assert not any(queue.topic == "T" for queue in held)
