"""Bytes on the wire come through rows on retries, dead letters, locks, delay, transactions, and what is refused.

Every request goes over one connection to one follower, in both serializers, as nodes pass on what they may not answer.
With the leader killed in a row's middle the connection stays.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import count

import pytest
from cluster_checks import bodies_of, create_topic, stored_messages

from dledger_client.testing import LocalCluster
from dledger_remoting.codes import RequestCode, ResponseCode, request_code_name
from dledger_remoting.command import RemotingCommand
from dledger_remoting.frame import SerializeType
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.properties import parse_properties
from dledger_remoting.record import MessageRecord, iter_records
from dledger_remoting.topics import dead_letter_topic, retry_topic
from tests.integration.bare_client import BareClient

WAIT_SECONDS = 30.0
POLL_MS = 1000
PRODUCERS = "raw-producers"
HALF = {"TRAN_MSG": "true", "PGROUP": PRODUCERS}
COMMIT, ROLLBACK, UNDECIDED = "8", "12", "0"
UNSUPPORTED = [
    ({"TIMER_DEL_UNIQKEY": "key"}, "TIMER_DEL_UNIQKEY"),
    ({"INNER_MULTI_DISPATCH": "%LMQ%a"}, "LMQ"),
    ({"INNER_NUM": "2"}, "BatchCQ"),
]
_NUMBERS = count()


class Wire:
    """A connection to a follower, a topic with one queue, and a consumer group."""

    def __init__(self, cluster: LocalCluster, serialize_type: SerializeType, *, kills: bool) -> None:
        self.cluster, self.kills = cluster, kills
        self.topic = f"Raw{next(_NUMBERS)}"
        self.group = f"{self.topic}-group"
        self.pushed: deque[RemotingCommand] = deque()
        self.killed: str | None = None
        self._type = serialize_type
        create_topic(cluster, self.topic, queues=1)
        leader = cluster.leader()
        follower = next(node_id for node_id in cluster.node_ids if node_id != leader)
        self.client = BareClient(cluster.client_address(follower))

    def kill(self) -> None:
        """The row's middle: the leader is killed, if this row is about that, and another one leads."""
        if self.kills:
            self.killed = self.cluster.kill_leader()
            self.cluster.leader()

    def ask(
        self,
        code: int,
        ext: Mapping[str, str],
        body: bytes = b"",
        *,
        expected: int = ResponseCode.SUCCESS,
        text: str = "",
    ) -> RemotingCommand:
        """Send a request and return its answer; fails if that is not the expected one."""
        opaque = self.client.post(code, ext, body, kind=self._type)
        while (answer := self.client.read()).opaque != opaque or not answer.is_response:
            self.pushed.append(answer)
        assert (answer.code, text in (answer.remark or "")) == (expected, True), (
            f"{code} {request_code_name(code)} {json.dumps(dict(ext))} {body[:80]!r} was answered {answer.code} "
            f"{answer.remark or ''}, expected: {expected:d} {text}"
        )
        assert answer.serialize_type == self._type
        return answer

    def pushes(self, code: int) -> RemotingCommand:
        """The next request of the broker's with this code."""
        while True:
            for one in self.pushed:
                if one.code == code:
                    self.pushed.remove(one)
                    return one
            self.pushed.append(self.client.read())

    def heartbeat(self) -> None:
        """Make the group and its retry topic, and be one of the producers."""
        consumer = {
            "groupName": self.group,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [{"topic": self.topic, "subString": "*", "subVersion": 1}],
        }
        body = {"clientID": "raw@1", "producerDataSet": [{"groupName": PRODUCERS}], "consumerDataSet": [consumer]}
        self.ask(RequestCode.HEART_BEAT, {}, json.dumps(body).encode())

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
        encoded = "".join(f"{name}\x01{value}\x02" for name, value in (properties or {}).items())
        names = {"a": PRODUCERS, "b": topic or self.topic, "c": "TBW102", "d": "4"}
        numbers = {"e": "0", "f": "0", "g": str(now_ms()), "h": "0"}
        ext = {**names, **numbers, "i": encoded, **letters}
        return self.ask(RequestCode.SEND_MESSAGE_V2, ext, body.encode(), expected=expected, text=text)

    def pull(self, topic: str, offset: int, *, wait: bool = True) -> MessageRecord | None:
        """The message at an offset of queue 0, once it is there; None at once if it is not to be waited for."""
        deadline = time.monotonic() + WAIT_SECONDS
        names = {"consumerGroup": self.group, "topic": topic, "queueId": "0", "queueOffset": str(offset)}
        numbers = {"maxMsgNums": "1", "sysFlag": "6" if wait else "4", "commitOffset": "0", "subVersion": "0"}
        ext = {**names, **numbers, "suspendTimeoutMillis": str(POLL_MS), "subscription": "*", "expressionType": "TAG"}
        while True:
            opaque = self.client.post(RequestCode.PULL_MESSAGE, ext, kind=self._type)
            while (answer := self.client.read()).opaque != opaque or not answer.is_response:
                self.pushed.append(answer)
            if answer.code == ResponseCode.SUCCESS:
                return next(iter_records(answer.body))
            if not wait:
                assert answer.code == ResponseCode.PULL_NOT_FOUND, answer
                return None
            assert time.monotonic() < deadline, f"{ext}: {answer.code} {answer.remark}"

    def end(self, half: RemotingCommand, decision: str, *, group: str = PRODUCERS, expected: int = 0) -> None:
        """End the transaction of a half, which `half` is the answer to."""
        position = parse_offset_message_id(half.ext["msgId"])[1]
        ext = {"producerGroup": group, "tranStateTableOffset": half.ext["queueOffset"], "commitOrRollback": decision}
        ext |= {"commitLogOffset": str(position), "msgId": half.ext["transactionId"], "topic": self.topic}
        self.ask(RequestCode.END_TRANSACTION, ext, expected=expected)

    def lock(self, client_id: str, expected: int) -> None:
        """Lock queue 0 for a client; `expected` is how many queues it has then."""
        answer = self.ask(RequestCode.LOCK_BATCH_MQ, {}, self.locks(client_id))
        granted = json.loads(answer.body)["lockOKMQSet"]
        assert len(granted) == expected, f"41 of {client_id} was answered {granted}, expected: {expected} queues"

    def locks(self, client_id: str) -> bytes:
        """The body of 41 and 42."""
        queue = {"topic": self.topic, "brokerName": "broker-a", "queueId": 0}
        return json.dumps({"consumerGroup": self.group, "clientId": client_id, "mqSet": [queue]}).encode()

    def stored(self, topic: str = "") -> list[str]:
        """Bodies that a topic holds."""
        return bodies_of(stored_messages(self.cluster, topic or self.topic))


