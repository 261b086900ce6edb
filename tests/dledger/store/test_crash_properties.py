"""A log store that crashes amid writes, syncs, truncations and trims loses nothing that was synced.

The rest is a prefix of what was written. Truncated entries never come back.
"""

import contextlib
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store_model import SEGMENT_BYTES, LoggedModel, failing_after, synced_log

from dledger.errors import StorageError
from dledger.format import HEADER_BYTES
from dledger.store.pages import PAGE_BYTES
from dledger.store.sync import SyncTicket
from dledger.testing.disk import SimDisk
from dledger.types import EntryKind


@pytest.fixture(autouse=True, scope="module")
def _small_window():
    """Shrink the window, so that most reads use the index files, as in a log of millions of entries."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dledger.store.window.RECENT_ENTRIES", 6)
        patch.setattr("dledger.store.window.SLACK_ENTRIES", 2)
        patch.setattr("dledger.store.recovery.RECENT_ENTRIES", 6)
        patch.setattr("dledger.store.log.INDEX_BATCH_ENTRIES", 4)  # older entries are in the index files
        yield


class LogMachine(RuleBasedStateMachine):
    """Log on a simulated disk. `durable` is the highest index that a finished sync covered."""

    @initialize()
    def begin(self):
        self.disk = SimDisk(random.Random(1))
        self.model = LoggedModel(self.disk)
        self.term = 1
        self.durable = -1
        self.floor = -1
        self.ticket: SyncTicket | None = None

    @rule(sizes=st.lists(st.integers(0, 1500), min_size=1, max_size=6), next_term=st.booleans())
    def append(self, sizes: list[int], next_term: bool):
        self.term += next_term
        for size in sizes:
            self.model.append(bytes([self.term % 256]) * size, self.term)

    @rule()
    def append_membership(self):
        self.model.append(term=self.term, kind=EntryKind.MEMBERSHIP)

    @rule()
    def begin_sync(self):
        if self.ticket is None:
            self.ticket = self.model.log.begin_sync()

    @rule()
    def finish_sync(self):
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            ticket.run()
            self.model.log.finish_sync(ticket)
            self.durable = max(self.durable, self.model.log.durable)

    @rule()
    def sync_mark(self):
        self.model.log.sync_mark()

    @precondition(lambda self: self.model.log.last_index > self.floor)
    @rule(share=st.floats(0, 1))
    def truncate(self, share: float):
        first = self.floor + 1 + int(share * (self.model.log.last_index - self.floor))
        self.model.truncate(first)
        self.durable = min(self.durable, first - 1)
        self.term += 1

    @precondition(lambda self: self.durable >= 0)
    @rule()
    def snapshot_and_trim(self):
        position = self.model.log.durable_position // SEGMENT_BYTES * SEGMENT_BYTES
        if position > self.model.log.first_position:
            before = [meta for meta, _ in self.model.entries if meta.position < position]
            self.floor = max(self.floor, before[-1].index)
            self.model.trim_to(position)

    @rule(budget=st.integers(1, 3 * SEGMENT_BYTES))
    def prepare(self, budget: int):
        self.model.log.prepare_ahead(budget)

    @rule()
    def scrub(self):
        committed = max((meta.end for meta, _ in self.model.entries if meta.index <= self.floor), default=0)
        assert self.model.log.scrub_step(SEGMENT_BYTES, committed) == []

    @rule(seed=st.integers(0, 1 << 32), keep=st.sampled_from(["none", "random", "random", "random", "all"]))
    def crash(self, seed: int, keep: str):
        self.disk.crash(random.Random(seed), keep)  # type: ignore[arg-type]
        self.reopen(exact=False)

    @rule()
    def kill(self):
        self.disk.kill()
        self.reopen(exact=True)

    @rule(clean=st.booleans())
    def restart(self, clean: bool):
        if self.ticket is None:
            self.model.log.close(clean=clean)
            self.reopen(exact=True)

    def reopen(self, *, exact: bool):
        self.ticket = None
        recovery = self.model.open()
        written = self.model.entries[-1][0].index if self.model.entries else -1
        assert recovery.corrupt_ranges == []
        assert recovery.mark_valid
        assert self.durable <= recovery.last_index <= written
        assert recovery.durable_index == recovery.last_index
        if exact:
            assert recovery.last_index == written
        self.model.forget_from(recovery.last_index + 1)
        self.durable = recovery.durable_index

    @invariant()
    def log_is_what_was_written(self):
        self.model.check(first_index=self.model.log.first_index)
        assert self.model.log.durable >= self.durable


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(
    max_examples=60, stateful_step_count=30, suppress_health_check=list(HealthCheck), deadline=None
)


@pytest.mark.parametrize("seed", [*range(12), 116, 171, 180])
def test_a_long_life_of_writes_truncations_trims_and_crashes(seed: int):
    rng = random.Random(seed)
    life = LogMachine()
    life.begin()
    steps = [
        *[lambda: life.append([rng.randint(0, 1500) for _ in range(rng.randint(1, 6))], rng.random() < 0.2)] * 8,
        *[life.begin_sync] * 4,
        *[life.finish_sync] * 4,
        life.append_membership,
        life.sync_mark,
        lambda: life.prepare(rng.randint(1, 3 * SEGMENT_BYTES)),
        life.scrub,
        life.snapshot_and_trim,
        lambda: life.crash(rng.getrandbits(32), "random"),
        life.kill,
        lambda: life.restart(rng.random() < 0.5),
        lambda: life.truncate(rng.random()) if life.model.log.last_index > life.floor else None,
    ]
    for _ in range(250):
        rng.choice(steps)()
    life.log_is_what_was_written()


def written_log(seed: int, synced: int, unsynced: int) -> LoggedModel:
    model = synced_log(SimDisk(random.Random(seed)), synced, seed=seed)
    model.log.sync_mark()
    model.fill(random.Random(seed + 1), unsynced)
    return model


def test_the_log_ends_before_an_entry_torn_at_any_byte():
    size, torn = 1, 0
    while torn < size:
        model = written_log(1, synced=8, unsynced=0)
        meta = model.append(b"torn" * 30)
        size = meta.size
        path = f"commitlog/{meta.position // SEGMENT_BYTES * SEGMENT_BYTES:020d}"
        model.disk.open(path).pwrite(bytes(size - torn), meta.position % SEGMENT_BYTES + torn)
        recovery = model.kill()
        assert recovery.last_index == meta.index - 1
        assert recovery.corrupt_ranges == []
        model.forget_from(meta.index)
        model.append(b"again", term=2)
        model.check()
        torn += 1


@settings(max_examples=80)
@given(seed=st.integers(0, 1 << 32), cut=st.integers(0, 29))
def test_a_hole_ends_the_log_and_entries_behind_the_hole_never_return(seed: int, cut: int):
    model = written_log(3, synced=4, unsynced=30)
    lost = model.entries[4 + cut]
    hole = lost[0]
    model.flip(hole.position + random.Random(seed).randrange(hole.size), bit=6)
    assert model.kill().last_index == hole.index - 1
    # Write the lost entry again with the same bytes: entries behind it would continue its chain.
    model.forget_from(hole.index)
    model.put(lost)
    model.kill()
    model.check()


@pytest.mark.parametrize("is_full", [False, True])
def test_entries_behind_a_hole_never_return_at_the_boundary_of_a_page(is_full: bool):
    """An entry that ends with its page is written without zeros behind it. So the recovery has to remove what follows.

    On a full disk a recovery keeps the space behind the end of the log, and erases it.
    """
    model = LoggedModel(SimDisk(random.Random(1)), segment_bytes=1 << 16, reserve_bytes=1 << 14)
    page = bytes(PAGE_BYTES - HEADER_BYTES)
    for _ in range(2):
        model.append(page)
    model.sync()
    model.log.sync_mark()
    for _ in range(3):
        model.append(page)
    if is_full:
        model.sim.fill_up()
    lost = model.entries[2]
    model.flip(lost[0].position + 100)
    assert model.kill().last_index == 1
    model.forget_from(2)
    model.put(lost)
    assert model.kill().last_index == 2
    model.check()


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=60)
def test_truncated_entries_never_come_back(seed: int):
    rng = random.Random(seed)
    model = written_log(seed, synced=20, unsynced=10)
    first = rng.randrange(30)
    kept = model.entries[first] if first < 29 else None
    model.truncate(first)
    if kept is not None and rng.random() < 0.5:
        model.put(kept)
    model.sim.crash(rng)
    recovery = model.open()
    assert recovery.last_index <= first
    assert recovery.last_index >= first - 1 if first <= 20 else recovery.last_index >= 19
    model.check_reopened(recovery)


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=60)
def test_a_crash_during_recovery_changes_nothing(seed: int):
    rng = random.Random(seed)
    model = written_log(seed, synced=12, unsynced=12)
    model.sim.crash(rng)
    with contextlib.suppress(StorageError, OSError), failing_after(model.sim, rng.randrange(60)):
        model.open()
    model.sim.crash(rng)
    recovery = model.check_reopened(model.open())
    assert recovery.last_index >= 11
    assert recovery.corrupt_ranges == []


def test_entries_that_fit_exactly_survive_a_crash_at_the_boundary():
    for left in (0, 8, HEADER_BYTES):
        for seed in range(20):
            model = LoggedModel(SimDisk(random.Random(seed)))
            model.append(bytes(SEGMENT_BYTES - HEADER_BYTES - left))
            model.sync()
            model.append(b"next")
            recovery = model.check_reopened(model.crash(seed))
            assert recovery.last_index in {0, 1}
            model.append(b"small", term=2)
            model.sync()
            model.check()


def test_a_trim_syncs_its_mark_before_it_removes_segments(synced_sim: LoggedModel):
    synced_sim.trim_to(3 * SEGMENT_BYTES)
    for directory in ("commitlog", "index", "snapshots"):
        synced_sim.disk.sync_dir(directory)
    recovery = synced_sim.crash(keep="none")
    assert recovery.base is not None
    assert (recovery.base.position, recovery.first_position) == (3 * SEGMENT_BYTES, 3 * SEGMENT_BYTES)
    assert recovery.corrupt_ranges == []
    synced_sim.check(first_index=recovery.first_index)


def test_index_units_of_entries_truncated_before_their_sync_are_not_written(sim_disk: SimDisk):
    model = LoggedModel(sim_disk)
    model.fill(random.Random(1), 12)
    model.truncate(5)
    model.fill(random.Random(2), 60, term=2)
    model.sync()
    model.fill(random.Random(3), 20, term=2)
    assert model.log._recent.get(5) is None
    model.check()


@pytest.mark.parametrize("seed", range(10))
def test_the_index_of_a_closed_segment_is_durable_with_its_entries(seed: int):
    model = LoggedModel(SimDisk(random.Random(seed)))
    for _ in range(30):
        model.fill(random.Random(seed), 20, largest=3)
        model.sync()
    model.log.sync_mark()
    model.snapshot(6 * SEGMENT_BYTES)
    model.fill(random.Random(seed), 5)
    model.crash(seed)
    model.forget_from(model.log.last_index + 1)
    model.check()
