"""Accounts of Spark's requests: signed for by who the machine says, and shown nowhere."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting.command import RemotingCommand, decode_command, encode_command, make_response
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.signatures import Credentials, is_signed_with
from dledger_remoting.signatures import signed as as_clients_sign
from dledger_spark.errors import RefusedError, SourceError
from dledger_spark.nodes import NameServers
from dledger_spark.signing import CREDENTIALS_VARIABLE, Account, account, signed
from dledger_spark.wire import Connection

SECRET = "planted-secret"
NO_BROKER = b'{"brokerAddrTable":{},"clusterAddrTable":{}}'


@contextmanager
def server(code: int = 0) -> Iterator[tuple[str, list[RemotingCommand]]]:
    """Answers one connection, and keeps what came."""
    asked: list[RemotingCommand] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            peer, _ = listening.accept()
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


@pytest.mark.usefixtures("named")
def test_requests_to_brokers_are_signed_and_those_to_name_servers_are_not() -> None:
    with server() as (address, asked), Connection(address, 5) as connection:
        connection.request(20_010, {"roles": "leader"}, b"body")
    assert asked[0].ext["AccessKey"] == "app"
    assert is_signed_with(SECRET, asked[0].ext, b"body", asked[0].version)
    with server() as (address, asked), NameServers((address,)) as name_servers:
        name_servers.groups()
    assert asked
    assert not any("AccessKey" in command.ext for command in asked)


def test_nothing_is_signed_where_no_account_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CREDENTIALS_VARIABLE, raising=False)
    with server() as (address, asked), Connection(address, 5) as connection:
        connection.request(20_010, {"roles": "leader"})
    assert asked[0].ext == {"roles": "leader"}


@pytest.mark.usefixtures("named")
def test_no_error_and_no_text_shows_the_secret() -> None:
    assert SECRET not in repr(account())
    with (
        server(16) as (address, _),
        Connection(address, 5) as connection,
        pytest.raises(RefusedError) as refused,
    ):
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
