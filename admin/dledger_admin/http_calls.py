"""Requests to HTTP ports of nodes, over TLS where a port speaks it (`tls_http`).

A port is asked plainly first, and over TLS if it does not understand that. Its certificate is not looked at: nothing
secret is sent, and whoever asks for a change proves to know the group's secret without showing it.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from typing import NamedTuple


class Answer(NamedTuple):
    """Answer of an HTTP port."""

    status: int
    body: bytes
    headers: Mapping[str, str]


def ask(host: str, port: int, method: str, path: str, headers: Mapping[str, str], timeout_s: float) -> Answer:
    """Send one request. Raises `OSError` or `http.client.HTTPException`."""
    try:
        return _send_request(http.client.HTTPConnection(host, port, timeout=timeout_s), method, path, headers)
    except (http.client.BadStatusLine, ConnectionResetError):
        https = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=_make_unverified_context())
        try:
            return _send_request(https, method, path, headers)
        except ssl.SSLError:
            pass  # it is no TLS either: the first error says more
        raise


def _send_request(connection: http.client.HTTPConnection, method: str, path: str, headers: Mapping[str, str]) -> Answer:
    try:
        connection.request(method, path, headers=dict(headers))
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(), dict(answer.getheaders()))
    finally:
        connection.close()


def _make_unverified_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
