"""Requests that servers push to our client (326, 220, 221), with wrong headers and bodies.

No exception may leave the handling of a request: it would end the connection and all its pending requests. A refused
request changes nothing.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dledger_client.cluster.connection import Connection
from dledger_client.cluster.core import ClientCore
from dledger_client.consuming.assignments import Assignments
from dledger_client.consuming.questions import take_reset
from dledger_client.messages import MessageQueue
from dledger_client.replies import Reply, RequestsThatWait
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand, decode_command
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.properties import CORRELATION_ID, parse_properties
from dledger_remoting.resets import decode_status, encode_reset
from dledger_remoting.topics import MessageQueue as NamedQueue

Q0 = MessageQueue("T", "broker-a", 0)
POSITIONS = {Q0: 7}
RESET, STATUS = RequestCode.RESET_CONSUMER_CLIENT_OFFSET, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT

values = st.sampled_from(["T", "CG", "", "0", "-1", "true", "x", "9" * 30, "1.5", "null"]) | st.text(max_size=5)
RESET_FIELDS = {"topic": "T", "group": "CG", "timestamp": "0", "isForce": "true"}
resets = st.builds(
    lambda changed, lacking: {name: value for name, value in (RESET_FIELDS | changed).items() if name not in lacking},
    st.dictionaries(st.sampled_from([*RESET_FIELDS, "queueId", "offset", "clientAddr", "other"]), values, max_size=3),
    st.sets(st.sampled_from(list(RESET_FIELDS)), max_size=1),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
keys = st.fixed_dictionaries(
    {},
    optional={
        "brokerName": st.just("broker-a") | json_values,
        "queueId": st.just(0) | json_values,
        "topic": st.just("T") | json_values,
    },
).map(json.dumps)
reset_tables = st.dictionaries(keys | st.text(max_size=4), st.integers(0, 99) | json_values, max_size=3)
reset_bodies = (
    st.binary(max_size=40)
    | json_values.map(lambda table: json.dumps({"offsetTable": table}).encode())
    | reset_tables.map(lambda table: json.dumps({"offsetTable": table}).encode())
    | st.binary(max_size=3).map(lambda more: encode_reset({NamedQueue("broker-a", 0, "T"): 3}) + more)
)


class Wire:
    """Stand-in for a connection that records everything sent over it."""

    address = "10.0.0.1:10911"
    is_open = True

    def __init__(self) -> None:
        self._decoder = FrameDecoder()

    def send_frame(self, frame: bytes) -> None:
        self._decoder.receive_data(frame)

    def answers(self) -> Iterator[RemotingCommand]:
        """Yield the answers since the last call."""
        while (frame := self._decoder.next_frame()) is not None:
            yield decode_command(frame)


class Reading:
    """Stand-in for the assignments of a consumer that records the offsets of resets."""

    def __init__(self) -> None:
        self.resets: list[Mapping[MessageQueue, int]] = []

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.resets.append(offsets)

    def positions(self) -> dict[MessageQueue, int]:
        return POSITIONS


class Asked:
    """Consumer of group CG, and its reaction to one request."""

    def __init__(self, code: int, ext: Mapping[str, str], body: bytes) -> None:
        self.wire, self.reading = Wire(), Reading()
        command = RemotingCommand(code, opaque=7, ext=dict(ext), body=body)
        assignments, connection = cast(Assignments, self.reading), cast(Connection, self.wire)
        self.is_taken = take_reset(connection, command, "CG", assignments)
        self.answers = list(self.wire.answers())


@given(resets, reset_bodies)
@example({**RESET_FIELDS, "group": "other"}, encode_reset({NamedQueue("broker-a", 0, "T"): 3}))
def test_a_reset_with_any_header_and_body_is_obeyed_or_changes_nothing(ext: dict[str, str], body: bytes) -> None:
    asked = Asked(RESET, ext, body)
    assert asked.answers == []
    if not asked.is_taken or ext["group"] != "CG":
        assert asked.reading.resets == []
    for offsets in asked.reading.resets:
        assert all(type(one) is MessageQueue and type(at) is int for one, at in offsets.items())


def test_a_reset_that_can_be_read_is_obeyed() -> None:
    asked = Asked(RESET, RESET_FIELDS, encode_reset({NamedQueue("broker-a", 0, "T"): 3}))
    assert (asked.is_taken, asked.reading.resets) == (True, [{Q0: 3}])


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_a_reset_to_an_impossible_offset_changes_nothing(offset: int) -> None:
    asked = Asked(RESET, RESET_FIELDS, encode_reset({NamedQueue("broker-a", 0, "T"): offset}))
    assert (asked.is_taken, asked.reading.resets) == (False, [])


@given(resets, reset_bodies)
@example({**RESET_FIELDS, "group": "other"}, b"")
@example({**RESET_FIELDS, "topic": "other"}, b"")
def test_a_question_for_positions_is_answered_once_or_not_taken(ext: dict[str, str], body: bytes) -> None:
    asked = Asked(STATUS, ext, body)
    assert asked.reading.resets == []
    assert len(asked.answers) == asked.is_taken
    for answer in asked.answers:
        is_ours = (ext["topic"], ext["group"]) == ("T", "CG")
        assert (answer.opaque, answer.code) == (7, ResponseCode.SUCCESS)
        assert decode_status(answer.body) == ({NamedQueue("broker-a", 0, "T"): 7} if is_ours else {})


REPLY_FIELDS = {
    "producerGroup": "PG",
    "topic": "DefaultCluster_REPLY_TOPIC",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1",
    "flag": "0",
    "reconsumeTimes": "0",
    "unitMode": "false",
    "bornHost": "10.0.0.2:1",
    "storeHost": "10.0.0.1:10911",
    "storeTimestamp": "1",
}


@given(
    st.dictionaries(st.sampled_from([*REPLY_FIELDS, "properties"]), values, max_size=4),
    st.sets(st.sampled_from(list(REPLY_FIELDS)), max_size=2),
    st.sampled_from(["0", "1", "257", "513", "769", "1025", str(2**31 - 1)]),
    st.binary(max_size=30) | st.binary(max_size=30).map(zlib.compress),
    st.sampled_from(["own", "of another", "damaged", "none"]),
)
def test_a_strange_reply_is_answered_once_and_given_at_most_to_its_waiter(
    changed: dict[str, str], lacking: set[str], sys_flag: str, body: bytes, whose: str
) -> None:
    code, _ = asyncio.run(answered(changed, lacking, sys_flag, body, whose))
    assert code in (ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR)


async def answered(
    changed: dict[str, str], lacking: set[str], sys_flag: str, body: bytes, whose: str
) -> tuple[int, Reply | None]:
    """Push a reply, and a good one afterwards if the request still waits. Return the first answer and its reply."""
    requests, wire, first = RequestsThatWait(), Wire(), None
    core = ClientCore("127.0.0.1:1", on_request=requests.take)
    with requests.one_more("client", asyncio.get_running_loop().time() + 10) as (marks, reply):
        own = parse_properties(marks)[CORRELATION_ID]
        texts = {"own": marks, "of another": f"{CORRELATION_ID}\x01another\x02", "damaged": marks[1:], "none": ""}
        fields = {**REPLY_FIELDS, "sysFlag": sys_flag, "properties": texts[whose], **changed}
        ext = {name: value for name, value in fields.items() if name not in lacking}
        command = RemotingCommand(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, opaque=7, ext=ext, body=body)
        core._on_request(cast(Connection, wire), command)
        (answer,) = wire.answers()
        assert answer.opaque == 7
        is_own = parse_properties(ext.get("properties", "")).get(CORRELATION_ID) == own
        assert reply.done() == (is_own and answer.code == ResponseCode.SUCCESS)
        if reply.done():
            first = await reply
        else:
            good = {**REPLY_FIELDS, "properties": marks}
            core._on_request(cast(Connection, wire), RemotingCommand(command.code, opaque=8, ext=good, body=b"yes"))
            assert [one.code for one in wire.answers()] == [ResponseCode.SUCCESS]
            waited_for = parse_properties(marks)
            assert await reply == Reply(b"yes", waited_for)
    await core.close()
    return answer.code, first


@pytest.mark.parametrize(
    ("whose", "sys_flag", "code"),
    [
        ("own", "0", ResponseCode.SUCCESS),
        ("of another", "0", ResponseCode.SUCCESS),
        ("own", "1", ResponseCode.SYSTEM_ERROR),
    ],
    ids=["waited for", "nobody's", "not compressed"],
)
async def test_a_pushed_reply_that_can_be_read_is_acknowledged_with_or_without_a_waiter(
    whose: str, sys_flag: str, code: int
) -> None:
    told, reply = await answered({}, set(), sys_flag, b"no", whose)
    assert told == code
    assert (reply.body if reply else None) == (b"no" if (whose, sys_flag) == ("own", "0") else None)
