import asyncio
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from store_model import MEMBERS, SEGMENT_BYTES, LoggedModel, make_entry, synced_log

from dledger.errors import CorruptionError, LogFullError
from dledger.replica.upkeep.repair import REPAIR_CHANNEL, Repairer
from dledger.store import repair
from dledger.store.damage import CorruptRange
from dledger.store.repair import SPOOL_PATH, Spool
from dledger.store.window import RecentWindow
from dledger.testing.disk import SimDisk
from dledger_base import loop_guard
from tests.dledger.fake_driver import Unfailing, connected_to


@pytest.fixture
def model(synced_sim: LoggedModel) -> LoggedModel:
    """Return a log of 60 durable entries that was opened again."""
    synced_sim.reopen()
    return synced_sim


def heal_all(model: LoggedModel) -> None:
    model.heal()
    model.log.close()
    assert model.open().corrupt_ranges == []
    model.check()


@pytest.mark.parametrize("offset", [2, 10, 37, 48])
@pytest.mark.parametrize("index", [0, 30, 59])
def test_a_peers_bytes_heal_an_entry(model: LoggedModel, index: int, offset: int):
    meta = model.entries[index][0]
    model.flip(meta.position + min(offset, meta.size - 1))
    model.reopen()
    heal_all(model)


def test_a_peers_bytes_heal_ranges_over_segments_without_any_index(model: LoggedModel):
    model.log.close()
    for index in (5, 20, 21, 40):
        model.flip(model.entries[index][0].position)
    model.lose_index()
    model.disk.unlink(f"commitlog/{2 * SEGMENT_BYTES:020d}")
    model.open()
    assert model.log.corrupt_ranges
    heal_all(model)


def test_a_repaired_range_takes_its_terms_from_the_peers_bytes():
    """A header rots before its index unit is written. Nothing up to the mark can then be read from that place on."""
    model = synced_log(count=0, segment_bytes=1 << 20)
    for term in (1, 2, 4):
        model.fill(random.Random(term), 10, term=term)
    model.sync()
    model.flip(model.entries[5][0].position + 3)
    (lost,) = model.reopen(clean=False).corrupt_ranges
    found = model.log.repair(lost.start, model.committed_bytes(lost.start, lost.end))
    model.log.learn_terms(lost, found.term_runs)
    assert [model.log.term_at(index) for index in range(30)] == [1] * 10 + [2] * 10 + [4] * 10


def test_bytes_that_do_not_join_both_ends_change_nothing(model: LoggedModel):
    meta, data = model.entries[30]
    model.flip(meta.position + 48)
    (bad,) = model.reopen().corrupt_ranges
    right = model.committed_bytes(bad.start, bad.end)
    other = bytearray(right)
    other[-1] ^= 1
    _, forged = make_entry(30, 1, meta.position, model.entries[29][0].chain_crc, bytes(meta.size - 48))
    assert len(forged) == len(data)
    for start, given, text in (
        (bad.start, right[:-1], "cover"),
        (bad.start, bytes(other), "do not verify"),
        (bad.start + 1, right, "no corrupt range starts"),
        (bad.start, forged, "join"),  # another history verifies in itself
    ):
        with pytest.raises(CorruptionError, match=text):
            model.log.repair(start, given)
    assert model.log.corrupt_ranges == (bad,)
    model.log.repair(bad.start, right)
    model.check()


