"""Upgrade of a group, one node after another, while clients go on.

Requests that older nodes do not understand are refused with a text until the last node is new, and work then. A node
that goes back to an older build refuses to run.

A node of an older build is a node that tells fewer command kinds: it is never sent commands that it would not know.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from broker_group import BrokerGroup, client_of
from broker_in_process import Client, until

from dledger_broker.features import FEATURES
from dledger_broker.features.accounts.table import DeleteAccount
from dledger_broker.kernel import machine as machine_module
from dledger_broker.kernel.activation import ACTIVATE_FEATURES
from dledger_broker.kernel.commands import CommandRegistry
from dledger_broker.kernel.feature import Replicated
from dledger_broker.kernel.parts import Feature
from dledger_broker.kernel.state import registry_of
from dledger_broker.node import Broker
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.headers_pop import LEASE_FIELD
from dledger_remoting.ids import offset_message_id
from dledger_remoting.pop import CheckPoint, Retry
from dledger_remoting.pop_bodies import BatchAck, bits_of, encode_batch_ack
from dledger_remoting.record import iter_records
from dledger_remoting.topics import HALF_TOPIC
from tests.broker.features.locks.lock_bodies import lock_body
from tests.broker.features.pop.pop_calls import pop_ext
from tests.broker.telling import tell

ACTIVATED = tuple(feature for feature in FEATURES if feature.activated)
ACCOUNTS = frozenset(range(50, 55)) | frozenset(range(3001, 3011))
"""Codes of requests about accounts, which nodes without access control refuse."""
HALF = "TRAN_MSG\x01true\x02PGROUP\x01PG\x02"
POLICY = {"groupName": "CG", "groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}}}
INVISIBLE_MS = 60_000
START_OF_ALL = 0
QUEUES = {"topic": "T1", "consumerGroup": "CG"}
MODE = {**QUEUES, "mode": "POP", "popShareQueueNum": 0}
ASSIGNED = {**QUEUES, "clientId": "anna", "strategyName": "AVG", "messageModel": "CLUSTERING"}
RESET = {"topic": "T1", "group": "CG", "timestamp": "-1", "isForce": "true"}
QUOTA = {"kind": "topic", "name": "T1", "messagesPerSecond": 1_000_000, "bytesPerSecond": 0}
REFUSED = {
    "end of a transaction": "no transaction is open at 0",
    "half that is checked again": "no transaction that was given up is kept",
    "recall": "recall handle is invalid",
    "where members are": "No Any Consumer online",
}
"""Texts of refusals after the feature is active, because the request is about something that does not exist."""
FROM_NODES = {RequestCode.CHANNEL_GONE, RequestCode.LEASE_HEARD}
"""Codes of requests that nodes send to each other, oneway."""
LEASE = {LEASE_FIELD: "push-consumer", "invisibleTime": "60000"}
RETRIED = {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE}
PAUSE_S = 0.02


def registry_of_an_older_build(features: Sequence[Replicated]) -> CommandRegistry:
    """Return a registry that tells the kinds from before features were activated."""
    registry = registry_of(features)
    registry.kinds = tuple(kind for kind in registry.kinds if kind < ACTIVATE_FEATURES)
    return registry


@contextmanager
def older_build() -> Iterator[None]:
    """Make the nodes that start meanwhile older nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine_module, "registry_of", registry_of_an_older_build)
        yield


class TurnsOfSends:
    """Sends that go on whatever the nodes do. `acknowledged` are the bodies that were answered 0."""

    def __init__(self) -> None:
        self._stops = False
        self.acknowledged: list[bytes] = []
        self.refused: list[RemotingCommand] = []
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        raise NotImplementedError

    async def reaches(self, count: int) -> None:
        """Wait until `count` more sends are acknowledged, which shows that the group takes messages."""
        wanted = len(self.acknowledged) + count
        await until(lambda: len(self.acknowledged) >= wanted, seconds=30)

    async def stop(self) -> None:
        self._stops = True
        await self._task


class Load(TurnsOfSends):
    """Sends to every node in turn."""

    def __init__(self, group: BrokerGroup) -> None:
        self._group = group
        super().__init__()

    async def _run(self) -> None:
        number = 0
        while not self._stops:
            node = list(self._group.brokers.values())[number % len(self._group.brokers)]
            body, number = b"load %d" % number, number + 1
            with suppress(OSError, TimeoutError):  # the node restarts: nobody knows whether the message is stored
                client = await client_of(node)
                answer = await client.send(body)
                client.close()
                if answer.code == ResponseCode.SUCCESS:
                    self.acknowledged.append(body)
                elif answer.code not in RETRIED and answer.ext.get("outcome") != "unknown":
                    self.refused.append(answer)
            await asyncio.sleep(0)


