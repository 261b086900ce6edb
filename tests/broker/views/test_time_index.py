import asyncio
import random
import sqlite3

import pytest
from time_rows import FOREVER, OTHER, SEGMENT_BYTES, RowsMachine, replica

from dledger import loop_guard
from dledger.format import encode_command
from dledger.loop_guard import DiskWorkOnLoopError
from dledger_broker.testing.databases import MemoryDatabases
from dledger_broker.testing.node import FakeLog
from dledger_broker.views import timefile
from dledger_broker.views.databases import DatabaseFiles
from dledger_broker.views.timefile import NAME, TimeFile
from dledger_broker.views.timefollower import COMPARE_S
from dledger_broker.views.timerows import LOWEST, Row, RowChanges


def again(machine: RowsMachine, **settings) -> RowsMachine:
    """Another process on the same log and files."""
    return replica(machine.node.log, machine.databases, **settings)


def stored(machine: RowsMachine) -> tuple[int, list[Row]]:
    """What the file says by itself: its position, and its rows."""
    file = TimeFile(machine.databases)
    position = file.load("one").position
    rows = file.next_rows(LOWEST, 1000, 0)
    file.close()
    return position, rows


def test_rows_come_in_the_order_in_which_they_are_due_whether_the_file_has_them_or_not():
    machine = replica()
    machine.add([30, 10])
    machine.settle()
    machine.add([20, 5])
    assert [row.due_ms for row in machine.due(before_ms=30)] == [5, 10, 20]
    assert [row.due_ms for row in machine.due()] == [5, 10, 20, 30]


def test_rows_of_one_time_come_in_the_order_of_the_log():
    machine = replica()
    rows = machine.add([7] * 20)
    machine.settle()
    assert machine.due(limit=3) == rows


def test_a_query_goes_on_behind_the_one_before_and_begins_again_once_all_that_is_due_was_handed_out():
    machine = replica()
    rows = machine.add([1, 2, 3, 4, 50])
    machine.settle()
    machine.due()
    answers = [machine.ask(before_ms=10, limit=3) for _ in range(4)]
    machine.env.run_ready()
    assert [answer[0] for answer in answers] == [rows[:3], rows[3:4], [], rows[:3]]


def test_nothing_is_answered_before_file_and_memory_are_as_of_what_is_applied():
    machine = replica()
    machine.add([1])
    answers = machine.ask()
    machine.env.run_ready()
    assert answers == []
    assert not machine.follower.reached
    machine.settle()
    assert len(answers[0]) == 1


def test_a_row_that_went_while_it_was_looked_for_is_not_handed_out():
    machine = replica()
    first, second = machine.add([1, 2])
    machine.settle()
    restarted = again(machine)
    restarted.run(restarted.follower.load())
    restarted.index.void_answers()
    answers = restarted.ask()  # the worker has not looked yet
    restarted.end([first])
    restarted.add([0])
    restarted.settle()
    assert [row.due_ms for row in answers[0]] == [0, 2]
    assert restarted.index.is_pending(second.position)


def test_a_row_that_went_since_it_was_handed_out_is_pending_no_more_though_the_file_has_it_by_then():
    machine = replica()
    first, second = machine.add([1, 2])
    machine.settle()
    assert machine.due() == [first, second]
    machine.end([first])
    machine.settle()
    assert not machine.index.is_pending(first.position)
    assert machine.index.is_pending(second.position)
    assert machine.due() == [second]


def test_the_file_holds_commands_of_whole_entries_up_to_what_is_durable():
    machine = replica()
    machine.add([1, 2])
    end = machine.node.log.end
    machine.add([3])
    machine.node.durable_limit = machine.node.log.end - 1
    machine.settle()
    assert [row.due_ms for row in stored(machine)[1]] == [1, 2]
    assert stored(machine)[0] == end
    assert [row.due_ms for row in machine.due()] == [1, 2, 3]


def test_a_start_goes_on_from_the_file():
    machine = replica()
    rows = machine.add([4, 2])
    machine.settle()
    machine.end(rows[:1])
    machine.add([3])
    restarted = again(machine)
    restarted.settle()
    assert [row.due_ms for row in restarted.due()] == [2, 3]
    assert restarted.follower.whole
    assert not restarted.follower.mismatches


def test_a_start_from_a_snapshot_behind_the_file_answers_nothing_until_the_state_has_come_to_it():
    machine = replica()
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


def test_what_memory_does_not_reach_back_to_is_read_from_the_log():
    machine = replica()
    rows = machine.add([5, 6])
    machine.write(encode_command(OTHER, b"something else"))
    machine.node.snapshot()
    machine.add([7])
    machine.end(rows[:1])
    restarted = replica(machine.node.log, MemoryDatabases())
    restarted.settle()
    assert [row.due_ms for row in restarted.due()] == [6, 7]
    assert restarted.follower.whole


