"""Judge of what a leader proposes: it belongs to the leadership that decided it, and two things wait in between.

- A commit of an offset waits in a buffer. A leader that was deposed meanwhile does not propose it later, when it leads
  again: others may have taken newer ones.
- A leader that hands over, or that is told to stop, proposes first what it has collected: of a one-way commit that it
  dropped nobody would ever hear, though no node was lost.
- A trim waits while the first offset that each queue keeps is searched. Another leader may have taken pins meanwhile
  that the trim's position lies above; and a leader whose handover has failed has begun anew.
"""

# ruff: noqa: SLF001 - what is watched is what is private

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dledger.errors import LogError, NotLeaderError
from dledger.statemachine import Leadership
from dledger_broker.features.offsets.buffer import OffsetBuffer
from dledger_broker.features.offsets.recent_commits import Committer
from dledger_broker.features.offsets.table import CommitOffsets
from dledger_broker.features.retention.trimming import Trimming
from dledger_broker.kernel.commands import Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.jobs import JobHandle
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.trims import TrimQueues
from dledger_sim.brokers.expected import OffsetKey
from dledger_sim.log.invariants import require

LATE_S: Final = 0.1
"""A timer may be so late."""


def watch_proposals(
    machine: BrokerMachine,
    buffer: OffsetBuffer,
    trimming: Trimming,
    now: Callable[[], float],
    awake_since: Callable[[], float],
) -> Callable[[], None]:
    """Have one life of a node judged by what it proposes.

    `now` tells simulated seconds: the clock of a node that has much to do at once runs ahead of its timers. It stood
    still until `awake_since`. The result is to be called now and then: it raises `Violation` if something waits too
    long to be proposed.
    """
    _watch_trims(machine, trimming)
    return _watch_commits(machine, buffer, now, awake_since)


def nothing_is_collected(machine: BrokerMachine, buffer: OffsetBuffer, *, refused: bool = False) -> None:
    """Raise `Violation` if a leader has commits, unless it was `refused` when it tried to propose them just now."""
    require(
        not buffer._offsets or refused,
        "a leader that hands over, or stops, proposes first what it has collected",
        collected=buffer._offsets,
        leadership=machine.leadership,
    )


def _watch_commits(
    machine: BrokerMachine, buffer: OffsetBuffer, now: Callable[[], float], awake_since: Callable[[], float]
) -> Callable[[], None]:
    commit, propose, discard = buffer.commit, buffer._propose, buffer.discard
    taken: dict[tuple[OffsetKey, int], tuple[int, float]] = {}
    """The term and the moment of each commit."""
    refused_at = 0.0

    def take(
        group: str, topic: str, queue_id: int, offset: int, done: Done | None = None, by: Committer | None = None
    ) -> None:
        taken[(group, topic, queue_id), offset] = machine.leadership.term, now()
        commit(group, topic, queue_id, offset, done, by)

    def proposing(command: Command, done: Done) -> None:
        if machine.leadership.ready and isinstance(command, CommitOffsets):
            for group, topic, queue_id, offset in command.offsets:
                key = group, topic, queue_id
                term, _ = taken[key, offset]
                require(
                    term == machine.leadership.term,
                    "no commit is proposed that an earlier term took",
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
                waits_s < buffer._delay_s + LATE_S,
                "a commit that is collected is soon proposed, or again if the log was busy",
                key=key,
                offset=one.offset,
                waits_s=waits_s,
            )

    buffer.discard = discarding  # type: ignore[method-assign]
    buffer.commit = take  # type: ignore[method-assign]
    buffer._propose = proposing
    return check


def _watch_trims(machine: BrokerMachine, trimming: Trimming) -> None:
    trim, stage = trimming.trim, machine.overlay.stage_command
    begun: dict[int, int] = {}
    readiness = 0

    def on_leadership(leadership: Leadership) -> None:
        nonlocal readiness
        readiness += leadership.ready

    def begin(handle: JobHandle, position: int) -> None:
        begun[position] = readiness
        trim(handle, position)

    def staging(command: Command, done: Done, *, privileged: bool = False) -> None:
        if machine.leadership.ready and isinstance(command, TrimQueues):
            require(
                begun[command.before_position] == readiness,
                "no trim is proposed that was searched before this leader was ready",
                position=command.before_position,
                begun_in=begun[command.before_position],
                proposed_in=readiness,
            )
        stage(command, done, privileged=privileged)

    machine.on_leadership_changed.append(on_leadership)
    trimming.trim = begin  # type: ignore[method-assign]
    machine.overlay.stage_command = staging  # type: ignore[method-assign]
