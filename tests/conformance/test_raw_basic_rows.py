"""Bytes on the wire pass the rows about offsets in trimmed queues, and about namespaces.

The rows run in both serializers, and with a kill of the leader in their middle.
"""

from __future__ import annotations

from cluster_checks import wait_until
from limit_rows import KEPT_BYTES, OLD_BYTES, OLD_PAUSE_SECONDS
from raw_wire import ALL_WAYS, KILLED, Wire, wires

from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.frame import SerializeType
from dledger_remoting.properties import parse_properties

row = wires(ALL_WAYS)
trimmed_row = wires([KILLED], "trimmed_group")


def messages_until_it_is_trimmed(row: Wire) -> int:
    """Send to the row's queue until it has lost its beginning, and return the number of messages sent.

    The first messages exceed the retention limit. Then single messages follow slowly, since a log begins at a snapshot.
    There is one snapshot per second, and the leader decides every ten seconds what to trim.
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
    """The group has no committed offset (22), so its client asks for the end.

    Only in queues that still have their first message does such a group begin at 0. The row runs in JSON, and in binary
    after the leader is killed.
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
        moved = row.ask(
            RequestCode.PULL_MESSAGE, row.pull_fields(row.topic, 0), expected=ResponseCode.PULL_OFFSET_MOVED
        )
        assert 0 < int(moved.ext["nextBeginOffset"]) <= old
        row.send("after it began")
        assert row.pull(row.topic, old + number).body == b"after it began"
    row.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**offset, "commitOffset": str(old + 2)})
    assert row.ask(RequestCode.QUERY_CONSUMER_OFFSET, offset).ext["offset"] == str(old + 2)


def test_only_a_namespace_inside_the_topic_name_has_an_effect(row):
    """RocketMQ's own brokers do the same: none of them reads `ns` and `nsd`."""
    row.send("plain", {"INSTANCE_ID": "tenant"}, ns="tenant", nsd="true")
    row.kill()
    row.send("plain, too", ns="tenant", nsd="true")
    assert [row.pull(row.topic, offset).body for offset in (0, 1)] == [b"plain", b"plain, too"]
    assert parse_properties(row.pull(row.topic, 0).properties)["INSTANCE_ID"] == "tenant"
    row.send("within", topic=f"tenant%{row.topic}")
    assert row.pull(f"tenant%{row.topic}", 0).body == b"within"
    assert row.pull(row.topic, 2, wait=False) is None
