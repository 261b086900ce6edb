"""Records that the scanners and the general decoder read alike."""

from __future__ import annotations

from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import MessageRecord, encode_record

HOST, HOST_V6 = HostAddress("10.0.0.9", 4000), HostAddress("fe80::1", 4000)


def encoded(
    place: int = 0,
    *,
    topic: str = "A",
    queue: tuple[int, int] = (0, 0),
    body: bytes = b"x",
    properties: bytes = b"",
    sys_flag: int = 0,
    born_host: HostAddress = HOST,
) -> bytes:
    """Return a record at a place of the log. `queue` is the queue's id, and the offset in the queue."""
    return encode_record(
        MessageRecord(
            topic=topic,
            queue_id=queue[0],
            queue_offset=queue[1],
            physical_offset=place,
            body=body,
            properties=properties,
            sys_flag=sys_flag,
            born_timestamp=1,
            born_host=born_host,
            store_timestamp=1_000 + place,
            store_host=HOST,
        )
    )