def test_memory_that_is_full_is_discarded_and_the_log_is_read():
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


def test_rows_of_another_incarnation_of_the_directory_are_thrown_away():
    machine = replica()
    machine.add([1])
    machine.settle()
    other = replica(FakeLog(SEGMENT_BYTES), machine.databases, incarnation="two")
    other.settle()
    assert other.due() == []
    assert not other.follower.mismatches


def test_a_later_restore_wipes_the_file_and_what_was_handed_out():
    machine = replica()
    rows = machine.add([1, 2])
    position = machine.node.snapshot()
    machine.settle()
    machine.run(start_and_stop(machine))
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


def test_a_transaction_of_a_file_that_was_wiped_meanwhile_says_nothing():
    machine = replica(always_compare=False)
    rows = machine.add([1, 2])
    position = machine.node.snapshot()
    machine.run(start_and_stop(machine))
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


def test_rows_below_a_position_that_was_ended_count_nowhere_and_leave_the_file():
    machine = replica(always_compare=False)
    machine.add([1, 2])
    machine.settle()
    machine.node.log.roll(0)
    kept = machine.add([3])
    machine.end_below(SEGMENT_BYTES)
    assert machine.due() == kept
    machine.settle()
    assert stored(machine)[1] == kept


def test_a_start_begins_at_the_lowest_segment_with_pending_rows():
    machine = replica()
    machine.settle()
    rows = machine.add([1, 2])
    machine.node.log.roll(0)
    kept = machine.add([3])
    machine.end(rows)
    position = machine.node.snapshot()
    late = replica(machine.node.log, machine.databases)  # its file has nothing
    assert late.node.log.data[:SEGMENT_BYTES].strip(b"\0")
    late.node.log.data[: rows[0].position] = bytes(rows[0].position)  # what lies there is not read
    late.settle()
    assert late.due() == kept
    assert position > kept[0].position


def test_rows_that_went_in_a_piece_of_the_log_that_is_skipped_leave_the_file():
    machine = replica(always_compare=False, tail_rows=2)
    rows = machine.add([1, 2])
    machine.settle()
    machine.end(rows)
    machine.node.log.roll(0)
    kept = machine.add([3, 4])
    assert not machine.follower.reached
    machine.settle()
    assert machine.due() == kept
    assert stored(machine)[1] == kept


def test_what_is_read_from_the_log_ends_where_it_is_durable():
    machine = replica()
    machine.add([1])
    end = machine.node.log.end
    machine.add([2])
    machine.node.snapshot()
    late = replica(machine.node.log, MemoryDatabases())
    late.node.durable_limit = end + 1
    late.settle()
    assert stored(late) == (end, [Row(1, 96, 10)])


def test_a_file_that_differs_from_the_state_is_built_anew():
    machine = replica()
    rows = machine.add([1, 2])
    machine.settle()
    file = TimeFile(machine.databases)
    file.load("one")
    file.write([RowChanges(gone=[rows[0][:2]])], stored(machine)[0], 0, None)
    file.close()
    restarted = again(machine)
    restarted.settle()
    assert restarted.follower.mismatches == 1
    assert restarted.follower.whole
    assert restarted.due() == rows


def test_counters_that_a_clean_stop_left_are_compared_at_the_start():
    machine = replica()
    rows = machine.add([1, 2])
    machine.settle()
    machine.run(machine.follower.close())
    machine.databases.tamper(NAME, "DELETE FROM rows WHERE due = 1")
    restarted = again(machine)
    restarted.run(restarted.follower.load())
    assert restarted.follower.mismatches == 1
    restarted.settle()
    assert restarted.due() == rows


def test_a_difference_that_stands_is_an_alarm_and_no_third_build():
    machine = replica()
    machine.add([1])
    machine.pending_rows[3] = Row(9, 3, 1)  # of which the log knows nothing
    machine.settle()
    assert (machine.follower.mismatches, machine.follower.alarms) == (2, 1)
    assert machine.follower.whole is False
    assert [row.due_ms for row in machine.due()] == [1]


def test_where_nobody_asks_always_the_comparison_comes_with_the_hour():
    machine = replica(always_compare=False)
    machine.add([1])
    machine.settle()
    assert machine.follower.whole
    machine.pending_rows[3] = Row(9, 3, 1)
    machine.settle()
    assert machine.follower.whole
    machine.env.advance(COMPARE_S)
    machine.settle()
    assert machine.follower.whole is False


