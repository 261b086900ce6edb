"""Signatures of requests: RocketMQ's test vector, the order of fields, and the fields that two clients leave out."""

from __future__ import annotations

import hmac
from base64 import b64encode

from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting.headers_send import WRITE_ALIAS_FIELD
from dledger_remoting.signatures import Credentials, is_signed_with, signature_of, signed

VECTOR = {"AccessKey": "AK1", "OnsChannel": "ALIYUN", "topic": "T1"}
TEXTS = st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=6)
VERSION = 479


def of(data: bytes, secret: bytes = b"SK1") -> str:
    return b64encode(hmac.digest(secret, data, "sha1")).decode()


def test_a_signature_equals_that_of_the_cpp_client_with_names_in_the_order_of_java() -> None:
    assert signature_of("SK1", VECTOR, b"") == "cmkGCjld1+jC+3zNArIj0xtuEZI=" == of(b"AK1ALIYUNT1")
    ext = {"a": "1", "B": "2", "\U0001f600": "3", "\uffff": "4", "Signature": "x"}
    assert signature_of("SK1", ext, b"body") == of(b"2134" + b"body")


@given(TEXTS, st.binary(max_size=16), st.text(min_size=1, max_size=8))
def test_a_signature_verifies_only_the_same_request_and_secret(ext: dict[str, str], body: bytes, secret: str) -> None:
    request = signed(ext, body, Credentials("AK1", secret))
    assert request["AccessKey"] == "AK1"
    assert is_signed_with(secret, request, body, VERSION)
    assert not is_signed_with(secret + "x", request, body, VERSION)
    assert not is_signed_with(secret, request, body + b"x", VERSION)
    assert not is_signed_with(secret, {**request, "AccessKey": "AK2"}, body, VERSION)
    assert not is_signed_with(secret, {**request, "zzz-more": "field"}, body, VERSION)


def test_a_wrong_or_missing_signature_is_refused_and_an_empty_secret_signs_nothing() -> None:
    for signature in ("", "AAAA", "\udcff", "ü"):
        assert not is_signed_with("SK1", {**VECTOR, "Signature": signature}, b"", VERSION)
    assert not is_signed_with("SK1", VECTOR, b"", VERSION)
    assert not is_signed_with("", {**VECTOR, "Signature": of(b"AK1ALIYUNT1", b"")}, b"", VERSION)


def test_go_leaves_out_the_security_token_and_old_clients_that_a_unique_key_is_asked_for() -> None:
    ext = {**VECTOR, "SecurityToken": "token"}
    for data in (b"AK1ALIYUNT1", b"AK1ALIYUNtokenT1"):
        assert is_signed_with("SK1", {**ext, "Signature": of(data)}, b"", VERSION)
    asked = {**VECTOR, "_UNIQUE_KEY_QUERY": "true", "Signature": of(b"AK1ALIYUNT1")}
    assert is_signed_with("SK1", asked, b"", 399)
    assert not is_signed_with("SK1", asked, b"", 400)


def test_no_text_of_credentials_shows_the_secret() -> None:
    assert "SK1" not in f"{Credentials('AK1', 'SK1')!r} {Credentials('AK1', 'SK1')}"


def test_the_write_alias_field_of_a_node_is_not_signed() -> None:
    """A leader verifies the signatures of forwarded requests again."""
    sent = signed({"a": "PG", "b": "T1"}, b"body", Credentials("key", "secret"))
    assert is_signed_with("secret", {**sent, WRITE_ALIAS_FIELD: "1"}, b"body", VERSION)
    assert not is_signed_with("secret", {**sent, "c": "1"}, b"body", VERSION)
