"""Groups in which the promises of an engine begin."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dledger.consensus.engine import Engine, EngineKind
from dledger.invariants import invariant
from dledger.testing.engine_group import ENTRY_BYTES, STEP_S, EngineGroup, Envelope
from dledger.types import Role

Promise = Callable[[EngineKind], None]
Group = EngineGroup[Engine]

LONG_S = 5.0
"""Several times the longest time that passes before an election."""


def group_of(
    kind: EngineKind,
    *voters: str,
    learners: Iterable[str] = (),
    strangers: Iterable[str] = (),
    seed: int = 1,
    one_entry_a_message: bool = False,
) -> Group:
    """A group whose messages go through the kind's codec; by default of the voters a, b and c."""
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
    """A group in which a leads, and everybody knows that its no-op is committed."""
    group = group_of(kind, *voters, learners=learners, one_entry_a_message=one_entry_a_message)
    group.elect("a")
    group.pass_time(0.3)
    committed = {name: engine.commit_index for name, engine in engines(group).items()}
    invariant(set(committed.values()) == {0}, "all know that the no-op is committed", committed=committed)
    return group


def engines(group: Group) -> dict[str, Engine]:
    """All engines by name."""
    return {name: member.engine for name, member in group.members.items()}


def leaders(group: Group) -> list[str]:
    """Who leads, each in its own term."""
    return [name for name, engine in engines(group).items() if engine.is_leader]


def brings_entries(envelope: Envelope) -> bool:
    """Whether a message has entries behind it."""
    return bool(envelope.metas)


def require_equal_logs(group: Group, *names: str) -> None:
    """All of these have the same entries, as far as each one's log reaches back, and have committed the same."""
    members = [group.members[name] for name in names or tuple(group.members)]
    behind = max(member.first_index for member in members)
    logs = [[meta for meta in member.log if meta.index >= behind] for member in members]
    invariant(all(log == logs[0] for log in logs), "all logs are equal", lengths=[len(log) for log in logs])
    commits = [member.engine.commit_index for member in members]
    invariant(len(set(commits)) == 1, "all have committed the same", commits=commits)


def let_through(group: Group, *pairs: str) -> list[Envelope]:
    """Deliver what is held and goes between two members, such as `"ab"`, in either direction; the rest is lost.

    Returns what was delivered. What is said to it is held.
    """
    held, group.held = group.held, []
    delivered = [envelope for envelope in held if {envelope.sender, envelope.to} in map(set, pairs)]
    for envelope in delivered:
        group.deliver(envelope)
    return delivered


def ask_for_votes(group: Group, name: str, *pairs: str) -> None:
    """Have a member campaign, and ask with success whether it would be elected; its requests for votes are held.

    A candidate campaigns in the next term.
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
