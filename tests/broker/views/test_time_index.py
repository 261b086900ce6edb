import asyncio
import os
import sqlite3
import sys

import pytest
from time_rows import FOREVER, OTHER, SEGMENT_BYTES, RowsMachine, replica

from dledger.format import encode_command
from dledger_base import loop_guard
from dledger_base.loop_guard import DiskWorkOnLoopError
from dledger_broker.testing.databases import MemoryDatabases
from dledger_broker.testing.node import FakeLog
from dledger_broker.views import timefile
from dledger_broker.views.databases import DatabaseFiles
from dledger_broker.views.soonrows import SoonRows
from dledger_broker.views.timefile import NAME, TimeFile
from dledger_broker.views.timefollower import COMPARE_S
from dledger_broker.views.timerows import LOWEST, Row, RowChanges


@pytest.fixture
def machine() -> RowsMachine:
    return replica()


def again(machine: RowsMachine, **settings) -> RowsMachine:
    """Start another process on the same log and files."""
    return replica(machine.node.log, machine.databases, **settings)


def caught_up(machine: RowsMachine, **settings) -> RowsMachine:
    """Start another process on the same log and files, and let its file follow."""
    restarted = again(machine, **settings)
    restarted.settle()
    return restarted


def stored(machine: RowsMachine) -> tuple[int, list[Row]]:
    """Return the position and the rows that the file itself has."""
    file = TimeFile(machine.databases)
    position = file.load("one").position
    rows = file.next_rows(LOWEST, 1000, 0)
    file.close()
    return position, rows


def test_a_row_that_ends_during_a_search_is_not_handed_out(machine):
    first, second = machine.filed([1, 2])
    restarted = again(machine)
    restarted.run(restarted.follower.load())
    restarted.index.discard_answers()
    answers = restarted.ask()  # the worker has not looked yet
    restarted.end([first])
    restarted.add([0])
    restarted.settle()
    assert [row.due_ms for row in answers[0]] == [0, 2]
    assert restarted.index.is_pending(second.position)


def test_a_start_behind_the_file_answers_no_query_until_the_state_has_caught_up(machine):
    rows = machine.add([1, 2])
    position = machine.node.snapshot()
    machine.end(rows[:1])
    machine.settle()
    end = machine.applied_position
    late = RowsMachine(machine.node.log, machine.databases)
    late.node.restore(position)
    late.applied_position = position
    late.run(late.follower.load())
    answers = late.ask()
    late.env.run_ready()
    assert late.follower.position > late.applied_position
    assert answers == []
    late.node.start()
    late.applied_position = late.node.applied_position
    assert late.applied_position >= end
    assert late.index.tail_rows == 0
    late.settle()
    assert answers == [rows[1:]]


def test_rows_below_an_end_position_do_not_count_and_leave_the_file():
    machine = replica(always_compare=False)
    machine.filed([1, 2])
    machine.node.log.roll(0)
    kept = machine.add([3])
    machine.end_below(SEGMENT_BYTES)
    assert machine.due() == kept
    machine.settle()
    assert stored(machine)[1] == kept


def test_a_failed_transaction_of_the_time_index_is_repeated(machine):
    machine.settle()
    rows = machine.add([1, 2])
    machine.databases.failures.append(sqlite3.OperationalError("disk I/O error"))
    with pytest.raises(sqlite3.OperationalError):
        machine.settle()
    assert stored(machine)[1] == []
    machine.follower.failed(sqlite3.OperationalError("disk I/O error"))
    machine.settle()
    assert stored(machine)[1] == rows


def test_a_transaction_overtaken_by_a_wipe_of_the_file_does_not_count():
    machine = replica(always_compare=False)
    rows = machine.add([1, 2])
    position = machine.node.snapshot()
    machine.start_and_stop()
    machine.settle()
    rows += machine.add([3])
    writing = machine.loop.create_task(machine.follower.fold())
    machine.loop.run_until_complete(turns())
    machine.node.restore(position)
    machine.run(writing)
    assert machine.follower.position == 0
    machine.node.catch_up()
    machine.settle()
    assert machine.due() == rows


