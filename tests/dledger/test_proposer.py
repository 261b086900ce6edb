"""The proposer puts units into entries at known positions, and entries into segments."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger.errors import BusyError, LogFullError, TooLargeError
from dledger.format import (
    BLANK_BYTES,
    HEADER_BYTES,
    MAX_ENTRY_BODY_BYTES,
    MAX_UNIT_BYTES,
    encode_command,
    iter_commands,
    parse_entry,
)  # fmt: skip
from dledger.replica.applying.applier import Contexts
from dledger.replica.snapshots.marks import SNAPSHOT_MARK
from dledger.replica.writing.proposer import MARK_BYTES, Claim, Proposer, SealedEntry, check_room
from dledger.types import EntryKind, Membership, ReplicaId
from dledger_base.invariants import InvariantError

SEGMENT_BYTES = 64 << 10


class Log:
    """Log that takes sealed entries as the store does.

    An entry that leaves no room for a blank starts the next segment.
    """

    def __init__(self, segment_bytes: int = SEGMENT_BYTES, *, marks: bool = False) -> None:
        self.marks = marks
        self.is_exact = True
        """An entry stands where its size goes, or starts a segment if it had room for a mark."""
        self.segment_bytes = segment_bytes
        self.entries: list[SealedEntry] = []
        self.end = 0
        self.chain = 0
        self.marks_wanted = False
        self.full = False
        self.claims: list[Claim] = []
        self.proposer = Proposer(
            segment_bytes=segment_bytes,
            next_position=self.next_position,
            last_entry=lambda: (len(self.entries) - 1, self.chain),
            on_sealed=self.take,
            wants_mark=self.wants_mark,
        )

    def next_position(self, size: int, claim: Claim) -> int:
        self.claims.append(claim)
        if self.full and claim is not Claim.RESERVE:
            raise LogFullError("the disk is full")
        left = self.segment_bytes - self.end % self.segment_bytes
        return self.end if size == left or size + BLANK_BYTES <= left else self.end + left

    def wants_mark(self) -> bool:
        wanted, self.marks_wanted = self.marks_wanted, False
        return wanted or self.marks

    def take(self, entry: SealedEntry) -> None:
        meta = parse_entry(entry.data, 0, len(entry.data), self.chain)
        assert meta is not None
        assert meta.index == len(self.entries)
        if self.is_exact:
            assert meta.position == self.next_position(meta.size, Claim.RESERVE), "it stands where its size goes"
        assert meta.position // self.segment_bytes == (meta.end - 1) // self.segment_bytes
        self.entries.append(entry)
        self.end, self.chain = meta.end, meta.chain_crc

    def stage(self, records: bytes, commands: bytes = b"", context: object = None) -> int:
        return self.proposer.stage(1, len(records), lambda position: (records,), commands, context)

    def read(self, position: int, size: int) -> bytes:
        for entry in self.entries:
            if entry.meta.position <= position < entry.meta.end:
                at = position - entry.meta.position
                return bytes(entry.data[at : at + size])
        raise AssertionError(f"nothing at {position}")


def test_units_of_a_turn_share_an_entry_and_know_their_places():
    log = Log()
    seen: list[int] = []

    def fill(position: int) -> Sequence[bytes]:
        seen.append(position)
        return b"se", b"cond"

    first = log.stage(b"first", encode_command(16, b"one"), "a")
    second = log.proposer.stage(1, 6, fill, encode_command(17, b"two"), None)
    third = log.proposer.stage(1, 0, None, encode_command(18, b""), "c")
    assert (first, second, third) == (HEADER_BYTES, HEADER_BYTES + 5, HEADER_BYTES + 11)
    assert seen == [second]
    assert log.proposer.is_open
    assert log.entries == []
    log.proposer.seal()
    (entry,) = log.entries
    assert log.read(first, 11) == b"firstsecond"
    assert entry.contexts == ["a", "c"]
    section = bytes(entry.data[-entry.meta.channel :])
    assert [kind for kind, _ in iter_commands(section)] == [16, 17, 18]
    log.proposer.seal()
    assert len(log.entries) == 1, "sealing nothing makes no entry"


@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 40), st.booleans(), st.booleans()), max_size=60))
def test_every_unit_is_stored_at_its_announced_position(units: list[tuple[int, int, bool, bool]]):
    log = Log()
    staged: list[tuple[int, bytes]] = []
    for number, (size, command_size, seal_now, mark) in enumerate(units):
        log.marks_wanted = mark
        if not size and not command_size:
            continue
        records = bytes([number]) * size
        commands = encode_command(16, bytes(command_size)) if command_size else b""
        staged.append((log.stage(records, commands), records))
        if seal_now:
            log.proposer.seal()
    log.proposer.seal()
    for position, records in staged:
        if records:
            assert log.read(position, len(records)) == records


def test_an_entry_is_sealed_before_the_unit_that_no_longer_fits():
    log = Log(segment_bytes=8 << 20)
    log.stage(bytes(MAX_ENTRY_BODY_BYTES - 10))
    log.stage(bytes(10))
    assert log.entries == []
    log.stage(b"x")
    assert [entry.meta.size for entry in log.entries] == [HEADER_BYTES + MAX_ENTRY_BODY_BYTES]


def test_a_mark_stands_in_the_first_entry_of_a_segment_only():
    log = Log()
    log.marks_wanted = True
    log.stage(b"x" * 100)
    log.proposer.seal()
    assert log.entries[0].meta.channel == 0, "the log's very beginning needs no snapshot"
    log.stage(bytes(40_000))
    log.proposer.seal()
    log.stage(bytes(40_000))
    log.stage(b"more of the same entry", encode_command(16, b""))
    log.proposer.seal()
    marked = log.entries[2]
    assert marked.meta.position == SEGMENT_BYTES
    assert next(iter_commands(bytes(marked.data[-marked.meta.channel :])))[0] == SNAPSHOT_MARK
    log.stage(b"y")
    log.proposer.seal()
    assert log.entries[3].meta.channel == 0


def test_units_that_are_too_large_are_refused_before_they_are_filled():
    def never(position: int) -> Sequence[bytes]:
        raise AssertionError(f"filled at {position}")

    small, large = Log(), Log(segment_bytes=64 << 20)
    with pytest.raises(TooLargeError):
        small.proposer.stage(1, SEGMENT_BYTES - HEADER_BYTES, never, b"", None)
    with pytest.raises(TooLargeError):
        large.proposer.stage(1, MAX_UNIT_BYTES + 1, never, b"", None)
    large.stage(bytes(MAX_UNIT_BYTES))
    large.proposer.seal()


@pytest.fixture
def log() -> Log:
    return Log()


def test_a_full_disk_refuses_units_and_accepts_privileged_ones(log: Log):
    log.full = True
    with pytest.raises(LogFullError):
        log.stage(b"x")
    assert not log.proposer.is_open
    log.take(log.proposer.control_entry(EntryKind.NO_OP, 1, None))
    log.proposer.stage(1, 0, None, encode_command(16, b"a trim makes room"), None, privileged=True)
    with pytest.raises(LogFullError):
        log.stage(b"x")
    assert len(log.entries) == 2, "a refusal seals the privileged unit"
    log.full = False
    log.stage(b"x")
    log.proposer.seal()
    assert [entry.meta.kind for entry in log.entries] == [EntryKind.NO_OP, EntryKind.GROUP, EntryKind.GROUP]


def test_units_that_make_room_share_no_entry_with_others(log: Log):
    """Ordinary units must not use the space that is kept free. Units with records must not use the log's reserve."""
    log.stage(b"ordinary")
    log.proposer.stage(1, 5, lambda _: (b"moved",), b"", None, privileged=True)
    log.proposer.stage(1, 0, None, encode_command(16, b"a trim"), None, privileged=True)
    log.proposer.stage(1, 5, lambda _: (b"again",), b"", None, privileged=True)
    log.stage(b"ordinary")
    log.proposer.seal()
    found = [entry.privileged for entry in log.entries]
    assert found == [False, False, True, False, False]
    opened = [claim for claim in log.claims if claim is not Claim.RESERVE]
    assert opened == [Claim.ORDINARY, Claim.FREES_SPACE, Claim.FREES_SPACE, Claim.ORDINARY]


