"""Upgrade of a group, one node after another: nothing stops, and the new feature works once all nodes have it."""

from __future__ import annotations

import pytest

from dledger_broker.features import FEATURES
from dledger_broker.kernel.parts import Feature
from dledger_remoting.codes import ResponseCode
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.message_bodies import encode_body
from dledger_sim.brokers.schedules.brokers import TOPIC, Brokers
from dledger_sim.brokers.service import BrokerSettings, SimBroker
from tests.broker.toy import FEATURE
from tests.broker.toy.requests import REMIND
from tests.broker.toy.table import REMINDERS

WITH_REMINDERS = (*FEATURES, FEATURE)


class Upgrade:
    """Three simulated nodes. The old ones lack reminders and do not know their commands."""

    def __init__(self, *old: str) -> None:
        self._old: dict[str, tuple[Feature, ...]] = dict.fromkeys(old, FEATURES)
        self.brokers = Brokers(BrokerSettings(features=WITH_REMINDERS, other_features=self._old))

    def install(self, name: str, features: tuple[Feature, ...]) -> None:
        """Stop a node, and start it with another version."""
        group = self.brokers.group
        group.kill(name)
        self.brokers.run(2.0)
        self._old[name] = features
        group.start(name)
        self.brokers.run(8.0)

    def lead(self, name: str) -> None:
        """Have a node lead."""
        if self.brokers.leader != name:
            self.brokers.hand_over(name)
            self.brokers.run(2.0)
        assert self.brokers.leader == name

    def broker(self, name: str) -> SimBroker:
        life = self.brokers.group.nodes[name].life
        assert life is not None
        assert isinstance(life.service, SimBroker)
        return life.service

    def remind(self, name: str) -> Answer:
        """Ask a node for a reminder in a second."""
        brokers = self.brokers
        ext = {"topic": TOPIC, "delaySeconds": "1"}
        body = encode_body(brokers.workload.next_operation(), 0)
        answers = brokers.ask(brokers.connect(name), REMIND, ext, body)
        brokers.run(0.5)
        (answer,) = answers
        assert answer is not None
        return answer

    def sends_pass(self) -> bool:
        """Return whether each node still takes a message, by itself or through the leader."""
        before = len(self.brokers.workload.truth.stored)
        for name in self.brokers.group.nodes:
            self.brokers.send(self.brokers.connect(name), TOPIC)
        self.brokers.run(1.0)
        return len(self.brokers.workload.truth.stored) == before + 3

    def active(self) -> list[bool]:
        return [self.broker(name).broker.is_active(FEATURE.name) for name in self.brokers.group.nodes]


@pytest.mark.parametrize("leader", ["n0", "n2"], ids=["a new node leads", "the old node leads"])
def test_a_feature_waits_for_the_last_node_despite_changes_of_leader(leader: str) -> None:
    upgrade = Upgrade("n2")
    upgrade.lead(leader)
    refused = upgrade.remind("n1")
    assert (refused.code, "not active" in (refused.remark or "")) == (ResponseCode.SYSTEM_BUSY, True)
    upgrade.lead("n1")
    assert upgrade.remind("n0").code == ResponseCode.SYSTEM_BUSY
    assert upgrade.sends_pass()
    assert upgrade.active()[:2] == [False, False]
    upgrade.install("n2", WITH_REMINDERS)
    assert upgrade.active() == [True, True, True]
    assert upgrade.remind("n2").code == ResponseCode.SUCCESS
    upgrade.lead("n2")
    upgrade.brokers.run(2.0)
    assert {upgrade.broker(name).broker.state.table(REMINDERS).stored for name in ("n0", "n1", "n2")} == {1}
    assert upgrade.sends_pass()
