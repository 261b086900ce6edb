"""Bytes on the wire pass the rows about retries, dead letters, locks, delay, transactions, and refused requests.

Every row runs in both serializers. Rows that wait many seconds use binary headers only with a kill of the leader.
"""

from __future__ import annotations

import re
from collections.abc import Collection

import pytest
from cluster_checks import wait_until
from raw_wire import ALL_WAYS, PRODUCERS, TWO_WAYS, UNDISTURBED, WAIT_SECONDS, Wire, now_ms, wires

from dledger_client.testing import local_cluster_fixture
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import RemotingCommand
from dledger_remoting.properties import parse_properties
from dledger_remoting.record import MessageRecord, iter_records
from dledger_remoting.topics import dead_letter_topic, retry_topic

HALF = {"TRAN_MSG": "true", "PGROUP": PRODUCERS}
KEYED = {"taken back": f"{1:032X}", "kept": f"{2:032X}"}
CHECKS = 15
"""Number of check-backs after which RocketMQ gives a half message up."""
COMMIT, ROLLBACK, UNDECIDED = "8", "12", "0"
UNSUPPORTED = [
    ({"TIMER_DEL_UNIQKEY": "key"}, "TIMER_DEL_UNIQKEY"),
    ({"INNER_MULTI_DISPATCH": "%LMQ%a"}, "LMQ"),
    ({"INNER_NUM": "2"}, "BatchCQ"),
]


wire = wires(UNDISTURBED)
row = wires(ALL_WAYS)
eager_group = local_cluster_fixture(
    scope="module",
    config=f"transaction_timeout_ms = 1000\ntransaction_check_interval_ms = 200\ntransaction_check_max = {CHECKS}",
)
long_row = wires(TWO_WAYS)
eager_row = wires(TWO_WAYS, "eager_group")


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
    row.send("given up")
    send_back(row, row.pull(row.topic, 0), maxReconsumeTimes="0")
    given_up = row.pull(row.topic, 1)
    row.kill()
    send_back(row, given_up, level=-1)
    for offset, body in enumerate((b"dead", b"given up")):
        letter = row.pull(dead_letter_topic(row.group), offset)
        assert (letter.body, letter.reconsume_times) == (body, 1)
        assert parse_properties(letter.properties)["RETRY_TOPIC"] == row.topic
    assert row.pull(retry_topic(row.group), 0, wait=False) is None


def test_sending_back_a_wrong_offset_is_refused(wire):
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


def test_a_lock_keeps_its_owner_over_a_leader_change(row):
    row.heartbeat()
    row.lock("first@1", 1)
    row.lock("second@1", 0)
    row.kill()
    row.lock("second@1", 0)
    row.lock("first@1", 1)


def test_only_the_owner_of_a_lock_can_release_the_lock(wire):
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


def recall(
    row: Wire, sent: RemotingCommand, *, expected: int = ResponseCode.SUCCESS, text: str = ""
) -> RemotingCommand:
    ext = {"producerGroup": PRODUCERS, "topic": row.topic, "recallHandle": sent.ext["recallHandle"]}
    return row.ask(RequestCode.RECALL_MESSAGE, ext, expected=expected, text=text)


def test_a_delayed_message_can_be_recalled_only_before_its_due_time(long_row):
    row = long_row
    taken_back, kept = (row.send(body, {"UNIQ_KEY": key, "TIMER_DELAY_MS": "8000"}) for body, key in KEYED.items())
    early = row.send("early", {"UNIQ_KEY": f"{3:032X}", "TIMER_DELAY_MS": "500"})
    assert recall(row, taken_back).ext["msgId"] == KEYED["taken back"]
    row.kill()
    assert recall(row, taken_back).ext["msgId"] == KEYED["taken back"]
    assert row.pull(row.topic, 0).body == b"early"
    recall(row, early, expected=ResponseCode.ILLEGAL_OPERATION, text="too late")
    assert row.pull(row.topic, 1).body == b"kept"
    recall(row, kept, expected=ResponseCode.ILLEGAL_OPERATION, text="too late")
    assert row.stored() == ["early", "kept"]


def test_a_recall_in_either_form_of_headers(wire):
    sent = wire.send("taken back", {"UNIQ_KEY": KEYED["taken back"], "TIMER_DELAY_MS": "60000"})
    assert recall(wire, sent).ext["msgId"] == KEYED["taken back"]


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"DELAY": "1", "TIMER_DELAY_MS": "1"}, "both ask for a delay"),
        ({"DELAY": "soon"}, "is no number"),
        ({"TIMER_DELAY_SEC": "259201"}, "the limit is 259200 s"),
        *UNSUPPORTED,
    ],
)
def test_a_message_with_unsupported_properties_is_refused_and_not_stored(wire, properties, text):
    refused = {"expected": ResponseCode.MESSAGE_ILLEGAL, "text": text}
    wire.send("refused", properties, **refused)
    if (properties, text) in UNSUPPORTED:
        wire.send("a refused half", {**properties, **HALF}, f="4", **refused)
    wire.send("taken")
    assert wire.stored() == ["taken"]


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


def test_a_half_message_is_seen_exactly_once_after_its_commit(row):
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


def test_a_producer_is_asked_about_its_unended_half_message(row):
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


def test_an_undecided_half_message_is_given_up_and_can_be_reopened_by_an_operator(eager_row):
    row, before = eager_row, told_as_given_up(eager_row)
    row.heartbeat()
    row.send("undecided", HALF, f="4")
    row.pushed.append(row.pushes(RequestCode.CHECK_TRANSACTION_STATE))
    row.kill()
    row.heartbeat()
    kept_as = given_up_as(row, before)
    assert row.stored() == []
    row.send("looks what was pushed")
    asked = sum(one.code == RequestCode.CHECK_TRANSACTION_STATE for one in row.pushed)
    assert asked <= CHECKS if row.kills else asked == CHECKS
    row.pushed.clear()
    named = {"topic": row.topic, "msgId": kept_as}
    row.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, named)
    row.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, named, expected=ResponseCode.SYSTEM_ERROR, text="open again")
    again = row.pushes(RequestCode.CHECK_TRANSACTION_STATE)
    where = {name: again.ext[name] for name in ("tranStateTableOffset", "commitLogOffset")}
    row.ask(RequestCode.END_TRANSACTION, {"producerGroup": PRODUCERS, "commitOrRollback": COMMIT, **where})
    assert sorted(row.stored()) == ["looks what was pushed", "undecided"]


def given_up_as(row: Wire, before: Collection[str]) -> str:
    """Wait until the leader's log names a half message that was given up, and return the id that reopens it."""
    assert wait_until(lambda: told_as_given_up(row) > set(before), WAIT_SECONDS)
    (kept_as,) = told_as_given_up(row) - set(before)
    return kept_as


def told_as_given_up(row: Wire) -> set[str]:
    logs = row.cluster.data_dir.glob("*/log/stdout.log")
    return {one for log in logs for one in re.findall(r"event=transaction_undecided .*kept_as=(\w+)", log.read_text())}
