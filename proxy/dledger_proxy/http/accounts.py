"""Accounts of requests: Basic authentication, and a limit on guesses of secrets.

The front judges no secret. It signs the request to the broker with what the caller has sent, and the broker judges the
signature and the account's rights. If the proxy has an account of its own, it speaks for the caller, so that the broker
also knows the caller's address.

Brokers limit wrong signatures for each pair of an account and an address. All callers of the front have the front's
address there. So the front has a stricter limit for each pair of an account and a caller's address. Otherwise a
stranger could use up the limit of an account's owner.
"""

from __future__ import annotations

import binascii
import ipaddress
from base64 import b64decode
from collections.abc import Callable
from typing import Final

from aiohttp import web

from dledger_client import Credentials

from .backend import Caller
from .problems import Kind, ProblemError

MAX_AUTHORIZATION_CHARS: Final = 4_096
BURST: Final = 5
"""Number of wrong secrets of an account, from an address, after which requests for that account wait."""
PER_S: Final = 0.2
"""Number of further wrong secrets per second."""
MAX_PAIRS: Final = 4_096
"""Maximum number of pairs of an account and an address that are counted. The oldest is forgotten."""

_SYNTAX: Final = "send 'Authorization: Basic ' and the Base64 of ACCOUNT:SECRET, as curl does for --user ACCOUNT:SECRET"


def caller_of(request: web.Request) -> Caller:
    """Return the sender of a request. Raises `ProblemError` as `account_of`."""
    peer = None if request.transport is None else request.transport.get_extra_info("peername")
    host, port = (str(_address(str(peer[0]))), int(peer[1])) if peer else ("", 0)
    return Caller(account_of(request), host, port)


def account_of(request: web.Request) -> Credentials | None:
    """Return the account that a request names, None if it names none.

    Raises `ProblemError` if the header cannot be read, or if the secret came over a network without TLS.
    """
    header = request.headers.get("Authorization")
    if header is None:
        return None
    if not is_private(request):
        raise ProblemError(
            Kind.FORBIDDEN,
            "the secret came without TLS, so others on the network may have read it: give the account another secret, "
            "and use https",
        )
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic" or len(header) > MAX_AUTHORIZATION_CHARS:
        raise ProblemError(Kind.UNAUTHORIZED, f"the account cannot be read: {_SYNTAX}")
    try:
        name, colon, secret = b64decode(encoded.strip().encode("ascii"), validate=True).decode().partition(":")
        if not colon:
            raise ValueError("no colon")
        return Credentials(name, secret)
    except (UnicodeError, binascii.Error, ValueError) as error:
        raise ProblemError(Kind.UNAUTHORIZED, f"the account cannot be read: {_SYNTAX}") from error


def is_private(request: web.Request) -> bool:
    """Return whether nobody can listen: the connection has TLS, or both of its ends are on this machine."""
    transport = request.transport
    if transport is None:
        return False
    if transport.get_extra_info("sslcontext") is not None:
        return True
    ends = (transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
    return all(end and _is_loopback(str(end[0])) for end in ends)


def _is_loopback(address: str) -> bool:
    return _address(address).is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return a numeric address without its zone, and an IPv4 address if it is one in the form of IPv6."""
    parsed = ipaddress.ip_address(text.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return mapped or parsed


class Guesses:
    """Counter of wrong secrets by account and address. `now` is a clock in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._levels: dict[tuple[str, str], tuple[float, float]] = {}
        """Level of each pair, which falls by `PER_S`, and the time at which it was computed."""

    def require_patience(self, caller: Caller) -> None:
        """Raise `ProblemError` after too many wrong secrets."""
        if caller.account is not None and self._level((caller.account.access_key, caller.host)) > BURST - 1:
            raise ProblemError(
                Kind.BUSY,
                f"too many wrong secrets of {caller.account.access_key!r} from {caller.host}: check the secret, and "
                "try again in some seconds",
            )

    def note(self, caller: Caller) -> None:
        """Count a wrong secret."""
        if caller.account is None:
            return
        pair = caller.account.access_key, caller.host
        level = self._level(pair) + 1
        self._levels.pop(pair, None)
        if len(self._levels) >= MAX_PAIRS:
            del self._levels[next(iter(self._levels))]
        self._levels[pair] = level, self._now()

    def _level(self, pair: tuple[str, str]) -> float:
        level, at = self._levels.get(pair, (0.0, 0.0))
        return max(0.0, level - (self._now() - at) * PER_S)
