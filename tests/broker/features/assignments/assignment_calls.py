"""Clients that have queues assigned, and their requests."""

import json

from served_broker import FakeClient, ServedBroker
from served_broker import join as join_one

from dledger_broker.features.assignments.table import REQUEST_MODES, RequestModeTable
from dledger_remoting.command import RemotingCommand
from dledger_remoting.route import QueueData, TopicRouteData

QUERY, SET_MODE, MODES = 400, 401, 402

Assigned = list[tuple[str, int, str]]
"""Assigned queues: broker group, queue and mode of each."""


def join(client: FakeClient, *client_ids: str) -> None:
    """Have clients heartbeat as members of CG."""
    for client_id in client_ids:
        join_one(client, client_id)


def question(client_id: str = "a", **fields: str) -> bytes:
    """Return the body of 400, as Java's client writes it."""
    asked = {"clientId": client_id, "consumerGroup": "CG", "messageModel": "CLUSTERING", "strategyName": "AVG"}
    return json.dumps({**asked, "topic": "T1", **fields}).encode()


def assigned(answer: RemotingCommand) -> Assigned | None:
    """Return the queues of an answer, sorted. None: the client is to keep the queues that it has."""
    assert answer.code == 0, answer.remark
    rows = json.loads(answer.body).get("messageQueueAssignments")
    if rows is None:
        return None
    queues = [(row["messageQueue"], row["mode"]) for row in rows]
    return sorted((queue["brokerName"], queue["queueId"], mode) for queue, mode in queues)


def ask(client: FakeClient, client_id: str = "a", **fields: str) -> Assigned | None:
    """Return the queues that a client is to consume."""
    return assigned(client.call(QUERY, body=question(client_id, **fields)))


def queues(client: FakeClient, client_id: str = "a", **fields: str) -> list[int]:
    """Return the queues of the only broker group that a client is to consume, in whatever mode."""
    found = ask(client, client_id, **fields)
    assert found is not None
    return [queue_id for _, queue_id, _ in found]


def set_mode(client: FakeClient, mode: str = "POP", share: int = 0, topic: str = "T1", group: str = "CG") -> int:
    """Set how a group consumes a topic, and return the code of the answer."""
    body = {"consumerGroup": group, "mode": mode, "popShareQueueNum": share, "topic": topic}
    return client.call(SET_MODE, body=json.dumps(body).encode()).code


def modes_of(broker: ServedBroker) -> RequestModeTable:
    return broker.table(REQUEST_MODES)


def route(*others: tuple[str, int, int]) -> TopicRouteData:
    """Return a route with broker groups, their number of queues and perm, and a stale broker-a."""
    places = [("broker-a", 99, 6), *others]
    return TopicRouteData([QueueData(name, count, count, perm) for name, count, perm in places])
