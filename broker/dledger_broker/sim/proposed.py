"""Judge of what a leader proposes: it belongs to the term in which it was decided, and two things wait in between.

- A commit of an offset waits in a buffer. A leader that was deposed meanwhile does not propose it later, when it leads
  again: others may have taken newer ones.
- A trim waits while the first offset that each queue keeps is searched. Another leader may have taken pins meanwhile
  that the trim's position lies above.
"""

# ruff: noqa: SLF001 - what is watched is what is private

from __future__ import annotations

from dledger.sim.invariants import require
from dledger_broker.machine import BrokerMachine
from dledger_broker.retention import Retention
from dledger_broker.sim.expected import OffsetKey
from dledger_broker.state.commands import Command, CommitOffsets, TrimQueues
from dledger_broker.state.contexts import Done
from dledger_broker.state.recent_commits import Committer


def watch_proposals(machine: BrokerMachine, retention: Retention) -> None:
    """Have one life of a node judged by what it proposes."""
    _watch_commits(machine)
    _watch_trims(machine, retention)


def _watch_commits(machine: BrokerMachine) -> None:
    buffer = machine.offset_buffer
    commit, propose = buffer.commit, buffer._propose
    taken: dict[tuple[OffsetKey, int], int] = {}

    def take(
        group: str, topic: str, queue_id: int, offset: int, done: Done | None = None, by: Committer | None = None
    ) -> None:
        taken[(group, topic, queue_id), offset] = machine.leadership.term
        commit(group, topic, queue_id, offset, done, by)

    def proposing(command: Command, done: Done) -> None:
        if machine.leadership.ready and isinstance(command, CommitOffsets):
            for group, topic, queue_id, offset in command.offsets:
                key = group, topic, queue_id
                term = taken[key, offset]
                require(
                    term == machine.leadership.term,
                    "no commit is proposed that an earlier term took",
                    key=key,
                    offset=offset,
                    taken_in=term,
                    proposed_in=machine.leadership.term,
                )
        propose(command, done)

    buffer.commit = take  # type: ignore[method-assign]
    buffer._propose = proposing


def _watch_trims(machine: BrokerMachine, retention: Retention) -> None:
    trim, stage = retention.trim, machine.stage_command
    begun: dict[int, int] = {}

    def begin(position: int) -> None:
        begun[position] = machine.leadership.term
        trim(position)

    def staging(command: Command, done: Done, *, privileged: bool = False) -> None:
        if machine.leadership.ready and isinstance(command, TrimQueues):
            require(
                begun[command.before_position] == machine.leadership.term,
                "no trim is proposed that was searched in an earlier term",
                position=command.before_position,
                begun_in=begun[command.before_position],
                proposed_in=machine.leadership.term,
            )
        stage(command, done, privileged=privileged)

    retention.trim = begin  # type: ignore[method-assign]
    machine.stage_command = staging  # type: ignore[method-assign]
