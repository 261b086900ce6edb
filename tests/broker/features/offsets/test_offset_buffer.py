import pytest

from dledger.errors import BusyError, LogFullError, NotLeaderError
from dledger_broker.features.offsets.commits import FLUSH_AT_STOP_S, OffsetCommits
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.testing import BrokerInMemory


def test_commits_of_all_groups_go_into_one_entry_after_the_delay():
    broker = BrokerInMemory()
    entries, outcomes = len(broker.log.entries), []
    for offset in (1, 2, 3):
        broker.offsets.commit("g", "orders", 0, offset, outcomes.append)
        broker.offsets.commit("h", "orders", 1, offset * 10)
    broker.env.advance(0.19)
    assert len(broker.log.entries) == entries
    assert broker.offsets.pending("g", "orders", 0) == 3
    broker.env.advance(0.02)
    assert len(broker.log.entries) == entries + 1
    assert broker.machine.state.table(OFFSETS).get("g", "orders", 0) == 3
    assert broker.machine.state.table(OFFSETS).get("h", "orders", 1) == 30
    assert outcomes == [None, None, None]
    assert broker.offsets.pending("g", "orders", 0) is None


def test_a_query_waits_for_the_commits_of_its_queue_only():
    broker = BrokerInMemory()
    order = []
    broker.offsets.commit("g", "orders", 0, 5)
    broker.offsets.flush(lambda error: order.append("other"), ("g", "orders", 1))
    assert order == ["other"]
    broker.offsets.flush(lambda error: order.append("own"), ("g", "orders", 0))
    broker.offsets.flush(lambda error: order.append("in flight"), ("g", "orders", 0))
    broker.offsets.flush(lambda error: order.append("all"))
    assert order == ["other"]
    broker.env.run_ready()
    assert order == ["other", "own", "in flight", "all"]
    assert broker.machine.state.table(OFFSETS).get("g", "orders", 0) == 5


def test_a_busy_log_delays_commits_and_a_full_one_takes_them_until_half_the_reserve_is_used():
    broker = BrokerInMemory()
    outcomes = []
    broker.offsets.commit("g", "orders", 0, 5, outcomes.append)
    broker.node.stage_error = BusyError("64 MiB wait")
    broker.env.advance(0.5)
    assert outcomes == []
    broker.node.stage_error = None
    broker.env.advance(0.2)
    assert outcomes == [None]
    broker.node.stage_error = LogFullError("no space")
    broker.offsets.commit("g", "orders", 0, 6, outcomes.append)
    broker.env.advance(0.2)
    assert outcomes[1:] == [None]
    broker.node.reserve_left = 0.5
    broker.offsets.commit("g", "orders", 0, 7, outcomes.append)
    broker.env.advance(0.2)
    assert isinstance(outcomes[2], LogFullError)
    assert broker.machine.state.table(OFFSETS).get("g", "orders", 0) == 6


def test_commits_that_were_only_buffered_are_refused_when_leadership_is_lost():
    broker = BrokerInMemory()
    outcomes = []
    broker.offsets.commit("g", "orders", 0, 5, outcomes.append)
    broker.node.step_down()
    assert [type(outcome) for outcome in outcomes] == [NotLeaderError]


def test_commits_that_are_buffered_when_the_log_fails_are_refused(monkeypatch):
    broker = BrokerInMemory()
    outcomes = []

    def stopped(_node):
        raise NotLeaderError(None, 0, "node n0 is not running")

    broker.offsets.commit("g", "orders", 0, 5, outcomes.append)
    monkeypatch.setattr(type(broker.node), "reserve_left", property(stopped), raising=False)
    broker.env.advance(0.5)
    assert [type(outcome) for outcome in outcomes] == [NotLeaderError]


def test_a_leader_that_hands_over_proposes_what_it_has_collected():
    broker = BrokerInMemory()
    broker.offsets.commit("g", "orders", 0, 5)
    broker.machine.hand_over()
    broker.env.run_ready()
    assert broker.machine.state.table(OFFSETS).get("g", "orders", 0) == 5


def test_what_was_committed_on_a_topic_stands_in_the_log_ahead_of_its_deletion():
    """Behind it, it would be of whatever topic gets the name next."""
    broker = BrokerInMemory()
    broker.create_topic("orders")
    broker.offsets.commit("g", "orders", 0, 5)
    broker.delete_topic("orders")
    broker.env.advance(1)
    assert broker.machine.state.table(OFFSETS).get("g", "orders", 0) is None


def test_a_leader_that_stops_waits_a_second_for_a_log_that_takes_no_commits():
    broker = BrokerInMemory()
    commits = OffsetCommits(broker.machine, broker.env, 200)
    outcomes = []
    commits.buffer.commit("g", "orders", 0, 5, outcomes.append)
    broker.node.stage_error = BusyError("64 MiB wait")
    began = broker.env.now()
    broker.run(commits.flush())
    assert broker.env.now() - began == pytest.approx(FLUSH_AT_STOP_S)
    assert outcomes == []
