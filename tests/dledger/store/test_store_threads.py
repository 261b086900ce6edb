"""Real threads on one log: workers run beside appends, trims, truncations and reopening.

The workers read, scrub, fill, sync and remove. A read may be refused because the entry was trimmed. A read never
returns wrong bytes and never reports them as corrupt.
"""

import random
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from pathlib import Path
from queue import Empty, Queue

import pytest
from store_model import SEGMENT_BYTES, LoggedModel

from dledger.errors import TrimmedError
from dledger.store.disk import OsDisk
from dledger.store.sync import SyncTicket

STEPS = 1500
MOST_APPENDED = 10
REST_S = 0.0002
"""Pause of the workers, in seconds. Without it the test's thread would not get its turn."""
SWITCH_S = 0.0001


@pytest.fixture(autouse=True)
def threads_take_turns_often() -> Generator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrink the window, so that most reads go to the files."""
    monkeypatch.setattr("dledger.store.window.RECENT_ENTRIES", 40)
    monkeypatch.setattr("dledger.store.window.SLACK_ENTRIES", 8)
    monkeypatch.setattr("dledger.store.recovery.RECENT_ENTRIES", 40)
    monkeypatch.setattr("dledger.store.log.INDEX_BATCH_ENTRIES", 16)


class Stress:
    """One log, its workers, and the test's thread as its event loop. `floor` is the commit index."""

    def __init__(self, root: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.model = LoggedModel(OsDisk(str(root)))
        self.written: dict[int, bytes] = {}
        self.floor = -1
        self.term = 1
        self.errors: list[str] = []
        self.stopped = threading.Event()
        self.jobs: Queue[Callable[[], object]] = Queue()
        self.done: Queue[SyncTicket | None] = Queue()
        self.busy = False
        self.appended = 0
        """Number of entries appended since the last job of the flush thread.

        The window still holds the entries whose index units that job writes.
        """
        self.scrubbing = threading.Lock()
        self.threads: list[threading.Thread] = []

    # ---------------------------------------------------------------- workers

    def start(self) -> None:
        works = (self.read, self.read, self.look, self.prepare, self.scrub, self.flush)
        self.threads = [threading.Thread(target=self.repeat, args=(work, n)) for n, work in enumerate(works)]
        self.stopped.clear()
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        self.settle()
        self.stopped.set()
        for thread in self.threads:
            thread.join()

    def repeat(self, work: Callable[[random.Random], None], number: int) -> None:
        rng = random.Random(number)
        try:
            while not self.stopped.is_set():
                work(rng)
                self.stopped.wait(REST_S)
        except Exception:
            self.errors.append(traceback.format_exc())
            self.stopped.set()

    def some_index(self, rng: random.Random) -> int | None:
        first, floor = self.model.log.first_index, self.floor
        return rng.randint(first, floor) if floor >= first else None

    def read(self, rng: random.Random) -> None:
        log, index = self.model.log, self.some_index(rng)
        if index is None:
            return
        try:
            committed = log.meta(self.floor).end - log.position_at(index)
            metas, data = log.read_entries(index, min(committed, rng.choice([1, 2000])), verify=True)
        except TrimmedError:
            return
        at = 0
        for meta in metas:
            if meta.index <= self.floor:
                assert self.written.get(meta.index, data[at : at + meta.size]) == data[at : at + meta.size]
            at += meta.size

    def look(self, rng: random.Random) -> None:
        index = self.some_index(rng)
        if index is None:
            return
        try:
            assert self.model.log.meta(index).index == index
            assert self.model.log.term_at(index) <= self.term
        except TrimmedError:
            return

    def prepare(self, rng: random.Random) -> None:
        self.model.log.prepare_ahead(rng.choice([512, SEGMENT_BYTES]))

    def scrub(self, _: random.Random) -> None:
        log = self.model.log
        try:
            end = log.meta(self.floor).end if self.floor >= log.first_index else 0
        except TrimmedError:
            return
        with self.scrubbing:
            assert log.scrub_step(SEGMENT_BYTES, end) == []

    def flush(self, _: random.Random) -> None:
        try:
            job = self.jobs.get(timeout=0.01)
        except Empty:
            return
        job()
        self.done.put(job.__self__ if isinstance(getattr(job, "__self__", None), SyncTicket) else None)

    # ---------------------------------------------------------------- the loop

    def give(self, job: Callable[[], object]) -> None:
        self.jobs.put(job)
        self.busy = True
        self.appended = 0

    def settle(self) -> None:
        """Wait for the job of the flush thread, if there is one."""
        while self.busy and not self.errors:
            try:
                ticket = self.done.get(timeout=0.05)
            except Empty:
                continue
            self.busy = False
            if ticket is not None:
                self.model.log.finish_sync(ticket)

    def step(self) -> None:
        rng, log = self.rng, self.model.log
        if not self.busy or not self.done.empty() or self.appended > MOST_APPENDED:
            self.settle()
            ticket = log.begin_sync()
            if rng.random() < 0.1:
                self.give(log.sync_mark) if ticket is None else self.give(ticket.run)
            elif ticket is not None:
                self.give(ticket.run)
        choice = rng.random()
        if choice < 0.8:
            meta = self.model.append(rng.randbytes(rng.randint(0, 900)), self.term)
            self.appended += 1
            self.written[meta.index] = self.model.entries[-1][1]
        elif choice < 0.87:
            self.truncate()
        elif choice < 0.95:
            self.floor = max(self.floor, min(log.durable, log.last_index - rng.choice([0, 5, 20])))
        else:
            self.snapshot_and_trim()

    def truncate(self) -> None:
        log = self.model.log
        lowest = max(self.floor + 1, log.first_index + 1)
        if log.last_index > lowest:
            self.settle()
            first = self.rng.randint(max(lowest, log.last_index - 30), log.last_index)
            self.model.truncate(first)
            self.term += 1
            for index in [index for index in self.written if index >= first]:
                del self.written[index]

    def snapshot_and_trim(self) -> None:
        model, log = self.model, self.model.log
        starts = [s.start_position for s in log.segments() if log.first_position < s.start_position]
        for position in reversed(starts):
            before = [meta for meta, _ in model.entries if meta.position < position]
            if position <= log.durable_position and before and before[-1].index <= self.floor:
                model.snapshot(position)
                log.trim(position)
                self.settle()
                self.give(lambda: (log.sync_mark(), log.remove_trimmed()))
                return

    def reopen(self) -> None:
        self.stop()
        last = self.model.log.last_index
        self.model.log.close(clean=self.rng.random() < 0.5)
        recovery = self.model.open()
        assert not recovery.corrupt_ranges, recovery.notes
        assert self.model.log.last_index == last
        self.start()


@pytest.mark.parametrize("seed", range(2))
def test_concurrent_threads_never_read_wrong_bytes_or_false_corruption(tmp_path: Path, seed: int) -> None:
    stress = Stress(tmp_path, seed)
    stress.start()
    try:
        for number in range(STEPS):
            if stress.errors:
                break
            stress.step()
            if number % 200 == 199:
                stress.reopen()
    finally:
        stress.stop()
        stress.model.log.close(clean=False)
        shutil.rmtree(tmp_path)
    assert not stress.errors, stress.errors[0]
    assert stress.model.log.first_position > 0, "something was trimmed"
