"""Identity of the rows of a sink: a row keeps its identity when a task, or a whole job, runs again.

The identity is a hash of the run, the origin of the row, its content, and its number among equal rows. A run is a query
and micro-batch, or a job's name. A broker answers a repeated send of the same identity with the first result.
So a second attempt stores nothing twice, in any order of its rows.

If the frame has the columns of origin, the origin is an offset of a source topic. It does not matter then how the
source was sliced. Otherwise the origin is a Spark partition: a row that moves to another partition is another row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

from .occurrences import Occurrences

_DIGEST_BYTES: Final = 16


class Origin(NamedTuple):
    """Origin of a row."""

    topic: str
    broker_group: str
    queue_id: int
    offset: int


Spans: TypeAlias = dict[tuple[str, str, int], tuple[int, int]]
"""The lowest and the highest offset that a task has had of each source queue."""


class RowIdentities:
    """Identities of a task's rows. Equal rows of one offset have numbers; without an origin, equal rows of the task."""

    def __init__(self, run: str, partition: int) -> None:
        self._run = _encode_field(run.encode())
        self._partition = partition.to_bytes(4, "big")
        self._occurrences = Occurrences()
        self.spans: Spans = {}

    def close(self) -> None:
        """Remove the files on disk."""
        self._occurrences.close()

    def next(
        self,
        topic: str,
        body: bytes,
        key: str | None,
        tags: str | None,
        properties: Mapping[str, str],
        partition: int | None,
        origin: Origin | None = None,
    ) -> str:
        """Return the unique key of the next row: 32 hexadecimal digits."""
        parts = [
            topic.encode(),
            body,
            _encode_text(key),
            _encode_text(tags),
            b"" if partition is None else b"%d" % partition,
        ]
        for name, value in properties.items():
            parts += (name.encode(), value.encode())
        content = blake2b(b"".join(map(_encode_field, parts)), digest_size=_DIGEST_BYTES).digest()
        prefix = self._run + (self._partition if origin is None else self._encode_origin(origin))
        row = blake2b(prefix + content, digest_size=_DIGEST_BYTES).digest() if origin is not None else content
        occurrence = self._occurrences.next(row).to_bytes(8, "big")
        return blake2b(prefix + content + occurrence, digest_size=_DIGEST_BYTES).hexdigest().upper()

    def _encode_origin(self, origin: Origin) -> bytes:
        """Return the bytes of an origin, and widen the span of its queue."""
        queue = origin[:3]
        low, high = self.spans.get(queue, (origin.offset, origin.offset))
        self.spans[queue] = min(low, origin.offset), max(high, origin.offset)
        place = b"%d %d" % (origin.queue_id, origin.offset)
        return b"origin" + b"".join(map(_encode_field, (origin.topic.encode(), origin.broker_group.encode(), place)))


def overlapping(tasks: Iterable[Spans]) -> tuple[str, str, int] | None:
    """Return a source queue with overlapping ranges of offsets in two tasks, None if there is no such queue."""
    by_queue: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for spans in tasks:
        for queue, span in spans.items():
            by_queue.setdefault(queue, []).append(span)
    for queue, queue_spans in by_queue.items():
        ordered = sorted(queue_spans)
        if any(after[0] <= before[1] for before, after in pairwise(ordered)):
            return queue
    return None


def _encode_text(text: str | None) -> bytes:
    return b"\x00" if text is None else b"\x01" + text.encode()


def _encode_field(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data