@pytest.fixture(params=[SerializeType.JSON, SerializeType.ROCKETMQ], ids=["json", "binary"])
def wire(quick_group, request) -> Iterator[Wire]:
    made = Wire(quick_group, request.param, kills=False)
    with made.client:
        yield made


@pytest.fixture(params=[False, True], ids=["undisturbed", "leader killed"])
def row(quick_group, request) -> Iterator[Wire]:
    made = Wire(quick_group, SerializeType.JSON, kills=request.param)
    with made.client:
        try:
            yield made
        finally:
            if made.killed is not None:
                quick_group.restart(made.killed)
                quick_group.wait_ready()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def send_back(row: Wire, record: MessageRecord, *, level: int = 0, expected: int = 0, **more: str) -> None:
    ext = {"offset": str(record.physical_offset), "group": row.group, "delayLevel": str(level), **more}
    row.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext, expected=expected)


def test_a_message_that_is_sent_back_comes_again_with_its_origin(row):
    row.heartbeat()
    origin = row.send("again").ext["msgId"]
    first = row.pull(row.topic, 0)
    send_back(row, first)
    row.kill()
    second = row.pull(retry_topic(row.group), 0)
    assert (second.body, second.reconsume_times) == (b"again", 1)
    properties = parse_properties(second.properties)
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == (row.topic, origin)
    more = {"originMsgId": origin, "originTopic": row.topic, "unitMode": "false", "maxReconsumeTimes": "16"}
    send_back(row, second, **more)
    assert row.pull(retry_topic(row.group), 1).reconsume_times == 2
    assert row.pull(retry_topic(row.group), 2, wait=False) is None


def test_a_message_that_is_sent_back_too_often_or_for_good_becomes_a_dead_letter(row):
    row.heartbeat()
    row.send("dead")
    first = row.pull(row.topic, 0)
    send_back(row, first, maxReconsumeTimes="0")
    row.kill()
    send_back(row, first, level=-1)
    for offset in (0, 1):
        letter = row.pull(dead_letter_topic(row.group), offset)
        assert (letter.body, letter.reconsume_times) == (b"dead", 1)
        assert parse_properties(letter.properties)["RETRY_TOPIC"] == row.topic
    assert row.pull(retry_topic(row.group), 0, wait=False) is None


def test_only_what_a_consumer_may_have_pulled_is_sent_back(wire):
    wire.heartbeat()
    wire.send("message")
    record = wire.pull(wire.topic, 0)
    for offset in (record.physical_offset + 1, 0, 1 << 60, -1):
        ext = {"offset": str(offset), "group": wire.group, "delayLevel": "0"}
        wire.ask(RequestCode.CONSUMER_SEND_MSG_BACK, ext, expected=ResponseCode.SYSTEM_ERROR)


def test_a_client_that_could_not_send_back_sends_to_the_retry_topic_itself(row):
    row.heartbeat()
    mine = {"RETRY_TOPIC": row.topic, "DELAY": "4"}
    row.send("again", mine, topic=retry_topic(row.group), j="1", l="16")
    row.kill()
    row.send("dead", mine, topic=retry_topic(row.group), j="17", l="16")
    assert row.pull(retry_topic(row.group), 0).body == b"again"
    assert row.pull(dead_letter_topic(row.group), 0).body == b"dead"
    assert row.stored(dead_letter_topic(row.group)) == ["dead"]


