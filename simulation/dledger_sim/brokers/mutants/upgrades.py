"""Bugs of upgrades: a feature is used by a node that must not use it yet."""

from __future__ import annotations

from dledger_broker.kernel.activating import Activation
from dledger_broker.kernel.activation import ActivateFeatures
from dledger_broker.kernel.told_kinds import ReportedKinds
from dledger_sim.brokers.schedules import upgrades
from dledger_sim.log.mutants.catalogue import Catalogue

CATALOGUE = Catalogue("broker")


def _lacking_if_most_do(self: Activation, name: str) -> list[str]:
    """Return the lacking voters only if they are a majority, as if a majority were enough."""
    replica = self._replica
    kinds = (*replica.state.activation.kinds[name], self._overlay.kind_of(ActivateFeatures))
    voters = [voter.node_id for voter in replica.log.membership.voters]
    lacking = [
        voter for voter in voters if not all(replica.state.members.understood_by_all(kind, [voter]) for kind in kinds)
    ]
    return lacking if 2 * len(lacking) > len(voters) else []


def _active_from_the_start(self: Activation, name: str) -> bool:
    """Return True: every node that has a feature uses it."""
    _ = self, name
    return True


def _same_for_all(self: ReportedKinds, node_id: str, kinds: tuple[int, ...]) -> None:
    """Assume that all nodes are of one version."""
    _ = kinds
    self._reported[node_id] = next(iter(self._own.values()))


CATALOGUE.add(
    "activated-by-a-majority",
    "a feature is activated once every voter understands it",
    (Activation, "_voters_without", _lacking_if_most_do),
    schedule=upgrades.upgrade_in_which_leaders_change,
)

CATALOGUE.add(
    "used-before-activation",
    "a feature is used once its activation is recorded",
    (Activation, "is_active", _active_from_the_start),
    schedule=upgrades.upgrade_of_the_leader_alone,
)

CATALOGUE.add(
    "members-of-one-version",
    "a member's features are the features that it has reported, not the leader's features",
    (ReportedKinds, "learn", _same_for_all),
    schedule=upgrades.upgrade_in_which_leaders_change,
)
