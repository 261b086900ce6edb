"""Schedules of upgrades of a group, node by node, to a version with one more feature."""

from __future__ import annotations

from typing import Final, cast

import msgspec

from dledger.errors import LogError
from dledger.statemachine import CommittedEntry
from dledger_broker.features import FEATURES
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.parts import Context, Feature, Part
from dledger_broker.kernel.tables import Changes, Table, TableKey
from dledger_sim.brokers.schedules.brokers import TOPIC, Brokers
from dledger_sim.brokers.service import BrokerSettings, SimBroker
from dledger_sim.log.registers import leading

TOLD_S: Final = 8.0
"""Time in seconds within which a leader has recorded what a started node understands."""


class CountUp(msgspec.Struct, frozen=True):
    """Command that counts one more."""


class Count(Table):
    """Table with the number of applied `CountUp` commands."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def digest(self) -> int:
        return self.count

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        _ = command, entry, changes
        self.count += 1


class CountPart(Part):
    """Part of a node that does nothing."""


def _build(context: Context) -> CountPart:
    _ = context
    return CountPart()


COUNT: Final = TableKey("count", Count)
COUNTING: Final = Feature(name="counting", commands={900: CountUp}, table=COUNT, activated=True, build=_build)
NEW: Final = (*FEATURES, COUNTING)


class Upgrade:
    """Three nodes. All have the new version, except the named ones, which lack the counting feature."""

    def __init__(self, *old: str) -> None:
        self._others: dict[str, tuple[Feature, ...]] = dict.fromkeys(old, FEATURES)
        self.brokers = Brokers(BrokerSettings(features=NEW, other_features=self._others))
        self.outcomes: list[LogError | None] = []

    def upgrade(self, name: str) -> None:
        """Stop an old node, and start it with the new version."""
        self.brokers.group.kill(name)
        self.brokers.run(2.0)
        del self._others[name]
        self.brokers.group.start(name)
        self.brokers.run(TOLD_S)

    def lead(self, name: str) -> None:
        """Make a node the leader."""
        if self.brokers.leader != name:
            self.brokers.hand_over(name)
            self.brokers.run(2.0)
        assert self.brokers.leader == name

    def use(self) -> None:
        """Use the feature at the leader if that is allowed, and check that all nodes take messages and live on."""
        machine = cast(SimBroker, leading(self.brokers.group).service).broker
        if machine.is_active(COUNTING.name):
            machine.stage_command(CountUp(), self.outcomes.append)
        for name in self.brokers.group.nodes:
            self.brokers.send(self.brokers.connect(name), TOPIC)
        self.brokers.run(1.0)
        assert all(node.life is not None for node in self.brokers.group.nodes.values())

    def counts(self) -> list[int]:
        """Return the count of each node."""
        lives = [node.life for node in self.brokers.group.nodes.values()]
        brokers = [cast(SimBroker, life.service).broker for life in lives if life is not None]
        return [broker.state.table(COUNT).count for broker in brokers]


def upgrade_in_which_leaders_change() -> None:
    """Check that a feature is used once the last node is upgraded, and stays active under any leader.

    1. New nodes lead, one after another, while one node is old: it would stop at the feature's commands.
    2. The old node leads.
    3. It is upgraded. The feature is used, also by the node that was old.

    No seed meets this: all nodes of a seed are of one version.
    """
    upgrade = Upgrade("n2")
    for leader in ("n0", "n1", "n2", "n0"):
        upgrade.lead(leader)
        upgrade.use()
    assert not upgrade.outcomes, "an old node would have stopped at it"
    upgrade.upgrade("n2")
    for leader in ("n0", "n2"):
        upgrade.lead(leader)
        upgrade.use()
    assert upgrade.outcomes == [None, None]
    assert upgrade.counts() == [2, 2, 2]


def upgrade_of_the_leader_alone() -> None:
    """Check that a leader uses a feature only once all others understand it and that is recorded.

    No seed meets this: all nodes of a seed are of one version.
    """
    upgrade = Upgrade("n1", "n2")
    upgrade.lead("n0")
    upgrade.use()
    upgrade.upgrade("n1")
    upgrade.lead("n0")
    upgrade.use()
    assert not upgrade.outcomes
    upgrade.brokers.group.kill("n2")
    upgrade.brokers.run(2.0)
    for _ in range(3):
        upgrade.brokers.send(upgrade.brokers.connect("n0"), TOPIC)
        upgrade.brokers.run(2.0)
    machine = cast(SimBroker, leading(upgrade.brokers.group).service).broker
    assert not machine.is_active(COUNTING.name), "a voter that is down is as old as it was"


UPGRADE_SCHEDULES: Final = (upgrade_in_which_leaders_change, upgrade_of_the_leader_alone)