def test_a_lock_has_one_owner_whoever_leads(row):
    row.heartbeat()
    row.lock("first@1", 1)
    row.lock("second@1", 0)
    row.kill()
    row.lock("second@1", 0)
    row.lock("first@1", 1)


def test_a_lock_that_its_owner_gives_up_is_free_and_one_that_another_gives_up_is_not(wire):
    wire.heartbeat()
    wire.lock("first@1", 1)
    wire.ask(RequestCode.UNLOCK_BATCH_MQ, {}, wire.locks("second@1"))
    wire.lock("second@1", 0)
    wire.ask(RequestCode.UNLOCK_BATCH_MQ, {}, wire.locks("first@1"))
    wire.lock("second@1", 1)


@pytest.mark.parametrize("ways", [("DELAY", "TIMER_DELAY_SEC"), ("TIMER_DELAY_MS", "TIMER_DELIVER_MS")])
def test_delayed_messages_come_once_and_not_before_they_are_due(row, ways):
    values = {"DELAY": "1", "TIMER_DELAY_SEC": "1", "TIMER_DELAY_MS": "900", "TIMER_DELIVER_MS": str(now_ms() + 1500)}
    row.send(ways[0], {ways[0]: values[ways[0]]})
    assert row.pull(row.topic, 0, wait=False) is None
    row.kill()
    row.send(ways[1], {ways[1]: values[ways[1]]})
    for offset in (0, 1):
        record = row.pull(row.topic, offset)
        assert record.store_timestamp >= int(parse_properties(record.properties)["TIMER_OUT_MS"])
    assert sorted(row.stored()) == sorted(ways)


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"DELAY": "1", "TIMER_DELAY_MS": "1"}, "both ask for a delay"),
        ({"DELAY": "soon"}, "is no number"),
        ({"TIMER_DELAY_SEC": "259201"}, "the limit is 259200 s"),
        *UNSUPPORTED,
    ],
)
def test_a_message_that_cannot_be_kept_as_it_asks_is_refused_and_not_stored(wire, properties, text):
    wire.send("refused", properties, expected=ResponseCode.MESSAGE_ILLEGAL, text=text)
    wire.send("taken")
    assert wire.stored() == ["taken"]


@pytest.mark.parametrize(("properties", "text"), UNSUPPORTED)
def test_nor_is_it_taken_as_a_half(wire, properties, text):
    wire.send("refused", {**properties, **HALF}, f="4", expected=ResponseCode.MESSAGE_ILLEGAL, text=text)


@pytest.mark.parametrize(
    ("topic", "attributes", "text"),
    [
        ("%LMQ%raw", "", "light message queue"),
        ("RawOdd", "+queue.type=BatchCQ", "SimpleCQ"),
        ("RawOdd", "+cleanup.policy=COMPACTION", "DELETE"),
    ],
)
def test_a_topic_that_would_be_stored_in_another_way_is_refused(wire, topic, attributes, text):
    ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    ext |= {"topicFilterType": "SINGLE_TAG", "attributes": attributes}
    wire.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext, expected=ResponseCode.INVALID_PARAMETER, text=text)
    wire.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic}, expected=ResponseCode.TOPIC_NOT_EXIST)


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
    ],
)
def test_requests_of_what_is_not_here_are_refused_by_their_name(wire, code):
    wire.ask(code, {}, expected=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text=code.name)


def test_a_half_is_seen_once_it_is_committed_and_once_only(row):
    committed, rolled_back = row.send("committed", HALF, f="4"), row.send("rolled back", HALF, f="4")
    assert row.pull(row.topic, 0, wait=False) is None
    row.end(rolled_back, ROLLBACK)
    row.end(committed, UNDECIDED)
    row.kill()
    row.end(committed, COMMIT)
    record = row.pull(row.topic, 0)
    assert (record.body, parse_properties(record.properties)["TRAN_MSG"]) == (b"committed", "true")
    row.end(committed, COMMIT)
    row.end(rolled_back, ROLLBACK)
    row.end(committed, ROLLBACK, expected=ResponseCode.SYSTEM_ERROR)
    row.end(rolled_back, COMMIT, expected=ResponseCode.SYSTEM_ERROR)
    assert row.stored() == ["committed"]


def test_a_half_is_ended_by_its_own_producers_only(wire):
    half = wire.send("half", HALF, f="4")
    wire.end(half, COMMIT, group="others", expected=ResponseCode.SYSTEM_ERROR)
    assert wire.pull(wire.topic, 0, wait=False) is None
    wire.end(half, COMMIT)
    assert wire.stored() == ["half"]


def test_a_producer_is_asked_what_has_become_of_a_half_that_it_did_not_end(row):
    row.heartbeat()
    half = row.send("asked about", HALF, f="4")
    row.kill()
    row.heartbeat()
    asked = row.pushes(RequestCode.CHECK_TRANSACTION_STATE)
    record = next(iter_records(asked.body))
    assert (record.topic, record.body) == (row.topic, b"asked about")
    assert asked.ext["tranStateTableOffset"] == half.ext["queueOffset"]
    row.end(half, COMMIT)
    assert row.stored() == ["asked about"]
