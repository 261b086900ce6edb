"""Promises that hold whatever happens: groups whose links, disks and processes fail at random."""

from __future__ import annotations

from random import Random
from typing import Final

from dledger.consensus.engine import EngineKind
from dledger.invariants import invariant
from dledger.testing.engine_suite.groups import LONG_S, Group, Promise, group_of, leaders, require_equal_logs

SEEDS: Final = range(1, 21)
STEPS: Final = 300


def _storm(kind: EngineKind, seed: int) -> Group:
    """Whatever breaks a promise that `EngineGroup` checks all along raises here."""
    random = Random(seed)
    group = group_of(kind, seed=seed)
    names = list(group.members)
    for _ in range(STEPS):
        name, other = random.sample(names, 2)
        match random.randrange(12):
            case 0:
                group.cut((name, other))
            case 1:
                group.heal()
            case 2 if random.random() < 0.5:
                group.crash(name)
                group.heal()
            case 3:
                group.unsynced ^= {name}
            case 4:
                group.sync(name)
            case 5 | 6 | 7:
                for leader in leaders(group):
                    if group[leader].accepts_proposals:
                        group.propose(leader, random.randint(1, 3))
            case 8:
                random.shuffle(names)
                group.pass_time(random.choice((0.1, 0.3, 1.2)), *names[: random.randint(1, 3)])
            case _:
                group.pass_time(random.choice((0.02, 0.1, 0.3)))
    return group


def _calm(group: Group) -> None:
    group.unsynced.clear()
    group.heal()
    for name in group.members:
        group.sync(name)
    group.pass_time(LONG_S)


def a_storm_breaks_no_promise_and_passes(kind: EngineKind) -> None:
    """Then somebody leads, takes what is proposed, and everybody has the same."""
    for seed in SEEDS:
        group = _storm(kind, seed)
        _calm(group)
        invariant(len(leaders(group)) == 1, "somebody leads", seed=seed, leaders=leaders(group))
        (leader,) = leaders(group)
        index = group.propose(leader)
        group.settle()
        group.pass_time(0.3)
        invariant(group[leader].commit_index == index, "the group goes on", seed=seed, index=index)
        require_equal_logs(group)


def the_same_calls_have_the_same_effects(kind: EngineKind) -> None:
    """With the same generator of random numbers: a run that failed can be run again."""
    stories = []
    for _ in range(2):
        group = _storm(kind, 7)
        logs = {name: list(member.log) for name, member in group.members.items()}
        stories.append((group.leaders, group.committed, logs, group.now))
    invariant(stories[0] == stories[1], "both runs are the same")


PROMISES: Final[tuple[Promise, ...]] = (a_storm_breaks_no_promise_and_passes, the_same_calls_have_the_same_effects)