def test_a_damaged_file_is_built_anew():
    machine = replica()
    rows = machine.add([1, 2])
    machine.settle()
    machine.databases.spoil(NAME)
    restarted = again(machine)
    restarted.settle()
    assert restarted.due() == rows


def test_a_transaction_that_fails_comes_again():
    machine = replica()
    machine.settle()
    rows = machine.add([1, 2])
    machine.databases.failures.append(sqlite3.OperationalError("disk I/O error"))
    with pytest.raises(sqlite3.OperationalError):
        machine.settle()
    assert stored(machine)[1] == []
    machine.follower.failed(sqlite3.OperationalError("disk I/O error"))
    machine.settle()
    assert stored(machine)[1] == rows


def test_the_task_goes_on_after_an_error():
    machine = replica()

    async def follow() -> None:
        machine.follower.start()
        machine.databases.failures.append(sqlite3.OperationalError("database or disk is full"))
        while machine.follower.position < machine.applied_position:
            machine.env.advance(1)
            await turns()

    machine.add([1])
    machine.loop.run_until_complete(follow())
    assert len(stored(machine)[1]) == 1
    machine.run(machine.follower.close())


async def start_and_stop(machine: RowsMachine) -> None:
    machine.follower.start()
    await machine.follower.stop()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_log_without_rows_writes_nothing_until_much_of_it_has_passed(monkeypatch):
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


def test_rows_below_a_position_are_found_in_slices_less_what_is_gone(monkeypatch):
    monkeypatch.setattr(timefile, "SLICE_KEYS", 3)
    machine = replica()
    rows = machine.add([9, 8, 7, 6, 5, 4, 3])
    machine.settle()
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


def test_a_row_that_went_since_it_was_found_is_pending_no_more():
    machine = replica(soon_rows=1)
    rows = machine.add([1, 2, 3, 4, 5, 6])
    machine.settle()
    assert not machine.index.is_pending(rows[-1].position)
    machine.index.find(FOREVER, None, lambda _: None)
    machine.settle()
    assert machine.index.is_pending(rows[-1].position)
    machine.end(rows[-1:])
    assert not machine.index.is_pending(rows[-1].position)


def test_whether_a_row_is_pending_is_known_of_any_row():
    machine = replica()
    first, second, third = machine.add([1, 2, 3])
    machine.settle()
    machine.end([second])
    answers: list = []
    rows = (first, second, third, Row(4, first.position, 1))
    machine.index.pending([row[:2] for row in rows], answers.append)
    machine.end([third])
    machine.settle()
    assert answers == [{first[:2]}]


def test_what_cannot_be_read_is_set_aside_until_it_is_taken_back():
    machine = replica()
    first, second = machine.add([1, 2])
    machine.settle()
    assert machine.due() == [first, second]
    machine.index.set_aside(first.position)
    answers = machine.ask()
    machine.env.run_ready()
    assert answers == [[second]]
    assert not machine.index.is_pending(first.position)
    machine.index.take_back()
    machine.settle()
    assert machine.due() == [first, second]


def test_memory_keeps_only_the_next_rows():
    machine = replica(soon_rows=4)
    machine.settle()
    rows = [row for due in range(40, 0, -1) for row in machine.add([due])]
    assert sum(machine.index.is_pending(row.position) for row in rows) <= 8
    machine.settle()
    assert [row.due_ms for row in machine.due(limit=7)] == list(range(1, 41))


def test_rows_that_go_before_they_are_due_leave_memory():
    machine = replica(soon_rows=4)
    machine.settle()
    for _ in range(20):
        machine.end(machine.add([7, 7]))
    late = machine.add([8])
    machine.settle()
    assert machine.due() == late


def test_sql_is_refused_on_an_event_loop():
    async def on_loop() -> None:
        TimeFile(MemoryDatabases()).load("one")

    machine = replica()
    with pytest.raises(DiskWorkOnLoopError):
        machine.loop.run_until_complete(on_loop())
    loop_guard.violations.clear()


def test_the_file_on_a_real_disk(tmp_path):
    databases = DatabaseFiles(str(tmp_path / "views"))
    file = TimeFile(databases)
    assert file.load("one").position == 0
    file.write([RowChanges(added=[(5, 100, 10), (4, 200, 20)]), RowChanges(gone=[(5, 100)])], 300, 50, {0: (1, 20)})
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


def test_a_loss_of_power_undoes_the_last_transactions():
    machine = replica()
    for due in range(6):
        machine.add([due])
        machine.settle()
    machine.databases.crash(random.Random(3))
    lost = stored(machine)[1]
    restarted = again(machine)
    restarted.settle()
    assert len(lost) < 6
    assert [row.due_ms for row in restarted.due()] == list(range(6))
