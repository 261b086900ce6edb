import asyncio
import random
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from store_model import MEMBERS, SEGMENT_BYTES, LoggedModel

from dledger import loop_guard
from dledger.errors import CorruptionError, LogFullError
from dledger.replica.repair import REPAIR_CHANNEL, Repairer
from dledger.store import repair
from dledger.store.repair import SPOOL_PATH, Spool
from dledger.store.window import RecentWindow
from dledger.testing.disk import SimDisk
from dledger.types import EntryMeta
from tests.dledger.fake_driver import Unfailing


def closed_log() -> LoggedModel:
    model = LoggedModel(SimDisk(random.Random(1)))
    model.fill(random.Random(1), 60)
    model.sync()
    model.log.close()
    return model


def flip(model: LoggedModel, meta: EntryMeta, offset: int) -> None:
    disk = model.disk
    assert isinstance(disk, SimDisk)
    start = meta.position // SEGMENT_BYTES * SEGMENT_BYTES
    disk.flip_bit(f"commitlog/{start:020d}", 8 * (meta.position - start + offset))


def heal_all(model: LoggedModel) -> None:
    for bad in model.log.corrupt_ranges:
        model.log.repair(bad.start, model.committed_bytes(bad.start, bad.end))
    assert model.log.corrupt_ranges == ()
    model.check()
    model.log.close()
    assert model.open().corrupt_ranges == []
    model.check()


@pytest.mark.parametrize("offset", [2, 10, 37, 48])
@pytest.mark.parametrize("index", [0, 30, 59])
def test_a_peers_bytes_heal_an_entry(index: int, offset: int):
    model = closed_log()
    flip(model, model.entries[index][0], min(offset, model.entries[index][0].size - 1))
    model.open()
    heal_all(model)


def test_a_peers_bytes_heal_ranges_over_segments_without_any_index():
    model = closed_log()
    for index in (5, 20, 21, 40):
        flip(model, model.entries[index][0], 0)
    for name in model.disk.listdir("index"):
        model.disk.unlink(f"index/{name}")
    model.disk.unlink(f"commitlog/{2 * SEGMENT_BYTES:020d}")
    model.open()
    assert model.log.corrupt_ranges
    heal_all(model)


def test_the_terms_of_a_range_are_those_of_a_peers_bytes():
    """1. A header rots before its index unit is written; 2. what follows cannot be told from it, up to the mark."""
    model = LoggedModel(SimDisk(random.Random(1)), segment_bytes=1 << 20)
    for term in (1, 2, 4):
        model.fill(random.Random(term), 10, term=term)
    model.sync()
    model.disk.flip_bit(f"commitlog/{0:020d}", 8 * (model.entries[5][0].position + 3))
    model.log.close(clean=False)
    (lost,) = model.open().corrupt_ranges
    found = model.log.repair(lost.start, model.committed_bytes(lost.start, lost.end))
    model.log.learn_terms(lost, found.term_runs)
    assert [model.log.term_at(index) for index in range(30)] == [1] * 10 + [2] * 10 + [4] * 10


def test_bytes_that_do_not_join_both_ends_change_nothing():
    model = closed_log()
    flip(model, model.entries[30][0], 48)
    model.open()
    (bad,) = model.log.corrupt_ranges
    right = model.committed_bytes(bad.start, bad.end)
    other = bytearray(right)
    other[-1] ^= 1
    with pytest.raises(CorruptionError, match="cover"):
        model.log.repair(bad.start, right[:-1])
    with pytest.raises(CorruptionError, match="do not verify"):
        model.log.repair(bad.start, bytes(other))
    with pytest.raises(CorruptionError, match="no corrupt range starts"):
        model.log.repair(bad.start + 1, right)
    assert model.log.corrupt_ranges == (bad,)
    model.log.repair(bad.start, right)
    model.check()


def test_another_history_that_verifies_in_itself_does_not_join():
    from store_model import make_entry

    model = closed_log()
    meta, data = model.entries[30]
    flip(model, meta, 48)
    model.open()
    _, forged = make_entry(30, 1, meta.position, model.entries[29][0].chain_crc, bytes(meta.size - 48))
    assert len(forged) == len(data)
    with pytest.raises(CorruptionError, match="join"):
        model.log.repair(meta.position, forged)