def scrub_round(model: LoggedModel, budget: int = 700) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for _ in range(2 * model.log.end_position // budget + 10):
        found += [(bad.start, bad.end) for bad in model.log.scrub_step(budget)]
    return found


@pytest.mark.parametrize("offset", [0, 9, 37, 48])
def test_scrubbing_finds_rot_once_and_reads_are_refused_until_repair(model: LoggedModel, offset: int):
    assert scrub_round(model) == []
    meta = model.entries[12][0]
    model.flip(meta.position + offset)
    assert scrub_round(model) == [(meta.position, meta.end)]
    with pytest.raises(CorruptionError, match="do not verify"):
        model.log.read(meta.position, meta.size)
    heal_all(model)


@pytest.mark.parametrize(("begin", "size"), [(-8, 9), (-8, 4_000), (0, 1), (5, 1), (9, 500)])
def test_a_read_that_touches_a_rotten_range_anywhere_is_refused(model: LoggedModel, begin: int, size: int) -> None:
    rotten = model.entries[4][0].position
    model.log._damage.add(CorruptRange(rotten, rotten + 10, 4, 5))
    for read in (model.log.read, model.log.read_nowait):
        with pytest.raises(CorruptionError, match=f"bytes {rotten} to {rotten + 10}"):
            read(rotten + begin, size)
    assert model.log.read(rotten - 8, 8)
    assert model.log.read(rotten + 10, 8)


def test_scrubbing_finds_a_rotten_blank(model: LoggedModel):
    model.flip(SEGMENT_BYTES - 1, bit=7)
    last = max(meta.end for meta, _ in model.entries if meta.position < SEGMENT_BYTES)
    assert scrub_round(model) == [(last, SEGMENT_BYTES)]
    heal_all(model)


@pytest.mark.parametrize("remembered", [1, 1000])
@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
def test_an_examination_finds_the_whole_lost_range_from_any_failed_read(
    model: LoggedModel, at: float, remembered: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("dledger.store.recovery.RECENT_ENTRIES", remembered)
    model.reopen()
    inside = [meta for meta, _ in model.entries if SEGMENT_BYTES <= meta.position < 2 * SEGMENT_BYTES]
    model.disk.open(f"commitlog/{SEGMENT_BYTES:020d}").truncate(SEGMENT_BYTES // 2)
    lost = [meta for meta in inside if meta.end > SEGMENT_BYTES + SEGMENT_BYTES // 2]
    suspect = lost[round(at * (len(lost) - 1))].index
    assert model.log.examine(suspect, model.log.last_index)
    assert [(bad.start, bad.end) for bad in model.log.corrupt_ranges] == [(lost[0].position, 2 * SEGMENT_BYTES)]
    heal_all(model)


def test_an_examination_goes_by_the_entries_where_the_index_rotted(model: LoggedModel, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dledger.store.recovery.RECENT_ENTRIES", 1)
    model.reopen()
    inside = [meta for meta, _ in model.entries if SEGMENT_BYTES <= meta.position < 2 * SEGMENT_BYTES]
    index = model.disk.open(f"index/{SEGMENT_BYTES:020d}")
    before = index.pread(1000, 0)
    index.pwrite(bytes(3 * 32), 2 * 32)
    with pytest.raises(CorruptionError, match="index unit"):
        model.log.position_at(inside[4].index)
    assert model.log.examine(inside[4].index, model.log.last_index) == []
    assert index.pread(1000, 0) == before


def test_scrubbing_mends_the_index(model: LoggedModel):
    index = model.disk.open(f"index/{0:020d}")
    before = index.pread(1000, 0)
    model.sim.flip_bit(f"index/{0:020d}", 100)
    assert scrub_round(model) == []
    assert index.pread(1000, 0) == before


def test_scrubbing_goes_on_while_the_log_is_trimmed(model: LoggedModel):
    model.log.scrub_step(1000)
    model.trim_to(3 * SEGMENT_BYTES)
    assert scrub_round(model) == []
    model.check(first_index=model.log.first_index)


def test_a_segment_trimmed_during_its_scrub_does_not_count_as_lost(model: LoggedModel, monkeypatch: pytest.MonkeyPatch):
    """At the next start an index file without its segment would report the segment as lost."""
    scan = repair.scan_segment
    model.snapshot(SEGMENT_BYTES)

    def scan_and_trim(*arguments: Any, **options: Any) -> Any:
        fault = scan(*arguments, **options)
        model.trim(SEGMENT_BYTES)
        return fault

    monkeypatch.setattr(repair, "scan_segment", scan_and_trim)
    model.log.scrub_step(SEGMENT_BYTES)
    recovery = model.reopen()
    assert (recovery.first_position, recovery.corrupt_ranges) == (SEGMENT_BYTES, [])
    model.check(first_index=model.log.first_index)


def test_a_lost_segment_waits_for_space_and_is_healed_then(model: LoggedModel):
    model.log.close()
    model.disk.unlink(f"commitlog/{2 * SEGMENT_BYTES:020d}")
    (lost,) = model.open().corrupt_ranges
    model.sim.fill_up()
    with pytest.raises(LogFullError, match="No space left"):
        model.log.repair(lost.start, model.committed_bytes(lost.start, lost.end))
    assert model.log.corrupt_ranges == (lost,)
    model.sim.make_room()
    heal_all(model)


class Asked:
    """Environment and transport of a repairer. Requests are recorded and not sent."""

    def __init__(self) -> None:
        self.requests: list[str] = []

    def now(self) -> float:
        return 0.0

    def run_blocking(self, lane: str, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        done(work())

    def send_data(self, to: str, channel: int, data: Sequence[bytes]) -> bool:
        assert channel == REPAIR_CHANNEL
        self.requests.append(to)
        return True


def repairer_of(model: LoggedModel, asked: Asked, engine: SimpleNamespace) -> Repairer:
    peers = connected_to(MEMBERS.voters[1])
    return Repairer("n0", asked, asked, model.log, peers, None, None, None, engine, Unfailing(), rest_s=60.0)


def test_the_event_loops_part_of_a_scrub_reads_no_disk_however_far_commits_are_behind(
    model: LoggedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.log._recent = RecentWindow(model.log.last_index + 1, [])  # as if many entries followed
    asked, works = Asked(), []
    monkeypatch.setattr(asked, "run_blocking", lambda _lane, work, _done: works.append(work))
    monkeypatch.setattr(loop_guard, "_is_tolerated", None)

    async def on_loop() -> None:
        repairer_of(model, asked, SimpleNamespace(commit_index=2)).tick()

    asyncio.run(on_loop())
    (scrub,) = works
    assert scrub() == []


def test_no_peer_is_asked_for_an_entry_before_it_is_committed(model: LoggedModel):
    """The leader may replace such an entry, while the event loop does not know of a repair that is writing."""
    model.log.close()
    model.flip(model.entries[59][0].position + 20)
    (damaged,) = model.open().corrupt_ranges
    assert (damaged.first_index, damaged.next_index) == (59, 60)
    asked, engine = Asked(), SimpleNamespace(commit_index=58)
    repairer = repairer_of(model, asked, engine)
    for _ in range(5):
        repairer.tick()
    assert asked.requests == []
    engine.commit_index = 59
    repairer.tick()
    assert asked.requests == ["n1"]
    repairer.close()


def test_a_spool_file_is_created_at_its_first_write_and_removed_at_close():
    """The event loop begins the collection, so that step must not touch the disk. Workers write the bytes."""
    disk = SimDisk()
    disk.mkdir("raft")
    fault = disk.fail(lambda _operation, _path: True, once=False)
    unused = Spool(disk, 100)
    assert unused.pread(10, 0) == b""
    unused.close()
    disk.faults.remove(fault)
    disk.open(SPOOL_PATH, create=True).pwrite(b"what a crash left there", 0)
    spool = Spool(disk, 8)
    spool.write(b"four")
    spool.write(b"more")
    assert spool.pread(100, 2) == b"urmore"
    spool.close()
    assert not disk.exists(SPOOL_PATH)
