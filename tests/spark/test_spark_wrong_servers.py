"""A wrong port given to the data source is named at once: what answers there, or that nothing does."""

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
def listening(answer, *, closes: bool = True):
    """A server that says `answer(what it has got, whether that is all)`; yields its address and its connections."""
    server = socket.create_server(("127.0.0.1", 0))
    connections = []

    def serve(connection):
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

    def accept():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            connections.append(connection)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        host, port = server.getsockname()
        yield f"{host}:{port}", connections
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        accepting.join(10)


@pytest.mark.parametrize(
    ("first", "named"),
    [
        (HTTP, "an HTTP server answered there"),
        (ALERT, "a TLS server answered there"),
        (GREETING, "the peer port of a node, whose client port is one lower answered there"),
        (b"-ERR unknown command\r\n", "a server of another protocol answered there"),
    ],
)
def test_what_answers_instead_of_a_name_server_is_named_and_not_asked_again(first, named):
    with listening(lambda _got, _over: first) as (address, connections), NameServers((address,)) as name_servers:
        with pytest.raises(NoNameServerError, match=f"^no name server answered: {address}: {named}"):
            name_servers.topics()
        assert len(connections) == 1


def test_a_port_that_says_nothing_is_told_of_and_not_asked_again(monkeypatch):
    assert FIRST_ANSWER_S + wire._LAST_WORDS_S < 2
    monkeypatch.setattr(wire, "FIRST_ANSWER_S", 0.05)
    monkeypatch.setattr(wire, "_LAST_WORDS_S", 0.01)
    with listening(lambda _got, _over: b"") as (address, connections), NameServers((address,)) as name_servers:
        with pytest.raises(NoNameServerError, match=f"{address}: takes connections and says nothing: no answer within"):
            name_servers.topics()
        assert len(connections) == 1


def test_a_server_that_waits_for_the_end_of_a_line_is_named_all_the_same(monkeypatch):
    monkeypatch.setattr(wire, "FIRST_ANSWER_S", 0.05)
    monkeypatch.setattr(wire, "_LAST_WORDS_S", 20)
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


@contextmanager
def closing(times):
    """A server that closes its first connections without a word once something has come, and answers others."""
    server = socket.create_server(("127.0.0.1", 0))
    closed = []

    def accept():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                got = connection.recv(1000)
                if len(closed) >= times:
                    connection.sendall(right(got, False))
                    continue
                closed.append(got)
                if len(closed) % 2:  # the others get a reset instead of an end
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        host, port = server.getsockname()
        yield f"{host}:{port}", closed
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        accepting.join(10)


def test_a_server_that_closes_without_a_word_as_most_of_tls_do_is_told_of_before_two_seconds_are_over(monkeypatch):
    monkeypatch.setattr(nodes, "FIRST_ANSWER_S", 0.2)
    monkeypatch.setattr(nodes, "NAME_SERVER_TIMEOUT_S", 3_600.0)
    with closing(10_000) as (address, closed), NameServers((address,)) as name_servers:
        with pytest.raises(NoNameServerError, match=f"{address}: says nothing, and closes .* as a TLS port does$"):
            name_servers.topics()
        assert len(closed) > 1


def test_a_name_server_that_closes_its_first_connections_is_waited_for():
    with closing(3) as (address, closed), NameServers((address,)) as name_servers:
        assert name_servers.topics() == ["T"]
        assert len(closed) == 3


def test_a_broker_at_the_address_of_a_name_server_is_named():
    with listening(answering(ResponseCode.REQUEST_CODE_NOT_SUPPORTED)) as (address, connections):
        with NameServers((address,)) as name_servers:
            with pytest.raises(NoNameServerError, match=f"{address}: a broker answered there, no name server$"):
                name_servers.topics()
        assert len(connections) == 1


def test_one_wrong_name_server_of_two_is_passed_over():
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
    def right(got, _over):
        decoder = FrameDecoder()
        decoder.receive_data(got)
        frame = decoder.next_frame()
        return encode_command(make_response(decode_command(frame), ResponseCode.SUCCESS)) if frame else b""

    def patience(connection):
        return struct.unpack("ll", connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))

    with listening(right, closes=False) as (address, _), Connection(address, 20, is_known=False) as connection:
        assert patience(connection) == (1, 500_000)
        assert connection.request(206, {}).code == ResponseCode.SUCCESS
        assert patience(connection) == (20, 0)
