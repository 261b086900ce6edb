"""Message ids: the offset message id, which a broker makes, and the unique key, which a client makes.

Offset message id: upper-case hex of store host (4 or 16 address bytes, port as int32) and physical offset int64. It has
32 or 56 characters. Unique key: upper-case hex of IP address (4 or 16 bytes), pid int16, discriminator int32,
milliseconds since the month began int32, counter int16. It has 32 or 56 characters. Format: RocketMQ's `MessageDecoder`
and `MessageClientIDSetter`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import ip_address

from .errors import InvalidParameter
from .hosts import HostAddress, pack_host, unpack_host


def offset_message_id(store_host: HostAddress, physical_offset: int) -> str:
    """Return the id of the record at `physical_offset` on the node with this address."""
    return f"{pack_host(store_host).hex().upper()}{physical_offset:016X}"


def offset_message_id_prefix(store_host: HostAddress) -> bytes:
    """Return the part before the offset, for `b"%b%016X" % (prefix, physical_offset)` on a hot path."""
    return pack_host(store_host).hex().upper().encode()


def parse_offset_message_id(message_id: str) -> tuple[HostAddress, int]:
    """Return store host and physical offset. Raises `InvalidParameter` if the text is not an offset message id."""
    try:
        data = bytes.fromhex(message_id)
        return unpack_host(data[:-8]), int.from_bytes(data[-8:], "big")
    except ValueError as error:
        raise InvalidParameter(
            f"{message_id!r} is not an offset message id: 32 or 56 hexadecimal digits expected"
        ) from error


class UniqueKeyGenerator:
    """Makes keys that no other process makes. `discriminator` is a random or hashed number of this process."""

    def __init__(self, ip: str, pid: int, discriminator: int) -> None:
        packed = ip_address(ip).packed
        fixed = packed + (pid & 0xFFFF).to_bytes(2, "big") + (discriminator & 0xFFFFFFFF).to_bytes(4, "big")
        self._prefix = fixed.hex().upper()
        self._counter = 0
        self._month_start_ms = 0
        self._month_end_ms = 0

    def next(self, now_ms: int) -> str:
        """Return the next key; `now_ms` is the present time in ms since 1970."""
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._enter_month(now_ms)
        self._counter = (self._counter + 1) & 0xFFFF
        return f"{self._prefix}{(now_ms - self._month_start_ms) & 0xFFFFFFFF:08X}{self._counter:04X}"

    def _enter_month(self, now_ms: int) -> None:
        now = datetime.fromtimestamp(now_ms / 1000, UTC)
        start = datetime(now.year, now.month, 1, tzinfo=UTC)
        end = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
        self._month_start_ms = int(start.timestamp()) * 1000
        self._month_end_ms = int(end.timestamp()) * 1000
