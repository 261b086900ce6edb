"""Bytes that are no request close their own connection. Requests that cannot be served get a reason."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from itertools import count

import pytest
from bare_client import BareClient, counter, followers, logged, pull_fields, send_fields

from dledger_client.testing import LocalCluster, local_cluster_fixture
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, encode_json_header
from dledger_remoting.headers import SendMessageHeader, encode_ext

cluster = local_cluster_fixture()
_NUMBERS = count()


@pytest.fixture(scope="module")
def leader(cluster: LocalCluster) -> str:
    """Return the leader's address."""
    return cluster.client_address(cluster.leader())


@pytest.fixture
def follower(cluster: LocalCluster) -> str:
    """Return a follower's address."""
    return cluster.client_address(followers(cluster)[0])


@pytest.fixture(params=["leader", "follower"])
def either(request: pytest.FixtureRequest) -> Iterator[BareClient]:
    """Run a client of the leader, and one of a follower."""
    with BareClient(request.getfixturevalue(request.param)) as client:
        yield client


@pytest.fixture
def witness(leader: str) -> Iterator[BareClient]:
    """Run another client, which must notice nothing."""
    with BareClient(leader) as client:
        yield client
        assert client.send_message(b"undisturbed").code == ResponseCode.SUCCESS


def frame(header: bytes, *, word: int | None = None, total: int | None = None) -> bytes:
    """Build a frame around `header`, with a header word or a length that may be wrong."""
    words = (4 + len(header) if total is None else total, len(header) if word is None else word)
    return struct.pack(">II", *words) + header


HEADER = encode_json_header(RemotingCommand(RequestCode.GET_MAX_OFFSET, opaque=1))
GARBAGE = {
    "an HTTP request": (b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", "larger than the limit of 16777216"),
    "a TLS hello": (bytes.fromhex("16030100f8010000f4030325"), "larger than the limit of 16777216"),
    "a type that does not exist": (frame(HEADER, word=7 << 24 | len(HEADER)), "serialize type 7 is neither 0"),
    "a header longer than its frame": (frame(HEADER, word=5000), "header length 5000 exceeds the frame"),
    "a frame above 16 MiB": (frame(HEADER, total=(16 << 20) + 1), "16777217 bytes is larger than the limit"),
    "a length below 4": (struct.pack(">I", 3), "frame length 3 is below 4"),
    "a header that is no JSON": (frame(b"<xml/>"), "JSON header cannot be read"),
    "a header of another form": (frame(b"[1,2,3]"), "JSON header cannot be read"),
    "a code that is no number": (frame(b'{"code":"many","opaque":1}'), "JSON header cannot be read"),
    "a cut binary header": (frame(b"\0\x0a\0", word=1 << 24 | 3), "binary header cannot be read"),
    "a text that is no UTF-8": (frame(b'{"code":10,"remark":"\xff\xfe"}'), "JSON header cannot be read"),
}


@pytest.mark.parametrize(("data", "reason"), GARBAGE.values(), ids=GARBAGE)
def test_garbage_closes_its_connection_with_a_log_line(cluster, leader, witness, data, reason):
    refused = counter(leader, "frames_refused")
    assert witness.send_message(b"before").code == ResponseCode.SUCCESS
    with BareClient(leader) as client:
        client.write(data)
        client.wait_closed()
    assert counter(leader, "frames_refused") == refused + 1
    logged(cluster, "it broke the protocol: ")
    logged(cluster, reason)


def test_requests_before_garbage_are_answered(leader, witness):
    with BareClient(leader) as client:
        first, second = client.post(4711), client.post(4712)
        client.write(b"\xff" * 64)
        assert [client.read().opaque for _ in range(2)] == [first, second]
        client.wait_closed()


@pytest.mark.parametrize("data", [b"", b"\0", HEADER[:3], frame(HEADER)[:-1], frame(HEADER)[:9]])
def test_a_client_that_leaves_in_the_middle_of_a_frame_leaves_nothing_behind(leader, witness, data):
    with BareClient(leader) as client:
        client.write(data)


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize("code", [0, 9, 99, 4711, 1_002, 2_000_000_000, -1])
def test_an_unknown_code_is_answered_3_and_named(either, code):
    answer = either.ask(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert f"request type {code} not supported" in (answer.remark or "")
    assert either.ask(code).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "the connection stays"


QUEUE = {"topic": "x", "queueId": "0"}
OFFSET = {"consumerGroup": "x", **QUEUE}
SEND = SendMessageHeader("x", "x", "x", 4, 0, 0, 0, 0)
PUT_TOPIC = {"topic": "x", "defaultTopic": "x", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
NUMBERS = {
    RequestCode.SEND_MESSAGE: (
        encode_ext(SEND),
        ("defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag"),
    ),
    RequestCode.PULL_MESSAGE: (pull_fields(0), ("queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset")),
    RequestCode.QUERY_CONSUMER_OFFSET: (OFFSET, ("queueId",)),
    RequestCode.UPDATE_CONSUMER_OFFSET: ({**OFFSET, "commitOffset": "1"}, ("queueId", "commitOffset")),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: ({**QUEUE, "timestamp": "1"}, ("queueId", "timestamp")),
    RequestCode.GET_MAX_OFFSET: (QUEUE, ("queueId",)),
    RequestCode.GET_MIN_OFFSET: (QUEUE, ("queueId",)),
    RequestCode.VIEW_MESSAGE_BY_ID: ({"offset": "0"}, ("offset",)),
    RequestCode.UPDATE_AND_CREATE_TOPIC: (PUT_TOPIC, ("readQueueNums", "writeQueueNums", "perm")),
}
"""Valid fields of each request, and the names of the numeric ones."""
FIRST_FIELDS = {
    RequestCode.SEND_MESSAGE: "producerGroup",
    RequestCode.SEND_MESSAGE_V2: "producerGroup",
    RequestCode.SEND_BATCH_MESSAGE: "producerGroup",
    RequestCode.PULL_MESSAGE: "consumerGroup",
    RequestCode.QUERY_CONSUMER_OFFSET: "consumerGroup",
    RequestCode.UPDATE_CONSUMER_OFFSET: "consumerGroup",
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "topic",
    RequestCode.GET_MAX_OFFSET: "topic",
    RequestCode.GET_MIN_OFFSET: "topic",
    RequestCode.GET_EARLIEST_MSG_STORETIME: "topic",
    RequestCode.QUERY_MESSAGE: "topic",
    RequestCode.VIEW_MESSAGE_BY_ID: "offset",
    RequestCode.UNREGISTER_CLIENT: "clientID",
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: "consumerGroup",
    RequestCode.UPDATE_AND_CREATE_TOPIC: "topic",
    RequestCode.DELETE_TOPIC_IN_BROKER: "topic",
    RequestCode.GET_TOPIC_CONFIG: "topic",
    RequestCode.DELETE_SUBSCRIPTION_GROUP: "groupName",
}
"""Field of each request that is reported as missing first when there are no fields."""


def test_a_missing_field_is_answered_1_and_named(either):
    for code, missing in FIRST_FIELDS.items():
        assert_names(either.ask(code), missing)


@pytest.mark.parametrize("wrong", ["seven", "1.5", "99999999999999999999", ""])
def test_a_field_that_is_no_number_is_answered_1_and_named(leader, wrong):
    with BareClient(leader) as client:
        for code, (fields, numbers) in NUMBERS.items():
            for number in numbers:
                assert_names(client.ask(code, {**fields, number: wrong}), number)


def assert_names(answer: RemotingCommand, field: str) -> None:
    """Check that the answer has code 1, and one line of text with the field and without any internals."""
    remark = answer.remark or ""
    assert answer.code == ResponseCode.SYSTEM_ERROR, (answer.code, remark)
    assert re.search(rf"\b{field}\b", remark), remark
    assert "\n" not in remark
    assert not re.search(r"Traceback|File \"|Error\(|msgspec", remark), remark


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'{"clientID":""}',
        b'{"clientID":7}',
        b"\xff\xff",
        b'{"clientID":',
        b'{"clientID":"c","heartbeatFingerprint":9223372036854775808}',
        b'{"clientID":"%b"}' % (b"x" * 1025),
        b'{"clientID":"c"}' + b" " * (1 << 20),
    ],
    ids=range(10),
)
def test_a_heartbeat_that_cannot_be_read_is_answered_1(either, body):
    assert_names(either.ask(RequestCode.HEART_BEAT, body=body), "heartbeat")


def test_the_largest_heartbeat_reaches_the_leader_from_a_follower(leader, follower):
    head, tail = b'{"clientID":"large","consumerDataSet":[{"groupName":"Large","subscriptionDataSet":[', b"]}]}"
    topics = [b'{"topic":"t%05d-%b"}' % (number, b"x" * 44) for number in range(8_000)]
    with BareClient(follower) as client:
        client.post(RequestCode.HEART_BEAT, body=head + b",".join(topics) + tail)
        while not (answer := client.read()).is_response:
            pass  # the notice that the group has changed may come first
        assert answer.code == ResponseCode.SUCCESS
        with BareClient(leader) as other:
            members = other.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "Large"})
        assert members.body == b'{"consumerIdList":["large"]}'


