"""Patterns of client addresses, in rules and white lists.

*                                every address
10.0.0.7, 2001:db8::7            one address
10.0.0.0/8, 2001:db8::/32        a network
10.0.*.*, 10.0.0.1-50,           IPv4 by its four parts: any number, a range, one of several
10.0.0.{1,7}
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

from dledger_remoting.errors import InvalidParameter

Matches: TypeAlias = Callable[[str], bool]
"""Function that returns whether a pattern matches an address, given as text."""
_PARTS: Final = 4
_MAX_PART: Final = 255


def compile_address(pattern: str) -> Matches:
    """Return the matcher of a pattern. Raises `InvalidParameter` for an invalid pattern."""
    if pattern == "*":
        return _every
    try:
        return partial(_in_network, ipaddress.ip_network(pattern, strict=False))
    except ValueError:
        pass
    parts = pattern.split(".")
    try:
        if len(parts) != _PARTS:
            raise ValueError
        allowed = tuple(_numbers(part) for part in parts)
    except ValueError:
        raise InvalidParameter(
            f"address {pattern[:64]!r}: expected *, an address, a network such as 10.0.0.0/8, or four parts: numbers, "
            "*, ranges such as 1-50 and lists such as {1,7}"
        ) from None
    return partial(_in_parts, allowed)


def _every(_address: str) -> bool:
    return True


def _in_network(network: ipaddress.IPv4Network | ipaddress.IPv6Network, address: str) -> bool:
    try:
        return ipaddress.ip_address(address) in network
    except ValueError:
        return False


def _in_parts(allowed: tuple[frozenset[int], ...], address: str) -> bool:
    try:
        numbers = ipaddress.IPv4Address(address).packed
    except ValueError:
        return False
    return all(number in some for number, some in zip(numbers, allowed, strict=True))


def _numbers(part: str) -> frozenset[int]:
    """Return the numbers that one part of an IPv4 pattern matches. Raises `ValueError`."""
    if part == "*":
        return frozenset(range(_MAX_PART + 1))
    if part.startswith("{") and part.endswith("}"):
        found = frozenset(map(_number, part[1:-1].split(",")))
    else:
        first, dash, last = part.partition("-")
        low = _number(first)
        found = frozenset(range(low, (_number(last) if dash else low) + 1))
    if not found:
        raise ValueError
    return found


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > _MAX_PART:
        raise ValueError
    return int(text)
