"""Changes of the configuration of consumer groups."""

import msgspec
import pytest
from served_broker import FakeClient, json_body

from dledger.errors import BusyError
from dledger_broker.features.groups.table import GROUPS
from dledger_broker.testing import BrokerInMemory
from dledger_remoting.topics import SubscriptionGroupConfig


@pytest.mark.parametrize("code", [200, 225])
def test_attributes_change_by_their_signs_and_unnamed_attributes_stay(client: FakeClient, code: int) -> None:
    """`mqadmin updateSubGroup --attributes +k=v` writes the signs into the body."""

    def put(attributes: dict[str, str]) -> int:
        config: dict[str, object] = {"groupName": "CG", "attributes": attributes}
        body = config if code == 200 else {"groupConfigList": [config]}
        return client.call(code, {}, msgspec.json.encode(body)).code

    def shown() -> object:
        config = json_body(client.call(352, {"group": "CG"}))
        assert isinstance(config, dict)
        return config["attributes"]

    assert put({"+a": "1", "+b": "2"}) == 0
    assert shown() == {"a": "1", "b": "2"}
    assert put({"-a": "", "+c": "3"}) == 0
    assert put({}) == 0
    assert shown() == {"b": "2", "c": "3"}
    assert put({"+d": "x" * 4096}) == 29
    assert put({"+d": "", "-d": ""}) == 29


def test_a_refused_change_reaches_every_waiter_and_a_change_that_cannot_be_encoded_leaves_nothing_pending():
    broker, outcomes = BrokerInMemory(), []
    with pytest.raises(OverflowError):
        broker.groups.put_group(SubscriptionGroupConfig("g", retry_max_times=1 << 70), outcomes.append)
    broker.node.stage_error = BusyError("full")
    broker.groups.put_group(SubscriptionGroupConfig("g"), outcomes.append)
    broker.node.stage_error = None
    broker.groups.ensure_group(SubscriptionGroupConfig("g"), outcomes.append)
    broker.env.run_ready()
    assert isinstance(outcomes[0], BusyError)
    assert outcomes[1:] == [None]
    assert "g" in broker.machine.state.table(GROUPS).by_name
