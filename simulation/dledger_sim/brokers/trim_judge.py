"""Judge of retention: a trim takes only expired messages, unless the oldest messages may go.

It knows place and time of every message, and computes independently which messages the two limits let go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dledger_broker.features.delay.commands import EndTimers
from dledger_broker.features.retention.policy import RetentionPolicy, TrimPart
from dledger_broker.features.retention.trimming import Trimming
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_sim.brokers.truth import Truth
from dledger_sim.log.group import Life
from dledger_sim.log.invariants import require

CLOCKS_MS: Final = 4_000
"""Tolerance in milliseconds: clocks of different speeds differ by less after the longest run."""


def judge_trims(
    machine: BrokerMachine,
    trimming: Trimming,
    life: Life,
    truth: Truth,
    policy: RetentionPolicy,
    was_above: Callable[[float], bool],
    *,
    clocks_ms: int = CLOCKS_MS,
) -> None:
    """Raise `Violation` when this node's retention takes messages that the policy keeps, or gives up pending messages.

    `was_above` returns whether a leader may believe that a disk is fuller than a share.
    """
    trim, stage = trimming.trim, machine.overlay.stage_command

    def oldest_may_go() -> bool:
        group = truth.group
        return policy.deletes_oldest(1.0) and (group.disks_filled or was_above(policy.delete_oldest_ratio))

    def begin(handle: JobHandle, position: int, parts: Sequence[TrimPart] = ()) -> None:
        if parts and not truth.group.clocks_jumped and not oldest_may_go():
            _check(position)
        trim(handle, position, parts)

    def _check(position: int) -> None:
        log, now_ms = machine.log, life.environment.wall_ms()
        end, first, segment_bytes = log.segments()[-1].end_position, log.first_position, log.segment_bytes
        for stored in truth.by_position.values():
            if not first <= stored.position < position:
                continue
            age_ms = now_ms - stored.at_ms
            kept = end - (stored.position - stored.position % segment_bytes)
            require(
                age_ms > policy.max_age_ms - clocks_ms or (policy.max_log_bytes and kept > policy.max_log_bytes),
                "retention deletes only expired log",
                message=stored,
                age_ms=age_ms,
                kept_from_there=kept,
                trim=position,
                policy=policy,
            )
        truth.happened["expired messages trimmed"] += 1

    def staging(command: Command, done: Done, *, privileged: bool = False) -> None:
        if isinstance(command, EndTimers):
            is_gone = command.below <= machine.log.first_position
            require(
                is_gone or oldest_may_go(), "no waiting message is given up while sends are refused", command=command
            )
        stage(command, done, privileged=privileged)

    trimming.trim = begin  # type: ignore[method-assign]
    machine.overlay.stage_command = staging  # type: ignore[method-assign]
