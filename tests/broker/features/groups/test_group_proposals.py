import pytest

from dledger.errors import BusyError
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.testing import BrokerInMemory
from dledger_remoting.topics import SubscriptionGroupConfig


def test_a_refusal_reaches_every_waiter_and_leaves_nothing_pending():
    broker = BrokerInMemory()
    outcomes = []
    broker.node.stage_error = BusyError("full")
    broker.groups.put_group(SubscriptionGroupConfig("g"), outcomes.append)
    broker.node.stage_error = None
    broker.groups.ensure_group(SubscriptionGroupConfig("g"), outcomes.append)
    broker.env.run_ready()
    assert isinstance(outcomes[0], BusyError)
    assert outcomes[1] is None
    assert "g" in broker.machine.state.table(GROUPS).by_name


def test_a_change_that_cannot_be_written_down_leaves_nothing_pending():
    broker = BrokerInMemory()
    outcomes = []
    with pytest.raises(OverflowError):
        broker.groups.put_group(SubscriptionGroupConfig("g", retry_max_times=1 << 70), outcomes.append)
    broker.groups.ensure_group(SubscriptionGroupConfig("g"), outcomes.append)
    broker.env.run_ready()
    assert outcomes == [None]
