"""Signatures of requests: RocketMQ's vector, the order of fields, and what two clients leave out."""

from __future__ import annotations

import hmac
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting.headers_send import WRITE_ALIAS_FIELD
from dledger_remoting.signatures import Credentials, is_signed_with, signature_of, signed

VECTOR = {"AccessKey": "AK1", "OnsChannel": "ALIYUN", "topic": "T1"}
TEXTS = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=6)
VERSION = 479


def of(data: bytes, secret: bytes = b"SK1") -> str:
    return b64encode(hmac.digest(secret, data, "sha1")).decode()


def test_what_the_cpp_client_signs() -> None:
    assert signature_of("SK1", VECTOR, b"") == "cmkGCjld1+jC+3zNArIj0xtuEZI=" == of(b"AK1ALIYUNT1")


def test_names_are_in_the_order_of_java() -> None:
    ext = {"a": "1", "B": "2", "\U0001f600": "3", "\uffff": "4", "Signature": "x"}
    assert signature_of("SK1", ext, b"body") == of(b"2134" + b"body")


@given(TEXTS, st.binary(max_size=16), st.text(min_size=1, max_size=8))
def test_what_is_signed_is_recognised_and_nothing_else(ext: dict[str, str], body: bytes, secret: str) -> None:
    request = signed(ext, body, Credentials("AK1", secret))
    assert request["AccessKey"] == "AK1"
    assert is_signed_with(secret, request, body, VERSION)
    assert not is_signed_with(secret + "x", request, body, VERSION)
    assert not is_signed_with(secret, request, body + b"x", VERSION)
    assert not is_signed_with(secret, {**request, "AccessKey": "AK2"}, body, VERSION)
    assert not is_signed_with(secret, {**request, "zzz-more": "field"}, body, VERSION)


@pytest.mark.parametrize("signature", ["", "AAAA", "\udcff", "ü"])
def test_no_signature_is_none(signature: str) -> None:
    assert not is_signed_with("SK1", {**VECTOR, "Signature": signature}, b"", VERSION)
    assert not is_signed_with("SK1", VECTOR, b"", VERSION)


def test_an_empty_secret_signs_nothing() -> None:
    assert not is_signed_with("", {**VECTOR, "Signature": of(b"AK1ALIYUNT1", b"")}, b"", VERSION)


def test_go_leaves_out_the_security_token() -> None:
    ext = {**VECTOR, "SecurityToken": "token"}
    assert is_signed_with("SK1", {**ext, "Signature": of(b"AK1ALIYUNT1")}, b"", VERSION)
    assert is_signed_with("SK1", {**ext, "Signature": of(b"AK1ALIYUNtokenT1")}, b"", VERSION)


def test_old_clients_leave_out_that_a_unique_key_is_asked_for() -> None:
    ext = {**VECTOR, "_UNIQUE_KEY_QUERY": "true", "Signature": of(b"AK1ALIYUNT1")}
    assert is_signed_with("SK1", ext, b"", 399)
    assert not is_signed_with("SK1", ext, b"", 400)


def test_no_text_of_credentials_shows_the_secret() -> None:
    assert "SK1" not in f"{Credentials('AK1', 'SK1')!r} {Credentials('AK1', 'SK1')}"


def test_what_a_node_adds_of_a_write_alias_is_not_signed() -> None:
    """A leader looks at signatures anew, of what another node passes on."""
    sent = signed({"a": "PG", "b": "T1"}, b"body", Credentials("key", "secret"))
    assert is_signed_with("secret", {**sent, WRITE_ALIAS_FIELD: "1"}, b"body", VERSION)
    assert not is_signed_with("secret", {**sent, "c": "1"}, b"body", VERSION)
