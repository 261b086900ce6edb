"""Promises that hold under random failures of links, disks and processes."""

from __future__ import annotations

from random import Random
from typing import Final

from dledger.consensus.engine import EngineKind
from dledger_base.invariants import invariant
from dledger_sim.engine_group import Envelope, replica
from dledger_sim.engine_suite.groups import LONG_S, Group, Promise, engines, group_of, leaders, require_equal_logs

SEEDS: Final = range(1, 21)
STEPS: Final = 300
ROUGH_SEEDS: Final = range(1, 13)
ROUGH_STEPS: Final = 600


def _storm(kind: EngineKind, seed: int) -> Group:
    """Run one storm and return its group. Raises if a promise breaks that `EngineGroup` checks all along."""
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
    """Let all disks and links work again. Then a leader must be elected and commit, and all logs must become equal."""
    group.hold(lambda _: False)
    group.held.clear()
    group.auto_save = True
    group.unsynced.clear()
    group.heal()
    for name, member in group.members.items():
        while member.pending_saves:
            group.save(name)
        group.sync(name)
    for _ in range(5):
        group.pass_time(LONG_S / 5)
        _send_snapshots(group)
    group.pass_time(LONG_S)
    invariant(len(leaders(group)) == 1, "somebody leads", leaders=leaders(group))
    (leader,) = leaders(group)
    index = group.propose(leader)
    group.settle()
    group.pass_time(0.3)
    invariant(group[leader].commit_index == index, "the group goes on", index=index)
    require_equal_logs(group)


def _send_snapshots(group: Group) -> int:
    """Send the snapshots that are requested and still wanted, and return their number."""
    sent = 0
    for name in leaders(group):
        member, engine = group.members[name], group[name]
        for to in dict.fromkeys(member.snapshots_requested):
            if engine.wants_snapshot(to, engine.term):
                group.install(name, to.node_id)
                sent += 1
        member.snapshots_requested.clear()
    return sent


class _RoughStorm:
    """Hundreds of steps, each of about a twentieth of a second, with every kind of failure.

    One message in eight is late, and is then overtaken, repeated or lost. Links are cut in one direction or both, and
    healed. Term and vote reach the disk some steps later. On some members entries reach the disk much later. Processes
    end and restart without what was not synced. Now and then a restarted member has lost synced entries, too, and knows
    that. Only one member at a time has lost entries, because a majority must not lose an acknowledged entry. Logs are
    trimmed, and snapshots are sent. Each member that believes that it leads gets reads, and requests to hand over.
    """

    def __init__(self, kind: EngineKind, seed: int) -> None:
        self.random = Random(seed)
        self.group = group_of(kind, *("abc" if seed % 3 else "abcde"), seed=seed)
        self.group.auto_save = False
        self.group.hold(self._is_late)
        self.snapshots = self.starts = self.losses = 0

    def _is_late(self, _: Envelope) -> bool:
        return self.random.random() < 1 / 8

    def run(self) -> None:
        """Run all steps. Raises if a promise breaks that `EngineGroup` checks all along."""
        for _ in range(ROUGH_STEPS):
            self._step()
            self._deliver_late()
            for name, member in self.group.members.items():
                if member.pending_saves and self.random.random() < 0.6:
                    self.group.save(name)
            self.snapshots += _send_snapshots(self.group)
            self.group.pass_time(self.random.choice((0.02, 0.04, 0.1)))

    def _step(self) -> None:
        group, random = self.group, self.random
        name, other = random.sample(list(group.members), 2)
        match random.randrange(16):
            case 0:
                group.cut((name, other))
            case 1 if random.random() < 0.3:
                group.isolate(name)
            case 2:
                group.heal()
            case 3 if random.random() < 0.4:
                self._start_again(name)
            case 4:
                group.unsynced ^= {name}
            case 5 | 6:
                group.sync(name)
            case 7:
                self._trim(name)
            case 8 | 9 | 10 | 11:
                for leader in leaders(group):
                    if group[leader].accepts_proposals:
                        group.propose(leader, random.randint(1, 3))
            case 12 | 13:
                for leader in leaders(group):
                    group.read(leader)
            case 14 if random.random() < 0.3 and group[name].is_leader:
                group[name].transfer(replica(other), group.now)
                group.run(name)

    def _start_again(self, name: str) -> None:
        """Crash and restart a member. Its messages that are still on their way are lost with its links."""
        group, member = self.group, self.group.members[name]
        in_doubt = [one for one, engine in engines(group).items() if not engine.may_vote]
        loses = self.random.random() < 0.3 and in_doubt in ([], [name])
        if loses and member.durable:
            member.durable = self.random.randrange(member.durable)
            self.losses += 1
        self.starts += 1
        group.held = [late for late in group.held if late.sender != name]
        group.crash(name, may_vote=not loses and name not in in_doubt)

    def _trim(self, name: str) -> None:
        """Trim a member's log, at most up to what is durable and committed."""
        member = self.group.members[name]
        index = min(member.engine.commit_index, member.first_index + member.durable - 1)
        if index >= member.first_index:
            self.group.compact(name, self.random.randint(member.first_index, index))

    def _deliver_late(self) -> None:
        group, random = self.group, self.random
        late, group.held = group.held, []
        random.shuffle(late)
        for envelope in late:
            fate = random.random()
            if fate < 0.4:
                group.held.append(envelope)
            elif fate < 0.85:
                group.wire.append(envelope)
                if fate > 0.75:
                    group.held.append(envelope)


def a_storm_breaks_no_promise_and_passes(kind: EngineKind) -> None:
    """Check that cuts, slow syncs and ended processes break no promise, in groups of three.

    There are `STEPS` steps for each of the `SEEDS`.
    """
    for seed in SEEDS:
        _calm(_storm(kind, seed))


def a_rough_storm_breaks_no_promise_and_passes(kind: EngineKind) -> None:
    """Check that a `_RoughStorm` breaks no promise, with three or five members, for each of the `ROUGH_SEEDS`."""
    storms = [_RoughStorm(kind, seed) for seed in ROUGH_SEEDS]
    for storm in storms:
        storm.run()
        _calm(storm.group)
    counts = [
        sum(len(storm.group.committed) for storm in storms),
        sum(len(storm.group.leaders) for storm in storms),
        sum(storm.snapshots for storm in storms),
        sum(storm.starts for storm in storms),
        sum(storm.losses for storm in storms),
        sum(len(member.reads) for storm in storms for member in storm.group.members.values()),
    ]
    invariant(min(counts) >= len(storms), "entries, leaders, snapshots, starts, losses, reads occur", counts=counts)


def the_same_calls_have_the_same_effects(kind: EngineKind) -> None:
    """Check that the same calls with the same random generator have the same effects.

    So a failed run can be repeated.
    """
    stories = []
    for _ in range(2):
        group = _storm(kind, 7)
        logs = {name: list(member.log) for name, member in group.members.items()}
        stories.append((group.leaders, group.committed, logs, group.now))
    invariant(stories[0] == stories[1], "both runs are the same")


PROMISES: Final[tuple[Promise, ...]] = (
    a_storm_breaks_no_promise_and_passes,
    a_rough_storm_breaks_no_promise_and_passes,
    the_same_calls_have_the_same_effects,
)
