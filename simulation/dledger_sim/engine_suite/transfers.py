"""Promises about handing leadership over, which only some engines can do."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dledger.consensus.engine import EngineKind
from dledger_base.invariants import invariant
from dledger_sim.engine_group import replica
from dledger_sim.engine_suite.groups import LONG_S, Promise, led_by_a


def leadership_is_handed_over(kind: EngineKind) -> None:
    """Check that the named voter leads once it has all entries, and that nothing is proposed until then."""
    group = led_by_a(kind)
    index = group.propose("a", 3)
    invariant(group["a"].transfer(replica("b"), group.now), "a voter can take over")
    invariant(group["a"].transfer_to == replica("b"), "the target of the transfer is known")
    invariant(group["a"].is_leader and not group["a"].accepts_proposals, "nothing is proposed meanwhile")
    group.run("a")
    group.settle()
    group.pass_time(0.3)
    invariant(group["b"].is_leader and not group["a"].is_leader, "b leads")
    invariant(group["b"].commit_index > index, "b had all entries", commit=group["b"].commit_index)


def slow_handover_is_given_up(kind: EngineKind) -> None:
    """Check that a leader continues to lead if a handover takes too long."""
    group = led_by_a(kind)
    group.isolate("b")
    group.propose("a")
    group["a"].transfer(replica("b"), group.now)
    group.run("a")
    group.pass_time(LONG_S, "a", "c")
    leads = group["a"].is_leader and group["a"].accepts_proposals and group["a"].transfer_to is None
    invariant(leads, "it leads and proposes again", to=group["a"].transfer_to)


def leadership_goes_to_healthy_voters_only(kind: EngineKind) -> None:
    """Check that leadership is handed to healthy voters only, and that the caller is notified if it is not."""
    group = led_by_a(kind)
    group["b"].healthy = False
    group.pass_time(0.3)
    invariant(not group["a"].transfer(replica("b"), group.now), "an unhealthy voter does not take over")
    invariant(not group["a"].transfer(replica("stranger"), group.now), "strangers do not take over")
    invariant(not group["c"].transfer(replica("c"), group.now), "only a leader hands over")
    invariant(group["a"].accepts_proposals, "the leader takes proposals")


def member_campaigns_only_for_its_leaders_handover(kind: EngineKind) -> None:
    """Check that a member does not campaign for a handover that its leader did not begin.

    Neither another member nor a former leader can make it a candidate.
    """
    group = led_by_a(kind)
    group.hold(lambda _: True)
    group["a"].transfer(replica("b"), group.now)
    group.run("a")
    handovers = [envelope for envelope in group.held if envelope.to == "b"]
    invariant(bool(handovers), "b is told to take over")
    group.hold(lambda _: False)
    group.held.clear()
    before = group["b"].role, group["b"].term
    for envelope in handovers:
        group.deliver(replace(envelope, sender="c"))
    after = group["b"].role, group["b"].term
    invariant(after == before, "c has nothing to hand over", before=before, after=after)
    group.isolate("a")
    group.elect("c")
    before = group["b"].role, group["b"].term
    for envelope in handovers:
        group.deliver(envelope)
    after = group["b"].role, group["b"].term
    invariant(after == before and group["c"].is_leader, "a former leader cannot hand over", before=before, after=after)


PROMISES: Final[tuple[Promise, ...]] = (
    leadership_is_handed_over,
    slow_handover_is_given_up,
    leadership_goes_to_healthy_voters_only,
    member_campaigns_only_for_its_leaders_handover,
)