def test_full_memory_of_the_time_index_is_discarded_and_the_log_is_read():
    machine = replica(tail_rows=10)
    machine.settle()
    rows = machine.add([3])
    assert machine.due() == rows
    for _ in range(10):
        machine.add([9, 8])
    assert not machine.index.is_pending(rows[0].position)
    assert not machine.follower.reached
    machine.settle()
    assert [row.due_ms for row in machine.due()] == [3] + [8] * 10 + [9] * 10
    assert machine.follower.whole


def test_rows_of_another_incarnation_of_the_directory_are_thrown_away(machine):
    machine.filed([1])
    other = replica(FakeLog(SEGMENT_BYTES), machine.databases, incarnation="two")
    other.settle()
    assert other.due() == []
    assert not other.follower.mismatches


def test_a_restore_wipes_the_file_and_the_handed_out_rows(machine):
    rows = machine.add([1, 2])
    position = machine.node.snapshot()
    machine.settle()
    machine.start_and_stop()
    assert machine.due() == rows
    answers = machine.ask()
    slices: list = []
    machine.index.find(FOREVER, None, slices.append)
    machine.node.restore(position)
    assert not machine.index.is_pending(rows[0].position)
    assert stored(machine)[1] == rows
    machine.env.run_ready()
    assert stored(machine) == (0, [])
    assert slices == []
    machine.node.catch_up()
    machine.settle()
    assert answers == [rows]
    assert slices[0].rows == rows
    assert machine.follower.whole


def test_a_start_begins_at_the_lowest_segment_with_pending_rows(machine):
    machine.settle()
    rows = machine.add([1, 2])
    machine.node.log.roll(0)
    kept = machine.add([3])
    machine.end(rows)
    position = machine.node.snapshot()
    late = replica(machine.node.log, machine.databases)  # its file is empty
    assert late.node.log.data[:SEGMENT_BYTES].strip(b"\0")
    late.node.log.data[: rows[0].position] = bytes(rows[0].position)  # these records are not read
    late.settle()
    assert late.due() == kept
    assert position > kept[0].position


def test_rows_that_ended_in_a_skipped_part_of_the_log_leave_the_file():
    machine = replica(always_compare=False, tail_rows=2)
    rows = machine.filed([1, 2])
    machine.end(rows)
    machine.node.log.roll(0)
    kept = machine.add([3, 4])
    assert not machine.follower.reached
    machine.settle()
    assert machine.due() == kept
    assert stored(machine)[1] == kept


def test_a_file_that_differs_from_the_state_is_built_anew(machine):
    rows = machine.filed([1, 2])
    file = TimeFile(machine.databases)
    file.load("one")
    file.write([RowChanges(removed=[rows[0][:2]])], stored(machine)[0], 0, None)
    file.close()
    restarted = caught_up(machine)
    assert restarted.follower.mismatches == 1
    assert restarted.follower.whole
    assert restarted.due() == rows


def test_counters_of_a_clean_stop_are_compared_with_the_file_at_the_start(machine):
    rows = machine.filed([1, 2])
    machine.stop()
    machine.databases.tamper(NAME, "DELETE FROM rows WHERE due = 1")
    restarted = again(machine)
    restarted.run(restarted.follower.load())
    assert restarted.follower.mismatches == 1
    restarted.settle()
    assert restarted.due() == rows


def test_a_lasting_difference_raises_an_alarm_after_one_rebuild(machine):
    machine.add([1])
    machine.pending_rows[3] = Row(9, 3, 1)  # the log does not have this row
    machine.settle()
    assert (machine.follower.mismatches, machine.follower.alarms) == (2, 1)
    assert machine.follower.whole is False
    assert [row.due_ms for row in machine.due()] == [1]


def test_the_time_index_is_compared_with_the_state_only_every_hour_by_default():
    machine = replica(always_compare=False)
    machine.filed([1])
    assert machine.follower.whole
    machine.pending_rows[3] = Row(9, 3, 1)
    machine.settle()
    assert machine.follower.whole
    machine.env.advance(COMPARE_S)
    machine.settle()
    assert machine.follower.whole is False


@pytest.mark.parametrize("damage", ["file", "position", "floor"])
def test_a_damaged_file_or_checkpoint_of_the_time_index_is_not_trusted(machine, damage):
    rows = machine.filed([1, 2])
    machine.stop()
    if damage == "file":
        machine.databases.spoil(NAME)
    else:
        machine.databases.tamper(NAME, f"UPDATE checkpoint SET {damage} = {damage} + 4096")
    assert caught_up(machine).due() == rows