class AskingClient(Client):
    """Client that keeps which codes it has asked."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.asked: set[int] = set()

    async def call(self, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
        self.asked.add(code)
        return await super().call(code, ext, body)


async def every_new_request(broker: Broker) -> dict[str, RemotingCommand]:
    """Return the answers to the requests that an older build does not know, by name.

    Check that no code of an activated feature is left out.
    """
    client = await AskingClient.connect(broker.config.port)
    codes = {code for code, route in broker.service.parts.routes().items() if route.feature is not None}
    answers = await every_request_without_accounts(client)
    answers |= {code.name: await client.call(code) for code in map(RequestCode, sorted(codes & ACCOUNTS))}
    assert not codes - FROM_NODES - client.asked, "codes of activated features that nothing here asks"
    client.close()
    return answers


async def every_request_without_accounts(client: Client) -> dict[str, RemotingCommand]:
    """Return the answers to all requests but those about accounts, after the group that they need is made."""
    put = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTION_GROUP
    await client.call(put, {}, b'{"groupName":"CG"}')
    return {
        "delayed send": await client.send(b"later", i="DELAY\x011\x02"),
        "half send": await client.send(b"half", i=HALF, f="4"),
        "retry policy": await client.call(put, {}, json.dumps(POLICY).encode()),
        **await every_request_about_a_message(client),
        **await every_pop_request(client),
        **await every_request_about_a_group(client),
        **await every_request_of_operators(client),
    }


async def every_request_about_a_message(client: Client) -> dict[str, RemotingCommand]:
    """Return the answers to requests about delayed messages and halves."""
    message = next(iter_records((await client.pull(0)).body))
    back = {"offset": str(message.physical_offset), "group": "CG", "delayLevel": "1"}
    recall = {"producerGroup": "PG", "topic": "T1", "recallHandle": "none"}
    again = {"topic": "T1", "msgId": offset_message_id(message.store_host, message.physical_offset)}
    half = {"producerGroup": "PG", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8"}
    return {
        "send-back": await client.call(RequestCode.CONSUMER_SEND_MSG_BACK, back),
        "recall": await client.call(RequestCode.RECALL_MESSAGE, recall),
        "end of a transaction": await client.call(RequestCode.END_TRANSACTION, half),
        "half that is checked again": await client.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, again),
        "delayed messages": await client.call(RequestCode.LIST_DELAYED),
        "open halves": await client.call(RequestCode.LIST_HALVES),
    }


async def every_request_about_a_group(client: Client) -> dict[str, RemotingCommand]:
    """Return the answers to requests about queues: who owns them, how they are consumed, and from which offset on."""
    copy = {"srcGroup": "CG", "destGroup": "CG-2", "topic": "T1", "offline": "true"}
    members = {"topic": "T1", "group": "CG"}
    return {
        "lock": await client.call(RequestCode.LOCK_BATCH_MQ, {}, lock_body("anna", ("T1", 0))),
        "unlock": await client.call(RequestCode.UNLOCK_BATCH_MQ, {}, lock_body("anna", ("T1", 0))),
        "release of locks": await client.call(RequestCode.RELEASE_LOCKS, {"consumerGroup": "CG", "clientID": "anna"}),
        "request mode": await client.call(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(MODE).encode()),
        "request modes": await client.call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, {}),
        "assignment": await client.call(RequestCode.QUERY_ASSIGNMENT, {}, json.dumps(ASSIGNED).encode()),
        "reset": await client.call(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, RESET),
        "copy of offsets": await client.call(RequestCode.CLONE_GROUP_OFFSET, copy),
        "where members are": await client.call(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, members),
    }


async def every_request_of_operators(client: Client) -> dict[str, RemotingCommand]:
    """Return the answers to requests about settings and quotas."""
    return {
        "setting": await client.call(RequestCode.UPDATE_BROKER_CONFIG, {}, b"timer_max_delay_s=86400"),
        "settings": await client.call(RequestCode.GET_BROKER_CONFIG),
        "quota": await client.call(RequestCode.PUT_QUOTA, {}, json.dumps(QUOTA).encode()),
        "quotas": await client.call(RequestCode.LIST_QUOTAS),
    }


async def every_pop_request(client: Client) -> dict[str, RemotingCommand]:
    """Return the answers to requests of POP, about three popped messages.

    One message is acknowledged, one is hidden anew, and one is acknowledged in a batch.
    """
    popped = await client.call(RequestCode.POP_MESSAGE, pop_ext(queueId="0", maxMsgNums="3"))
    start, time_ms = START_OF_ALL, 1
    if popped.code == ResponseCode.SUCCESS:
        start, time_ms = int(popped.ext["startOffsetInfo"].split(" ")[2]), int(popped.ext["popTime"])

    def about(number: int) -> dict[str, str]:
        point = CheckPoint(start, time_ms, INVISIBLE_MS, False, Retry.NONE, "broker-a", 0, start + number)
        queue = {"consumerGroup": "CG", "topic": "T1", "queueId": "0"}
        return queue | {"extraInfo": point.text, "offset": str(start + number)}

    ack = BatchAck("CG", "T1", Retry.NONE, start, 0, time_ms, bits_of(start, [start + 1]))
    batch = encode_batch_ack("broker-a", [ack])
    hidden = {"invisibleTime": str(INVISIBLE_MS)}
    asked = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "bornTime": "0", "pollTime": "0"}
    arrived = {"consumerGroup": "CG", "topic": "T1", "clientId": "push-consumer", "invisibleTime": "60000"}
    return {
        "pop": popped,
        "confirmation of a lease": await client.call(
            RequestCode.CONFIRM_LEASE, arrived | {"deliveries": f"0 0 {time_ms}"}
        ),
        "acknowledgement": await client.call(RequestCode.ACK_MESSAGE, about(0)),
        "batch of acknowledgements": await client.call(RequestCode.BATCH_ACK_MESSAGE, {}, batch),
        "change of an invisible time": await client.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, about(2) | hidden),
        "pop under a lease": await client.call(RequestCode.POP_MESSAGE, pop_ext(queueId="0", maxMsgNums="1") | LEASE),
        "peek": await client.call(RequestCode.PEEK_MESSAGE, asked | {"maxMsgNums": "1"}),
        "notification": await client.call(RequestCode.NOTIFICATION, asked),
        "polling info": await client.call(RequestCode.POLLING_INFO, asked),
        "rollback of pops": await client.call(RequestCode.POP_ROLLBACK),
    }


async def active(group: BrokerGroup) -> None:
    """Wait until the leader uses every feature and has the topic of halves."""
    leader = await group.leader()
    changed = asyncio.Event()
    for event in ("members_changed", "topics_changed"):
        tell(leader.machine.events, event, changed.set)
    async with asyncio.timeout(30):
        while leader.machine.topic(HALF_TOPIC) is None or not all(
            leader.machine.is_active(feature.name) for feature in ACTIVATED
        ):
            changed.clear()
            await changed.wait()


async def restart(group: BrokerGroup, node_id: str) -> Broker:
    """Stop a node, and start it with this build."""
    old = group.brokers[node_id]
    await old.stop()
    new = Broker(old.config)
    tell(new.group.events, "leader_changed", group._announce)
    group.brokers[node_id] = new
    await new.start()
    return new


async def test_new_requests_are_refused_until_the_last_node_is_upgraded_and_sends_go_on(tmp_path: Path) -> None:
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
                for what, answer in (await every_new_request(broker)).items():
                    assert answer.code == ResponseCode.SYSTEM_BUSY, (what, answer)
                    assert "is not active in this group yet" in (answer.remark or ""), what
                    assert second in (answer.remark or ""), (what, "names who is to be upgraded")
            await restart(group, name)
            await load.reaches(20)
        await active(group)
        await load.reaches(20)
        await load.stop()
        check_that_all_is_taken(await every_new_request(group.brokers[first]))
        client = await client_of(group.brokers[first])
        assert load.refused == []
        identities = {broker.node.group_identity for broker in group.brokers.values()}
        assert len(identities) == 1, "all nodes have adopted the group's identity"
        assert "" not in identities
        assert not set(load.acknowledged) - set(await stored(client))
        client.close()
    finally:
        await load.stop()
        await asyncio.gather(*(broker.stop() for broker in group.brokers.values()))


async def stored(client: Client) -> list[bytes]:
    """Return the bodies in the first queue."""
    found: list[bytes] = []
    while (answer := await client.pull(len(found))).code == ResponseCode.SUCCESS:
        found += [record.body for record in iter_records(answer.body)]
    return found


def without(feature: Feature) -> list[Feature]:
    """Return the features of a build that has never heard of this feature."""
    return [replace(one, name="another") if one is feature else one for one in FEATURES]


def check_that_all_is_taken(answers: Mapping[str, RemotingCommand]) -> None:
    """Check that every request was answered 0 or has the refusal that is expected. The nodes have no access control."""
    refused = dict(REFUSED) | {RequestCode(code).name: "access control is off" for code in ACCOUNTS}
    for what, answer in answers.items():
        if what in refused:
            assert refused[what] in (answer.remark or ""), (what, answer)
        else:
            assert answer.code == ResponseCode.SUCCESS, (what, answer)


async def write_new_kinds(group: BrokerGroup) -> None:
    """Write commands of every activated feature into the log."""
    leader = await group.leader()
    client = await client_of(leader)
    for _ in range(5):
        assert (await client.send(b"plain")).code == ResponseCode.SUCCESS
    client.close()
    check_that_all_is_taken(await every_new_request(leader))
    applied = asyncio.get_running_loop().create_future()
    # This account does not exist: nodes without access control would refuse to serve a group with accounts.
    leader.machine.stage_command(DeleteAccount("anna"), applied.set_result)
    async with asyncio.timeout(20):
        assert await applied is None


@pytest.mark.parametrize("feature", ACTIVATED, ids=lambda feature: feature.name)
async def test_a_downgraded_node_fails_and_names_the_missing_feature(group: BrokerGroup, feature: Feature) -> None:
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
