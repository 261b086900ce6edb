"""Check of records that came without the checksums of their log entries, as pulls give them.

The format is that of `dledger_remoting.record`; the standard library only (and a faster CRC where one is installed).
"""

from __future__ import annotations

from struct import Struct, error
from typing import Final

from .errors import CorruptDataError
from .uncommon import HEAD_BYTES, HOST_FLAGS, MAGIC_V1, MAGIC_V2, MIN_RECORD_BYTES, has_crc

_FIELDS: Final = Struct(">iIIi4xq8xi44xi")
"""Size, magic, body crc, queue id, queue offset, sys flag, body length; hosts are IPv4."""
_INT: Final = Struct(">i")
_IPV6_MORE_BYTES: Final = 12


def check_records(data: bytes, queue_id: int, offset: int, following: int, *, is_filtered: bool) -> None:
    """Check that `data` is the records of a queue from `offset` to before `following`, and that each body has its CRC.

    With `is_filtered`, records may be missing between them. Raises `CorruptDataError`.
    """
    view, place = memoryview(data), 0
    unpack, next_offset = _FIELDS.unpack_from, offset
    while place < len(data):
        try:
            size, magic, body_crc, actual_queue, actual, sys_flag, body_bytes = unpack(data, place)
            start = place + HEAD_BYTES
            if sys_flag & HOST_FLAGS:
                start += _IPV6_MORE_BYTES * (sys_flag & HOST_FLAGS).bit_count()
                (body_bytes,) = _INT.unpack_from(data, start - 4)
        except error as cut_off:
            raise CorruptDataError(f"record at byte {place}: only {len(data) - place} bytes are left") from cut_off
        end = place + size
        if magic not in (MAGIC_V1, MAGIC_V2) or size < MIN_RECORD_BYTES or not 0 <= body_bytes <= end - start:
            raise CorruptDataError(f"record at byte {place}: magic {magic:08x}, size {size}, body length {body_bytes}")
        is_next = next_offset <= actual < following if is_filtered else actual == next_offset
        if actual_queue != queue_id or not is_next or end > len(data):
            raise CorruptDataError(
                f"record at byte {place}: offset {actual} of queue {actual_queue} up to byte {end} of {len(data)}, "
                f"where one of queue {queue_id} from offset {next_offset} to before {following} should be"
            )
        if body_bytes and not has_crc(view[start : start + body_bytes], body_crc):
            raise CorruptDataError(f"record at byte {place}: the body at offset {actual} does not have its crc")
        next_offset, place = actual + 1, end
    if not data or (next_offset != following and not is_filtered):
        raise CorruptDataError(f"records from offset {offset} to before {next_offset}, not {following}")
