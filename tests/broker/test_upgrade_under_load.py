"""Upgrade of a group, one node after another, while clients go on: what older nodes do not understand is refused with a
text until the last one is new, and works then. A node that goes back to an older build refuses to run.

A node of an older build is one that tells fewer command kinds: it is never sent what it would not know.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from broker_group import BrokerGroup, client_of
from broker_in_process import Client

from dledger_broker.features import FEATURES, assignments, pop, transactions
from dledger_broker.kernel import machine as machine_module
from dledger_broker.kernel.activation import ACTIVATE_FEATURES
from dledger_broker.kernel.commands import CommandRegistry
from dledger_broker.kernel.feature import Replicated
from dledger_broker.kernel.parts import Feature
from dledger_broker.kernel.state import registry_of
from dledger_broker.node import Broker
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.pop import CheckPoint, Retry
from dledger_remoting.pop_bodies import BatchAck, bits_of, encode_batch_ack
from dledger_remoting.record import iter_records
from dledger_remoting.topics import HALF_TOPIC
from tests.broker.features.locks.lock_bodies import lock_body

ACTIVATED = frozenset(feature.name for feature in FEATURES if feature.activated)
HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"
POLICY = {"groupName": "CG", "groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}}}
INVISIBLE_MS = 60_000
START_OF_ALL = 0
POP = {
    "consumerGroup": "CG",
    "topic": "T1",
    "queueId": "0",
    "maxMsgNums": "3",
    "invisibleTime": str(INVISIBLE_MS),
    "pollTime": "0",
    "bornTime": "0",
    "initMode": "0",
}
MODE = {"topic": "T1", "consumerGroup": "CG", "mode": "POP", "popShareQueueNum": 0}
ASSIGNED = {
    "topic": "T1",
    "consumerGroup": "CG",
    "clientId": "anna",
    "strategyName": "AVG",
    "messageModel": "CLUSTERING",
}
RETRIED = {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE}
PAUSE_S = 0.02


def registry_of_an_older_build(features: Sequence[Replicated]) -> CommandRegistry:
    """A registry that tells the kinds from before features were activated."""
    registry = registry_of(features)
    registry.kinds = tuple(kind for kind in registry.kinds if kind < ACTIVATE_FEATURES)
    return registry


@contextmanager
def older_build() -> Iterator[None]:
    """Nodes that start meanwhile are older."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_module, "registry_of", registry_of_an_older_build)
        yield


