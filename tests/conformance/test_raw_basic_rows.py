"""Bytes on the wire come through rows on routes, sends, pulls, offsets, long polls, malformed frames and namespaces.

Every row that is not about JSON runs in both serializers; those that a dead leader can touch run with a kill of it in
their middle, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from admin_answers import read
from cluster_checks import wait_until
from limit_rows import KEPT_BYTES, OLD_BYTES, OLD_PAUSE_SECONDS
from raw_wire import ALL_WAYS, IN_JSON, KILLED, UNDISTURBED, Wire, wire_for

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand
from dledger_remoting.frame import SerializeType
from dledger_remoting.ids import parse_offset_message_id
from dledger_remoting.properties import parse_properties
from dledger_remoting.record import MessageRecord, iter_records
from tests.integration.bare_client import BareClient

FOUR_MIB = 4 << 20
SHORT_POLL_MS, LONG_POLL_MS = 1_000, 15_000
WOKEN_SECONDS = 10.0
"""The bound for a poll that a message wakes: long before its own end, and long for a machine that is busy."""
HUNG_SECONDS = 20.0
"""How late an empty poll is answered by a server that hangs."""


@pytest.fixture(params=UNDISTURBED)
def wire(quick_group, request) -> Iterator[Wire]:
    yield from wire_for(quick_group, request.param)


@pytest.fixture(params=ALL_WAYS)
def row(quick_group, request) -> Iterator[Wire]:
    yield from wire_for(quick_group, request.param)


@pytest.fixture(params=[KILLED])
def trimmed_row(trimmed_group, request) -> Iterator[Wire]:
    yield from wire_for(trimmed_group, request.param)


def batch(*bodies: bytes) -> bytes:
    """A batch's body: of each message its size, magic, CRC, flag, body and properties."""
    parts = []
    for body in bodies:
        rest = bytes(12) + len(body).to_bytes(4, "big") + body + bytes(2)
        parts.append((len(rest) + 4).to_bytes(4, "big") + rest)
    return b"".join(parts)


def pull_of(wire: Wire, offset: int, *, suspend_ms: int = 0, tags: str = "*") -> dict[str, str]:
    names = {"consumerGroup": wire.group, "topic": wire.topic, "queueId": "0", "queueOffset": str(offset)}
    numbers = {"maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0", "subVersion": "0"}
    return {
        **names,
        **numbers,
        "suspendTimeoutMillis": str(suspend_ms),
        "subscription": tags,
        "expressionType": "TAG",
    }


def found(answer: RemotingCommand) -> list[MessageRecord]:
    """The messages of a pull's answer."""
    assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
    return list(iter_records(answer.body))


@pytest.mark.parametrize(
    ("version", "more", "expected"),
    [
        (61, {}, int),
        (317, {}, int),
        (400, {}, int),
        (401, {}, str),
        (493, {}, str),
        (61, {"acceptStandardJsonOnly": "true"}, str),
    ],
)
def test_broker_ids_of_a_route_are_numbers_to_old_clients_and_texts_to_new_ones(
    quick_group, wire, version, more, expected
):
    leader = quick_group.client_address(quick_group.leader())
    nodes = {quick_group.client_address(node_id) for node_id in quick_group.node_ids}
    kind, first = wire.serialize_type, f'0:"{leader}"' if expected is int else f'"0":"{leader}"'
    with BareClient(quick_group.namesrv) as names:
        for topic in (wire.topic, "TBW102"):
            asked = {"topic": topic, **more}
            answer = names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked, kind=kind, version=version)
            assert (answer.code, answer.serialize_type) == (ResponseCode.SUCCESS, kind)
            body = answer.body.decode()
            assert f'"brokerAddrs":{{{first}' in body
            [group] = read(body)["brokerDatas"]
            assert {type(broker_id) for broker_id in group["brokerAddrs"]} == {expected}
            assert (group["brokerName"], {*group["brokerAddrs"].values()} <= nodes) == ("broker-a", True)


