"""Clients that have queues assigned, and their requests."""

from __future__ import annotations

import json

from served_broker import FakeClient, ServedBroker

from dledger_broker.features.assignments.table import REQUEST_MODES, RequestModeTable
from dledger_remoting.command import RemotingCommand
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData
from dledger_remoting.route import QueueData, TopicRouteData

QUERY, SET_MODE, MODES = 400, 401, 402

Assigned = list[tuple[str, int, str]]
"""Broker group, queue and mode."""


def join(client: FakeClient, *client_ids: str) -> None:
    """Have clients heartbeat as members of CG."""
    for client_id in client_ids:
        heartbeat = HeartbeatData(client_id, consumer_data_set=[ConsumerData("CG")])
        client.broker.service.gossip.local.heartbeat(client, heartbeat, 0, 479, client.broker.memory.env.now())


def question(client_id: str = "a", **fields: str) -> bytes:
    """The body of 400, as Java's client writes it."""
    asked = {
        "clientId": client_id,
        "consumerGroup": "CG",
        "messageModel": "CLUSTERING",
        "strategyName": "AVG",
        "topic": "T1",
        **fields,
    }
    return json.dumps(asked).encode()


def assigned(answer: RemotingCommand) -> Assigned | None:
    """The queues of an answer, sorted; None if the client is to go on with what it has."""
    assert answer.code == 0, answer.remark
    rows = json.loads(answer.body).get("messageQueueAssignments")
    if rows is None:
        return None
    queues = [(row["messageQueue"], row["mode"]) for row in rows]
    return sorted((queue["brokerName"], queue["queueId"], mode) for queue, mode in queues)


def ask(client: FakeClient, client_id: str = "a", **fields: str) -> Assigned | None:
    """What a client is to consume."""
    return assigned(client.call(QUERY, body=question(client_id, **fields)))


def queues(client: FakeClient, client_id: str = "a", **fields: str) -> list[int]:
    """The queues of one broker group that a client is to consume, in whatever mode."""
    found = ask(client, client_id, **fields)
    assert found is not None
    return [queue_id for _, queue_id, _ in found]


def set_mode(client: FakeClient, mode: str = "POP", share: int = 0, topic: str = "T1", group: str = "CG") -> int:
    """Say how a group consumes a topic; returns the code."""
    body = {"consumerGroup": group, "mode": mode, "popShareQueueNum": share, "topic": topic}
    return client.call(SET_MODE, body=json.dumps(body).encode()).code


def modes_of(broker: ServedBroker) -> RequestModeTable:
    return broker.memory.machine.state.table(REQUEST_MODES)


def route(*others: tuple[str, int, int]) -> TopicRouteData:
    """What name servers say: broker groups with their readable queues and perm, and what they believe of broker-a."""
    places = [("broker-a", 99, 6), *others]
    return TopicRouteData([QueueData(name, count, count, perm) for name, count, perm in places])