def test_a_membership_entry_is_its_own(log: Log):
    membership = Membership((ReplicaId("a", "1"),))
    entry = log.proposer.control_entry(EntryKind.MEMBERSHIP, 1, membership)
    assert entry.meta.membership == membership
    log.take(entry)
    log.stage(b"x")
    with pytest.raises(InvariantError):
        log.proposer.control_entry(EntryKind.NO_OP, 1, None)


def test_dropped_units_leave_no_trace(log: Log):
    log.stage(b"gone", context="mine")
    assert log.proposer.drop() == ["mine"]
    log.stage(b"kept")
    log.proposer.seal()
    assert bytes(log.entries[0].data[HEADER_BYTES:]) == b"kept"
    assert log.entries[0].contexts == []


def test_units_that_belie_their_size_are_a_programming_error(log: Log):
    log.proposer.stage(1, 5, lambda position: (b"four",), b"", None)
    with pytest.raises(InvariantError):
        log.proposer.seal()
    with pytest.raises(InvariantError):
        Log().proposer.stage(1, 5, None, b"", None)


def test_contexts_are_taken_by_index_and_dropped_in_order():
    contexts = Contexts()
    contexts.add(3, ["a", "b"])
    contexts.add(4, [])
    contexts.add(5, ["c"])
    contexts.add(7, ["d"])
    assert contexts.take(2) == []
    assert contexts.take(3) == ["a", "b"]
    assert contexts.take(4) == []
    assert contexts.drop() == ["c", "d"]
    assert contexts.drop() == []


def test_bytes_that_wait_for_a_majority_are_limited():
    check_room(100, 100)
    with pytest.raises(BusyError, match="101 bytes wait for a majority, the limit is 100"):
        check_room(101, 100)


@pytest.mark.parametrize("marks", [False, True])
@pytest.mark.parametrize("body_bytes", [1, 50, 51, 100])
def test_entries_fit_their_segment_and_marks_stand_at_its_start(marks: bool, body_bytes: int):
    """This holds for every number of bytes that are left in a segment."""
    segment_bytes = 1024
    for left in range(BLANK_BYTES, HEADER_BYTES + 3 * body_bytes + 2 * MARK_BYTES + BLANK_BYTES):
        log = Log(segment_bytes, marks=marks)
        log.is_exact = False
        log.end = before = 2 * segment_bytes - left
        for _ in range(3):
            log.stage(bytes(body_bytes))
        log.proposer.seal()
        for entry in log.entries:
            meta = entry.meta
            is_first = meta.position % segment_bytes == 0
            assert meta.position == before or (is_first and meta.position - before >= BLANK_BYTES), (left, meta)
            rest = -meta.end % segment_bytes
            assert rest == 0 or rest >= BLANK_BYTES, (left, meta)
            section = bytes(entry.data[meta.size - meta.channel :])
            marked = any(kind == SNAPSHOT_MARK for kind, _ in iter_commands(section))
            assert marked == (marks and is_first), (left, meta)
            before = meta.end
