"""Requests of clients to a group of mixed builds, and the check that every node has their results."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from dledger_remoting.command import RemotingCommand
from dledger_remoting.heartbeat import ConsumerData, HeartbeatData, ProducerData, SubscriptionData, encode_heartbeat
from dledger_remoting.record import MessageRecord, iter_records
from tests.integration.bare_client import BareClient
from tests.recorded.mixed_group import PATIENCE_S, MixedError, NodeProcess, until

TOPIC: Final = "Mixed"
CONSUMERS: Final = "readers"
QUEUES: Final = 4
SENDS_PER_NODE: Final = 40
BODY_BYTES: Final = 12_000
"""Size of a body in bytes. A round of all nodes then begins a segment, and every node writes a digest at its mark."""
RETRIED: Final = frozenset({2, 14})
"""Codes after which a client asks again: busy, and no leader known."""


class Workload:
    """Workload that remembers what was acknowledged, and looks for it."""

    def __init__(self, nodes: Sequence[NodeProcess]) -> None:
        self._nodes = nodes
        self._clients = {node.node_id: BareClient(node.address) for node in nodes}
        self._stored: list[dict[int, bytes]] = [{} for _ in range(QUEUES)]
        self._offsets: dict[int, int] = {}
        self._pins: set[str] = set()
        self._remembered: dict[str, str] = {}

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.__exit__(None, None, None)

    @property
    def acknowledged(self) -> int:
        """Return the number of acknowledged messages."""
        return sum(map(len, self._stored))

    # ---------------------------------------------------------------- requests of a round

    def begin(self) -> None:
        """Create topic and group through the last node."""
        fields = {
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "readQueueNums": QUEUES,
            "writeQueueNums": QUEUES,
            "perm": 6,
        }
        self._ask(self._nodes[-1], 17, fields | {"topicFilterType": "SINGLE_TAG"})
        self._ask(self._nodes[-1], 200, {}, json.dumps({"groupName": CONSUMERS}).encode())
        until(lambda: all(self._understands_pins(node) for node in self._nodes), "every node tells what it understands")

    def round(self, name: str) -> None:
        """Send, commit, pin, create and delete, each through every node."""
        for number, node in enumerate(self._nodes):
            for count in range(SENDS_PER_NODE):
                self._send(node, f"{name}-{number}-{count}", count % QUEUES)
            self._commit(node, number % QUEUES, self._offsets.get(number % QUEUES, 0) + 10)
            self._ask(node, 20013, {"name": f"{name}-{number}", "position": 0})
            self._pins.add(f"{name}-{number}")
            self._make_and_delete(node, f"{name}-{number}")
            self._send_remembered(node, f"{name}-{number}")
            self._appear(node)

    def _send(self, node: NodeProcess, name: str, queue_id: int, **fields: str) -> str:
        body = f"{name} ".encode().ljust(BODY_BYTES, b".")
        answer = self._ask(node, 310, _send_fields(queue_id, name) | fields, body)
        self._stored[int(answer.ext["queueId"])][int(answer.ext["queueOffset"])] = body
        return f"{answer.ext['queueId']}/{answer.ext['queueOffset']}"

    def _send_remembered(self, node: NodeProcess, name: str) -> None:
        """Send a message, repeat it through the next node, and check that both answers name the same place."""
        unique_key = f"7F000001{name.encode().hex().upper():0>24.24}"
        where = self._send(node, unique_key, 0, idempotent="true")
        after = self._nodes[(self._nodes.index(node) + 1) % len(self._nodes)]
        self._remembered[unique_key] = where
        self._repeat(after, unique_key)

    def _repeat(self, node: NodeProcess, unique_key: str) -> None:
        again = self._send(node, unique_key, 0, idempotent="true")
        if again != self._remembered[unique_key]:
            raise MixedError(f"{node} stored a repetition at {again}, the first is at {self._remembered[unique_key]}")

    def _commit(self, node: NodeProcess, queue_id: int, offset: int) -> None:
        where = {"consumerGroup": CONSUMERS, "topic": TOPIC, "queueId": queue_id}
        self._ask(node, 15, where | {"commitOffset": offset})
        self._offsets[queue_id] = offset

    def _make_and_delete(self, node: NodeProcess, name: str) -> None:
        fields = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        self._ask(node, 17, fields | {"topicFilterType": "SINGLE_TAG"})
        self._ask(node, 215, {"topic": name})

    def _appear(self, node: NodeProcess) -> None:
        consumer = ConsumerData(CONSUMERS, subscription_data_set=[SubscriptionData(TOPIC)])
        heartbeat = HeartbeatData(f"client-of-{node.node_id}", [ProducerData("senders")], [consumer])
        self._ask(node, 34, {}, encode_heartbeat(heartbeat))

    # ---------------------------------------------------------------- checks

    def check(self) -> None:
        """Raise `MixedError` for everything that a node lacks, or has different from what was acknowledged."""
        for node in self._nodes:
            for queue_id, stored in enumerate(self._stored):
                found = dict(self._pulled(node, queue_id, max(stored) + 1))
                for offset, body in stored.items():
                    if found.get(offset) != body:
                        raise MixedError(f"{node}: message {offset} of queue {queue_id} is not what was acknowledged")
            for queue_id, offset in self._offsets.items():
                where = {"consumerGroup": CONSUMERS, "topic": TOPIC, "queueId": queue_id}
                self._expect(node, "offset", self._ask(node, 14, where).ext["offset"], str(offset))
            pins = {row["name"] for row in json.loads(self._ask(node, 20015, {}).body)["pins"]}
            self._expect(node, "pins", pins, self._pins)
            topics = json.loads(self._ask(node, 21, {}).body)["topicConfigTable"]
            self._expect(node, "topics of rounds", [name for name in topics if name.startswith("round")], [])
            for unique_key in self._remembered:
                self._repeat(node, unique_key)
            self._check_key(node)
            until(lambda node=node: self._members(node) == self._expected_members, f"{node} knows all clients")  # type: ignore[misc]

    def _expect(self, node: NodeProcess, what: str, found: object, expected: object) -> None:
        if found != expected:
            raise MixedError(f"{node}: {what} {found}, expected {expected}")

    def _check_key(self, node: NodeProcess) -> None:
        fields = {"topic": TOPIC, "key": "first", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 2**62}
        offsets = {record.body for record in iter_records(self._ask(node, 12, fields).body)}
        expected = {body for stored in self._stored for body in stored.values() if body.split()[0].endswith(b"-0")}
        self._expect(node, "messages with a key", offsets & expected, expected)

    def _pulled(self, node: NodeProcess, queue_id: int, end: int) -> Iterator[tuple[int, bytes]]:
        fields = {"consumerGroup": CONSUMERS, "topic": TOPIC, "queueId": queue_id, "maxMsgNums": 32, "sysFlag": 4}
        fields |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*"}
        offset, deadline = 0, time.monotonic() + PATIENCE_S
        while offset < end:
            answer = self._try(node, 11, fields | {"queueOffset": offset})
            if answer.code != 0 and time.monotonic() > deadline:
                raise MixedError(f"{node}: queue {queue_id} ends at {offset}, {end} were stored: {answer.remark}")
            for record in iter_records(answer.body, verify_crc=True) if answer.code == 0 else ():
                yield _numbered(record)
                offset = record.queue_offset + 1

    @property
    def _expected_members(self) -> set[str]:
        return {f"client-of-{node.node_id}" for node in self._nodes}

    def _members(self, node: NodeProcess) -> set[str]:
        answer = self._ask(node, 38, {"consumerGroup": CONSUMERS})
        return set(json.loads(answer.body)["consumerIdList"])

    def _understands_pins(self, node: NodeProcess) -> bool:
        return self._try(node, 20014, {"name": "none"}).code == 0

    # ---------------------------------------------------------------- requests

    def _ask(self, node: NodeProcess, code: int, fields: Mapping[str, object], body: bytes = b"") -> RemotingCommand:
        """Return the answer to a request, and repeat it as clients do while no leader is known."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            answer = self._try(node, code, fields, body)
            if answer.code == 0:
                return answer
            if answer.code not in RETRIED or time.monotonic() > deadline:
                self._look()
                raise MixedError(f"{node} answers request {code} with {answer.code}: {answer.remark}")
            time.sleep(0.05)

    def _try(self, node: NodeProcess, code: int, fields: Mapping[str, object], body: bytes = b"") -> RemotingCommand:
        texts = {name: str(value) for name, value in fields.items()}
        client = self._clients[node.node_id]
        try:
            opaque = client.post(code, texts, body)
            while (answer := client.read()).opaque != opaque or not answer.is_response:
                pass  # requests from the broker announce new consumers
        except OSError as error:
            self._look()
            raise MixedError(f"{node} does not answer request {code}: {error}") from error
        return answer

    def _look(self) -> None:
        """Raise `MixedError` if a node has failed or ended. That error says more than the errors of the other nodes."""
        time.sleep(1)  # a node that has failed needs a moment to end
        for node in self._nodes:
            node.status()


def _send_fields(queue_id: int, unique_key: str) -> dict[str, str]:
    keys = "first" if unique_key.endswith("-0") else "later"
    properties = f"UNIQ_KEY\x01{unique_key}\x02KEYS\x01{keys}\x02"
    fields = {"a": "senders", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(queue_id), "f": "0"}
    return fields | {"g": "1700000000000", "h": "0", "i": properties}


def _numbered(record: MessageRecord) -> tuple[int, bytes]:
    return record.queue_offset, record.body
