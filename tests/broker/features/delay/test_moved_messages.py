"""Delayed messages and trims: a trim takes only segments in which nothing waits. Waiting messages are moved first."""

from tests.broker.features.delay.delayed_brokers import Delayed, trim


def test_delayed_messages_are_moved_before_a_trim_and_delivered_once(delayed: Delayed) -> None:
    operations = [delayed.send(30_000) for _ in range(3)]
    delayed.fill_log()
    position = trim(delayed)
    assert delayed.first_position < position
    delayed.run(3.0)
    assert delayed.happened["row moved"] == 3
    assert [table.below(position).rows for table in delayed.tables()] == [0, 0, 0]
    delayed.leader.trim(position)
    delayed.run(1.0)
    assert delayed.first_position >= position
    assert delayed.delivered(*operations) == {False}
    delayed.run(30.0)
    assert delayed.delivered(*operations) == {True}
    assert delayed.happened["delayed message delivered"] == 3


def test_the_next_leader_continues_the_moves_of_delayed_messages(delayed: Delayed) -> None:
    operation = delayed.send(40_000)
    delayed.fill_log()
    trim(delayed)
    delayed.kill_leader()
    delayed.run(3.0)
    position = trim(delayed)
    delayed.run(3.0)
    assert [table.below(position).rows for table in delayed.tables()] == [0, 0]
    delayed.run(40.0)
    assert delayed.is_delivered(operation)


def test_delayed_messages_that_a_full_log_cannot_move_are_given_up_and_counted(delayed: Delayed) -> None:
    low = delayed.send(60_000)
    delayed.fill_log()
    kept = delayed.send(60_000)
    position = trim(delayed)
    delayed.due_messages.moves.request(position, disk_full=True, give_up=True)
    delayed.brokers.fill_disk_for(2.0, reserve_too=False)
    delayed.run(2.0)
    assert delayed.truth.due.lost == {low}
    assert [table.below(position).rows for table in delayed.tables()] == [0, 0, 0]
    delayed.leader.trim(position)
    delayed.run(1.0)
    assert delayed.first_position >= position
    delayed.run(60.0)
    assert (delayed.is_delivered(low), delayed.is_delivered(kept)) == (False, True)
    assert delayed.gauge("timers_lost") == 1
