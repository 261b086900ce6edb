"""Command kinds that members tell: recorded by whoever leads, as they were told last."""

from dledger.errors import BusyError
from dledger.types import EntryKind
from dledger_broker.features import COMMANDS
from dledger_broker.kernel.members import Features
from dledger_broker.kernel.trying_again import RETRY_S
from dledger_broker.testing import BrokerInMemory


def test_a_leader_advertises_the_command_kinds_it_understands():
    broker = BrokerInMemory()
    assert broker.machine.state.members.understood_by_all(23, ["fake-n0"])
    assert not broker.machine.state.members.understood_by_all(max(COMMANDS.types) + 1, ["fake-n0"])
    assert not broker.machine.state.members.understood_by_all(23, ["fake-n0", "fake-n1"])


def test_what_a_member_told_a_follower_is_recorded_once_that_one_leads():
    broker = BrokerInMemory(lead=False)
    broker.machine.learn_kinds("fake-n1", (16, 17))
    assert not broker.machine.state.members.understood_by_all(16, ["fake-n1"])
    broker.node.lead()
    broker.env.run_ready()
    assert broker.machine.state.members.understood_by_all(16, ["fake-n1"])
    assert not broker.machine.state.members.understood_by_all(18, ["fake-n1"])


def test_what_a_member_told_an_earlier_leader_is_not_recorded_by_it_when_it_leads_again():
    """1. A member tells a leader; 2. an older version of it tells the next leader; 3. the first one leads again."""
    broker = BrokerInMemory()
    broker.machine.learn_kinds("fake-n1", (16, 17))
    broker.env.run_ready()
    term = broker.node.term
    broker.node.step_down()
    broker.log.append(EntryKind.GROUP, term + 1, b"", COMMANDS.encode(Features("fake-n1", (16,))))
    broker.node.catch_up()
    broker.node.lead()
    broker.env.run_ready()
    assert not broker.machine.state.members.understood_by_all(17, ["fake-n1"])


def test_what_was_refused_is_recorded_later():
    """Sends had filled the leader's log: nobody says again what it understands itself, and features stayed inactive."""
    broker = BrokerInMemory(lead=False)
    broker.node.stage_error = BusyError("too many bytes wait for a majority")
    broker.node.lead()
    broker.env.run_ready()
    broker.machine.learn_kinds("fake-n1", (16, 17))
    broker.env.run_ready()
    broker.node.stage_error = None
    assert broker.machine.state.members.kinds == {}
    broker.env.advance(RETRY_S)
    assert broker.machine.state.members.understood_by_all(17, ["fake-n0", "fake-n1"])
