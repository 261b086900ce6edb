"""The messages still to come are known at every moment, so that workloads wait for them at the end."""

from dledger_chaos.workloads.tailing import Arrivals


def test_a_message_is_missing_from_its_acknowledgement_until_it_has_come_in_any_order():
    arrivals = Arrivals()
    assert arrivals.complete.is_set()
    arrivals.came("early")
    arrivals.expect("early")
    assert arrivals.complete.is_set()
    arrivals.expect("a")
    arrivals.came("b")
    assert not arrivals.complete.is_set()
    arrivals.came("a")
    assert arrivals.complete.is_set()


def test_a_message_that_is_to_come_twice_is_missing_until_it_came_twice():
    arrivals = Arrivals()
    arrivals.expect("a")
    arrivals.expect("a")
    arrivals.came("a")
    assert not arrivals.complete.is_set()
    arrivals.came("a")
    assert arrivals.complete.is_set()
