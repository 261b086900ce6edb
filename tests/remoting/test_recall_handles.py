"""Recall handles have the format of RocketMQ 5.3.3."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting.errors import IllegalOperation
from dledger_remoting.recalls import RecallHandle

GOLDEN = "djEgVFIgYnJva2VyLWEgMTc5NTY2OTI2MzAwMSBLMQ=="
"""Answer of RocketMQ 5.3.3 to a send of the key K1 to the topic TR that was due at 1795669263000."""


def handle_of(*words: str) -> str:
    return base64.urlsafe_b64encode(" ".join(words).encode()).decode()


def test_a_handle_is_the_one_that_rocketmq_makes() -> None:
    handle = RecallHandle("TR", "broker-a", 1795669263000, "K1")
    assert handle.encode() == GOLDEN
    assert RecallHandle.decode(GOLDEN) == handle
    assert RecallHandle.decode(GOLDEN.rstrip("=")) == handle


@given(st.from_regex(r"[A-Za-z0-9_%-]{1,20}", fullmatch=True), st.integers(0, 1 << 50), st.text(min_size=1))
def test_recall_handles_are_read_back_equal(name: str, due_ms: int, unique_key: str) -> None:
    handle = RecallHandle(name, name, due_ms, unique_key)
    assert RecallHandle.decode(handle.encode()) == handle


@pytest.mark.parametrize(
    "text",
    [
        *("", "%%%", "abcd", "\u00e4"),
        *(handle_of("v2", "T", "g", "1", "k"), handle_of("v1", "T", "g", "1"), handle_of("v1", "T", "g", "1", "")),
        *(handle_of("v1", "T", "g", due, "k") for due in ("x", "-1", "\u0661", "1" * 19)),
        base64.urlsafe_b64encode(b"v1 T g 1 \xff").decode(),
    ],
)
def test_invalid_recall_handles_are_refused_with_rocketmqs_words(text: str) -> None:
    with pytest.raises(IllegalOperation, match=r"^recall handle is invalid|^recall failed, timestamp invalid"):
        RecallHandle.decode(text)


@given(st.text())
def test_any_text_is_a_handle_or_refused(text: str) -> None:
    try:
        RecallHandle.decode(text)
    except IllegalOperation:
        pass
