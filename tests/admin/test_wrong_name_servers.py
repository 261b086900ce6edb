"""Every command that is given a wrong port says in one line what is there, be it nothing that says a word."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from dledger_admin.cli import main
from dledger_admin.errors import UNHEALTHY
from dledger_client import nameservers

HTTP = b"HTTP/1.0 400 Bad Request\r\n\r\n"
ALERT = bytes.fromhex("15030300020246")
GREETING = bytes.fromhex("000000280100002492 01c420") + bytes(32)


@contextmanager
def listening(first: bytes):
    """Whoever connects and says something is answered so, and is told no more."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve(connection):
        with connection:
            while connection.recv(1000):
                if first:
                    connection.sendall(first)
                    return

    def accept():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        host, port = server.getsockname()
        yield f"{host}:{port}"
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        accepting.join(10)


def exit_code_of(command):
    """Who watches a cluster's health asks for nothing else than whether all is well."""
    return UNHEALTHY if command == ("cluster", "health") else 1


@pytest.mark.parametrize(
    "command",
    [
        ("topic", "list"),
        ("topic", "create", "orders"),
        ("group", "describe", "readers"),
        ("message", "get", "--topic", "orders", "--key", "k"),
        ("cluster", "info"),
        ("cluster", "health"),
        ("produce", "--topic", "orders"),
        ("consume", "--topic", "orders", "--exit-eof"),
        ("consume", "--topic", "orders", "--group", "readers"),
        ("pin", "list"),
    ],
    ids=" ".join,
)
def test_a_command_names_what_answers_at_a_wrong_port(command):
    with listening(HTTP) as address:
        result = CliRunner().invoke(main, [*command, "--namesrv", address], input="one\n")
    assert result.exit_code == exit_code_of(command)
    assert f"{address} is no name server and no broker: an HTTP server answered there" in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("command", [("topic", "list"), ("cluster", "health")], ids=" ".join)
@pytest.mark.parametrize(
    ("first", "named"),
    [
        (ALERT, "is no name server and no broker: a TLS server answered there"),
        (GREETING, "is no name server and no broker: the peer port of a node, whose client port is one lower"),
        (b"", "takes connections and says nothing: no answer within 0.3 s"),
    ],
)
def test_a_wrong_port_is_named_by_what_it_says_or_does_not_say(command, first, named, monkeypatch):
    if not first:
        monkeypatch.setattr(nameservers, "FIRST_ANSWER_SECONDS", 0.3)
    with listening(first) as address:
        result = CliRunner().invoke(main, [*command, "--namesrv", address])
    assert result.exit_code == exit_code_of(command)
    assert f"{address} {named}" in result.stderr
    assert result.stderr.count("\n") == 1
