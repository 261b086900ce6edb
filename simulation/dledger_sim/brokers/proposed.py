"""Judge of a leader's proposals: each must belong to the leadership that decided it.

Two kinds of proposals wait in between.

- A commit of an offset waits in a buffer. A leader that has since been deposed must not propose it in a later term:
  other leaders may have taken newer commits.
- A leader that hands over or stops first proposes the commits that it has collected. If it dropped a one-way commit, no
  client would learn of that, although no node was lost.
- A trim waits while the first kept offset of each queue is searched. Another leader may since have taken pins below the
  trim's position. A leader whose handover failed must start again.
"""

# ruff: noqa: SLF001 - watches private names

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from dledger.errors import LogError, NotLeaderError
from dledger.statemachine import Leadership
from dledger_broker.features.offsets.buffer import OffsetBuffer
from dledger_broker.features.offsets.recent_commits import Committer
from dledger_broker.features.offsets.table import CommitOffsets
from dledger_broker.features.retention.policy import TrimPart
from dledger_broker.features.retention.trimming import Trimming
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.events import EventListener
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.trims import TrimQueues
from dledger_sim.brokers.expected import OffsetKey
from dledger_sim.log.invariants import require

LATE_S: Final = 0.1
"""Maximum lateness of a timer, in seconds."""
SLOW_CLOCK: Final = 1.1
"""Maximum factor by which timers of a node with a drifting clock are late."""


def watch_proposals(
    machine: BrokerMachine,
    buffer: OffsetBuffer,
    trimming: Trimming,
    now: Callable[[], float],
    awake_since: Callable[[], float],
) -> Callable[[], None]:
    """Judge the proposals of one life of a node.

    `now` returns simulated seconds: the clock of a busy node runs ahead of its timers. The node was paused until
    `awake_since`. Call the result now and then: it raises `Violation` if a commit waits too long to be proposed.
    """
    _watch_trims(machine, trimming)
    return _watch_commits(machine, buffer, now, awake_since)


def nothing_is_collected(machine: BrokerMachine, buffer: OffsetBuffer, *, refused: bool = False) -> None:
    """Raise `Violation` if a leader holds commits, unless its attempt to propose them was `refused` just now."""
    require(
        not buffer._offsets or refused,
        "a leader that hands over or stops first proposes its collected commits",
        collected=buffer._offsets,
        leadership=machine.leadership,
    )


def _watch_commits(
    machine: BrokerMachine, buffer: OffsetBuffer, now: Callable[[], float], awake_since: Callable[[], float]
) -> Callable[[], None]:
    commit, propose, discard = buffer.commit, buffer._propose, buffer.discard
    taken: dict[tuple[OffsetKey, int], tuple[int, float]] = {}
    """Term and moment of each commit."""
    refused_at = 0.0

    def take(
        group: str, topic: str, queue_id: int, offset: int, done: Done | None = None, committer: Committer | None = None
    ) -> None:
        taken[(group, topic, queue_id), offset] = machine.leadership.term, now()
        commit(group, topic, queue_id, offset, done, committer)

    def proposing(command: Command, done: Done) -> None:
        if machine.leadership.ready and isinstance(command, CommitOffsets):
            for group, topic, queue_id, offset in command.offsets:
                key = group, topic, queue_id
                term, _ = taken[key, offset]
                require(
                    term == machine.leadership.term,
                    "no commit is proposed that was accepted in an earlier term",
                    key=key,
                    offset=offset,
                    taken_in=term,
                    proposed_in=machine.leadership.term,
                )

        def proposed(error: LogError | None) -> None:
            nonlocal refused_at
            if error is not None:
                refused_at = now()
            done(error)

        propose(command, proposed)

    def discarding(error: NotLeaderError) -> None:
        if machine.leadership.is_leader:
            nothing_is_collected(machine, buffer, refused=refused_at == now())
        discard(error)

    def check() -> None:
        for key, one in buffer._offsets.items():
            _, taken_at = taken[key, one.offset]
            waits_s = now() - max(taken_at, refused_at, awake_since())
            require(
                waits_s < buffer._delay_s * SLOW_CLOCK + LATE_S,
                "a commit that is collected is soon proposed, or again if the log was busy",
                key=key,
                offset=one.offset,
                waits_s=waits_s,
            )

    buffer.discard = discarding  # type: ignore[method-assign]
    buffer.commit = take  # type: ignore[method-assign]
    buffer._propose = proposing
    return check


class _Readiness(EventListener):
    """Number of times that a node became ready as the leader."""

    def __init__(self) -> None:
        self.number = 0

    def new_leadership(self, leadership: Leadership) -> None:
        self.number += leadership.ready


def _watch_trims(machine: BrokerMachine, trimming: Trimming) -> None:
    trim, stage = trimming.trim, machine.overlay.stage_command
    begun: dict[int, int] = {}
    readiness = _Readiness()

    def begin(handle: JobHandle, position: int, parts: Sequence[TrimPart] = ()) -> None:
        begun[position] = readiness.number
        trim(handle, position, parts)

    def staging(command: Command, done: Done, *, privileged: bool = False) -> None:
        if machine.leadership.ready and isinstance(command, TrimQueues):
            require(
                begun[command.before_position] == readiness.number,
                "no trim is proposed that was computed before this leader was ready",
                position=command.before_position,
                begun_in=begun[command.before_position],
                proposed_in=readiness.number,
            )
        stage(command, done, privileged=privileged)

    machine.events.add(readiness)
    trimming.trim = begin  # type: ignore[method-assign]
    machine.overlay.stage_command = staging  # type: ignore[method-assign]
