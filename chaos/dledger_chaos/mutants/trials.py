"""Table of the faults and workloads that convict each known bug in real processes.

A bug that is not listed takes effect too rarely, or in no answer to a workload. The simulator and its schedules catch
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class MutantTrial:
    """Default faults, workloads and target of `dledger chaos run --mutant NAME`."""

    faults: tuple[str, ...]
    workloads: tuple[str, ...]
    target: str = "local"


ANYTHING: Final = MutantTrial(("all",), ("all",))

TRIALS: Final[dict[str, MutantTrial]] = {
    "commit-without-quorum": MutantTrial(("partition-leader", "partition-halves"), ("append",)),
    "send-answered-when-staged": MutantTrial(("partition-leader",), ("append",)),
    "lost-send-refused": MutantTrial(("partition-one-way", "half-open"), ("append",)),
    "commit-answered-at-once": MutantTrial(("kill-all", "kill-leader", "partition-leader"), ("offsets",)),
    "overlay-kept": MutantTrial(("partition-leader", "pause-leader"), ("append",)),
    "trim-takes-one-more": MutantTrial(("kill-follower",), ("append", "retention")),
    "ack-before-sync": MutantTrial(("power-loss-all", "power-loss-majority", "fsync-slow"), ("append",)),
    "recovery-trusts-the-cache": MutantTrial(("fsync-fails", "power-loss-all"), ("append",)),
    "sends-forgotten-at-failover": MutantTrial(("kill-leader", "partition-leader"), ("ordered", "append")),
    "repetition-not-compared": MutantTrial(("kill-leader",), ("append",)),
    "late-commit-taken": MutantTrial(("latency", "partition-one-way"), ("offsets",)),
    "read-unconfirmed": MutantTrial(("deposed-leader",), ("offsets",)),
    "send-to-deleted-topic": MutantTrial(("kill-follower",), ("passing",)),
    "checkpoint-before-sync": MutantTrial(("power-loss-all", "power-loss-follower"), ("append", "retention")),
    "polls-never-woken": MutantTrial(("kill-leader",), ("consumers",)),
    "fired-early": MutantTrial(("kill-leader",), ("delays",)),
    "retried-for-ever": MutantTrial(("kill-leader",), ("retries",)),
    "origin-of-the-last-delivery": MutantTrial(("kill-leader",), ("retries",)),
    "lease-ends-with-its-leader": MutantTrial(("kill-leader",), ("locks", "orderly")),
    "commit-without-its-message": MutantTrial(("kill-leader",), ("transactions",)),
    "commit-without-its-end": MutantTrial(("kill-leader",), ("transactions",)),
    "ends-in-flight-not-waited-for": MutantTrial(("kill-leader",), ("transactions",)),
    "rollback-answered-when-staged": MutantTrial(("partition-leader", "kill-leader"), ("transactions",)),
    "batch-acknowledges-its-delivery": MutantTrial(("kill-leader",), ("pops",)),
    "one-copy-for-a-unit": MutantTrial(("kill-leader",), ("pops",)),
    "mode-answered-when-staged": MutantTrial(("partition-leader", "kill-leader"), ("assignments",)),
    "null-lets-through": MutantTrial(("kill-leader",), ("filtered",)),
    "properties-of-the-one-in-front": MutantTrial(("kill-leader",), ("filtered",)),
    "learners-count": MutantTrial(("shrunk-group",), ("append",)),
    "read-without-round": MutantTrial(("deposed-leader",), ("registers",), "register"),
    "read-before-apply": MutantTrial(("kill-all",), ("registers",), "register"),
    "answer-before-apply": MutantTrial(("kill-leader", "partition-leader"), ("registers",), "register"),
}
