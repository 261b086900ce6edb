"""Commands ask HTTP ports of nodes with and without TLS, and explain other answers."""

import http.client
import ssl
import threading
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from dledger_admin.http_calls import ask
from dledger_base.issuing import Authority

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


def test_a_port_is_asked_plainly_or_over_tls_if_it_has_tls(tmp_path):
    Authority("a test", timedelta(days=1)).issue("n", []).write(tmp_path / "cert.pem", tmp_path / "key.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    for spoken in (None, context):
        with serving(spoken) as port:
            assert ask("127.0.0.1", port, "GET", "/readyz", {}, PATIENCE_S)[:2] == (200, b"/readyz")


def test_an_answer_that_is_not_http_raises_the_error_of_the_first_attempt(listener):
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
