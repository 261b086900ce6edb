"""Promises about handing leadership over, which not every engine can."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from dledger.consensus.engine import EngineKind
from dledger.invariants import invariant
from dledger.testing.engine_group import replica
from dledger.testing.engine_suite.groups import LONG_S, Promise, led_by_a


def leadership_is_handed_over(kind: EngineKind) -> None:
    """To the voter that is named, once it has everything; until then nothing is proposed."""
    group = led_by_a(kind)
    index = group.propose("a", 3)
    invariant(group["a"].transfer(replica("b"), group.now), "a voter can take over")
    invariant(group["a"].transfer_to == replica("b"), "it is known who is to lead")
    invariant(group["a"].is_leader and not group["a"].accepts_proposals, "nothing is proposed meanwhile")
    group.run("a")
    group.settle()
    group.pass_time(0.3)
    invariant(group["b"].is_leader and not group["a"].is_leader, "b leads")
    invariant(group["b"].commit_index > index, "it had everything", commit=group["b"].commit_index)


def a_handover_that_takes_too_long_is_given_up(kind: EngineKind) -> None:
    """The leader goes on."""
    group = led_by_a(kind)
    group.isolate("b")
    group.propose("a")
    group["a"].transfer(replica("b"), group.now)
    group.run("a")
    group.pass_time(LONG_S, "a", "c")
    leads = group["a"].is_leader and group["a"].accepts_proposals and group["a"].transfer_to is None
    invariant(leads, "it leads and proposes again", to=group["a"].transfer_to)


def leadership_goes_to_healthy_voters_only(kind: EngineKind) -> None:
    """Whoever asks is told that nothing came of it."""
    group = led_by_a(kind)
    group["b"].healthy = False
    group.pass_time(0.3)
    invariant(not group["a"].transfer(replica("b"), group.now), "who is not healthy does not take over")
    invariant(not group["a"].transfer(replica("stranger"), group.now), "strangers do not take over")
    invariant(not group["c"].transfer(replica("c"), group.now), "only a leader hands over")
    invariant(group["a"].accepts_proposals, "the leader goes on")


def leadership_is_handed_over_by_its_holder_alone(kind: EngineKind) -> None:
    """What another one says, or what one said who leads no more, makes nobody a candidate."""
    group = led_by_a(kind)
    group.hold(lambda _: True)
    group["a"].transfer(replica("b"), group.now)
    group.run("a")
    said = [envelope for envelope in group.held if envelope.to == "b"]
    invariant(bool(said), "b is told to take over")
    group.hold(lambda _: False)
    group.held.clear()
    before = group["b"].role, group["b"].term
    for envelope in said:
        group.deliver(replace(envelope, sender="c"))
    after = group["b"].role, group["b"].term
    invariant(after == before, "c has nothing to hand over", before=before, after=after)
    group.isolate("a")
    group.elect("c")
    before = group["b"].role, group["b"].term
    for envelope in said:
        group.deliver(envelope)
    after = group["b"].role, group["b"].term
    invariant(after == before and group["c"].is_leader, "a has it no more", before=before, after=after)


PROMISES: Final[tuple[Promise, ...]] = (
    leadership_is_handed_over,
    a_handover_that_takes_too_long_is_given_up,
    leadership_goes_to_healthy_voters_only,
    leadership_is_handed_over_by_its_holder_alone,
)
