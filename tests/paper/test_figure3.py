"""The properties of figure 3 of the Raft paper hold in random histories of three and five cores.

At every commit the harness itself checks that all cores commit the same entries (state machine safety). At every
election it checks that the leader holds all entries committed before (leader completeness).
"""

from random import Random

import pytest

from dledger.types import Role
from dledger_sim.cores import CoreGroup

STEPS = 250


class History:
    """Random elections, proposals, losses, cuts and crashes, all drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.names = "abcde"[: self.random.choice((3, 5))]
        self.group = CoreGroup(*self.names, seed=seed, one_entry_a_message=True)
        self.leaders: dict[int, str] = {}
        """Leader that was seen in each term."""
        self.led: dict[int, list[int]] = {}
        """Terms of that leader's entries when it was last seen."""
        self.shortened = 0
        """Number of times that a log lost entries."""

    def step(self) -> None:
        """Do one random step."""
        group, random = self.group, self.random
        name = random.choice(self.names)
        lengths = [len(group.members[name].log) for name in self.names]
        match random.randrange(12):
            case 0:
                self._depose()
            case 1 | 2:
                group.tick(name, random.uniform(0, group.settings.heartbeat_s))
            case 3 | 4 if group[name].is_leader:
                group.propose(name, random.randint(1, 3))
            case 5 if random.random() < 0.5:
                group.heal()
            case 6 if random.random() < 0.2:
                group.crash(name)
            case 7 if group.wire:
                del group.wire[random.randrange(len(group.wire))]
            case _:
                for _ in range(random.randint(1, 12)):
                    if group.wire:
                        group.deliver(group.wire.pop(random.randrange(min(3, len(group.wire)))))
        for name in self.names:
            group.tick(name)
        self.shortened += any(
            len(group.members[name].log) < length for name, length in zip(self.names, lengths, strict=True)
        )

    def _depose(self) -> None:
        """Cut a core off, if possible a leader, which goes on appending. Let another core campaign."""
        group, random = self.group, self.random
        victim = next((name for name in self.names if group[name].is_leader), random.choice(self.names))
        if random.random() < 0.5:
            group.isolate(victim)
        if group[victim].is_leader:
            group.propose(victim, random.randint(1, 3))
        group.campaign(random.choice([name for name in self.names if name != victim]))

    def observe(self) -> None:
        """Check election safety and leader append-only for the present state."""
        for name in self.names:
            raft, terms = self.group[name], self.group.members[name].terms
            if raft.role is Role.LEADER:
                assert self.leaders.setdefault(raft.term, name) == name, "one leader a term"
                before = self.led.get(raft.term, [])
                assert terms[: len(before)] == before, "a leader only appends"
                self.led[raft.term] = terms

    def check_logs_match(self) -> None:
        """Check that logs that agree at an index agree below it.

        A term stands for an entry here, since one leader made each entry of a term.
        """
        logs = [self.group.members[name].terms for name in self.names]
        for place, one in enumerate(logs):
            for other in logs[:place]:
                agree = [mine == theirs for mine, theirs in zip(one, other, strict=False)]
                assert agree == sorted(agree, reverse=True), (one, other)

    def settle(self) -> None:
        """Heal everything, and check that the group agrees and accepts an entry."""
        group = self.group
        group.heal()
        group.pass_time(6.0)
        (leader,) = (name for name in self.names if group[name].is_leader)
        index = group.propose(leader)
        group.pass_time(0.3)
        assert {group[name].commit_index for name in self.names} == {index}
        assert len({tuple(group.members[name].terms) for name in self.names}) == 1


def test_histories_are_eventful() -> None:
    """The histories of the other tests here have many leaders, commits and conflicts."""
    histories = [History(seed) for seed in range(30)]
    for history in histories:
        for _ in range(STEPS):
            history.step()
            history.observe()
    assert sum(len(history.leaders) for history in histories) > 60
    assert sum(len(history.group.committed) for history in histories) > 300
    assert sum(history.shortened for history in histories) > 30


@pytest.mark.parametrize("seed", range(60))
def test_election_safety_leader_append_only_and_log_matching_hold(seed: int) -> None:
    """Election safety, leader append-only and log matching hold after every step."""
    history = History(seed)
    for _ in range(STEPS):
        history.step()
        history.observe()
        history.check_logs_match()


@pytest.mark.parametrize("seed", range(100, 120))
def test_a_healed_group_elects_a_leader_and_commits_again(seed: int) -> None:
    """Once messages arrive again, the group elects a leader, all logs become equal, and entries are committed."""
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.settle()
