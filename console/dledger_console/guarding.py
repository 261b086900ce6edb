"""Guards of the HTTP port: names under which it answers, headers of every answer, and the origin of changes."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from aiohttp import web

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer. No page has a script or a style of its own, or anything from another host."""

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


class Names:
    """Names under which the console answers: those of this machine's loopback, its own address, and given ones.

    A page of somebody else may let its own name point here (DNS rebinding). Requests under such a name are refused.
    """

    def __init__(self, host: str, names: Iterable[str]) -> None:
        self.given = frozenset(name.casefold() for name in names)
        self._known = _LOOPBACK | self.given | {host.casefold()} - {"0.0.0.0", "::"}

    def is_known(self, request: web.Request) -> bool:
        """Return whether a request came under a known name, whatever the port."""
        return _host_of(request) in self._known

    def is_behind_tls(self, request: web.Request) -> bool:
        """Return whether a request came under a given name: a proxy with TLS has that name."""
        return _host_of(request) in self.given


def is_same_origin(request: web.Request) -> bool:
    """Return whether the page that sends a change is ours, as far as the browser tells."""
    origin = request.headers.get("Origin")
    if origin is None:
        return request.headers.get("Sec-Fetch-Site", "same-origin") in {"same-origin", "none"}
    return origin.partition("://")[2].casefold() == request.headers.get("Host", "").casefold()


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.casefold() == "localhost"


def _host_of(request: web.Request) -> str:
    """Return the name in the `Host` header, without its port and brackets."""
    host = request.headers.get("Host", "").casefold()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
