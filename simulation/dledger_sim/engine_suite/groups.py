"""Groups of engines with which the tests of promises begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dledger.consensus.engine import Engine, EngineKind
from dledger.types import Role
from dledger_base.invariants import invariant
from dledger_sim.engine_group import ENTRY_BYTES, STEP_S, EngineGroup, Envelope

Promise = Callable[[EngineKind], None]
Group = EngineGroup[Engine]

LONG_S = 5.0
"""Seconds that are several times the longest election timeout."""


def group_of(
    kind: EngineKind,
    *voters: str,
    learners: Iterable[str] = (),
    strangers: Iterable[str] = (),
    seed: int = 1,
    one_entry_a_message: bool = False,
) -> Group:
    """Return a group whose messages go through the kind's codec; by default with the voters a, b and c."""
    return EngineGroup(
        kind.start,
        *(voters or ("a", "b", "c")),
        learners=learners,
        strangers=strangers,
        seed=seed,
        max_run_bytes=ENTRY_BYTES if one_entry_a_message else 1 << 20,
        codec=kind.codec,
    )


def led_by_a(kind: EngineKind, *voters: str, learners: Iterable[str] = (), one_entry_a_message: bool = False) -> Group:
    """Return a group led by a, in which all members know that a's no-op is committed."""
    group = group_of(kind, *voters, learners=learners, one_entry_a_message=one_entry_a_message)
    group.elect("a")
    group.pass_time(0.3)
    committed = {name: engine.commit_index for name, engine in engines(group).items()}
    invariant(set(committed.values()) == {0}, "all know that the no-op is committed", committed=committed)
    return group


def engines(group: Group) -> dict[str, Engine]:
    """Return all engines by name."""
    return {name: member.engine for name, member in group.members.items()}


def leaders(group: Group) -> list[str]:
    """Return the names of all leaders. Each leads in a term of its own."""
    return [name for name, engine in engines(group).items() if engine.is_leader]


def brings_entries(envelope: Envelope) -> bool:
    """Return whether a message carries entries."""
    return bool(envelope.metas)


def require_equal_logs(group: Group, *names: str) -> None:
    """Raise unless the named members have equal logs and the same commit index; by default all members.

    Logs are compared as far back as all of them reach.
    """
    members = [group.members[name] for name in names or tuple(group.members)]
    behind = max(member.first_index for member in members)
    logs = [[meta for meta in member.log if meta.index >= behind] for member in members]
    invariant(all(log == logs[0] for log in logs), "all logs are equal", lengths=[len(log) for log in logs])
    commits = [member.engine.commit_index for member in members]
    invariant(len(set(commits)) == 1, "all have committed the same", commits=commits)


def let_through(group: Group, *pairs: str) -> list[Envelope]:
    """Deliver the held messages between pairs of members, such as `"ab"`, in either direction, and drop all others.

    Returns the delivered messages. The answers to them are held.
    """
    held, group.held = group.held, []
    delivered = [envelope for envelope in held if {envelope.sender, envelope.to} in map(set, pairs)]
    for envelope in delivered:
        group.deliver(envelope)
    return delivered


def ask_for_votes(group: Group, name: str, *pairs: str) -> None:
    """Have a member campaign, and find out that it would be elected. Its requests for votes are held.

    A member that is already a candidate campaigns in the next term.
    """
    group.wire.clear()
    group.held.clear()
    group.hold(lambda _: True)
    while group[name].role is Role.CANDIDATE:
        group.tick(name, STEP_S)
    group.campaign(name)
    let_through(group, *pairs)
    let_through(group, *pairs)
    invariant(bool(group.held), "who would be elected asks for votes", name=name)
