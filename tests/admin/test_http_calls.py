"""Commands ask HTTP ports of nodes with and without TLS, and say what is wrong with others."""

import http.client
import ssl
import threading
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dledger_admin.http_calls import ask
from dledger_serving.issuing import Authority

PATIENCE_S = 20.0


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *_):
        pass


@contextmanager
def serving(context=None):
    server = HTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_plain_port_is_asked_plainly():
    with serving() as port:
        assert ask("127.0.0.1", port, "GET", "/readyz", {}, PATIENCE_S)[:2] == (200, b"/readyz")


def test_a_port_with_tls_is_asked_over_it(tmp_path):
    Authority("a test", timedelta(days=1)).issue("n", []).write(tmp_path / "cert.pem", tmp_path / "key.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    with serving(context) as port:
        assert ask("127.0.0.1", port, "GET", "/readyz", {}, PATIENCE_S)[:2] == (200, b"/readyz")


def test_what_is_no_http_at_all_is_an_error_of_the_first_attempt(listener):
    def answer():
        for _ in range(2):
            connection, _ = listener.accept()
            connection.recv(100)
            connection.sendall(b"SSH-2.0-x\r\n")
            connection.close()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with pytest.raises(http.client.BadStatusLine, match="SSH"):
        ask("127.0.0.1", listener.getsockname()[1], "GET", "/", {}, PATIENCE_S)
    thread.join()
