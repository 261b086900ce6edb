"""Judge of disks that hang: a leader whose own disk hangs hands over, if nothing else is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dledger.environment import FLUSH
from dledger.replica.storing.flusher import SLOW_SYNC_S
from dledger_sim.log.group import SimGroup
from dledger_sim.log.violation import require

HANDED_OVER_S: Final = SLOW_SYNC_S + 3.0
"""Time limit for a handover, in seconds.

Within it the disk is found slow and another node is asked. In this time a term may start without a leader.
"""


@dataclass(frozen=True, slots=True)
class Hang:
    """Fault of a leader's disk that began while all voters followed.

    `faults` is the number of other faults that had been injected before.
    """

    node: str
    term: int
    faults: int


def begin_hang(group: SimGroup, node: str, faults: int) -> Hang | None:
    """Return what to judge when the fault ends.

    Return None unless the node leads, there are several voters, and all of them follow.
    """
    leader = group.leader
    if leader is None or leader.replica is None or leader.name != node:
        return None
    engine = leader.replica.engine
    replicas = [replica for node in group.nodes.values() if (replica := node.replica) is not None]
    followers = sum(
        replica.me in engine.membership.voters and replica.engine.term == engine.term for replica in replicas
    )
    whole = len(engine.membership.voters) == followers > 1 and group.paused_until <= group.scheduler.now
    if whole:
        group.witness.happened["leader's disk hangs"] += 1
    return Hang(node, engine.term, faults) if whole else None


def judge_hang(group: SimGroup, hang: Hang, faults: int) -> None:
    """Check, when the disk answers again, that nothing waited too long for a leader that did not hand over."""
    life = group.nodes[hang.node].life
    if life is None or faults != hang.faults or life.replica.engine.term != hang.term or not life.replica.is_ready:
        return
    group.witness.happened["leader goes on with a disk that hangs"] += 1
    sync_s, waited_s = life.environment.busy_s(FLUSH), life.waiting.oldest_s
    require(
        max(sync_s, waited_s) < HANDED_OVER_S,
        "a leader whose disk hangs hands over",
        node=hang.node,
        sync_s=sync_s,
        waited_s=waited_s,
    )
