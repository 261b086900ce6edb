"""Handles say all that they stand for, and no other text passes for one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dledger_client import MessageQueue
from dledger_proxy.http.handles import HandleError, Receipt, cursor_at, open_cursor, open_receipt
from dledger_remoting.pop import CheckPoint, Retry, pop_retry_topic
from dledger_remoting.properties import POP_CHECK_POINT

NAMES = st.from_regex(r"[a-zA-Z0-9_%-]{1,40}", fullmatch=True)
NUMBERS = st.integers(0, 2**63 - 1)
POINTS = st.builds(
    CheckPoint,
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.booleans(),
    st.sampled_from(Retry),
    NAMES,
    st.integers(0, 2**31 - 1),
    NUMBERS,
)
RECEIPTS = st.builds(Receipt, NAMES, NAMES, st.text(max_size=60), POINTS)
RECEIPT = Receipt("G", "T", "id", CheckPoint(0, 1, 2, False, Retry.V2, "broker-a", 3, 4))


@settings(max_examples=40)
@given(RECEIPTS)
def test_a_receipt_comes_back_as_it_was_with_the_message_that_it_stands_for(receipt):
    opened = open_receipt(receipt.text, receipt.group, receipt.topic)
    assert opened == receipt
    message = opened.message
    assert message.properties[POP_CHECK_POINT] == receipt.point.text
    assert message.queue.topic == pop_retry_topic(receipt.group, receipt.topic, receipt.point.retry)


@pytest.mark.parametrize(("group", "topic"), [("H", "T"), ("G", "U"), ("T", "G")])
def test_a_receipt_is_of_no_other_group_or_topic(group, topic):
    with pytest.raises(HandleError, match="of group 'G' and topic 'T'"):
        open_receipt(RECEIPT.text, group, topic)


@given(st.integers(0, len(RECEIPT.text) - 2), st.sampled_from("ABCxyz019-_"))
def test_a_receipt_with_another_character_is_none(place, character):
    text = RECEIPT.text[:place] + character + RECEIPT.text[place + 1 :]
    if text != RECEIPT.text:
        with pytest.raises(HandleError, match="no receipt"):
            open_receipt(text, "G", "T")


@given(st.text(max_size=200) | st.binary(max_size=100).map(lambda data: data.decode("latin-1")))
def test_other_texts_are_refused(text):
    for opening in (lambda: open_receipt(text, "G", "T"), lambda: open_cursor(text, "T")):
        with pytest.raises(HandleError):
            opening()


def test_too_long_a_text_is_not_even_decoded():
    with pytest.raises(HandleError, match="at most 2048 characters, this text has 3000"):
        open_receipt("A" * 3_000, "G", "T")
    with pytest.raises(HandleError, match="at most 8000 characters"):
        open_cursor("A" * 9_000, "T")


@settings(max_examples=40)
@given(st.dictionaries(NAMES, st.lists(NUMBERS, min_size=1, max_size=20), max_size=4))
def test_a_cursor_comes_back_as_it_was(offsets):
    positions = {
        MessageQueue("T", name, number): offset for name, each in offsets.items() for number, offset in enumerate(each)
    }
    opened = open_cursor(cursor_at("T", positions).text, "T")
    assert {queue: opened.offset_of(queue) for queue in positions} == positions
    assert opened.offset_of(MessageQueue("T", "elsewhere", 0)) is None
    with pytest.raises(HandleError, match="of topic 'T'"):
        open_cursor(opened.text, "U")


def test_a_receipt_is_no_cursor_and_a_cursor_no_receipt():
    with pytest.raises(HandleError, match="no cursor"):
        open_cursor(RECEIPT.text, "T")
    with pytest.raises(HandleError, match="no receipt"):
        open_receipt(cursor_at("T", {MessageQueue("T", "broker-a", 0): 1}).text, "G", "T")


def test_a_topic_with_too_many_queues_has_no_cursor():
    with pytest.raises(HandleError, match="too many queues"):
        _ = cursor_at("T", {MessageQueue("T", "broker-a", number): 2**40 for number in range(1_000)}).text