@pytest.mark.parametrize("version", [61, 493])
def test_a_topic_that_does_not_exist_has_no_route(quick_group, wire, version):
    with BareClient(quick_group.namesrv) as names:
        asked = {"topic": f"{wire.topic}-none"}
        answer = names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked, kind=wire.serialize_type, version=version)
    assert (answer.code, answer.body) == (ResponseCode.TOPIC_NOT_EXIST, b"")
    assert answer.remark == f"No topic route info in name server for the topic: {wire.topic}-none"


def test_what_is_sent_is_pulled_back_with_its_body_properties_and_offset(row):
    sent = [row.send("first", {"KEYS": "k1", "TAGS": "red", "mine": "ü"})]
    row.kill()
    sent.append(row.send("second"))
    for offset, (body, answer) in enumerate(zip((b"first", b"second"), sent, strict=True)):
        record = row.pull(row.topic, offset)
        assert (record.body, record.queue_offset, record.queue_id) == (body, offset, 0)
        assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", str(offset))
        assert parse_offset_message_id(answer.ext["msgId"])[1] == record.physical_offset
    properties = parse_properties(row.pull(row.topic, 0).properties)
    assert {name: properties[name] for name in ("KEYS", "TAGS", "mine")} == {"KEYS": "k1", "TAGS": "red", "mine": "ü"}


def test_a_body_of_4_mib_is_stored_and_one_that_is_longer_is_refused(wire):
    wire.send("x" * FOUR_MIB)
    assert len(wire.pull(wire.topic, 0).body) == FOUR_MIB
    wire.send("x" * (FOUR_MIB + 1), expected=ResponseCode.MESSAGE_ILLEGAL)
    wire.send("next")
    assert wire.pull(wire.topic, 1).body == b"next"


def test_a_batch_becomes_messages_with_consecutive_offsets(row):
    for code in (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2):
        answer = row.ask(code, row.letters(m="true"), batch(b"one", b"two"))
        assert len(answer.ext["msgId"].split(",")) == 2
        if row.killed is None:
            row.kill()
    assert [row.pull(row.topic, offset).body for offset in range(4)] == [b"one", b"two"] * 2


def test_what_is_sent_one_way_is_stored_and_never_answered(row):
    row.post(RequestCode.SEND_MESSAGE_V2, row.letters(), b"alone", flag=FLAG_ONEWAY)
    row.post(RequestCode.SEND_BATCH_MESSAGE, row.letters(m="true"), batch(b"of", b"two"), flag=FLAG_ONEWAY)
    row.post(RequestCode.SEND_MESSAGE_V2, row.letters({"DELAY": "soon"}), b"refused", flag=FLAG_ONEWAY)
    stored = [row.pull(row.topic, offset).body for offset in range(3)]
    assert sorted(stored) == [b"alone", b"of", b"two"]
    row.kill()
    row.send("answered")
    assert [row.pull(row.topic, offset).body for offset in range(4)] == [*stored, b"answered"]
    assert not row.pushed


def test_a_pull_by_tags_gets_what_has_the_hash_of_one_of_them(row):
    """The hash alone: "Aa" and "BB" have the same by Java's `String.hashCode`, and consumers look at the tags again."""
    for tag in ("Aa", "red", "BB", "green", "blue"):
        row.send(tag, {"TAGS": tag})
    row.send("without a tag")
    row.kill()
    assert row.pull(row.topic, 5).body == b"without a tag"
    for tags, expected in (("red || green", [b"red", b"green"]), ("Aa", [b"Aa", b"BB"]), (" BB ", [b"Aa", b"BB"])):
        pulled = found(row.ask(RequestCode.PULL_MESSAGE, pull_of(row, 0, tags=tags)))
        assert [record.body for record in pulled] == expected
    waiting = row.post(RequestCode.PULL_MESSAGE, pull_of(row, 6, tags="red", suspend_ms=LONG_POLL_MS))
    row.send("wakes nobody", {"TAGS": "blue"})
    row.send("awaited", {"TAGS": "red"})
    [record] = found(row.answer(waiting))
    assert (record.body, record.queue_offset) == (b"awaited", 7)


