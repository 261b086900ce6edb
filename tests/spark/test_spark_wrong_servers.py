"""A wrong port given to the data source is reported at once: with the foreign server's kind, or as unreachable."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager

import pytest

from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import decode_command, encode_command, make_response
from dledger_remoting.frame import FrameDecoder
from dledger_spark import nodes, wire
from dledger_spark.errors import NoNameServerError
from dledger_spark.nodes import NameServers
from dledger_spark.wire import FIRST_ANSWER_S, Connection

HTTP = b"HTTP/1.0 400 Bad Request\r\n\r\n"
ALERT = bytes.fromhex("15030300020246")
GREETING = bytes.fromhex("000000280100002492 01c420") + bytes(32)


@contextmanager
def accepting(serve):
    """Run a server that serves each connection in a thread of its own. Yield its address and its connections."""
    server = socket.create_server(("127.0.0.1", 0))
    connections = []

    def accept():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=serve, args=(connection, len(connections)), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        host, port = server.getsockname()
        yield f"{host}:{port}", connections
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join(10)


def listening(answer, *, closes: bool = True):
    """Run a server that sends `answer(bytes so far, True at the end)`. Yield its address and its connections."""

    def serve(connection, _number):
        got = b""
        with connection:
            while True:
                data = connection.recv(1000)
                got += data
                reply = answer(got, not data)
                if reply:
                    connection.sendall(reply)
                if not data or (reply and closes):
                    return

    return accepting(serve)


@pytest.mark.parametrize(
    ("first", "named"),
    [
        (HTTP, "an HTTP server answered there"),
        (ALERT, "a TLS server answered there"),
        (GREETING, "the peer port of a node, whose client port is one lower answered there"),
        (b"-ERR unknown command\r\n", "a server of another protocol answered there"),
    ],
)
def test_a_wrong_name_server_is_named_and_not_asked_again(first, named):
    with listening(lambda _got, _over: first) as (address, connections), NameServers((address,)) as name_servers:
        with pytest.raises(NoNameServerError, match=f"^no name server answered: {address}: {named}"):
            name_servers.topics()
        assert len(connections) == 1


def test_a_silent_port_is_reported_and_not_asked_again(monkeypatch):
    assert FIRST_ANSWER_S + wire._AFTER_HALF_CLOSE_S < 2
    monkeypatch.setattr(wire, "FIRST_ANSWER_S", 0.05)
    monkeypatch.setattr(wire, "_AFTER_HALF_CLOSE_S", 0.01)
    with listening(lambda _got, _over: b"") as (address, connections), NameServers((address,)) as name_servers:
        with pytest.raises(NoNameServerError, match=f"{address}: takes connections and says nothing: no answer within"):
            name_servers.topics()
        assert len(connections) == 1


def test_a_wrong_server_that_waits_for_a_line_end_is_named(monkeypatch):
    monkeypatch.setattr(wire, "FIRST_ANSWER_S", 0.05)
    monkeypatch.setattr(wire, "_AFTER_HALF_CLOSE_S", 20)
    with listening(lambda _got, over: HTTP if over else b"") as (address, _), NameServers((address,)) as name_servers:
        with pytest.raises(NoNameServerError, match=f"{address}: an HTTP server answered there"):
            name_servers.topics()


def answering(code, body=b""):
    def answer(got, _over):
        decoder = FrameDecoder()
        decoder.receive_data(got)
        frame = decoder.next_frame()
        return b"" if frame is None else encode_command(make_response(decode_command(frame), code, body=body))

    return answer


right = answering(ResponseCode.SUCCESS, b'{"topicList":["T"]}')


def closing(times):
    """Run a server that closes its first connections after some bytes, and answers the later ones."""

    def serve(connection, number):
        with connection:
            got = connection.recv(1000)
            if number > times:
                connection.sendall(right(got, False))
            elif number % 2:  # the others get a reset instead of an end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return accepting(serve)


def test_a_server_that_closes_silently_is_reported_as_a_possible_tls_port(monkeypatch):
    monkeypatch.setattr(nodes, "FIRST_ANSWER_S", 0.2)
    monkeypatch.setattr(nodes, "NAME_SERVER_TIMEOUT_S", 3_600.0)
    with closing(10_000) as (address, connections), NameServers((address,)) as name_servers:
        with pytest.raises(NoNameServerError, match=f"{address}: says nothing, and closes .* as a TLS port does$"):
            name_servers.topics()
        assert len(connections) > 1


def test_a_name_server_that_closes_its_first_connections_is_waited_for():
    with closing(3) as (address, connections), NameServers((address,)) as name_servers:
        assert name_servers.topics() == ["T"]
        assert len(connections) == 4


def test_a_broker_at_the_address_of_a_name_server_is_named():
    with listening(answering(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)) as (address, connections):
        with NameServers((address,)) as name_servers:
            with pytest.raises(NoNameServerError, match=f"{address}: a broker answered there, no name server$"):
                name_servers.topics()
        assert len(connections) == 1


def test_a_wrong_name_server_of_two_is_skipped():
    with listening(lambda _got, _over: HTTP) as (other, _), listening(right) as (address, _):
        with NameServers((other, address)) as name_servers:
            assert name_servers.topics() == ["T"]


def test_a_name_server_that_is_known_may_be_silent_for_longer(monkeypatch):
    monkeypatch.setattr(wire, "FIRST_ANSWER_S", 0.01)
    monkeypatch.setattr(nodes, "NAME_SERVER_TIMEOUT_S", 0.1)
    with listening(lambda _got, _over: b"") as (address, _), NameServers((address,), known=True) as name_servers:
        with pytest.raises(NoNameServerError, match="silent for too long"):
            name_servers.topics()


def test_a_server_that_has_answered_once_may_take_longer_afterwards():
    def patience(connection):
        return struct.unpack("ll", connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))

    with listening(right, closes=False) as (address, _), Connection(address, 20, is_known=False) as connection:
        assert patience(connection) == (1, 500_000)
        assert connection.request(206, {}).code == ResponseCode.SUCCESS
        assert patience(connection) == (20, 0)