@pytest.mark.parametrize("column", ["due = due + (1 << 45)", "position = position + 64", "size = size + 8"])
@pytest.mark.parametrize("question", ["due", "find", "compare"])
def test_a_rotten_row_is_not_trusted_and_the_file_is_rebuilt(column, question):
    """If a due time rotted to the year 3141, nothing would fire the row, and trims would wait for it forever."""
    machine = replica(always_compare=False)
    rows = machine.filed([1, 2])
    machine.stop()
    machine.databases.tamper(NAME, f"UPDATE rows SET {column} WHERE due = 1")
    restarted = again(machine, always_compare=False)
    if question == "find":
        restarted.run(restarted.follower.load())
        restarted.index.find(1 << 40, None, lambda _: None)
    restarted.settle()
    if question == "due":
        assert restarted.due() == rows
    elif question == "compare":
        restarted.env.advance(COMPARE_S)
    restarted.settle()
    assert stored(restarted)[1] == rows
    assert restarted.due() == rows


def test_a_file_that_rots_while_it_is_rebuilt_is_rebuilt_again_without_alarm(machine, monkeypatch):
    """A file that counts as wrongly derived would stay as it is for an hour."""
    rows = machine.filed([1, 2])
    count, errors = TimeFile.count, [timefile.RotError("a row has rotted"), timefile.RotError("a row has rotted")]

    def rotten(self, *arguments):
        if errors:
            raise errors.pop()
        return count(self, *arguments)

    monkeypatch.setattr(TimeFile, "count", rotten)
    machine.end(machine.add([3]))
    with pytest.raises(timefile.RotError) as caught:
        machine.settle()
    machine.follower.failed(caught.value)  # as the task does, before a pause
    machine.settle()
    assert machine.follower.whole
    assert not machine.follower.alarms
    assert machine.due() == rows


def test_a_row_with_a_rotted_due_time_does_not_count_as_gone():
    """The due time of a row rots, and a recall asks whether the row waits. It must not be told that the row is gone."""
    machine = replica(always_compare=False)
    first, second = machine.filed([1, 2])
    machine.stop()
    machine.databases.tamper(NAME, "UPDATE checkpoint SET counts = NULL, sum = NULL")
    machine.databases.tamper(NAME, "UPDATE rows SET due = due + (1 << 45) WHERE due = 1")
    file = TimeFile(machine.databases)
    with pytest.raises(timefile.RotError):
        file.holds(first[:2])
    assert file.holds(second[:2])
    assert not file.holds((first.due_ms, first.position + 8))
    file.close()


def test_rows_that_a_sweep_does_not_find_are_searched_in_the_log_soon():
    machine = replica(always_compare=False)
    rows = machine.filed([1, 2])
    machine.stop()
    machine.databases.tamper(NAME, "DELETE FROM rows WHERE due = 1")
    restarted = again(machine, always_compare=False)
    restarted.follower._next_comparison_s = COMPARE_S
    restarted.settle()
    restarted.follower.doubt()
    restarted.settle()
    restarted.settle()
    assert stored(restarted)[1] == rows


def test_read_errors_of_the_file_are_damage_and_write_errors_are_not():
    error, write_error = sqlite3.OperationalError("disk I/O error"), sqlite3.SQLITE_IOERR_WRITE
    for code in (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_CORRUPTFS, sqlite3.SQLITE_CORRUPT, write_error):
        error.sqlite_errorcode = code
        assert timefile.is_damage(error) is (code != write_error)


def test_the_task_of_the_time_index_goes_on_after_an_error(machine):

    async def follow() -> None:
        machine.follower.start()
        machine.databases.failures.append(sqlite3.OperationalError("database or disk is full"))
        while machine.follower.position < machine.applied_position:
            machine.env.advance(1)
            await turns()

    machine.add([1])
    machine.loop.run_until_complete(follow())
    assert len(stored(machine)[1]) == 1
    machine.stop()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_log_without_rows_saves_the_position_only_after_many_bytes(monkeypatch):
    machine = replica(always_compare=False)
    machine.settle()
    before = stored(machine)[0]
    machine.write(encode_command(OTHER, b"x"))
    machine.settle()
    assert machine.follower.position == machine.applied_position
    assert stored(machine)[0] == before
    monkeypatch.setattr("dledger_broker.views.timefollower.SAVE_EVERY_BYTES", 10)
    machine.write(encode_command(OTHER, b"x"))
    machine.settle()
    assert stored(machine)[0] == machine.applied_position