def test_the_largest_frame_is_refused_by_a_follower_with_the_limit_of_its_code(follower):
    header = encode_json_header(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, opaque=1))
    with BareClient(follower) as client:
        answer = client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {}, bytes((16 << 20) - 4 - len(header)))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "the limit is 65536" in (answer.remark or "")
        assert client.send_message(b"still here").code == ResponseCode.SUCCESS


# ---------------------------------------------------------------- answers


def test_an_unrequested_response_is_ignored(either):
    for flag in (1, 3):
        either.post(0, flag=flag)
    assert either.send_message(b"still here").code == ResponseCode.SUCCESS


def test_every_answer_has_the_type_of_its_request(either):
    topic = f"Binary-{next(_NUMBERS)}"
    for kind in (1, 0, 1):
        answers = [
            either.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic), b"x", kind=kind),
            either.ask(RequestCode.PULL_MESSAGE, pull_fields(0, topic=topic), kind=kind),
            either.ask(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"}, kind=kind),
            either.ask(RequestCode.GET_MAX_OFFSET, kind=kind),
            either.ask(4711, kind=kind),
        ]
        assert [answer.serialize_type for answer in answers] == [kind] * len(answers)
        sent, pulled, *others = [answer.code for answer in answers]
        assert (sent, others) == (0, [0, 1, 3])
        assert pulled in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND), "a follower may be a moment behind"


def test_numbers_booleans_and_null_are_read_as_texts(leader):
    """JavaScript and C++ clients send numbers, booleans and null."""
    fields = {**send_fields(), "e": 0, "d": 4, "k": False, "l": None, "g": 1_700_000_000_000}
    header = json.dumps({"code": 310, "opaque": 5, "flag": 0, "language": "CPP", "extFields": fields}).encode()
    with BareClient(leader) as client:
        client.write(frame(header))
        answer = client.read()
    assert (answer.opaque, answer.code) == (5, ResponseCode.SUCCESS)
    assert all(isinstance(value, str) for value in answer.ext.values())
