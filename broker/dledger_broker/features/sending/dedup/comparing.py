"""Comparison of sends with stored messages: in their topic, or where messages wait until they are due.

A message that requests a delay may be in either place. The first send decided whether its time had come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from dledger_broker.features.delay.asked import Due, may_ask
from dledger_broker.features.delay.records import DUE_TOPICS, real_of, with_facts
from dledger_broker.features.sending.tails import properties_of
from dledger_broker.features.sending.targets import SendTarget
from dledger_broker.kernel.records import MessageParts
from dledger_remoting.errors import RecordError
from dledger_remoting.hotpath import SendV2Fields
from dledger_remoting.record import KEPT_SYS_FLAGS, RECORD_HEAD, RECORD_HEAD_BYTES, MessageRecord, decode_record
from dledger_remoting.topics import TIMER_TOPIC

MAX_FACTS_BYTES: Final = 512
"""Maximum number of bytes by which the record of a waiting message is larger than that of the send."""


class FirstSend(NamedTuple):
    """Answer to the first of several equal sends.

    `ids` are the positions and hosts in its message ids. `due` is when its message was due, or None if it did not wait.
    """

    ids: list[bytes]
    queue_id: int
    queue_offset: int
    due: Due | None = None


def first_send(
    stored: bytes, count: int, fields: SendV2Fields, target: SendTarget, messages: Sequence[MessageParts]
) -> FirstSend | None:
    """Return the equal send that begins at one of the first `count` records of `stored`, or None."""
    for begin in _records(stored, count):
        if _same(stored, begin, fields, messages):
            _, _, _, queue_id, _, queue_offset, *_ = RECORD_HEAD.unpack_from(stored, begin)
            return FirstSend(_ids(stored, begin, messages), queue_id, queue_offset)
    if may_wait(messages):
        for begin in _records(stored, count):
            first = _waits(stored, begin, fields, target, messages)
            if first is not None:
                return first
    return None


def may_wait(messages: Sequence[MessageParts]) -> bool:
    """Return whether the message of a send may be stored where messages wait."""
    return len(messages) == 1 and may_ask(messages[0][1])


def _waits(
    stored: bytes, begin: int, fields: SendV2Fields, target: SendTarget, messages: Sequence[MessageParts]
) -> FirstSend | None:
    """Return the equal send if the record at `begin` is that of a message that waits or has waited, or None."""
    ((body, tail, flag, _),) = messages
    record = _whole_record(stored, begin)
    real = real_of(record) if record is not None and record.topic in DUE_TOPICS else None
    if record is None or real is None or real.topic != target.topic:
        return None
    properties = with_facts(properties_of(tail, target), real)
    expected = (body, properties, flag, fields.sys_flag & KEPT_SYS_FLAGS, fields.reconsume_times)
    found = (record.body, record.properties, record.flag, record.sys_flag & KEPT_SYS_FLAGS, record.reconsume_times)
    if found != expected:
        return None
    level = 0 if record.topic == TIMER_TOPIC else record.queue_id + 1
    return FirstSend(_ids(stored, begin, messages[:1]), real.queue_id, record.queue_offset, Due(real.due_ms, level))


def _whole_record(stored: bytes, begin: int) -> MessageRecord | None:
    try:
        return decode_record(stored[begin : begin + int.from_bytes(stored[begin : begin + 4], "big")])
    except RecordError:
        return None


def _ids(stored: bytes, begin: int, messages: Sequence[MessageParts]) -> list[bytes]:
    """Return the message ids of the records from `begin` on."""
    ids: list[bytes] = []
    at = begin
    for body, tail, _, _ in messages:
        ids.append((stored[at + 64 : at + 72] + stored[at + 28 : at + 36]).hex().upper().encode())
        at += RECORD_HEAD_BYTES + len(body) + len(tail)
    return ids


def _records(stored: bytes, count: int) -> Iterator[int]:
    """Yield the positions of the first `count` records, as far as they are in the bytes."""
    at = 0
    for _ in range(count):
        if at + RECORD_HEAD_BYTES > len(stored):
            break
        yield at
        at += int.from_bytes(stored[at : at + 4], "big")


def _same(stored: bytes, begin: int, fields: SendV2Fields, messages: Sequence[MessageParts]) -> bool:
    """Return whether the records from `begin` on equal the messages, apart from queue, born time, store time and
    hosts.
    """
    at = begin
    for body, tail, flag, _ in messages:
        size = RECORD_HEAD_BYTES + len(body) + len(tail)
        found = RECORD_HEAD.unpack_from(stored, at)
        expected = (size, flag, fields.sys_flag & KEPT_SYS_FLAGS, fields.reconsume_times, len(body))
        if (found[0], found[4], found[7], found[12], found[14]) != expected:
            return False
        body_at = at + RECORD_HEAD_BYTES
        if stored[body_at : body_at + len(body)] != body or stored[body_at + len(body) : at + size] != tail:
            return False
        at += size
    return True