def test_rows_below_a_position_are_found_in_slices_without_ended_rows(monkeypatch):
    monkeypatch.setattr(timefile, "SLICE_KEYS", 3)
    machine = replica()
    rows = machine.filed([9, 8, 7, 6, 5, 4, 3])
    late = machine.add([2])
    machine.end(rows[6:])
    slices: list = []
    machine.index.find(rows[5].position, None, slices.append)
    machine.end(rows[3:4])
    machine.settle()
    assert slices[0].rows == [rows[4]]
    assert slices[0].resume is not None
    assert machine.index.is_pending(rows[4].position)
    while slices[-1].resume is not None:
        machine.index.find(rows[5].position, slices[-1].resume, slices.append)
        machine.settle()
    assert [row for piece in slices for row in piece.rows] == [rows[4], rows[2], rows[1], rows[0]]
    assert late[0] in machine.due()


def test_a_row_that_ends_after_being_found_is_no_longer_pending():
    machine = replica(soon_rows=1)
    rows = machine.filed([1, 2, 3, 4, 5, 6])
    assert not machine.index.is_pending(rows[-1].position)
    machine.index.find(FOREVER, None, lambda _: None)
    machine.settle()
    assert machine.index.is_pending(rows[-1].position)
    machine.end(rows[-1:])
    assert not machine.index.is_pending(rows[-1].position)


def test_the_time_index_tells_of_any_row_whether_it_is_pending(machine):
    first, second, third = machine.filed([1, 2, 3])
    machine.end([second])
    answers: list = []
    rows = (first, second, third, Row(4, third.position + 8, 1))
    machine.index.pending([row[:2] for row in rows], answers.append)
    machine.end([third])
    machine.settle()
    assert answers == [{first[:2]}]


def test_a_row_that_is_set_aside_is_not_handed_out_until_taken_back(machine):
    first, second = machine.filed([1, 2])
    assert machine.due() == [first, second]
    machine.index.set_aside(first.position)
    answers = machine.ask()
    machine.env.run_ready()
    assert answers == [[second]]
    assert not machine.index.is_pending(first.position)
    machine.index.restore_set_aside()
    machine.settle()
    assert machine.due() == [first, second]


def test_memory_keeps_only_the_next_rows():
    machine = replica(soon_rows=4)
    machine.settle()
    for _ in range(20):
        machine.end(machine.add([7, 7]))
    rows = [row for due in range(40, 0, -1) for row in machine.add([due])]
    assert sum(machine.index.is_pending(row.position) for row in rows) <= 8
    machine.settle()
    assert [row.due_ms for row in machine.due(limit=7)] == list(range(1, 41)), "none of those that went before"


def test_sql_is_refused_on_an_event_loop():
    async def on_loop() -> None:
        TimeFile(MemoryDatabases()).load("one")

    machine = replica()
    with pytest.raises(DiskWorkOnLoopError):
        machine.loop.run_until_complete(on_loop())
    loop_guard.violations.clear()


def test_the_time_index_file_works_on_a_real_disk(tmp_path):
    databases = DatabaseFiles(str(tmp_path / "views"))
    file = TimeFile(databases)
    assert file.load("one").position == 0
    file.write([RowChanges(added=[(5, 100, 10), (4, 200, 20)]), RowChanges(removed=[(5, 100)])], 300, 50, {0: (1, 20)})
    file.close()
    again_file = TimeFile(databases)
    assert again_file.load("one") == (300, 50, {0: (1, 20)})
    assert again_file.next_rows(LOWEST, 10, 0) == [Row(4, 200, 20)]
    again_file.close()
    assert (tmp_path / "views" / "timeindex.sqlite").exists()
    (tmp_path / "views" / "timeindex.sqlite").write_bytes(b"no database" * 1000)
    assert again_file.load("one").position == 0
    assert again_file.load("two").position == 0
    again_file.close()
    databases.remove(NAME)
    assert list((tmp_path / "views").iterdir()) == []


