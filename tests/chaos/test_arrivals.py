"""What is still to come is known at every moment: workloads wait for it at the end."""

from dledger_chaos.workloads.tailing import Arrivals


def test_nothing_is_missing_before_anything_is_expected():
    assert Arrivals().complete.is_set()


def test_a_message_is_missing_until_it_has_come():
    arrivals = Arrivals()
    arrivals.expect("a")
    arrivals.came("b")
    assert not arrivals.complete.is_set()
    arrivals.came("a")
    assert arrivals.complete.is_set()


def test_a_message_that_came_before_it_was_acknowledged_is_not_missing():
    arrivals = Arrivals()
    arrivals.came("a")
    arrivals.expect("a")
    assert arrivals.complete.is_set()


def test_a_message_that_is_to_come_twice_is_missing_until_it_came_twice():
    arrivals = Arrivals()
    arrivals.expect("a")
    arrivals.expect("a")
    arrivals.came("a")
    assert not arrivals.complete.is_set()
    arrivals.came("a")
    assert arrivals.complete.is_set()
