"""Every committed entry reaches the state machine once and in order, also if it has to be read back slowly."""

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace

from dledger.errors import BusyError, CorruptionError
from dledger.format import HEADER_BYTES, encode_command, seal
from dledger.replica.applying.applier import Applier, Contexts
from dledger.replica.driver import Completions
from dledger.replica.snapshots.marks import FIRST_SERVICE_KIND
from dledger.replica.storing.recent import RecentEntries
from dledger.types import EntryKind
from dledger_base.loop_holds import LoopHolds
from tests.dledger.fake_driver import FakeDriver, HeldWork


class Turns(HeldWork):
    """Environment whose callbacks and blocking work run when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = LoopHolds()
        self.soon: deque[Callable[[], None]] = deque()

    def now(self):
        return 0.0

    def call_soon(self, callback):
        self.soon.append(callback)

    def call_later(self, delay_s, callback):
        self.soon.append(callback)

    def run_soon(self):
        while self.soon:
            self.soon.popleft()()


class Log:
    """Log whose entries are all on disk. Reads raise `error` if set. `commands` are the commands of some entries."""

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
        self.standing = SimpleNamespace(is_stopped=False, renew=lambda: False)
        self.applier = Applier(
            self.turns,
            self.log,
            RecentEntries(1 << 20),
            Contexts(),
            self.completions,
            self,
            self,
            SimpleNamespace(applied=lambda _index: None),
            self.standing,
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
        while self.turns.soon or self.turns.given:
            self.turns.run_soon()
            if self.turns.given:
                self.turns.work_once()
        assert self.driver.failures == []
        return self.applied


def test_entries_that_verify_again_are_applied_once_despite_several_retries():
    setup = Setup()
    setup.log.error = CorruptionError("rotten")
    setup.advance(4)
    setup.turns.work_once()
    assert setup.driver.suspects == [0]
    setup.log.error = None
    setup.applier.retry()
    setup.applier.retry()
    setup.turns.run_soon()
    setup.applier.retry()
    setup.advance(4)
    setup.turns.run_soon()
    assert len(setup.turns.given) == 1
    assert setup.finish() == [0, 1, 2, 3, 4]


def test_a_retry_while_the_disk_is_busy_starts_no_second_read():
    setup = Setup()
    setup.log.error = CorruptionError("rotten")
    setup.advance(4)
    setup.turns.work_once()
    setup.log.error = BusyError("busy")
    setup.applier.retry()
    setup.turns.run_soon()
    setup.turns.work_once()
    setup.log.error = None
    setup.applier.retry()
    setup.turns.run_soon()
    assert len(setup.turns.given) == 1
    assert setup.finish() == [0, 1, 2, 3, 4]


def test_a_rotten_entry_is_reported_again_at_each_retry():
    setup = Setup()
    setup.log.error = CorruptionError("rotten")
    setup.advance(4)
    for count in range(1, 4):
        setup.turns.work_once()
        assert setup.driver.suspects == [0] * count
        setup.applier.retry()
        setup.turns.run_soon()
    setup.log.error = None
    assert setup.finish() == [0, 1, 2, 3, 4]


def test_the_logs_own_commands_run_between_entries_and_service_commands_do_not():
    own, services = encode_command(FIRST_SERVICE_KIND - 1, b"own"), encode_command(FIRST_SERVICE_KIND, b"another's")
    setup = Setup(7, {1: services, 2: services, 4: services + own, 5: services})
    setup.advance(6)
    assert setup.finish() == [0, 1, 2, 3, 4, 5, 6]
    assert setup.batches == [[0, 1, 2, 3], "commands of 4", [4, 5, 6]]
