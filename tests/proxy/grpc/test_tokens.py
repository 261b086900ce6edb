"""Receipt handles and ids of transactions: what they hold, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_proxy.grpc.tokens import MAX_TOKEN_CHARS, Receipt, Transaction, decode_token, encode_token
from dledger_remoting.pop import CheckPoint, Retry

NUMBERS = st.integers(0, 2**63 - 1)
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
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
RECEIPT = Receipt.of(CheckPoint(0, 5, 60_000, False, Retry.NONE, "broker-a", 3, 7), 99)


@given(POINTS, NUMBERS, NAMES, NAMES)
def test_a_receipt_holds_its_check_point_and_position(point, position, group, topic):
    receipt = decode_token(Receipt, encode_token(Receipt.of(point, position), group, topic), group, topic)
    assert (receipt.point, receipt.position) == (point, position)


def test_a_receipt_is_these_characters_so_that_every_version_of_the_proxy_reads_it():
    assert encode_token(RECEIPT, "g", "t") == "Afz7hYPmSh6OmQAFzepgwqEwqGJyb2tlci1hAwdj"


@pytest.mark.parametrize("names", [("g", "other"), ("other", "t"), ("gt", ""), ("g", "t", "")])
def test_a_token_is_refused_with_other_names(names):
    with pytest.raises(ValueError, match="was not made by a proxy for"):
        decode_token(Receipt, encode_token(RECEIPT, "g", "t"), *names)


def test_a_token_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="not made by a proxy"):
        decode_token(Receipt, encode_token(Transaction("broker-a", 1, 2), "g", "t"), "g", "t")


@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda data: data.hex()))
def test_any_other_text_is_refused(text):
    with pytest.raises(ValueError, match="made by"):
        decode_token(Receipt, text, "g", "t")


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_token_with_a_changed_character_is_refused(place, change):
    token = encode_token(RECEIPT, "g", "t")
    place %= len(token)
    changed = token[:place] + chr((ord(token[place]) + change) % 256) + token[place + 1 :]
    if changed.rstrip("=") != token:
        try:
            assert decode_token(Receipt, changed, "g", "t") == RECEIPT  # base64 has spare bits in its last character
            assert place == len(token) - 1
        except ValueError:
            pass


def test_a_token_that_is_too_long_is_not_even_read():
    with pytest.raises(ValueError, match="at most"):
        decode_token(Receipt, "A" * (MAX_TOKEN_CHARS + 1), "g", "t")