def test_a_new_groups_offset_is_none_and_one_below_zero_is_not_committed(row):
    row.heartbeat()
    row.send("message")
    ext = {"consumerGroup": row.group, "topic": row.topic, "queueId": "0"}
    young = row.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext)
    assert young.ext["offset"] == "0", "a topic that is young is read from its first message"
    row.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "commitOffset": "1"})
    row.kill()
    assert row.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext).ext["offset"] == "1"
    row.answer(row.post(RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "commitOffset": "-1"}))
    assert row.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext).ext["offset"] == "1"


def messages_until_it_is_trimmed(row: Wire) -> int:
    """Send to the row's queue until it has lost its beginning, and return how many messages that took.

    First more than is kept, then slowly on: a log begins at a snapshot, of which there is one in a second, and a leader
    looks every ten seconds what it lets go.
    """
    queue = {"topic": row.topic, "queueId": "0"}

    def is_trimmed() -> bool:
        return int(row.ask(RequestCode.GET_MIN_OFFSET, queue).ext["offset"]) > 0

    for sent in range(1, 101):
        row.send("x" * OLD_BYTES)
        if sent * OLD_BYTES > KEPT_BYTES + (1 << 20) and wait_until(is_trimmed, OLD_PAUSE_SECONDS):
            return sent
    raise AssertionError("the queue still has its first message")


def test_a_new_group_begins_at_the_end_of_a_queue_that_is_trimmed(trimmed_row):
    """It has no offset there (22), so that its client asks where the end is; 0 is the start of young queues only.

    In JSON, and binary once the leader is killed.
    """
    row, queue = trimmed_row, {"topic": trimmed_row.topic, "queueId": "0"}
    old = messages_until_it_is_trimmed(row)
    row.heartbeat(begins="CONSUME_FROM_LAST_OFFSET")
    offset = {**queue, "consumerGroup": row.group}
    for number, serialize_type in enumerate((SerializeType.JSON, SerializeType.ROCKETMQ)):
        if number:
            row.kill()
        row.serialize_type = serialize_type
        row.ask(RequestCode.QUERY_CONSUMER_OFFSET, offset, expected=ResponseCode.QUERY_NOT_FOUND)
        assert row.ask(RequestCode.GET_MAX_OFFSET, queue).ext["offset"] == str(old + number)
        moved = row.ask(RequestCode.PULL_MESSAGE, pull_of(row, 0), expected=ResponseCode.PULL_OFFSET_MOVED)
        assert 0 < int(moved.ext["nextBeginOffset"]) <= old
        row.send("after it began")
        assert row.pull(row.topic, old + number).body == b"after it began"
    row.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**offset, "commitOffset": str(old + 2)})
    assert row.ask(RequestCode.QUERY_CONSUMER_OFFSET, offset).ext["offset"] == str(old + 2)


def test_an_empty_long_poll_is_answered_when_its_time_is_over(wire):
    beginning = time.monotonic()
    answer = wire.ask(
        RequestCode.PULL_MESSAGE, pull_of(wire, 0, suspend_ms=SHORT_POLL_MS), expected=ResponseCode.PULL_NOT_FOUND
    )
    late = time.monotonic() - beginning - SHORT_POLL_MS / 1000
    assert -0.1 <= late < HUNG_SECONDS
    assert {"nextBeginOffset", "minOffset", "maxOffset", "suggestWhichBrokerId"} <= answer.ext.keys()


def test_a_message_wakes_long_polls_and_they_hold_up_no_send(wire):
    polls = [wire.post(RequestCode.PULL_MESSAGE, pull_of(wire, 0, suspend_ms=LONG_POLL_MS)) for _ in range(8)]
    wire.ask(RequestCode.GET_MAX_OFFSET, {"topic": wire.topic, "queueId": "0"})
    assert not wire.pushed, "they wait, though a request behind them is answered"
    beginning = time.monotonic()
    sent = wire.send("awaited")
    for poll in polls:
        [record] = found(wire.answer(poll))
        assert (record.body, str(record.queue_offset)) == (b"awaited", sent.ext["queueOffset"])
    assert time.monotonic() - beginning < WOKEN_SECONDS


