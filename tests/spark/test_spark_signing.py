"""Spark's requests are signed with the account of the machine's environment, and no output shows it."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_base.issuing import Authority
from dledger_remoting.command import RemotingCommand, decode_command, encode_command, make_response
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.signatures import Credentials, is_signed_with
from dledger_remoting.signatures import signed as as_clients_sign
from dledger_spark import wire
from dledger_spark.errors import RefusedError, SourceError, WireError
from dledger_spark.nodes import NameServers
from dledger_spark.signing import CREDENTIALS_VARIABLE, TLS_CA_VARIABLE, Account, account, signed, tls_context
from dledger_spark.wire import Connection

SECRET = "planted-secret"
NO_BROKER = b'{"brokerAddrTable":{},"clusterAddrTable":{}}'


@contextmanager
def server(code: int = 0, tls: ssl.SSLContext | None = None) -> Iterator[tuple[str, list[RemotingCommand]]]:
    """Run a server that answers one connection and records the requests."""
    asked: list[RemotingCommand] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            if tls is not None:
                try:
                    peer = tls.wrap_socket(peer, server_side=True)
                except OSError:
                    return
            with peer:
                decoder = FrameDecoder()
                while data := peer.recv(1 << 16):
                    decoder.receive_data(data)
                    while (frame := decoder.next_frame()) is not None:
                        command = decode_command(frame)
                        asked.append(command)
                        peer.sendall(encode_command(make_response(command, code, "refused", body=NO_BROKER)))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", asked


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "credentials"
    path.write_text(f"app\n{SECRET}\n")
    monkeypatch.setenv(CREDENTIALS_VARIABLE, str(path))
    return path


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.text(), max_size=5), st.binary(max_size=9))
def test_signatures_are_those_of_the_client(ext: dict[str, str], body: bytes) -> None:
    assert signed(ext, body, Account("app", SECRET)) == as_clients_sign(ext, body, Credentials("app", SECRET))


def test_requests_to_brokers_are_signed_for_a_named_account_and_those_to_name_servers_are_not(
    named: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server() as (address, asked), Connection(address, 5) as connection:
        connection.request(20_010, {"roles": "leader"}, b"body")
    assert asked[0].ext["AccessKey"] == "app"
    assert is_signed_with(SECRET, asked[0].ext, b"body", asked[0].version)
    with server() as (address, asked), NameServers((address,)) as name_servers:
        name_servers.groups()
    assert asked
    assert not any("AccessKey" in command.ext for command in asked)
    monkeypatch.delenv(CREDENTIALS_VARIABLE)
    with server() as (address, asked), Connection(address, 5) as connection:
        connection.request(20_010, {"roles": "leader"})
    assert asked[0].ext == {"roles": "leader"}


@pytest.mark.usefixtures("named")
def test_no_error_and_no_text_shows_the_secret() -> None:
    assert SECRET not in repr(account())
    with server(16) as (address, _), Connection(address, 5) as connection, pytest.raises(RefusedError) as refused:
        connection.request(20_010, {}).check()
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("text", ["", "app", f"\n{SECRET}\n", "app\n \n"])
def test_a_file_without_account_or_secret_is_refused_and_not_repeated(named: Path, text: str) -> None:
    named.write_text(text)
    with pytest.raises(SourceError, match="the first line of the file is the account") as refused:
        account()
    assert SECRET not in str(refused.value)
    named.unlink()
    with pytest.raises(SourceError, match="No such file"):
        account()


@pytest.fixture
def secured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Return the TLS context of a server that this machine trusts."""
    authority = Authority("a test", timedelta(days=1))
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    authority.issue("127.0.0.1", ["127.0.0.1"]).write(tmp_path / "cert.pem", tmp_path / "key.pem")
    monkeypatch.setenv(TLS_CA_VARIABLE, str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    return context


def test_connections_are_tls_if_this_machine_names_authorities(secured: ssl.SSLContext) -> None:
    body = bytes(range(256)) * 8192  # many records
    with server(tls=secured) as (address, asked), Connection(address, 20.0) as connection:
        assert connection.request(11, {"topic": "T"}, body).body == NO_BROKER
        assert asked[0].body == body


def test_an_answer_larger_than_a_tls_record_arrives_whole(
    secured: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "NO_BROKER", b"x" * (1 << 20))
    with server(tls=secured) as (address, _), Connection(address, 20.0, 1 << 30) as connection:
        assert connection.request(11, {}).body == b"x" * (1 << 20)


def test_a_certificate_of_another_authority_is_refused(
    secured: ssl.SSLContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other.pem").write_bytes(Authority("other", timedelta(days=1)).certificate)
    monkeypatch.setenv(TLS_CA_VARIABLE, str(tmp_path / "other.pem"))
    with server(tls=secured) as (address, _), pytest.raises(WireError, match="CERTIFICATE_VERIFY_FAILED"):
        Connection(address, 20.0)


@pytest.mark.parametrize(
    ("is_known", "expected"),
    [(True, "silent for too long"), (False, "takes connections and says nothing: no answer within [0-9.]+ s$")],
)
def test_a_silent_server_is_given_up_over_tls_too(
    secured: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, is_known: bool, expected: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=lambda: secured.wrap_socket(listening.accept()[0], server_side=True).recv(1))
        thread.start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setattr(wire, "FIRST_ANSWER_S", 0.5)
        with Connection(address, 0.5 if is_known else 20.0, is_known=is_known) as connection:
            with pytest.raises(WireError, match=expected):
                connection.receive(1)
        thread.join()


def test_authorities_that_cannot_be_read_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TLS_CA_VARIABLE, "/absent/ca.pem")
    with pytest.raises(SourceError, match="DLEDGER_TLS_CA = /absent/ca"):
        tls_context()
