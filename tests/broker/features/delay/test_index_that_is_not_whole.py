"""A leader whose time index is not whole hands over to a node whose index is whole, but seldom."""

import pytest

from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.views.timefollower import TimeFollower
from dledger_sim.brokers.service import SimBroker
from tests.broker.features.delay.delayed_brokers import Delayed


class Indexes(Delayed):
    """Group of three nodes. A test sets what each node believes of its index."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.whole: dict[str, bool | None] = dict.fromkeys(self.group.nodes, True)
        self.leads = self.brokers.leader
        names = {}
        for name, node in self.group.nodes.items():
            assert node.life is not None
            assert isinstance(node.life.service, SimBroker)
            names[node.life.service.service.parts[DueMessages].index.rows.follower] = name

        def read(follower: TimeFollower) -> bool | None:
            return self.whole[names[follower]]

        monkeypatch.setattr(TimeFollower, "whole", property(read, lambda _follower, _value: None), raising=False)

    def leader_after(self, seconds: float) -> str:
        self.run(seconds)
        return self.brokers.leader


@pytest.fixture
def indexes(monkeypatch: pytest.MonkeyPatch) -> Indexes:
    return Indexes(monkeypatch)


def test_a_leader_with_a_broken_index_hands_over_to_the_node_with_a_whole_index(indexes: Indexes) -> None:
    other, whole = sorted(set(indexes.group.nodes) - {indexes.leads})
    indexes.whole.update({indexes.leads: False, other: False})
    assert indexes.leader_after(12.0) == whole


@pytest.mark.parametrize(("own", "others"), [(False, False), (False, None), (None, True)])
def test_a_leader_goes_on_unless_its_index_is_broken_and_another_is_known_to_be_whole(
    indexes: Indexes, own: bool | None, others: bool | None
) -> None:
    indexes.whole = {name: own if name == indexes.leads else others for name in indexes.whole}
    operation = indexes.send(2_000)
    assert indexes.leader_after(20.0) == indexes.leads
    assert indexes.is_delivered(operation)


def test_a_node_hands_over_for_a_broken_index_once_in_ten_minutes(indexes: Indexes) -> None:
    indexes.whole[indexes.leads] = False
    assert indexes.leader_after(12.0) != indexes.leads
    indexes.brokers.hand_over(indexes.leads)
    assert indexes.leader_after(2.0) == indexes.leads
    assert indexes.leader_after(560.0) == indexes.leads
    assert indexes.leader_after(60.0) != indexes.leads
