"""Fields by which a proxy passes its client on, with signature and date as RocketMQ's gRPC clients make them."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting.errors import InvalidParameter
from dledger_remoting.hosts import HostAddress
from dledger_remoting.signatures import Credentials, is_signed_with, signed
from dledger_remoting.speech import (
    Speech,
    SpokenCredentials,
    format_date,
    is_for_another,
    parse_authorization,
    parse_date,
    sign_text,
    speech_in,
)

NOON = "20261201T120000Z"
SIGNATURE = "368adf2b14cd022fe995f8d949d5dc8192daa873"


def test_a_signature_is_the_hexadecimal_hmac_sha1_of_the_date() -> None:
    """The vector was made by `openssl dgst -sha1 -hmac secret`."""
    assert sign_text("secret", NOON) == SIGNATURE


def test_nothing_is_signed_without_a_text_or_a_secret() -> None:
    address = HostAddress("192.0.2.7", 1)
    assert Speech(address, "app", NOON, SIGNATURE.upper()).is_signed_with("secret")
    assert not Speech(address, "app", "", sign_text("secret", "")).is_signed_with("secret")
    assert not Speech(address, "app", NOON, sign_text("", NOON)).is_signed_with("")


def test_a_header_names_the_account_before_region_and_service() -> None:
    for credential in ("app", "app/cn-hangzhou/RocketMQ"):
        header = f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, Signature={SIGNATURE}"
        assert parse_authorization(header) == ("app", SIGNATURE)


@given(
    speech=st.builds(
        Speech,
        st.sampled_from([HostAddress("192.0.2.7", 1), HostAddress("2001:db8::7", 65_535)]),
        *[st.text("abc019", max_size=40)] * 3,
    )
)
def test_a_client_comes_out_of_the_fields_as_it_was_put_in(speech: Speech) -> None:
    assert speech_in({"topic": "T1", **speech.ext}) == speech


def test_a_request_of_the_sender_itself_is_for_nobody_else() -> None:
    assert speech_in({"topic": "T1"}) is None
    assert not is_for_another({"topic": "T1"})
    assert is_for_another({"dledgerForText": ""})


@pytest.mark.parametrize("address", ["", "1.2.3.4", "localhost:80", "1.2.3.4:0", "[::1]", "1.2.3.4:1:2"])
def test_a_client_without_a_numeric_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidParameter, match="dledgerForAddress"):
        speech_in({"dledgerForAddress": address, "dledgerForAccount": "app"})


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic YTpi",
        "MQv2-HMAC-SHA1 ",
        "MQv2-HMAC-SHA1 Credential=, Signature=aa",
        "MQv2-HMAC-SHA1 Credential=app, Signature=",
        "MQv2-HMAC-SHA1 Credential=app, SignedHeaders=x-mq-client-id, Signature=aa",
    ],
)
def test_other_headers_than_a_clients_are_refused(header: str) -> None:
    with pytest.raises(InvalidParameter, match="authorization"):
        parse_authorization(header)


@given(text=st.text(max_size=60))
def test_any_header_is_parsed_or_refused(text: str) -> None:
    try:
        account, signature = parse_authorization(f"MQv2-HMAC-SHA1 {text}")
    except InvalidParameter:
        return
    assert account
    assert signature


def test_a_date_is_read_as_it_is_written_and_no_other_text_is() -> None:
    assert format_date(parse_date(NOON)) == NOON
    for text in ("", "2026-12-01T12:00:00", "2026-12-01", "20261201T120000", "20261301T120000Z", "+0261201T120000Z"):
        with pytest.raises(ValueError, match=r"is no date|does not match|unconverted"):
            parse_date(text)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("2026-12-01T12:00:00Z", "20261201T120000Z"),
        ("2026-12-01T12:00:00.123456789Z", "20261201T120000Z"),
        ("2026-12-01T12:00:00.5+08:00", "20261201T040000Z"),
    ],
)
def test_a_date_of_rusts_client_is_read_with_its_fraction_and_offset(text: str, plain: str) -> None:
    assert 0 <= parse_date(text) - parse_date(plain) < 1


def test_a_date_of_rusts_client_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="month"):
        parse_date("2026-13-01T12:00:00Z")


def test_credentials_of_a_proxy_sign_the_present_date_for_the_client_and_pass_no_secret_on() -> None:
    client = Credentials("app", "secret-of-app")
    spoken = SpokenCredentials("proxy", "secret-of-proxy", HostAddress("192.0.2.7", 1), client)
    ext = signed({"topic": "T1"}, b"body", spoken)
    speech = speech_in(ext)
    assert speech is not None
    assert (speech.address, speech.account) == (HostAddress("192.0.2.7", 1), "app")
    assert speech.is_signed_with("secret-of-app")
    assert abs(parse_date(speech.text) - time.time()) < 60
    assert is_signed_with("secret-of-proxy", ext, b"body", 500)
    assert not any("secret" in value for value in ext.values())
    assert "secret" not in repr(spoken)


def test_credentials_of_a_proxy_for_a_client_without_any_say_its_address_alone() -> None:
    spoken = SpokenCredentials("proxy", "secret-of-proxy", HostAddress("192.0.2.7", 1), None)
    assert speech_in(signed({}, b"", spoken)) == Speech(HostAddress("192.0.2.7", 1))
