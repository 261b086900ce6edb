"""Bytes on the wire: one connection to one follower, with requests and expected answers from a row.

Nodes forward requests that they may not answer. If the leader is killed in the middle of a row, the connection stays.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import NamedTuple

import pytest
from _pytest.mark import ParameterSet
from cluster_checks import bodies_of, create_topic, stored_messages

from dledger_client.testing import LocalCluster
from dledger_remoting.codes import RequestCode, ResponseCode, request_code_name
from dledger_remoting.command import RemotingCommand
from dledger_remoting.frame import SerializeType
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.record import MessageRecord, iter_records
from tests.integration.bare_client import BareClient

WAIT_SECONDS = 30.0
POLL_MS = 1000
PRODUCERS = "raw-producers"
_NUMBERS = count()


class Way(NamedTuple):
    """Parameters of a run: the serializer, and whether the leader is killed in the middle of the row."""

    serialize_type: SerializeType
    kills: bool = False


IN_JSON = pytest.param(Way(SerializeType.JSON), id="json")
IN_BINARY = pytest.param(Way(SerializeType.ROCKETMQ), id="binary")
KILLED = pytest.param(Way(SerializeType.JSON, kills=True), id="leader killed")
BINARY_KILLED = pytest.param(Way(SerializeType.ROCKETMQ, kills=True), id="binary, leader killed")
UNDISTURBED = [IN_JSON, IN_BINARY]
"""Ways of a row that needs no kill."""
ALL_WAYS = [*UNDISTURBED, KILLED]
"""Ways of all other rows."""
TWO_WAYS = [IN_JSON, BINARY_KILLED]
"""Ways of a row that takes many seconds each time."""
JSON_WAYS = [IN_JSON, KILLED]
"""Ways of a row whose codes do not fit a binary header."""


class Wire:
    """A connection to a follower, a topic with one queue, and a consumer group."""

    def __init__(self, cluster: LocalCluster, way: Way) -> None:
        self.cluster, self.serialize_type, self.kills = cluster, *way
        self.topic = f"Raw{next(_NUMBERS)}"
        self.group = f"{self.topic}-group"
        self.pushed: deque[RemotingCommand] = deque()
        self.killed: str | None = None
        create_topic(cluster, self.topic, queues=1)
        leader = cluster.leader()
        follower = next(node_id for node_id in cluster.node_ids if node_id != leader)
        self.client = BareClient(cluster.client_address(follower))

    def kill(self) -> None:
        """Kill the leader in the middle of the row, if the row is about that, and wait for a new leader."""
        if self.kills:
            self.killed = self.cluster.kill_leader()
            self.cluster.leader()

    def post(self, code: int, ext: Mapping[str, str], body: bytes = b"", *, flag: int = 0) -> int:
        """Send a request, and return its opaque."""
        return self.client.post(code, ext, body, flag=flag, kind=self.serialize_type)

    def answer(self, opaque: int) -> RemotingCommand:
        """Return the answer to a request, in its serializer. Keep other commands that arrive meanwhile in `pushed`."""
        for one in self.pushed:
            if one.is_response and one.opaque == opaque:
                self.pushed.remove(one)
                break
        else:
            while (one := self.client.read()).opaque != opaque or not one.is_response:
                self.pushed.append(one)
        assert one.serialize_type == self.serialize_type
        return one

    def ask(
        self,
        code: int,
        ext: Mapping[str, str],
        body: bytes = b"",
        *,
        expected: int = ResponseCode.SUCCESS,
        text: str = "",
    ) -> RemotingCommand:
        """Send a request and return its answer. Fail if the answer is not the expected one."""
        answer = self.answer(self.post(code, ext, body))
        assert (answer.code, text in (answer.remark or "")) == (expected, True), (
            f"{code} {request_code_name(code)} {json.dumps(dict(ext))} {body[:80]!r} was answered {answer.code} "
            f"{answer.remark or ''}, expected: {expected:d} {text}"
        )
        return answer

    def pushes(self, code: int) -> RemotingCommand:
        """Return the broker's next request with this code."""
        while True:
            for one in self.pushed:
                if one.code == code:
                    self.pushed.remove(one)
                    return one
            self.pushed.append(self.client.read())

    def heartbeat(self, begins: str = "CONSUME_FROM_FIRST_OFFSET") -> None:
        """Create the group and its retry topic, and register as a producer."""
        self.ask(RequestCode.HEART_BEAT, {}, member_body(self.group, PRODUCERS, self.topic, begins))

    def send(
        self,
        body: str,
        properties: Mapping[str, str] | None = None,
        *,
        topic: str = "",
        expected: int = ResponseCode.SUCCESS,
        text: str = "",
        **letters: str,
    ) -> RemotingCommand:
        """Store a message in queue 0."""
        ext = self.letters(properties, topic=topic, **letters)
        return self.ask(RequestCode.SEND_MESSAGE_V2, ext, body.encode(), expected=expected, text=text)

    def letters(
        self, properties: Mapping[str, str] | None = None, *, topic: str = "", **letters: str
    ) -> dict[str, str]:
        """Return the ext fields of a send (310, 320) to queue 0."""
        encoded = "".join(f"{name}\x01{value}\x02" for name, value in (properties or {}).items())
        names = {"a": PRODUCERS, "b": topic or self.topic, "c": "TBW102", "d": "4"}
        numbers = {"e": "0", "f": "0", "g": str(now_ms()), "h": "0"}
        return {**names, **numbers, "i": encoded, **letters}

    def pull_fields(self, topic: str, offset: int, *, wait: bool = True) -> dict[str, str]:
        """Return the ext fields of a pull (11) of one message of queue 0."""
        names = {"consumerGroup": self.group, "topic": topic, "queueId": "0", "queueOffset": str(offset)}
        numbers = {"maxMsgNums": "1", "sysFlag": "6" if wait else "4", "commitOffset": "0", "subVersion": "0"}
        return {**names, **numbers, "suspendTimeoutMillis": str(POLL_MS), "subscription": "*", "expressionType": "TAG"}

    def pull(self, topic: str, offset: int, *, wait: bool = True) -> MessageRecord | None:
        """Return the message at an offset of queue 0, and wait for it. Without `wait`, return None if there is none."""
        deadline = time.monotonic() + WAIT_SECONDS
        ext = self.pull_fields(topic, offset, wait=wait)
        while True:
            answer = self.answer(self.post(RequestCode.PULL_MESSAGE, ext))
            if answer.code == ResponseCode.SUCCESS:
                return next(iter_records(answer.body))
            if not wait:
                assert answer.code == ResponseCode.PULL_NOT_FOUND, answer
                return None
            assert time.monotonic() < deadline, f"{ext}: {answer.code} {answer.remark}"

    def end(self, half: RemotingCommand, decision: str, *, group: str = PRODUCERS, expected: int = 0) -> None:
        """End the transaction of a half message. `half` is the answer to its send."""
        position = parse_offset_message_id(half.ext["msgId"])[1]
        ext = {"producerGroup": group, "tranStateTableOffset": half.ext["queueOffset"], "commitOrRollback": decision}
        ext |= {"commitLogOffset": str(position), "msgId": half.ext["transactionId"], "topic": self.topic}
        self.ask(RequestCode.END_TRANSACTION, ext, expected=expected)

    def lock(self, client_id: str, expected: int) -> None:
        """Lock queue 0 for a client, and check that it then holds `expected` queues."""
        answer = self.ask(RequestCode.LOCK_BATCH_MQ, {}, self.locks(client_id))
        granted = json.loads(answer.body)["lockOKMQSet"]
        assert len(granted) == expected, f"41 of {client_id} was answered {granted}, expected: {expected} queues"

    def locks(self, client_id: str) -> bytes:
        """Return the body of requests 41 and 42."""
        queue = {"topic": self.topic, "brokerName": "broker-a", "queueId": 0}
        return json.dumps({"consumerGroup": self.group, "clientId": client_id, "mqSet": [queue]}).encode()

    def stored(self, topic: str = "") -> list[str]:
        """Return the bodies that a topic holds."""
        return bodies_of(stored_messages(self.cluster, topic or self.topic))


def wires(ways: Sequence[ParameterSet], group: str = "quick_group") -> Callable[..., Iterator[Wire]]:
    """Return a fixture that yields a wire of each way. Afterwards it restarts the node that the row has killed."""

    @pytest.fixture(params=ways)
    def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
        cluster = request.getfixturevalue(group)
        made = Wire(cluster, request.param)
        with made.client:
            try:
                yield made
            finally:
                if made.killed is not None:
                    cluster.restart(made.killed)
                    cluster.wait_ready()

    return wire


def member_body(group: str, producers: str, topic: str, begins: str = "CONSUME_FROM_FIRST_OFFSET") -> bytes:
    """Return the body of a heartbeat of a member of a group, which is a producer too."""
    consumer = {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": begins,
        "subscriptionDataSet": [{"topic": topic, "subString": "*", "subVersion": 1}],
    }
    body = {"clientID": "raw@1", "producerDataSet": [{"groupName": producers}], "consumerDataSet": [consumer]}
    return json.dumps(body).encode()


def now_ms() -> int:
    """Return the time in ms since 1970."""
    return time.time_ns() // 1_000_000
