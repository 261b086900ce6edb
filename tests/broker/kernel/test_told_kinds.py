"""Command kinds that members tell: the leader records what each member told last."""

from dledger.errors import BusyError
from dledger.types import EntryKind
from dledger_broker.features import COMMANDS
from dledger_broker.kernel.members import Features
from dledger_broker.kernel.trying_again import RETRY_S
from dledger_broker.testing import BrokerInMemory


def test_a_leader_records_its_own_command_kinds():
    broker = BrokerInMemory()
    assert broker.machine.state.members.understood_by_all(23, ["fake-n0"])
    assert not broker.machine.state.members.understood_by_all(max(COMMANDS.types) + 1, ["fake-n0"])
    assert not broker.machine.state.members.understood_by_all(23, ["fake-n0", "fake-n1"])


def test_command_kinds_told_to_a_follower_are_recorded_once_the_follower_leads():
    broker = BrokerInMemory(lead=False)
    broker.machine.learn_kinds("fake-n1", (16, 17))
    assert not broker.machine.state.members.understood_by_all(16, ["fake-n1"])
    broker.node.lead()
    broker.env.run_ready()
    assert broker.machine.state.members.understood_by_all(16, ["fake-n1"])
    assert not broker.machine.state.members.understood_by_all(18, ["fake-n1"])


def test_a_leader_does_not_record_command_kinds_told_in_its_earlier_term():
    """Meanwhile an older version of the member has told the next leader its command kinds."""
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


def test_command_kinds_that_the_log_refused_are_recorded_later():
    """Sends had filled the leader's log. A leader tells its own kinds only once, so features stayed inactive."""
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