class Load:
    """Sends that go on whatever the nodes do; `acknowledged` are the bodies that were answered 0."""

    def __init__(self, group: BrokerGroup) -> None:
        self._group = group
        self._stops = False
        self.acknowledged: list[bytes] = []
        self.refused: list[RemotingCommand] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        number = 0
        while not self._stops:
            node = list(self._group.brokers.values())[number % len(self._group.brokers)]
            body, number = b"load %d" % number, number + 1
            with suppress(OSError, TimeoutError):  # the node restarts: whether it is stored nobody knows
                client = await client_of(node)
                answer = await client.send(body)
                client.close()
                if answer.code == ResponseCode.SUCCESS:
                    self.acknowledged.append(body)
                elif answer.code not in RETRIED and answer.ext.get("outcome") != "unknown":
                    self.refused.append(answer)
            await asyncio.sleep(0)

    async def reaches(self, count: int) -> None:
        """Wait until so many more are acknowledged: the group takes messages."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(30):
            while len(self.acknowledged) < wanted:  # noqa: ASYNC110 - a client sees answers alone
                await asyncio.sleep(PAUSE_S)

    async def stop(self) -> None:
        self._stops = True
        await self._task


async def every_new_request(client: Client) -> dict[str, RemotingCommand]:
    """What became of requests that an older build does not know, by their names."""
    offset = {"offset": "0", "group": "CG", "delayLevel": "1"}
    message = next(iter_records((await client.pull(0)).body))
    half = {"producerGroup": "PG", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8"}
    put = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP
    return {
        "delayed send": await client.send(b"later", i="DELAY\x011\x02"),
        "half send": await client.send(b"half", i=HALF, f="4"),
        "send-back": await client.call(36, offset | {"offset": str(message.physical_offset)}),
        "end of a transaction": await client.call(37, half),
        "recall": await client.call(370, {"producerGroup": "PG", "topic": "T1", "recallHandle": "none"}),
        "lock": await client.call(41, {}, lock_body("anna", ("T1", 0))),
        "unlock": await client.call(42, {}, lock_body("anna", ("T1", 0))),
        "retry policy": await client.call(put, {}, json.dumps(POLICY).encode()),
        **await every_pop_request(client),
        "request mode": await client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(MODE).encode()),
        "request modes": await client.call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, {}),
        "assignment": await client.call(RequestCode.QUERY_ASSIGNMENT, {}, json.dumps(ASSIGNED).encode()),
    }


async def every_pop_request(client: Client) -> dict[str, RemotingCommand]:
    """The same of POP: three messages are popped, of which one each is acknowledged, hidden anew, one of a batch."""
    popped = await client.call(RequestCode.POP_MESSAGE, POP)
    start, time_ms = START_OF_ALL, 1
    if popped.code == ResponseCode.SUCCESS:
        start, time_ms = int(popped.ext["startOffsetInfo"].split(" ")[2]), int(popped.ext["popTime"])

    def about(number: int) -> dict[str, str]:
        point = CheckPoint(start, time_ms, INVISIBLE_MS, False, Retry.NONE, "broker-a", 0, start + number)
        queue = {"consumerGroup": "CG", "topic": "T1", "queueId": "0"}
        return queue | {"extraInfo": point.text, "offset": str(start + number)}

    batch = BatchAck("CG", "T1", Retry.NONE, start, 0, time_ms, bits_of(start, [start + 1]))
    hidden = {"invisibleTime": str(INVISIBLE_MS)}
    asked = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "bornTime": "0", "pollTime": "0"}
    return {
        "pop": popped,
        "acknowledgement": await client.call(RequestCode.ACK_MESSAGE, about(0)),
        "batch of acknowledgements": await client.call(
            RequestCode.BATCH_ACK_MESSAGE, {}, encode_batch_ack("broker-a", [batch])
        ),
        "change of an invisible time": await client.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, about(2) | hidden),
        "peek": await client.call(RequestCode.PEEK_MESSAGE, asked | {"maxMsgNums": "1"}),
        "notification": await client.call(RequestCode.NOTIFICATION, asked),
        "polling info": await client.call(RequestCode.POLLING_INFO, asked),
    }


async def active(group: BrokerGroup) -> None:
    """Wait until the leader uses every feature, and has the topic of halves."""
    leader = await group.leader()
    changed = asyncio.Event()
    for changes in (leader.machine.on_members_changed, leader.machine.on_topics_changed):
        changes.append(changed.set)
    async with asyncio.timeout(30):
        while not all(map(leader.machine.is_active, ACTIVATED)) or leader.machine.topic(HALF_TOPIC) is None:
            changed.clear()
            await changed.wait()


async def restart(group: BrokerGroup, node_id: str) -> Broker:
    """Stop a node, and start it with this build."""
    old = group.brokers[node_id]
    await old.stop()
    new = Broker(old.config)
    new.group.listeners.append(group._announce)
    group.brokers[node_id] = new
    await new.start()
    return new


async def test_new_requests_wait_for_the_last_node_and_nothing_stops_meanwhile(tmp_path: Path) -> None:
    group = BrokerGroup(tmp_path)
    first, second, third = group.brokers
    with older_build():
        await asyncio.gather(*(group.brokers[name].start() for name in (first, second)))
    await group.brokers[third].start()
    load = Load(group)
    try:
        await group.leader()
        await load.reaches(20)
        for name in (first, second):
            for broker in group.brokers.values():
                client = await client_of(broker)
                await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, b'{"groupName":"CG"}')
                for what, answer in (await every_new_request(client)).items():
                    assert answer.code == ResponseCode.SYSTEM_BUSY, (what, answer)
                    assert "is not active in this group yet" in (answer.remark or ""), what
                    assert second in (answer.remark or ""), (what, "names who is to be upgraded")
                client.close()
            await restart(group, name)
            await load.reaches(20)
        await active(group)
        await load.reaches(20)
        await load.stop()
        client = await client_of(group.brokers[first])
        answers = await every_new_request(client)
        assert "no transaction is open at 0" in (answers.pop("end of a transaction").remark or "")
        assert "recall handle is invalid" in (answers.pop("recall").remark or "")
        assert {what: answer.code for what, answer in answers.items()} == dict.fromkeys(answers, 0)
        assert load.refused == []
        assert not set(load.acknowledged) - set(await stored(client))
        client.close()
    finally:
        await load.stop()
        await asyncio.gather(*(broker.stop() for broker in group.brokers.values()))


async def stored(client: Client) -> list[bytes]:
    """The bodies in the first queue."""
    found: list[bytes] = []
    while (answer := await client.pull(len(found))).code == ResponseCode.SUCCESS:
        found += [record.body for record in iter_records(answer.body)]
    return found


def without(feature: Feature) -> list[Feature]:
    """The features of a build that has never heard of one of them."""
    return [replace(one, name="another") if one is feature else one for one in FEATURES]


async def write_new_kinds(group: BrokerGroup) -> None:
    """Have the log hold a half, a message that is popped and acknowledged, and how a group consumes a topic."""
    client = await client_of(await group.leader())
    await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP, {}, b'{"groupName":"CG"}')
    for _ in range(4):
        assert (await client.send(b"plain")).code == ResponseCode.SUCCESS
    assert (await client.send(b"half", i=HALF, f="4")).code == ResponseCode.SUCCESS
    answers = await every_pop_request(client)
    answers["mode"] = await client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(MODE).encode())
    assert {what: answer.code for what, answer in answers.items()} == dict.fromkeys(answers, 0)
    client.close()


@pytest.mark.parametrize(
    "feature", [transactions.FEATURE, pop.FEATURE, assignments.FEATURE], ids=lambda feature: feature.name
)
async def test_a_node_that_goes_back_to_an_older_build_says_what_it_lacks(group: BrokerGroup, feature: Feature) -> None:
    await active(group)
    await write_new_kinds(group)
    follower = (await group.followers())[0]
    await follower.stop()
    older = Broker(follower.config, features=without(feature))
    await older.start()
    async with asyncio.timeout(20):
        failure = await older.wait_failed()
    await older.stop()
    assert f"uses the feature '{feature.name}'" in str(failure)
    assert "upgrade this node" in str(failure)
    new = group.brokers[follower.config.node_id] = Broker(follower.config)
    await new.start()
    client = await client_of(new)
    assert (await client.send(b"after")).code == 0
    client.close()
