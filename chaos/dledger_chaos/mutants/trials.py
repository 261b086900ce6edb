"""Which faults and workloads convict which known bug in real processes.

A bug that is not listed shows itself there in one unlucky moment of thousands, or to nobody who uses the product: the
simulator and its schedules catch it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class MutantTrial:
    """Faults and workloads of `dledger chaos run --mutant NAME` where nothing else is said."""

    faults: tuple[str, ...]
    workloads: tuple[str, ...]


ANYTHING: Final = MutantTrial(("all",), ("all",))

_POWER: Final = ("power-loss-all", "power-loss-majority")
_KILLS: Final = ("kill-all", "kill-leader")

TRIALS: Final[dict[str, MutantTrial]] = {
    "commit-without-quorum": MutantTrial(("partition-leader", "partition-halves"), ("append",)),
    "leader-counts-unsynced": MutantTrial((*_POWER, "fsync-slow"), ("append",)),
    "ack-before-sync": MutantTrial((*_POWER, "power-loss-leader", "fsync-slow"), ("append",)),
    "vote-for-short-log": MutantTrial(("partition-node", "partition-leader", "kill-leader"), ("append",)),
    "read-without-round": MutantTrial(("partition-halves", "partition-leader"), ("append", "offsets")),
    "read-unconfirmed": MutantTrial(("partition-halves", "partition-leader"), ("append", "offsets")),
    "mark-before-sync": MutantTrial(_POWER, ("append",)),
    "directory-not-synced": MutantTrial(_POWER, ("append", "retention")),
    "old-segment-not-synced": MutantTrial(_POWER, ("append", "retention")),
    "send-answered-when-staged": MutantTrial(("partition-leader",), ("append",)),
    "lost-send-refused": MutantTrial(("partition-one-way", "half-open"), ("append",)),
    "forward-sent-again": MutantTrial(("partition-leader", "kill-leader"), ("cpp", "append")),
    "follower-denies": MutantTrial(("bandwidth", "latency"), ("append", "catalogue")),
    "follower-moves-consumer": MutantTrial(("partition-node", "partition-one-way"), ("followers",)),
    "commit-answered-at-once": MutantTrial((*_KILLS, "partition-leader"), ("offsets",)),
    "overlay-kept": MutantTrial(("partition-leader", "pause-leader"), ("append",)),
    "trim-undecided": MutantTrial(_KILLS, ("append", "retention")),
    "trim-takes-one-more": MutantTrial(("kill-follower",), ("append", "retention")),
    "rebuild-forgotten": MutantTrial(_POWER, ("append",)),
    "checkpoint-before-sync": MutantTrial(_POWER, ("append",)),
    "sends-forgotten-at-failover": MutantTrial(("kill-leader", "partition-leader"), ("append",)),
    "repetition-in-flight-stored": MutantTrial(("partition-leader", "pause-follower"), ("append",)),
    "repetition-not-compared": MutantTrial(("kill-leader",), ("append",)),
}
