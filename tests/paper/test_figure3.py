"""The properties of figure 3 of the Raft paper, over random histories of three and five cores.

The harness itself checks at every commit that all cores commit the same entries (state machine safety), and at every
election that the leader holds all that was committed before (leader completeness).
"""

from random import Random

import pytest

from dledger.testing.cores import CoreGroup
from dledger.types import Role

STEPS = 250


class History:
    """Random elections, proposals, losses, cuts and crashes, all drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.names = "abcde"[: self.random.choice((3, 5))]
        self.group = CoreGroup(*self.names, seed=seed, one_entry_a_message=True)
        self.leaders: dict[int, str] = {}
        """Who was seen leading a term."""
        self.led: dict[int, list[int]] = {}
        """The terms of that leader's entries when it was seen last."""
        self.shortened = 0
        """How often a log lost entries."""

    def step(self) -> None:
        """One thing happens."""
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
        """Cut a core off, a leader if there is one, which goes on appending; another one campaigns."""
        group, random = self.group, self.random
        victim = next((name for name in self.names if group[name].is_leader), random.choice(self.names))
        if random.random() < 0.5:
            group.isolate(victim)
        if group[victim].is_leader:
            group.propose(victim, random.randint(1, 3))
        group.campaign(random.choice([name for name in self.names if name != victim]))

    def observe(self) -> None:
        """Election safety and leader append-only, as far as this moment shows them."""
        for name in self.names:
            raft, terms = self.group[name], self.group.members[name].terms
            if raft.role is Role.LEADER:
                assert self.leaders.setdefault(raft.term, name) == name, "one leader a term"
                before = self.led.get(raft.term, [])
                assert terms[: len(before)] == before, "a leader only appends"
                self.led[raft.term] = terms

    def check_logs_match(self) -> None:
        """Logs that agree at an index agree below it: a term stands for its entry, because one leader made each."""
        logs = [self.group.members[name].terms for name in self.names]
        for place, one in enumerate(logs):
            for other in logs[:place]:
                agree = [mine == theirs for mine, theirs in zip(one, other, strict=False)]
                assert agree == sorted(agree, reverse=True), (one, other)

    def settle(self) -> None:
        """Everything heals; the group must agree and accept an entry."""
        group = self.group
        group.heal()
        group.pass_time(6.0)
        (leader,) = (name for name in self.names if group[name].is_leader)
        index = group.propose(leader)
        group.pass_time(0.3)
        assert {group[name].commit_index for name in self.names} == {index}
        assert len({tuple(group.members[name].terms) for name in self.names}) == 1


def test_histories_are_eventful() -> None:
    """What the other tests here look at has many leaders, commits and conflicts."""
    histories = [History(seed) for seed in range(30)]
    for history in histories:
        for _ in range(STEPS):
            history.step()
            history.observe()
    assert sum(len(history.leaders) for history in histories) > 60
    assert sum(len(history.group.committed) for history in histories) > 300
    assert sum(history.shortened for history in histories) > 30


@pytest.mark.parametrize("seed", range(60))
def test_one_leader_a_term_appends_only_and_logs_match(seed: int) -> None:
    """Election safety, leader append-only and log matching hold after every step."""
    history = History(seed)
    for _ in range(STEPS):
        history.step()
        history.observe()
        history.check_logs_match()


@pytest.mark.parametrize("seed", range(100, 120))
def test_whatever_happened_a_healed_group_goes_on(seed: int) -> None:
    """Once messages arrive again, somebody leads, everybody catches up and entries are committed."""
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.settle()
