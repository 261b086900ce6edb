"""Leaders whose time index is not whole hand over to a node whose index is, and seldom."""

from __future__ import annotations

import pytest

from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.views.timefollower import TimeFollower
from dledger_sim.brokers.service import SimBroker
from tests.broker.features.delay.delayed_brokers import Delayed


class Indexes:
    """Three nodes; what each believes of its index is what a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.delayed = Delayed()
        self.group = self.delayed.brokers.group
        self.whole: dict[str, bool | None] = dict.fromkeys(self.group.nodes, True)
        names = {}
        for name, node in self.group.nodes.items():
            assert node.life is not None
            assert isinstance(node.life.service, SimBroker)
            names[node.life.service.service.parts[DueMessages].index.rows.follower] = name

        def read(follower: TimeFollower) -> bool | None:
            return self.whole[names[follower]]

        monkeypatch.setattr(TimeFollower, "whole", property(read, lambda _follower, _value: None), raising=False)

    @property
    def leader(self) -> str:
        return self.delayed.brokers.leader

    def followers(self) -> list[str]:
        return sorted(set(self.group.nodes) - {self.leader})

    def run(self, seconds: float) -> None:
        self.delayed.brokers.run(seconds)


def test_a_leader_hands_over_to_the_node_whose_index_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    indexes = Indexes(monkeypatch)
    old, (other, whole) = indexes.leader, indexes.followers()
    indexes.whole.update({old: False, other: False})
    indexes.run(12.0)
    assert indexes.leader == whole


@pytest.mark.parametrize("others", [False, None])
def test_with_none_that_is_whole_the_leader_goes_on(monkeypatch: pytest.MonkeyPatch, others: bool | None) -> None:
    indexes = Indexes(monkeypatch)
    old = indexes.leader
    indexes.whole = {name: False if name == old else others for name in indexes.whole}
    operation = indexes.delayed.send(2_000)
    indexes.run(20.0)
    assert indexes.leader == old
    assert indexes.delayed.is_delivered(operation)


def test_a_leader_that_does_not_know_yet_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    indexes = Indexes(monkeypatch)
    old = indexes.leader
    indexes.whole[old] = None
    indexes.run(20.0)
    assert indexes.leader == old


def test_a_node_hands_over_for_this_once_in_ten_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    indexes = Indexes(monkeypatch)
    first = indexes.leader
    indexes.whole[first] = False
    indexes.run(12.0)
    assert indexes.leader != first
    indexes.delayed.brokers.hand_over(first)
    indexes.run(2.0)
    assert indexes.leader == first
    indexes.run(560.0)
    assert indexes.leader == first
    indexes.run(60.0)
    assert indexes.leader != first
