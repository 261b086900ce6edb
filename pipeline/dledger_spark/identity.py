"""Identity of the rows of a sink: the same row is the same one when a task runs again.

The identity is a hash of what runs (query and micro-batch, or a job's name), the Spark partition, the row's content,
and its number among equal rows of the partition. A broker answers a repeated send of the same identity with the first
result; so a second attempt stores nothing twice, in whatever order it yields the partition's rows. Rows that move to
another partition, or that come out different, are other rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

_DIGEST_BYTES: Final = 16


class RowIdentities:
    """Numbers equal rows of one partition; it keeps 16 bytes and a count of every row that it has seen."""

    def __init__(self, run: str, partition: int) -> None:
        self._prefix = _field(run.encode()) + partition.to_bytes(4, "big")
        self._seen: Counter[bytes] = Counter()

    def next(
        self,
        topic: str,
        body: bytes,
        key: str | None,
        tags: str | None,
        properties: Mapping[str, str],
        place: int | None,
    ) -> str:
        """The unique key of the next row: 32 hexadecimal digits."""
        parts = [topic.encode(), body, _text(key), _text(tags), b"" if place is None else b"%d" % place]
        for name, value in properties.items():
            parts += (name.encode(), value.encode())
        content = blake2b(b"".join(map(_field, parts)), digest_size=_DIGEST_BYTES).digest()
        self._seen[content] += 1
        occurrence = self._seen[content].to_bytes(8, "big")
        return blake2b(self._prefix + content + occurrence, digest_size=_DIGEST_BYTES).hexdigest().upper()


def _text(text: str | None) -> bytes:
    return b"\x00" if text is None else b"\x01" + text.encode()


def _field(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
