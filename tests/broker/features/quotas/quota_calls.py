"""Requests about quotas, and sends that they limit."""

from __future__ import annotations

import json

from served_broker import FakeClient, ServedBroker, send_ext

from dledger_broker.frontend.forwarding import Envelope, ForwardedOrigin
from dledger_broker.kernel.rights import Action
from dledger_remoting.command import RemotingCommand, encode_json_header
from dledger_remoting.frame import Frame
from dledger_remoting.signatures import Credentials
from tests.broker.features.accounts.guarded_broker import allow, as_root, guarded_broker, make_account

PUT, LIST = 20017, 20018
BUSY = 2


def put(client: FakeClient, kind: str, name: str, messages: int = 0, size: int = 0) -> int:
    body = {"kind": kind, "name": name, "messagesPerSecond": messages, "bytesPerSecond": size}
    return client.call(PUT, body=json.dumps(body).encode()).code


def told(client: FakeClient) -> dict[str, tuple[int, int]]:
    """Return how many sends each quota has held and refused."""
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


def forwarded(client: FakeClient, code: int, ext: dict[str, str], age_s: float) -> list[bytes]:
    """Handle what another node forwards after holding it for `age_s` seconds, and return its answers."""
    broker, replies = client.broker, list[bytes]()
    header = encode_json_header(RemotingCommand(code, opaque=7, ext=ext))
    envelope = Envelope("n1/1", "10.0.0.9", 40_000, (), int(age_s * 1000), 0, header, b"")
    received = broker.memory.env.now() - age_s
    origin = ForwardedOrigin(envelope, replies.append)
    broker.service.requests.receive_forwarded(origin, Frame(0, header, b""), received)
    broker.settle()
    return replies


def limit(broker: ServedBroker, kind: str, name: str, messages: int) -> None:
    """Set a quota as the administrator of a broker with access control."""
    as_root(broker, PUT, {}, {"kind": kind, "name": name, "messagesPerSecond": messages})


def with_accounts(*names: str) -> tuple[ServedBroker, list[Credentials]]:
    """Return a broker with access control, and accounts that may send to all topics."""
    broker = guarded_broker()
    accounts = [make_account(broker, name) for name in names]
    for name in names:
        allow(broker, name, "Topic:*", Action.PUB)
    return broker, accounts


def gauges(broker: ServedBroker) -> dict[tuple[str, ...], float]:
    """Return the gauges that have labels, by name and labels."""
    return {
        (gauge.name, *labels): number
        for part in broker.service.parts
        for gauge in part.labelled_gauges
        for labels, number in gauge.read()
    }
