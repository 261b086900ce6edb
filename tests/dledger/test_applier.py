"""Every committed entry reaches the state machine once, in order, whatever reading it back takes."""

from collections import deque
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

from dledger.errors import BusyError, CorruptionError
from dledger.format import HEADER_BYTES, encode_command, seal
from dledger.loop_holds import LoopHolds
from dledger.replica.applier import Applier
from dledger.replica.commands import FIRST_SERVICE_KIND
from dledger.replica.completions import Completions
from dledger.replica.proposer import Contexts
from dledger.replica.recent import RecentEntries
from dledger.types import EntryKind
from tests.dledger.fake_driver import FakeDriver


class Turns:
    """An environment whose callbacks and blocking work run when a test says so."""

    def __init__(self) -> None:
        self.holds = LoopHolds()
        self.soon: deque[Callable[[], None]] = deque()
        self.cold: deque[Callable[[], None]] = deque()

    def now(self):
        return 0.0

    def call_soon(self, callback):
        self.soon.append(callback)

    def call_later(self, delay_s, callback):
        self.soon.append(callback)

    def run_blocking(self, lane, work, done):
        self.cold.append(partial(self._work, work, done))

    def _work(self, work, done):
        try:
            result = work()
        except Exception as error:
            result = error
        done(result)

    def run_soon(self):
        while self.soon:
            self.soon.popleft()()


class Log:
    """A log whose entries are all on disk; `error` is raised instead of a read.  `commands` are those of entries that
    have any.
    """

    def __init__(self, count, commands):
        self.entries = []
        position = chain = 0
        for index in range(count):
            section = commands.get(index, b"")
            data = bytearray(HEADER_BYTES + 10) + section
            meta = seal(data, EntryKind.GROUP, index, 1, position, len(section), chain)
            self.entries.append((meta, data))
            position, chain = meta.end, meta.chain_crc
        self.error = None
        self.last_index = count - 1
        self.end_position = position

    def position_at(self, index):
        return self.end_position if index > self.last_index else self.entries[index][0].position

    def read_entries(self, first, size, *, verify):
        if self.error is not None:
            raise self.error
        found = self.entries[first:]
        return [meta for meta, _ in found], b"".join(data for _, data in found)


class Setup:
    def __init__(self, count=5, commands=()):
        self.turns = Turns()
        self.log = Log(count, dict(commands))
        self.applied = []
        self.batches = []
        self.driver = FakeDriver()
        self.completions = Completions(self.driver.fail)
        self.applier = Applier(
            self.turns,
            self.log,
            RecentEntries(1 << 20),
            Contexts(),
            self.completions,
            self,
            self,
            SimpleNamespace(applied=lambda _index: None),
            SimpleNamespace(look=lambda: False),
            SimpleNamespace(),
            self.driver,
            applied_index=-1,
        )

    def advance(self, commit_index):
        self.applier.advance(commit_index)
        self.completions.run()

    def on_commands(self, meta, _commands, _before):
        self.batches.append(f"commands of {meta.index}")

    def deliver(self, entries):
        self.batches.append([entry.index for entry in entries])
        self.applied += self.batches[-1]

    def finish(self):
        while self.turns.soon or self.turns.cold:
            self.turns.run_soon()
            if self.turns.cold:
                self.turns.cold.popleft()()
        assert self.driver.failures == []
        return self.applied


def test_entries_that_verify_again_are_applied_once_however_often_they_were_asked_for():
    setup = Setup()
    setup.log.error = CorruptionError("rotten")
    setup.advance(4)
    setup.turns.cold.popleft()()
    assert setup.driver.suspects == [0]
    setup.log.error = None
    setup.applier.retry()
    setup.applier.retry()
    setup.turns.run_soon()
    setup.applier.retry()
    setup.advance(4)
    setup.turns.run_soon()
    assert len(setup.turns.cold) == 1
    assert setup.finish() == [0, 1, 2, 3, 4]


def test_a_retry_while_the_disk_is_busy_starts_no_second_read():
    setup = Setup()
    setup.log.error = CorruptionError("rotten")
    setup.advance(4)
    setup.turns.cold.popleft()()
    setup.log.error = BusyError("busy")
    setup.applier.retry()
    setup.turns.run_soon()
    setup.turns.cold.popleft()()
    setup.log.error = None
    setup.applier.retry()
    setup.turns.run_soon()
    assert len(setup.turns.cold) == 1
    assert setup.finish() == [0, 1, 2, 3, 4]


def test_what_stays_rotten_is_asked_for_again_at_each_retry_and_told_each_time():
    setup = Setup()
    setup.log.error = CorruptionError("rotten")
    setup.advance(4)
    for count in range(1, 4):
        setup.turns.cold.popleft()()
        assert setup.driver.suspects == [0] * count
        setup.applier.retry()
        setup.turns.run_soon()
    setup.log.error = None
    assert setup.finish() == [0, 1, 2, 3, 4]


def test_only_commands_of_the_logs_own_are_carried_out_between_entries():
    own, services = encode_command(FIRST_SERVICE_KIND - 1, b"own"), encode_command(FIRST_SERVICE_KIND, b"another's")
    setup = Setup(7, {1: services, 2: services, 4: services + own, 5: services})
    setup.advance(6)
    assert setup.finish() == [0, 1, 2, 3, 4, 5, 6]
    assert setup.batches == [[0, 1, 2, 3], "commands of 4", [4, 5, 6]]