def on_disk(tmp_path) -> tuple[RowsMachine, list[Row]]:
    """A machine whose file is on a real disk, and its rows."""
    machine = RowsMachine(FakeLog(SEGMENT_BYTES), DatabaseFiles(str(tmp_path)))
    machine.node.start()
    rows = machine.filed([1, 2])
    return machine, rows


@pytest.mark.parametrize("name", ["timeindex.sqlite", "timeindex.sqlite-wal"])
@pytest.mark.parametrize("fault", ["gone", "cut", "replaced"])
def test_what_happens_to_a_file_of_an_open_database_is_noticed_and_it_is_built_anew(tmp_path, name, fault):
    """SQLite goes on with the file that it has open, whatever has become of its name."""
    machine, rows = on_disk(tmp_path)
    path = tmp_path / name
    size = path.stat().st_size
    if fault == "cut":
        os.truncate(path, size // 2)
    else:
        path.unlink()
    if fault == "replaced":
        path.write_bytes(bytes(size))
    rows += machine.add([3])
    with pytest.raises(timefile.RotError) as caught:
        machine.settle()
    machine.follower.failed(caught.value)
    machine.settle()
    assert machine.due() == rows
    machine.stop()
    assert stored(machine)[1] == rows


@pytest.mark.parametrize("fault", ["gone", "empty", "cut", "foreign"])
def test_a_start_with_a_file_that_is_gone_or_cut_short_builds_it_anew(tmp_path, fault):
    machine, rows = on_disk(tmp_path)
    machine.stop()
    path = tmp_path / "timeindex.sqlite"
    data = path.read_bytes()
    if fault == "gone":
        path.unlink()
    else:
        path.write_bytes({"empty": b"", "cut": data[: len(data) // 2 + 7], "foreign": b"no database" * 1000}[fault])
    restarted = caught_up(machine)
    assert restarted.due() == rows
    assert restarted.follower.whole


def test_no_memory_is_shared_through_a_file_that_somebody_may_cut_short(tmp_path):
    """A process that looks at what was cut off a mapped file ends by a signal."""
    on_disk(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"timeindex.sqlite", "timeindex.sqlite-wal"}


def test_a_file_that_is_lost_cut_short_or_unreadable_is_built_anew_in_simulated_nodes():
    for damage in ("lose", "cut", "make_unreadable"):
        machine = replica()
        rows = machine.add([1, 2])
        machine.settle()
        assert getattr(machine.databases, damage)(NAME, *([0.5] if damage == "cut" else []))
        later = machine.add([3])
        try:
            machine.settle()
        except sqlite3.DatabaseError as error:
            machine.follower.failed(error)
        machine.settle()
        assert machine.databases.is_whole(NAME), damage
        assert machine.due() == [*rows, *later], damage


SOON_LIMIT = 100


def kept_bytes(soon: SoonRows) -> int:
    return sum(sys.getsizeof(kept) for kept in vars(soon).values() if isinstance(kept, list | set))


def hand_out(soon: SoonRows, rows: list[Row]) -> None:
    soon.extend(rows, rows[-1][:2])
    taken = soon.take(1 << 60, len(rows))
    assert taken == rows


def test_handed_out_rows_that_are_gone_take_no_memory_while_other_rows_are_overdue() -> None:
    soon = SoonRows(SOON_LIMIT)
    sizes = []
    for number in range(200):
        rows = [Row(number, number * SOON_LIMIT + one, 10) for one in range(SOON_LIMIT)]
        hand_out(soon, rows)
        soon.remove(row.position for row in rows)
        sizes.append(kept_bytes(soon))
    assert max(sizes[100:]) <= max(sizes[:100])


def test_handed_out_rows_that_are_still_pending_are_handed_out_again() -> None:
    soon = SoonRows(SOON_LIMIT)
    left = []
    for number in range(20):
        rows = [Row(number, number * SOON_LIMIT + one, 10) for one in range(SOON_LIMIT)]
        hand_out(soon, rows)
        soon.remove(row.position for row in rows[1:])
        left.append(rows[0])
    soon.extend([], None)
    assert soon.take(1 << 60, 1000) == []
    assert soon.take(1 << 60, 1000) == left
