"""Host addresses as records and message ids hold them: 4 or 16 address bytes, then the port as int32."""

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
    """The 8 or 20 bytes of an address. Raises ValueError if it is not numeric or the port is not of 32 bits."""
    if not 0 <= host.port < 2**31:
        raise ValueError(f"port {host.port} of {host.ip} is outside 0..2147483647")
    return ip_address(host.ip).packed + host.port.to_bytes(4, "big")


@lru_cache(maxsize=4096)
def unpack_host(data: bytes) -> HostAddress:
    """The address in 8 or 20 bytes. Raises ValueError for any other length or a negative port."""
    if len(data) not in (IPV4_HOST_BYTES, IPV6_HOST_BYTES):
        raise ValueError(f"a host has {IPV4_HOST_BYTES} or {IPV6_HOST_BYTES} bytes, not {len(data)}")
    port = int.from_bytes(data[-4:], "big", signed=True)
    if port < 0:
        raise ValueError(f"port {port} is negative")
    return HostAddress(str(ip_address(data[:-4])), port)
