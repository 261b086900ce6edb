"""Requests about quotas, and sends that they limit."""

from __future__ import annotations

import json

from served_broker import FakeClient, ServedBroker, send_ext

PUT, LIST = 20017, 20018
BUSY = 2


def put(client: FakeClient, kind: str, name: str, messages: int = 0, size: int = 0) -> int:
    body = {"kind": kind, "name": name, "messagesPerSecond": messages, "bytesPerSecond": size}
    return client.call(PUT, body=json.dumps(body).encode()).code


def told(client: FakeClient) -> dict[str, tuple[int, int]]:
    """How many sends each quota has held and refused."""
    rows = json.loads(client.call(LIST).body)["quotas"]
    return {f"{row['kind']} {row['name']}": (row.get("held", 0), row.get("refused", 0)) for row in rows}


def stored(broker: ServedBroker, topic: str = "T1") -> int:
    found = broker.memory.machine.topic(topic)
    assert found is not None
    return sum(queue.next_offset for queue in found.queues.values())


def send_many(client: FakeClient, count: int, topic: str = "T1", body: bytes = b"x", **letters: str) -> list[int]:
    opaques = [client.send(310, send_ext(topic, **letters), body) for _ in range(count)]
    client.broker.settle()
    return opaques


def codes(client: FakeClient, opaques: list[int]) -> list[int]:
    return [client.answered(opaque).code for opaque in opaques if client.has_answer(opaque)]