@pytest.mark.parametrize("row", [KILLED], indirect=True)
def test_long_polls_that_lose_their_leader_are_repeated_and_wait_at_the_next_one(row):
    """One, binary, at the leader itself, whose connection breaks; one through a follower, which says to pull again."""
    poll, binary = pull_of(row, 0, suspend_ms=LONG_POLL_MS), SerializeType.ROCKETMQ
    with BareClient(row.cluster.client_address(row.cluster.leader())) as reader:
        reader.post(RequestCode.PULL_MESSAGE, poll, kind=binary)
        passed_on = row.post(RequestCode.PULL_MESSAGE, poll)
        row.ask(RequestCode.GET_MAX_OFFSET, {"topic": row.topic, "queueId": "0"})
        assert not row.pushed, "it waits"
        row.kill()
        with pytest.raises(ConnectionError):
            reader.read()
    told = row.answer(passed_on)
    assert told.code in (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_NOT_FOUND), told.remark
    assert told.ext["nextBeginOffset"] == "0"
    with BareClient(row.cluster.client_address(row.cluster.leader())) as reader:
        reader.post(RequestCode.PULL_MESSAGE, poll, kind=binary)
        beginning = time.monotonic()
        row.send("awaited")
        answer = reader.read()
        [record] = found(answer)
        assert answer.serialize_type == binary
        assert time.monotonic() - beginning < WOKEN_SECONDS
    assert record.body == row.pull(row.topic, 0).body == b"awaited"


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x7f\xff\xff\xff" + bytes(16),
        b"\x00\x00\x00\x08" + b"\x02\x00\x00\x02" + b"{}" + bytes(2),
        b"\x00\x00\x00\x08" + b"\x00\x00\x01\x00" + bytes(4),
        b"\x00\x00\x00\x0c" + b"\x00\x00\x00\x08" + b"no json!",
    ],
    ids=["length", "serializer", "header longer than its frame", "no json"],
)
def test_a_malformed_frame_closes_its_own_connection_and_no_other(quick_group, wire, garbage):
    address = quick_group.client_address(quick_group.leader())
    with BareClient(address) as broken:
        broken.write(garbage)
        broken.wait_closed()
    wire.send("still here")
    assert wire.pull(wire.topic, 0).body == b"still here"


@pytest.mark.parametrize("wire", [IN_JSON], indirect=True)
def test_fields_of_json_may_be_numbers_flags_and_null(wire):
    ext = {"topic": wire.topic, "queueId": 0, "more": None, "flag": True, "ratio": 1.5}
    header = {"code": int(RequestCode.GET_MAX_OFFSET), "opaque": 77, "flag": 0, "language": "CPP", "version": 63}
    encoded = json.dumps({**header, "extFields": ext}).encode()
    length = len(encoded).to_bytes(4, "big")
    wire.client.write((len(encoded) + 4).to_bytes(4, "big") + length + encoded)
    answer = wire.client.read()
    assert (answer.opaque, answer.code, answer.ext["offset"]) == (77, ResponseCode.SUCCESS, "0")


def test_a_namespace_beside_a_plain_name_changes_nothing_and_one_within_the_name_is_kept(row):
    """As RocketMQ's own brokers have it: `ns` and `nsd` are read by none of them."""
    row.send("plain", {"INSTANCE_ID": "tenant"}, ns="tenant", nsd="true")
    row.kill()
    row.send("plain, too", ns="tenant", nsd="true")
    assert [row.pull(row.topic, offset).body for offset in (0, 1)] == [b"plain", b"plain, too"]
    assert parse_properties(row.pull(row.topic, 0).properties)["INSTANCE_ID"] == "tenant"
    row.send("within", topic=f"tenant%{row.topic}")
    assert row.pull(f"tenant%{row.topic}", 0).body == b"within"
    assert row.pull(row.topic, 2, wait=False) is None
