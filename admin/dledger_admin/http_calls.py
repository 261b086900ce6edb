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
    """What a port has answered."""

    status: int
    body: bytes
    headers: Mapping[str, str]


def ask(host: str, port: int, method: str, path: str, headers: Mapping[str, str], timeout_s: float) -> Answer:
    """Send one request. Raises `OSError` or `http.client.HTTPException`."""
    try:
        return _answer(http.client.HTTPConnection(host, port, timeout=timeout_s), method, path, headers)
    except (http.client.BadStatusLine, ConnectionResetError):
        secured = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=_unchecked())
        try:
            return _answer(secured, method, path, headers)
        except ssl.SSLError:
            pass  # it is no TLS either: the first error says more
        raise


def _answer(connection: http.client.HTTPConnection, method: str, path: str, headers: Mapping[str, str]) -> Answer:
    try:
        connection.request(method, path, headers=dict(headers))
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(), dict(answer.getheaders()))
    finally:
        connection.close()


def _unchecked() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
