"""Host addresses: as text, and in the form of records and message ids.

That form is 4 or 16 address bytes, and behind them the port as int32.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

IPV4_HOST_BYTES = 8
IPV6_HOST_BYTES = 20


class HostAddress(NamedTuple):
    """A numeric IPv4 or IPv6 address and a port."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


@lru_cache(maxsize=4096)
def pack_host(host: HostAddress) -> bytes:
    """Return the 8 or 20 bytes of an address.

    Raises ValueError if it is not numeric or the port has more than 32 bits.
    """
    if not 0 <= host.port < 2**31:
        raise ValueError(f"port {host.port} of {host.ip} is outside 0..2147483647")
    return ip_address(host.ip).packed + host.port.to_bytes(4, "big")


@lru_cache(maxsize=4096)
def unpack_host(data: bytes) -> HostAddress:
    """Return the address in 8 or 20 bytes. Raises ValueError for any other length or a negative port."""
    if len(data) not in (IPV4_HOST_BYTES, IPV6_HOST_BYTES):
        raise ValueError(f"a host has {IPV4_HOST_BYTES} or {IPV6_HOST_BYTES} bytes, not {len(data)}")
    port = int.from_bytes(data[-4:], "big", signed=True)
    if port < 0:
        raise ValueError(f"port {port} is negative")
    return HostAddress(str(ip_address(data[:-4])), port)


def split_host_port(text: str) -> tuple[str, int]:
    """Return host and port of `host:port` or `[ipv6]:port`. Raises ValueError for other texts and impossible hosts."""
    host, separator, port = text.rpartition(":")
    if not separator or not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65_536:
        raise ValueError('expected "host:port" with a port from 1 to 65535')
    host = host.removeprefix("[").removesuffix("]")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ValueError(f"{host!r} is no host name: what stands between dots has 1 to 63 characters") from None
    if not host.isprintable():
        raise ValueError(f"{host!r} is no host name")
    return host, int(port)
