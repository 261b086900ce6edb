"""Every command with a wrong port reports in one line what answers there, or that nothing answers."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager

import pytest
from command_fakes import refused

from dledger_admin.errors import UNHEALTHY
from dledger_client.cluster import nameservers

HTTP = b"HTTP/1.0 400 Bad Request\r\n\r\n"
ALERT = bytes.fromhex("15030300020246")
GREETING = bytes.fromhex("000000280100002492 01c420") + bytes(32)


@contextmanager
def listening(first: bytes):
    """Run a server that answers the first bytes of a connection with `first`, and then closes it."""
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
    """Return the expected exit code. A monitor of `cluster health` only asks whether all is well."""
    return UNHEALTHY if command == ("cluster", "health") else 1


COMMANDS = [
    ("topic", "list"),
    ("cluster", "health"),
    ("message", "get", "--topic", "orders", "--key", "k"),
    ("produce", "--topic", "orders"),
    ("consume", "--topic", "orders", "--exit-eof"),
    ("consume", "--topic", "orders", "--group", "readers"),
]
NOBODY = "is no name server and no broker:"
SERVERS = [
    (ALERT, f"{NOBODY} a TLS server answered there"),
    (GREETING, f"{NOBODY} the peer port of a node, whose client port is one lower"),
    (b"", "takes connections and says nothing: no answer within 0.3 s"),
]


@pytest.mark.parametrize(
    ("command", "first", "named"),
    [
        *((command, HTTP, f"{NOBODY} an HTTP server answered there") for command in COMMANDS),
        *((command, *server) for command in COMMANDS[:2] for server in SERVERS),
    ],
)
def test_a_command_names_the_kind_of_server_at_a_wrong_port(command, first, named, monkeypatch):
    if not first:
        monkeypatch.setattr(nameservers, "FIRST_ANSWER_SECONDS", 0.3)
    with listening(first) as address:
        error = refused(*command, "--namesrv", address, code=exit_code_of(command), stdin="one\n")
    assert f"{address} {named}" in error
    assert error.count("\n") == 1
