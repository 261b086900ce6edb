"""Texts and bodies of POP, as RocketMQ's clients read and write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting.errors import BodyError, InvalidParameter
from dledger_remoting.integers import MAX_INT32, MAX_INT64
from dledger_remoting.pop import (
    CheckPoint,
    Retry,
    group_of_retry_topic,
    message_offset_info,
    order_count_info,
    parse_check_point,
    parse_start_offset_info,
    pop_retry_topic,
    start_offset_info,
    validate_stored_topic,
)
from dledger_remoting.pop_bodies import BatchAck, bits_of, decode_batch_ack, encode_batch_ack

NATURAL = st.integers(0, MAX_INT64)


def test_check_points_are_rocketmq_s() -> None:
    point = CheckPoint(7, 1_700_000_000_000, 60_000, False, Retry.NONE, "broker-a", 3, 9)
    assert point.text == "7 1700000000000 60000 0 0 broker-a 3 9"
    assert parse_check_point("7 1700000000000 60000 2 0 broker-a 3 9 12345") == point
    assert parse_check_point("7 1700000000000 60000 999 2 broker-a 3 9").is_ordered


@given(NATURAL, NATURAL, NATURAL, st.booleans(), st.sampled_from(Retry), st.integers(0, MAX_INT32), NATURAL)
def test_a_check_point_is_read_as_it_was_written(
    start: int, popped: int, hidden: int, ordered: bool, retry: Retry, queue_id: int, offset: int
) -> None:
    point = CheckPoint(start, popped, hidden, ordered, retry, "b", queue_id, offset)
    assert parse_check_point(point.text) == point


@given(
    st.text(max_size=40)
    | st.lists(st.sampled_from(["0", "1", "-1", "", "x", "9" * 30, "٣"]), max_size=10).map(" ".join)
)
def test_arbitrary_text_is_a_check_point_or_refused(text: str) -> None:
    try:
        parse_check_point(text)
    except InvalidParameter:
        return


def test_retry_topics_have_two_forms_which_name_their_group() -> None:
    names = [pop_retry_topic("g", "t", retry) for retry in Retry]
    assert names == ["t", "%RETRY%g_t", "%RETRY%g+t"]
    assert [group_of_retry_topic(f"%RETRY%{rest}") for rest in ("g", "g_t", "g+t", "g+t+u")] == ["g", "g_t", "g", "g"]


def test_names_that_stored_topics_can_have() -> None:
    for name in ("t", "%RETRY%g", "%DLQ%g", "%RETRY%g_t", "%RETRY%g+t", "%RETRY%g+%RETRY%g"):
        validate_stored_topic(name)
    for name in ("", "a+b", "%DLQ%g+t", "%RETRY%g+", "%RETRY%+t", "%RETRY%g+t+u", "%RETRY%g+" + "t" * 128):
        with pytest.raises(InvalidParameter):
            validate_stored_topic(name)


def test_pop_positions_are_formatted_as_by_rocketmq() -> None:
    assert start_offset_info([(Retry.NONE, 0, 7), (Retry.V1, 3, 9)]) == "0 0 7;1 3 9"
    assert message_offset_info([(Retry.NONE, 0, (7, 9)), (Retry.V2, 3, (1,))]) == "0 0 7,9;2 3 1"
    assert order_count_info([(Retry.NONE, 2, 1)], [(Retry.NONE, 2, 7, 3)]) == "0 2 1;0 qo2%7 3"


@given(st.lists(st.tuples(st.sampled_from(Retry), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))))
def test_starts_are_read_as_they_were_written(rows: list[tuple[Retry, int, int]]) -> None:
    assert parse_start_offset_info(start_offset_info(rows)) == rows


def test_starts_that_cannot_be_read_are_named() -> None:
    for text in ("0 0", "0 0 x", "3 0 7", "0 -1 7", "0 0 7 1", "0 0 7;0 1"):
        with pytest.raises(InvalidParameter, match="startOffsetInfo"):
            parse_start_offset_info(text)


def test_bits_count_offsets_from_the_start_on_up_to_a_limit() -> None:
    (ack,) = decode_batch_ack(b'{"acks":[{"c":"g","t":"t","r":"1","so":"100","q":2,"rq":0,"pt":5,"it":6,"b":"BQE="}]}')
    assert (ack.offsets, ack.retry, ack.queue_id, ack.pop_time) == ([100, 102, 108], Retry.V1, 2, 5)
    body = b'{"acks":[{"c":"g","t":"t","r":"0","so":0,"q":0,"pt":1,"b":"%s"}]}' % (b"A" * 5_000)
    with pytest.raises(BodyError, match="4096"):
        _ = [ack.offsets for ack in decode_batch_ack(body)]


@given(st.binary(max_size=200))
def test_an_invalid_batch_acknowledgement_body_is_refused(body: bytes) -> None:
    try:
        for ack in decode_batch_ack(body):
            _ = ack.offsets
    except BodyError:
        return


@given(st.integers(0, 1 << 40), st.lists(st.integers(0, 500), unique=True))
def test_a_batch_of_acknowledgements_is_read_as_it_was_written(start: int, distances: list[int]) -> None:
    offsets = [start + distance for distance in distances]
    ack = BatchAck("g", "t", Retry.V1, start, 2, 5, bits_of(start, offsets))
    assert decode_batch_ack(encode_batch_ack("broker-a", [ack])) == [ack]
    assert ack.offsets == sorted(offsets)