def scrub_round(model: LoggedModel, budget: int = 700) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for _ in range(2 * model.log.end_position // budget + 10):
        found += [(bad.start, bad.end) for bad in model.log.scrub_step(budget)]
    return found


def test_an_intact_log_scrubs_clean():
    model = closed_log()
    model.open()
    assert scrub_round(model) == []


@pytest.mark.parametrize("offset", [0, 9, 37, 48])
def test_scrubbing_finds_rot_once_and_it_is_refused_until_healed(offset: int):
    model = closed_log()
    model.open()
    meta = model.entries[12][0]
    flip(model, meta, offset)
    assert scrub_round(model) == [(meta.position, meta.end)]
    with pytest.raises(CorruptionError, match="do not verify"):
        model.log.read(meta.position, meta.size)
    heal_all(model)


def test_scrubbing_finds_a_rotten_blank():
    model = closed_log()
    model.open()
    disk = model.disk
    assert isinstance(disk, SimDisk)
    disk.flip_bit(f"commitlog/{0:020d}", 8 * SEGMENT_BYTES - 1)
    last = max(meta.end for meta, _ in model.entries if meta.position < SEGMENT_BYTES)
    assert scrub_round(model) == [(last, SEGMENT_BYTES)]
    heal_all(model)


@pytest.mark.parametrize("remembered", [1, 1000])
@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
def test_an_examination_finds_a_lost_stretch_whole_wherever_in_it_a_read_failed(
    at: float, remembered: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("dledger.store.recovery.RECENT_ENTRIES", remembered)
    model = closed_log()
    model.open()
    inside = [meta for meta, _ in model.entries if SEGMENT_BYTES <= meta.position < 2 * SEGMENT_BYTES]
    model.disk.open(f"commitlog/{SEGMENT_BYTES:020d}").truncate(SEGMENT_BYTES // 2)
    lost = [meta for meta in inside if meta.end > SEGMENT_BYTES + SEGMENT_BYTES // 2]
    suspect = lost[round(at * (len(lost) - 1))].index
    assert model.log.examine(suspect, model.log.last_index)
    assert [(bad.start, bad.end) for bad in model.log.corrupt_ranges] == [(lost[0].position, 2 * SEGMENT_BYTES)]
    heal_all(model)


def test_an_examination_goes_by_the_entries_where_the_index_rotted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dledger.store.recovery.RECENT_ENTRIES", 1)
    model = closed_log()
    model.open()
    inside = [meta for meta, _ in model.entries if SEGMENT_BYTES <= meta.position < 2 * SEGMENT_BYTES]
    index = model.disk.open(f"index/{SEGMENT_BYTES:020d}")
    before = index.pread(1000, 0)
    index.pwrite(bytes(3 * 32), 2 * 32)
    with pytest.raises(CorruptionError, match="index unit"):
        model.log.position_at(inside[4].index)
    assert model.log.examine(inside[4].index, model.log.last_index) == []
    assert index.pread(1000, 0) == before


def test_scrubbing_mends_the_index():
    model = closed_log()
    model.open()
    disk = model.disk
    assert isinstance(disk, SimDisk)
    before = disk.open(f"index/{0:020d}").pread(1000, 0)
    disk.flip_bit(f"index/{0:020d}", 100)
    assert scrub_round(model) == []
    assert disk.open(f"index/{0:020d}").pread(1000, 0) == before


def test_scrubbing_goes_on_while_the_log_is_trimmed():
    model = closed_log()
    model.open()
    model.log.scrub_step(1000)
    model.snapshot(3 * SEGMENT_BYTES)
    model.trim(3 * SEGMENT_BYTES)
    assert scrub_round(model) == []
    model.check(first_index=model.log.first_index)


def test_a_segment_that_is_trimmed_while_it_is_verified_does_not_look_lost(monkeypatch: pytest.MonkeyPatch):
    """An index file without its segment would say so at the next start."""
    model = closed_log()
    model.open()
    scan = repair.scan_segment
    model.snapshot(SEGMENT_BYTES)

    def scan_and_trim(*arguments: Any, **options: Any) -> Any:
        fault = scan(*arguments, **options)
        model.trim(SEGMENT_BYTES)
        return fault

    monkeypatch.setattr(repair, "scan_segment", scan_and_trim)
    model.log.scrub_step(SEGMENT_BYTES)
    model.log.close()
    recovery = model.open()
    assert (recovery.first_position, recovery.corrupt_ranges) == (SEGMENT_BYTES, [])
    model.check(first_index=model.log.first_index)


def test_a_lost_segment_waits_for_space_and_is_healed_then():
    model = closed_log()
    model.disk.unlink(f"commitlog/{2 * SEGMENT_BYTES:020d}")
    model.open()
    disk = model.disk
    assert isinstance(disk, SimDisk)
    (lost,) = model.log.corrupt_ranges
    disk.fill_up()
    with pytest.raises(LogFullError, match="No space left"):
        model.log.repair(lost.start, model.committed_bytes(lost.start, lost.end))
    assert model.log.corrupt_ranges == (lost,)
    disk.make_room()
    heal_all(model)


class Asked:
    """The environment and the transport of a repairer: requests go nowhere."""

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
    peers = {"n1": MEMBERS.voters[1]}
    return Repairer("n0", asked, asked, model.log, peers, None, None, engine, Unfailing(), rest_s=60.0)


def test_the_event_loops_part_of_a_scrub_reads_no_disk_however_far_commits_are_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = closed_log()
    model.open()
    model.log._recent = RecentWindow(model.log.last_index + 1, [])  # as if many entries followed
    asked, works = Asked(), []
    monkeypatch.setattr(asked, "run_blocking", lambda _lane, work, _done: works.append(work))
    monkeypatch.setattr(loop_guard, "_tolerated", None)

    async def on_loop() -> None:
        repairer_of(model, asked, SimpleNamespace(commit_index=2)).tick()

    asyncio.run(on_loop())
    (scrub,) = works
    assert scrub() == []


def test_no_peer_is_asked_for_an_entry_before_it_is_committed():
    """The leader may replace it, while the event loop knows nothing of a repair that is writing."""
    model = closed_log()
    flip(model, model.entries[59][0], 20)
    model.open()
    (damaged,) = model.log.corrupt_ranges
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


def test_a_file_for_a_peers_bytes_is_made_with_the_first_of_them_and_leaves_nothing_behind():
    """The event loop begins to collect, and others do the work."""
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
