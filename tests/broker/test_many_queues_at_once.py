"""A node with a topic of 10,000 queues has no long turn under resets, pops, trims and changes of members at once.

The node runs on an event loop of its own thread, which measures the processor time of each of its turns.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest
from broker_in_process import Client, node_config, running

from dledger_broker.features.retention import job
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, SubscriptionData, encode_heartbeat
from tests.broker.features.pop.pop_calls import pop_ext
from tests.slowness import slowness

pytestmark = pytest.mark.long

QUEUES = 10_000
MAX_TURN_S = 0.05
ROUNDS = 4
"""Maximum number of rounds. Each does the same, so a turn that the node makes long is in all of them.

Other processes also make turns long, because they displace what the processor's caches hold. Those turns differ.
"""
BODY = b"x" * 60_000
POP, RESET, HEARTBEAT, LEAVE, MEMBERS, COMMIT, ASSIGNMENT = 200050, 222, 34, 35, 38, 15, 400
ResultT = TypeVar("ResultT")


class MeasuredLoop(asyncio.SelectorEventLoop):
    """Event loop that notes its longest turn since `longest_s` was last set to 0, in processor time of its thread."""

    longest_s = 0.0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest_s = max(self.longest_s, time.thread_time() - began)


class NodeThread:
    """Broker on a loop of its own."""

    def __init__(self, data: Path) -> None:
        self.loop = MeasuredLoop()
        self._data = data
        self._ready: Future[int] = Future()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self.loop.run_until_complete, args=(self._serve(),))

    async def _serve(self) -> None:
        config = node_config(self._data, retention_bytes=4 << 20, max_in_flight=20_000, max_held_pulls=20_000)
        async with running(config, bootstrap=True) as broker:
            self._ready.set_result(config.port)
            self.broker = broker
            await self._stopped.wait()

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._ready.result(30)
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(30)
        self.loop.close()


async def success(call: Coroutine[Any, Any, Any]) -> Any:
    answer = await call
    assert answer.code == 0, answer.remark
    return answer


def beat(member: int) -> bytes:
    consumer = ConsumerData("moving", subscription_data_set=[SubscriptionData("many")])
    return encode_heartbeat(HeartbeatData(f"member-{member}", [], [consumer]))


async def trims(client: Client) -> None:
    for number in range(150):
        await success(client.send(BODY, b="many", e=str(number * 33 % QUEUES)))


async def pops(client: Client) -> int:
    taken = 0
    for _ in range(30):
        answer = await client.call(POP, pop_ext("many", consumerGroup="popping", invisibleTime="10000"))
        taken += answer.code == 0
    return taken


async def resets(client: Client) -> None:
    for timestamp in ("0", "-1", "0", "-1"):
        await success(client.call(RESET, {"topic": "many", "group": "idle", "timestamp": timestamp, "isForce": "true"}))


async def members(port: int, number: int) -> None:
    """Let members come, pull a share of the queues, ask for an assignment, and go."""
    group = {"consumerGroup": "moving", "topic": "many"}
    asked = group | {"clientId": f"member-{number}", "strategyName": "AVG", "messageModel": "CLUSTERING"}
    for _ in range(3):
        client = await Client.connect(port)
        await success(client.call(HEARTBEAT, {}, beat(number)))
        for queue_id in range(number, QUEUES, 10):
            client.tell(COMMIT, group | {"queueId": str(queue_id), "commitOffset": "0"})
        for queue_id in range(number, QUEUES, 500):
            await client.pull(0, **group, queueId=str(queue_id), sysFlag="6", suspendTimeoutMillis="100")
        await success(client.call(MEMBERS, {"consumerGroup": "moving"}))
        await success(client.call(ASSIGNMENT, {}, json.dumps(asked).encode()))
        await success(client.call(LEAVE, {"clientID": f"member-{number}", "consumerGroup": "moving"}))
        client.close()


async def one(port: int, work: Any) -> None:
    client = await Client.connect(port)
    await work(client)
    client.close()


async def load(port: int) -> None:
    await asyncio.gather(
        *(one(port, work) for work in (trims, pops, pops, resets)), *(members(port, number) for number in range(5))
    )


async def create(port: int) -> None:
    client = await Client.connect(port)
    consumer = ConsumerData("idle", subscription_data_set=[SubscriptionData("many")])
    await success(client.call(HEARTBEAT, {}, encode_heartbeat(HeartbeatData("idle-0", [], [consumer]))))
    await success(client.create_topic("many", QUEUES))
    client.close()


def test_no_turn_with_many_queues_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(job, "CHECK_PERIOD_S", 0.5)
    gc.disable()  # a node collects long-lived objects only when it is idle
    request.addfinalizer(gc.enable)
    with NodeThread(tmp_path) as node:
        asyncio.run(create(node.port))
        longest_s: list[float] = []
        while len(longest_s) < ROUNDS and min(longest_s, default=1.0) >= MAX_TURN_S:
            node.loop.longest_s = 0.0
            trimmed = node.broker.counter.trimmed_messages.total()
            asyncio.run(load(node.port))
            for _ in range(10):  # the job looks from time to time
                if node.broker.counter.trimmed_messages.total() > trimmed:
                    break
                asyncio.run(one(node.port, trims))
            assert node.broker.counter.trimmed_messages.total() > trimmed
            longest_s.append(node.loop.longest_s)
    assert min(longest_s) < MAX_TURN_S * slowness(), longest_s
