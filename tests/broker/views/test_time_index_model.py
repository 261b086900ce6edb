import random
import sqlite3

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from time_rows import OTHER, SEGMENT_BYTES, RowsMachine

from dledger.format import encode_command
from dledger_broker.testing.databases import MemoryDatabases
from dledger_broker.testing.node import FakeLog
from dledger_broker.views.timerows import Key, Row

DUES = st.lists(st.integers(0, 30), min_size=1, max_size=12)


class TimeIndexModel(RuleBasedStateMachine):
    """State machine that compares the index with a sorted list of the pending rows.

    Its rules are queries in flight, failing transactions, power losses, restores and trims.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log = FakeLog(SEGMENT_BYTES)
        self.databases = MemoryDatabases()
        self.machines: list[RowsMachine] = []
        self.machine = self._start()

    def _start(self, snapshot: int | None = None) -> RowsMachine:
        machine = RowsMachine(self.log, self.databases, tail_rows=40)
        self.machines.append(machine)
        if snapshot is None:
            machine.node.start()
        else:
            machine.node.restore(snapshot)
            machine.node.catch_up()
            machine.node.lead()
        machine.applied_position = machine.node.applied_position
        return machine

    @rule(dues=DUES)
    def add(self, dues: list[int]) -> None:
        self.machine.add(dues)

    @rule(count=st.integers(1, 8), rng=st.randoms(use_true_random=False))
    def go(self, count: int, rng: random.Random) -> None:
        rows = sorted(self.machine.pending_rows.values())
        if rows:
            self.machine.end(rng.sample(rows, min(count, len(rows))))

    @rule()
    def something_else(self) -> None:
        self.machine.write(encode_command(OTHER, b"x"), records=30)

    @rule()
    def end_a_segment(self) -> None:
        self.machine.node.log.roll(0)

    @rule()
    def end_rows_below(self) -> None:
        self.machine.end_below(self.log.segment_starts[-1])

    @rule(share=st.none() | st.floats(0, 1))
    def disk_lags(self, share: float | None) -> None:
        self.machine.run(self.machine.follower.load())
        limit = None if share is None else max(int(self.log.end * share), self.machine.follower.position)
        self.machine.node.durable_limit = limit

    @rule()
    def fold(self) -> None:
        self.machine.run(self.machine.follower.fold())

    def teardown(self) -> None:
        for machine in self.machines:
            machine.loop.close()

    @rule(replaced=st.booleans())
    def fold_halfway(self, replaced: bool) -> None:
        """Let other things happen while the transaction is under way."""
        machine = self.machine
        task = machine.loop.create_task(machine.follower.fold())
        machine.loop.run_until_complete(_turn())
        machine.add([3, 4])
        self._take(machine)
        if replaced and self.log.snapshots:
            self._replace(min(self.log.snapshots))
        machine.run(task)

    @rule()
    def transaction_fails(self) -> None:
        self.databases.failures.append(sqlite3.OperationalError("disk I/O error"))
        try:
            self.machine.settle()
        except sqlite3.OperationalError as error:
            self.machine.follower.failed(error)
        self.databases.failures.clear()

    @rule(before=st.integers(0, 31), limit=st.integers(1, 10))
    def take_due(self, before: int, limit: int) -> None:
        machine = self.machine
        machine.index.due(before, limit, lambda rows: self._handed_out(machine, rows, before, limit))

    @rule(below=st.integers(0, 1 << 16))
    def find(self, below: int) -> None:
        machine = self.machine
        machine.index.find(below, None, lambda found: self._found(machine, found, below))

    @rule(rng=st.randoms(use_true_random=False))
    def ask_for_some(self, rng: random.Random) -> None:
        machine = self.machine
        rows = sorted(machine.pending_rows.values()) or [Row(1, 1, 1)]
        chosen = rng.sample(rows, min(2, len(rows)))

        def answered(held: set[Key] | BaseException) -> None:
            assert held == {row[:2] for row in chosen if row.position in machine.pending_rows}

        machine.index.pending([row[:2] for row in chosen], answered)

    @rule()
    def turn(self) -> None:
        self.machine.env.run_ready()

    @rule()
    def set_aside_and_take_back(self) -> None:
        machine = self.machine
        for position in list(machine.pending_rows)[:2]:
            machine.index.set_aside(position)
            assert not machine.index.is_pending(position) or position in machine.pending_rows
        machine.index.restore_set_aside()

    @rule()
    def snapshot(self) -> None:
        self.machine.node.snapshot()

    @precondition(lambda self: self.log.snapshots)
    @rule(rng=st.randoms(use_true_random=False))
    def restore(self, rng: random.Random) -> None:
        """Replace the state by a snapshot, as the installation of a leader's snapshot does."""
        self._replace(rng.choice(sorted(self.log.snapshots)))

    def _replace(self, position: int) -> None:
        machine = self.machine
        machine.start_and_stop()
        machine.node.restore(position)
        machine.node.catch_up()
        machine.applied_position = machine.node.applied_position

    @precondition(lambda self: self.machine.node.trim_candidates())
    @rule()
    def trim(self) -> None:
        """Trim as retention does, which never trims a pending row."""
        for position in reversed(self.machine.node.trim_candidates()):
            if all(row >= position for row in self.machine.pending_rows):
                self.machine.node.trim(position)
                return

    @rule(rng=st.randoms(use_true_random=False), clean=st.booleans())
    def restart(self, rng: random.Random, clean: bool) -> None:
        """Start from any snapshot that is kept, after a clean stop or a power loss."""
        if clean:
            self.machine.stop()
        else:
            self.databases.crash(rng)
        mismatches = self.machine.follower.mismatches
        assert not mismatches
        candidates = [position for position in self.log.snapshots if position >= self.log.first_position]
        may_be_none = [None] if self.log.first_position == 0 or candidates else []
        self.machine = self._start(rng.choice([*candidates, *may_be_none]))

    @rule()
    def everything_is_found(self) -> None:
        machine = self.machine
        machine.node.durable_limit = None
        machine.settle()
        assert machine.follower.reached
        self._take(machine)
        machine.due()
        assert machine.due() == sorted(machine.pending_rows.values())
        machine.due(before_ms=15, limit=3)
        expected = [row for row in sorted(machine.pending_rows.values()) if row.due_ms < 15]
        assert machine.due(before_ms=15, limit=3) == expected
        assert all(machine.index.is_pending(row.position) for row in expected)
        assert machine.follower.whole

    @invariant()
    def the_file_holds_what_is_durable(self) -> None:
        limit = self.machine.node.durable_limit
        assert limit is None or self.machine.follower.position <= limit

    @invariant()
    def the_file_agrees_with_the_state(self) -> None:
        assert not self.machine.follower.mismatches

    def _take(self, machine: RowsMachine) -> None:
        machine.index.due(20, 5, lambda rows: self._handed_out(machine, rows, 20, 5))

    @staticmethod
    def _handed_out(machine: RowsMachine, rows: list[Row], before: int, limit: int) -> None:
        assert len(rows) <= limit
        assert all(row.due_ms < before for row in rows)
        assert rows == sorted(set(rows))
        for row in rows:
            if machine.index.is_pending(row.position):
                assert machine.pending_rows.get(row.position) == row

    @staticmethod
    def _found(machine: RowsMachine, found: object, below: int) -> None:
        expected = [row for row in sorted(machine.pending_rows.values()) if row.position < below]
        assert found.rows == expected
        assert all(machine.index.is_pending(row.position) for row in found.rows)


async def _turn() -> None:
    """Give the loop one turn, without the worker's jobs."""


TestTimeIndexModel = TimeIndexModel.TestCase
TestTimeIndexModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
