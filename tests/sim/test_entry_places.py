"""Places of entries at the end of a segment, with and without a snapshot mark, for every number of bytes left."""

import pytest

from dledger.format import BLANK_BYTES, HEADER_BYTES, iter_commands
from dledger.replica.commands import SNAPSHOT_MARK
from dledger.replica.proposer import MARK_BYTES, Proposer, SealedEntry

SEGMENT_BYTES = 1024


class Log:
    """The store's rule for places, and what was sealed."""

    def __init__(self, end: int, *, marks: bool) -> None:
        self.end = end
        self.sealed: list[SealedEntry] = []
        self.proposer = Proposer(
            segment_bytes=SEGMENT_BYTES,
            next_position=self.next_position,
            last=lambda: (len(self.sealed), 0),
            sealed=self.seal,
            wants_mark=lambda: marks,
        )

    def next_position(self, size: int, _privileged: bool) -> int:
        left = -self.end % SEGMENT_BYTES
        return self.end if size + BLANK_BYTES <= left or size == left else self.end + left

    def seal(self, entry: SealedEntry) -> None:
        self.sealed.append(entry)
        self.end = entry.meta.end


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("body_bytes", [1, 50, 51, 100])
def test_entries_fit_their_segment_and_marks_stand_at_its_start(marks: bool, body_bytes: int) -> None:
    for left in range(BLANK_BYTES, HEADER_BYTES + 3 * body_bytes + 2 * MARK_BYTES + BLANK_BYTES):
        log = Log(2 * SEGMENT_BYTES - left, marks=marks)
        for _ in range(3):
            log.proposer.stage(1, body_bytes, lambda _position: (bytes(body_bytes),), b"", None)
        log.proposer.seal()
        before = 2 * SEGMENT_BYTES - left
        for entry in log.sealed:
            meta = entry.meta
            blank = meta.position - before
            assert blank == 0 or (blank >= BLANK_BYTES and meta.position % SEGMENT_BYTES == 0), (left, meta)
            rest = -meta.end % SEGMENT_BYTES
            assert meta.position // SEGMENT_BYTES == (meta.end - 1) // SEGMENT_BYTES, (left, meta)
            assert rest == 0 or rest >= BLANK_BYTES, (left, meta)
            section = memoryview(entry.data)[meta.size - meta.channel :]
            marked = any(kind == SNAPSHOT_MARK for kind, _ in iter_commands(section))
            assert marked == (marks and meta.position % SEGMENT_BYTES == 0), (left, meta)
            before = meta.end
